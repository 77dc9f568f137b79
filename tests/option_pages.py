"""docs/debezium-options.md: the tables of options, from which `cdcd adopt` judges."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from cdcd.adopt import options_connect, options_records, options_snapshot, options_source
from cdcd.adopt.verdicts import ByValue, Kind, Option, Verdict

_SECTIONS: Final[Sequence[tuple[str, Sequence[Option]]]] = (
    ("Kafka Connect", options_connect.CONNECT),
    ("Connection", options_source.CONNECTION),
    ("Slot", options_source.SLOT),
    ("Publication, tables, columns", options_source.PUBLICATION),
    ("Snapshots and signals", options_snapshot.SNAPSHOT),
    ("Running", options_source.RUNNING),
    ("Form of records", options_records.FORM),
    ("Topics", options_records.TOPICS),
    ("Producer, behind `producer.override.`", options_connect.PRODUCER),
)

_SAMPLES: Final = ("1", "true", "text", "public.orders:id")

_LEGEND: Final = """\
# Options of Debezium, and what becomes of them

Made from the tables of `cdcd adopt` by `python -m tests.documents`; a test keeps it so. The options are those of
Debezium 3.7 for PostgreSQL and of Kafka Connect 4.3. [from-debezium.md](from-debezium.md) says how to take over.

- **same**: cdcd has a key with this meaning, or does the same without one.
- **different**: cdcd does it in another way, which is said.
- **impossible**: cdcd cannot do it; what to do instead is said. A takeover needs `--accept` for it.
- **irrelevant**: cdcd works without it.

What is in no table is reported as unknown. `<...>` stands for any text without a point, `*` for any text.
"""


def markdown() -> str:
    return _LEGEND + "".join(_section(title, options) for title, options in _SECTIONS)


def _section(title: str, options: Sequence[Option]) -> str:
    rows = "\n".join(f"| `{option.name}` | {_default(option)} | {_fates(option)} |" for option in options)
    return f"\n## {title}\n\n| option | default | what becomes of it |\n|---|---|---|\n{rows}\n"


def _default(option: Option) -> str:
    return f"`{option.default}`" if option.default else "-"


def _fates(option: Option) -> str:
    rule = option.rule
    if not isinstance(rule, ByValue):
        return _said(_sample(option))
    return "<br>".join(_each(rule))


def _each(rule: ByValue) -> Iterator[str]:
    """A verdict for each value. Where an empty option is the same, only the others are of interest."""
    named = {value: verdict for value, verdict in rule.verdicts.items() if value}
    if rule.otherwise is not None and {verdict.why for verdict in named.values()} <= {
        "Nothing is asked for."
    }:
        named = {}
    for value, verdict in named.items():
        yield f"`{value}`: {_said(verdict)}"
    if rule.otherwise is not None:
        yield f"{'others: ' if named else ''}{_said(rule.otherwise)}"


def _sample(option: Option) -> Verdict:
    for value in (option.default or "", *_SAMPLES):
        with suppress(ValueError):
            found = option.judge(option.name, value)
            if value or found.kind is not Kind.SAME:
                return found
    raise AssertionError(f"{option.name} takes no sample")


def _said(verdict: Verdict) -> str:
    return f"{verdict.kind}. {verdict.why}".replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")
