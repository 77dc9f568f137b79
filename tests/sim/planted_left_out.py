"""Bugs of tables that are left out."""

from collections.abc import Iterator

from cdcd.core.engine.left_out import KeptStep, LeftOut, LeftOutTables
from cdcd.core.protocol import peek
from cdcd.core.protocol.messages import Relation
from cdcd.core.transactions.drafts import SpoolItem
from cdcd.core.transactions.steps import Changes, Step


class DoesNotCount(LeftOutTables):
    """Events that are left out have no number, so that a restart skips others in their place."""

    def steps(self, steps: Iterator[Step]) -> Iterator[KeptStep]:
        return (step for step in super().steps(steps) if not isinstance(step, LeftOut))


class StaysOut(LeftOutTables):
    """A table that got another name stays out."""

    def describe(self, relation: Relation) -> bool:
        return super().describe(relation) and relation.oid not in self._oids

    def _has(self, relation: Relation) -> bool:
        return relation.oid not in self._oids and super()._has(relation)


class ForgetsWhoWentOut(LeftOutTables):
    """A table that comes back to its name is the one that it was, whatever was left out meanwhile."""

    def _told(self, step: Changes) -> dict[int, str]:
        return {}


class LeavesOutWholeTruncates(LeftOutTables):
    """A TRUNCATE of several tables is left out if one of them is."""

    def rest(self, item: SpoolItem, in_stream: bool) -> SpoolItem | None:
        found = super().rest(item, in_stream)
        if isinstance(item, bytes) and peek.tag_of(item) == peek.TRUNCATE and found is not item:
            return None
        return found


class CountsRuns(LeftOutTables):
    """A run of events counts as one."""

    def split(self, step: Changes) -> Iterator[KeptStep]:
        for part in super().split(step):
            yield LeftOut(1) if isinstance(part, LeftOut) else part
