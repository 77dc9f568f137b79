"""Parts of the documents that are made from the code: `python -m tests.documents` writes them again.

ARCHITECTURE.md's diagram of states comes from the assembler's table, docs/events.md and docs/metrics.md from the facts
and the metrics, docs/check.md from the codes of findings, the records of docs/records.md from the encoder, docs/cli.md
from the commands, docs/debezium-options.md from the tables of options, the list of docs/adr from its records.
`tests/unit/test_documents.py` fails when one is
stale.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from cdcd.cli.__main__ import cli
from cdcd.core.facts import listing
from cdcd.core.protocol.peek import CHANGES
from cdcd.core.transactions.assembler import TRANSITIONS, StreamState
from cdcd.mirror.watching import progress
from cdcd.telemetry import check_codes as codes
from cdcd.telemetry import metrics, mirror, verify
from tests import option_pages
from tests.record_examples import sections

ROOT: Final = Path(__file__).parent.parent
ARCHITECTURE: Final = ROOT / "ARCHITECTURE.md"
RECORDS: Final = ROOT / "docs" / "records.md"
ADR: Final = ROOT / "docs" / "adr"

HELP_WIDTH: Final = 100
"""Characters in a line of docs/cli.md's help texts."""

TAGS: Final = {
    "B": "Begin",
    "C": "Commit",
    "S": "Stream Start",
    "E": "Stream Stop",
    "c": "Stream Commit",
    "A": "Stream Abort",
    "b": "Begin Prepare",
    "P": "Prepare",
    "K": "Commit Prepared",
    "r": "Rollback Prepared",
    "p": "Stream Prepare",
    "M": "Message",
    "R": "Relation",
    "Y": "Type",
    "O": "Origin",
    "I": "Insert",
    "U": "Update",
    "D": "Delete",
    "T": "Truncate",
}


def states() -> str:
    """The assembler's table as a Mermaid diagram."""
    edges: dict[tuple[StreamState, StreamState], list[str]] = {}
    for (state, tag), (to, _) in TRANSITIONS.items():
        edges.setdefault((state, to), []).append(TAGS[chr(tag)])
    # What the table leaves to the loop around it: a normal transaction's changes are passed on as they are.
    edges[StreamState.TRANSACTION, StreamState.TRANSACTION] += [TAGS[chr(tag)] for tag in sorted(CHANGES)]
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> IDLE"]
    lines += [f"    {state.name}: {state.name}<br>{state.value}" for state in StreamState]
    lines += [f"    {state.name} --> {to.name}: {', '.join(tags)}" for (state, to), tags in edges.items()]
    return "\n".join([*lines, "```", ""])


def filled(path: Path, parts: dict[str, str]) -> str:
    """A document with each part between its marks, `<!-- name -->` and `<!-- /name -->`."""
    text = path.read_text()
    marked = re.findall(r"^<!-- ([a-z-]+) -->$", text, re.MULTILINE)
    assert sorted(marked) == sorted(parts), f"{path.name} has marks for {marked}, and there is {list(parts)}"
    for name, part in parts.items():
        before, _, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        text = f"{before}<!-- {name} -->\n{part}{end}{after}"
    return text


def commands() -> str:
    """docs/cli.md: what each command says of itself with --help."""
    made = "Made from the commands by `python -m tests.documents`; a test keeps it so."
    parts = [f"# Commands\n\n{made} `cdcd COMMAND --help` says the same.\n"]
    # The command keeps the names of its help option from the first context that asks: all are as `cdcd` makes them.
    top = click.Context(cli, info_name="cdcd", terminal_width=HELP_WIDTH, **cli.context_settings)
    parts += [
        f"## {each.command_path}\n\n```text\n{each.get_help().rstrip()}\n```\n" for each in _contexts(top)
    ]
    return "\n".join(parts)


def _contexts(context: click.Context) -> Iterator[click.Context]:
    """The context of a command and of those below it."""
    yield context
    command = context.command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _contexts(click.Context(below, info_name=name, parent=context))


def decisions() -> str:
    """The list of docs/adr, by the titles of its records."""
    titles = [
        (path.name, path.read_text().partition("\n")[0].removeprefix("# "))
        for path in sorted(ADR.glob("0*.md"))
    ]
    lines = [f"- [{title}]({name})" for name, title in titles]
    head = "The decisions that still shape the code: each record has the problem, the choice, and the rejected ways."
    return "\n".join(["# Decisions", "", head, "", *lines, ""])


def documents() -> dict[Path, str]:
    """Every document with a generated part, as it should be."""
    return {
        ARCHITECTURE: filled(ARCHITECTURE, {"states": states()}),
        RECORDS: filled(RECORDS, sections()),
        ADR / "README.md": decisions(),
        ROOT / "docs" / "check.md": codes.markdown(),
        ROOT / "docs" / "cli.md": commands(),
        ROOT / "docs" / "debezium-options.md": option_pages.markdown(),
        ROOT / "docs" / "events.md": listing.markdown() + progress.markdown(),
        ROOT / "docs" / "metrics.md": metrics.markdown() + mirror.markdown() + verify.markdown(),
    }


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text)
