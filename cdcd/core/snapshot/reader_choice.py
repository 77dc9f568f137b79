"""Which reader reads a table: `postgres.readers` of the configuration.

The rule: a table belongs to the first reader one of whose patterns matches the name under which the table is published.
A partition that is published through its root is read by the reader of the root.
"""

from collections.abc import Callable, Sequence
from typing import Final

from cdcd.core.catalog.patterns import matcher

KEY: Final = "postgres.readers"


class ReaderChoice:
    """Finds the reader of a table by its place in `postgres.readers`.

    Args:
        patterns: the patterns of each reader, in the order of the configuration; ConfigError if a pattern is
            malformed.
    """

    def __init__(self, patterns: Sequence[Sequence[str]]) -> None:
        self._tests: tuple[Callable[[str], bool], ...] = tuple(
            [matcher(each, f"{KEY}[{place}].tables") for place, each in enumerate(patterns)]
        )

    def of(self, table: str) -> int | None:
        """Return the index of the reader of `schema.table`; None if the role of postgres.dsn reads the table."""
        for place, matches in enumerate(self._tests):
            if matches(table):
                return place
        return None
