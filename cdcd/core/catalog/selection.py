"""Which tables of a publication a pipeline has: `tables.include` and `tables.exclude` of the configuration.

The rule: a table is left out as a whole, by the name under which its changes are sent. It has no topic, no description
and no snapshot. The catalog's lists lack it, and `engine/left_out.py` takes its events out of the stream.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from cdcd.core.catalog.patterns import matcher, parse_pattern


@dataclass(frozen=True, slots=True)
class TableSelection:
    """Patterns of tables.

    Attributes:
        include: the tables that the pipeline has; None: all that are published.
        exclude: of these, the tables that it leaves out.
    """

    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()

    @property
    def is_all(self) -> bool:
        """Whether no table can be left out."""
        return self.include is None and not self.exclude

    def unmatched(self, names: Collection[str]) -> list[str]:
        """The patterns that match none of these tables, as `schema.table`. ConfigError: a pattern is malformed."""
        return [
            pattern
            for pattern in (*(self.include or ()), *self.exclude)
            if not any(map(parse_pattern(pattern).matches_name, names))
        ]

    def test(self) -> Callable[[str], bool]:
        """Whether the pipeline has a table, by its name as `schema.table`. ConfigError: a pattern is malformed."""
        excluded = matcher(self.exclude, "tables.exclude")
        if self.include is None:
            return lambda name: not excluded(name)
        included = matcher(self.include, "tables.include")
        return lambda name: included(name) and not excluded(name)
