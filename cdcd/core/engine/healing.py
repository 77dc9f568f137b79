"""Heals topics after a gap: compares each table with its topic, and sends a record for each difference.

```
 new slot ─exports─▶ snapshot ─┐
                               ├─ compare ─▶ deletes, updates, inserts ─▶ records at the slot's first position
 topic ─folded─▶ rows ─────────┘                                          then the stream
```

The rules:

- The topic is folded to its end. Nothing else writes to it meanwhile, because the writer is fenced, and this session
  sends nothing to it before the comparison has ended.
- The snapshot sees everything before the slot's first position, and the stream has everything after it. So the topic
  equals the table at this position as soon as it has the records of all differences.
- An attempt covers all tables. While it lasts, the checkpoint names them (`Progress.healing`). If a session ends
  before that, its snapshot is gone, and the slot has changes that were never compared with a topic. So the next session
  makes the slot again and compares all tables again (`startup_positions.py`). Differences that were delivered are no
  differences any more.
- The attempt ends with one progress for all tables, behind the last difference. Tables that could not be compared stay
  in `Progress.waiting` and `outdated`: a truncate record ends their former rows, and they are read at the same snapshot
  (`exported.py`).
- One table is compared at a time, because a comparison takes memory and a part of the disk.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from cdcd.core.engine.actions import (
    Answer,
    Busy,
    Compare,
    Compared,
    Differences,
    Lost,
    NextDifferences,
    NotComparable,
    Question,
)
from cdcd.core.engine.fates import BELONGS, Fates, fault_of_rows
from cdcd.core.engine.rendering import SnapshotRows
from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.errors import CdcdError
from cdcd.core.facts import Observer, cut_short
from cdcd.core.facts.tables import GapHealed, TableHealed, TableNotHealed
from cdcd.core.records.gaps import HealedTable
from cdcd.core.snapshot.reading import SourceTable

OTHER_ROWS: Final = (
    "Before the gap, the topic did not have all rows of this table: the table is new, was renamed or created again, or "
    "was not read to its end"
)
NOT_READ: Final = (
    "The table is neither compared nor read (outbox.tables, snapshot.exclude), so its topic keeps what it has"
)
"""Reasons why a table is not compared at all."""


class Healing:
    """Heals the topics of the tables in `Progress.healing`. The caller calls `next_question` until `is_done`.

    Args:
        tables: the published tables at the slot's snapshot, by oid.
        fates: the tables that are set aside. It takes the faults of tables.
        chunk_bytes: bytes of the differences that are asked for at a time.
    """

    def __init__(
        self,
        tasks: SnapshotTasks,
        rendering: SnapshotRows,
        tables: Mapping[int, SourceTable],
        fates: Fates,
        *,
        chunk_bytes: int,
        observe: Observer,
    ) -> None:
        self.failure: CdcdError | None = None
        """Error that ends the session; None while the session can go on."""
        self.healed: dict[int, HealedTable] = {}
        """What was sent for the tables whose topics equal them at the slot's first position, by oid."""
        self._tasks = tasks
        self._rendering = rendering
        self._chunk_bytes = chunk_bytes
        self._observe = observe
        self._fates = fates
        self._aside: Mapping[int, object] = fates.aside
        self._tables = tables
        self._left = deque(oid for oid in tasks.progress.healing.oids if oid in tables)
        self._others = [oid for oid in tables if oid not in tasks.progress.healing and oid not in fates.aside]
        self._open: SourceTable | None = None
        """The table that is being compared, or whose differences are being sent."""
        self._compared: Compared | None = None
        self._is_asked = False
        self._began_s = 0.0
        self._ended = not len(tasks.progress.healing)

    @property
    def is_done(self) -> bool:
        """True if the attempt has ended."""
        return self._ended

    def next_question(self, now: float) -> tuple[object, Question] | None:
        """Return the next question and the table that it is about; None if there is nothing to ask now."""
        if self._is_asked or self._ended:
            return None
        self._began_s = self._began_s or now
        if self._open is not None:
            self._is_asked = True
            return self._open, NextDifferences(self._chunk_bytes)
        while self._left:
            oid = self._left.popleft()
            if oid not in self._aside:
                self._open, self._compared = self._tables[oid], None
                self._is_asked = True
                return self._open, Compare(self._open)
        self._finish(now)
        return None

    def comparison_answered(self, asked: object, answer: Answer, now: float) -> None:
        """Take the answer to the question about a table."""
        assert isinstance(asked, SourceTable)
        self._is_asked = False
        if isinstance(answer, Lost):
            self.failure = answer.error
        elif self._open is not asked:
            # The table was set aside meanwhile.
            return
        elif isinstance(answer, Compared):
            self._compared = answer
        elif isinstance(answer, Differences):
            self._take(asked, answer)
        elif isinstance(answer, NotComparable | Busy):
            self._open = None
            reason = cut_short(answer.reason, 500)
            self._observe(TableNotHealed(table=asked.name, reason=reason))

    def leave(self, oid: int) -> None:
        """Stop healing the table, because it is set aside."""
        if self._open is not None and self._open.oid == oid:
            self._open = None
        self.healed.pop(oid, None)

    def _take(self, table: SourceTable, answer: Differences) -> None:
        compared = self._compared
        assert compared is not None, "differences are asked for after the comparison"
        if not answer.rows:
            self._open = None
            name = table.name
            self.healed[table.oid] = HealedTable(name, compared.deletes, compared.updates, compared.inserts)
            self._observe(
                TableHealed(
                    table=name,
                    deletes=compared.deletes,
                    updates=compared.updates,
                    inserts=compared.inserts,
                )
            )
            return
        # The numbers are taken first, because each batch must have another progress: that is how a session knows which
        # batches Kafka has.
        first = self._tasks.take_numbers(answer.rows)
        try:
            self._rendering.put_differences(table.oid, answer, event_no=first - 1)
        except BELONGS as error:
            self._fates.fault(table.oid, fault_of_rows(error), error)

    def _finish(self, now: float) -> None:
        """End the attempt. The record of the gap and the progress without `healing` are in one batch, so that a session
        that begins the attempt again has delivered no such record.
        """
        self._ended = True
        tasks = self._tasks
        for oid in self._others:
            reason = OTHER_ROWS if oid in tasks.progress.outdated else NOT_READ
            self._observe(TableNotHealed(table=self._tables[oid].name, reason=reason))
        healed = list(self.healed.values())
        tasks.take_number()
        # First the progress: the queue may end its batch with the record.
        tasks.replace(tasks.progress.end_healing(self.healed.keys()))
        self._rendering.put_gap(healed)
        self._observe(
            GapHealed(
                tables=len(healed),
                deletes=sum([each.deletes for each in healed]),
                updates=sum([each.updates for each in healed]),
                inserts=sum([each.inserts for each in healed]),
                seconds=round(now - self._began_s, 3),
            )
        )
