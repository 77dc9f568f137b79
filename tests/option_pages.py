"""docs/debezium-options.md: the tables of options, from which `cdcd adopt` judges."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from cdcd.tools.adopt.options import SECTIONS, TRANSFORMS, ByValue, Option
from cdcd.tools.adopt.verdicts import Verdict, VerdictKind

_SAMPLES: Final = ("1", "true", "text", "public.orders:id")

_LEGEND: Final = """\
# Options of Debezium in cdcd

`python -m tests.documents` writes this page from the tables of `cdcd adopt`, and a test compares them. The options are
those of Debezium 3.7 for PostgreSQL and of Kafka Connect 4.3. [from-debezium.md](from-debezium.md) shows how to take
over a connector.

- **same**: cdcd has a key with this meaning, or does the same without one.
- **different**: cdcd does it in another way, which the table describes.
- **impossible**: cdcd cannot do it, and the table says what to do instead. A takeover then needs `--accept`.
- **irrelevant**: cdcd works without it.

`cdcd adopt` reports an option that is in no table as unknown. `<...>` stands for any text without a point,
`*` for any text.
"""


_TRANSFORMS: Final = """\
`cdcd adopt` reports on each transform at its option `transforms.<alias>.type`, in the order of `transforms`, and writes
the keys that replace the transform. Names of classes are in lower case here. The verdict describes the differences. A
transform is impossible if one of its options, or its place in the chain, has no counterpart in cdcd. `cdcd adopt`
translates predicates that select tables by their topics (TopicNameMatches), and predicates that select tombstones if
the transform does not change tombstones. Any other predicate makes a transform impossible. Every other class is
impossible, because cdcd loads no Java classes.
"""


def markdown() -> str:
    first, *others = [_section(title, options) for title, options in SECTIONS.items()]
    return "".join([_LEGEND, first, _transforms(), *others])


def _transforms() -> str:
    """What becomes of each class of transforms. Those without a counterpart come last."""
    rows = "\n".join(f"| `{name}` | {_said(row.said)} |" for name, row in TRANSFORMS.items())
    return f"\n## Transforms\n\n{_TRANSFORMS}\n| class | in cdcd |\n|---|---|\n{rows}\n"


def _section(title: str, options: Sequence[Option]) -> str:
    rows = "\n".join(f"| `{option.name}` | {_default(option)} | {_fates(option)} |" for option in options)
    return f"\n## {title}\n\n| option | default | in cdcd |\n|---|---|---|\n{rows}\n"


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
            if value or found.kind is not VerdictKind.SAME:
                return found
    raise AssertionError(f"{option.name} takes no sample")


def _said(verdict: Verdict) -> str:
    return f"{verdict.kind}. {verdict.why}".replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")
