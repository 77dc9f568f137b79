"""List of all kinds of facts of the daemon, and the text of docs/events.md.

It is a module of its own, because each module of facts imports the package.
"""

from typing import Final

from cdcd.core.facts import (
    Fact,
    facts_of,
    operation,
    process,
    rows,
    rules,
    snapshot,
    start,
    tables,
    transactions,
)

ROOMS: Final = (start, process, tables, snapshot, rules, transactions, operation)


def all_facts() -> list[type[Fact]]:
    """Every kind of fact of the daemon, in the order of the modules that hold them."""
    return [fact for room in ROOMS for fact in facts_of(vars(room))]


_HEAD: Final = """\
# Log events

Made from the modules of `cdcd/core/facts`; a test keeps it so. Every line of the log has `timestamp`, `level` and
`event`, which is one of these names, and the fields. What libraries log has the event `dependency.log` with the fields
`logger` and `message`. A message that a library repeats is logged once a minute. The next line with it says how often
it was `repeated` in between (numbers in it do not count).

| event | level | meaning | fields |
|---|---|---|---|
"""


def markdown() -> str:
    """The daemon's part of docs/events.md."""
    return _HEAD + rows(all_facts())
