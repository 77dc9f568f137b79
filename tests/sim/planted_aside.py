"""Bugs of tables that are set aside."""

from collections.abc import Collection
from typing import Any

from cdcd.core.engine.checkpoint import AsideTable
from cdcd.core.engine.fates import Fates
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.ingest import Ingest
from cdcd.core.engine.queue import Batch, BatchQueue
from cdcd.core.engine.tables import PublishedTables
from cdcd.core.errors import CdcdError
from cdcd.core.protocol.messages import Relation
from cdcd.core.transactions.steps import Changes


class ReturnsWithoutTheEnd(PublishedTables):
    """A table comes back without the end of its former rows."""

    def bring_back(self, oid: int, name: str) -> bool:
        ends, self._ends_rows = self._ends_rows, False
        found = super().bring_back(oid, name)
        self._ends_rows = ends
        return found


class ReturnsUnread(PublishedTables):
    """A table comes back, and its rows are not read."""

    def bring_back(self, oid: int, name: str) -> bool:
        return False


class IsNotWrittenDown(Fates):
    """The checkpoint does not say which tables are set aside."""

    def table(self) -> tuple[AsideTable, ...]:
        return ()


class ForgetsDescriptions(Fates):
    """What the stream says of a table while it is set aside is lost."""

    def describe(self, relation: Relation) -> None:
        return


class StripsTheBatchAlone(BatchQueue):
    """Records that the broker refuses stay in what waits behind the batch."""

    def strip(self, batch: Batch, topics: Collection[str]) -> None:
        full, self._full = self._full, type(self._full)()
        super().strip(batch, topics)
        self._full = full


class SendsTheBatchWhole(BatchQueue):
    """Records that the broker refuses are sent again."""

    def strip(self, batch: Batch, topics: Collection[str]) -> None:
        return


class CountsTheFaultTwice(Ingest):
    """The event at fault has two numbers."""

    def _encode_without(self, step: Changes, before: int, error: CdcdError) -> int:
        done = super()._encode_without(step, before, error)
        self._encoder.skip(1)
        return done


class LosesWhatFollows(Ingest):
    """The events behind the one at fault are lost."""

    def _put_back(self, step: Changes) -> None:
        super()._put_back(Changes(step.items[:1], step.in_stream))


class SetsTheHeldStepFree(Ingest):
    """The events that wait for their topic are forgotten with the table."""

    def leave(self, oid: int) -> Relation | None:
        self._held = None
        return super().leave(oid)


class ReadsOn(Incremental):
    """The rows of a table that is set aside are read and sent."""

    def leave(self, oid: int, reason: str) -> None:
        return

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._aside = {}
        self.look_ups._aside = {}
