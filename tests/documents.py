"""Parts of the documents that are made from the code: `python -m tests.documents` writes them again.

ARCHITECTURE.md's diagram of states comes from the assembler's table, docs/events.md and docs/metrics.md from the facts
and the metrics, docs/check.md from the codes of findings. `tests/unit/test_documents.py` fails when one is stale.
"""

from pathlib import Path
from typing import Final

from cdcd import facts, facts_operation
from cdcd.checks import codes
from cdcd.protocol.peek import CHANGES
from cdcd.spark import progress
from cdcd.telemetry import metrics, mirror
from cdcd.transactions.assembler import TRANSITIONS, State

ROOT: Final = Path(__file__).parent.parent
ARCHITECTURE: Final = ROOT / "ARCHITECTURE.md"
BEGIN: Final = "<!-- states -->\n"
END: Final = "<!-- /states -->"

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
    edges: dict[tuple[State, State], list[str]] = {}
    for (state, tag), (to, _) in TRANSITIONS.items():
        edges.setdefault((state, to), []).append(TAGS[chr(tag)])
    # What the table leaves to the loop around it: a normal transaction's changes are passed on as they are.
    edges[State.TRANSACTION, State.TRANSACTION] += [TAGS[chr(tag)] for tag in sorted(CHANGES)]
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> IDLE"]
    lines += [f"    {state.name}: {state.name}<br>{state.value}" for state in State]
    lines += [f"    {state.name} --> {to.name}: {', '.join(tags)}" for (state, to), tags in edges.items()]
    return "\n".join([*lines, "```", ""])


def architecture() -> str:
    """ARCHITECTURE.md as it should be."""
    before, _, rest = ARCHITECTURE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{states()}{END}{after}"


def documents() -> dict[Path, str]:
    """Every document with a generated part, as it should be."""
    return {
        ARCHITECTURE: architecture(),
        ROOT / "docs" / "check.md": codes.markdown(),
        ROOT / "docs" / "events.md": facts.markdown() + facts_operation.markdown() + progress.markdown(),
        ROOT / "docs" / "metrics.md": metrics.markdown() + mirror.markdown(),
    }


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text)
