"""Steps of a session's start: whether the slot continues where the checkpoint ends, and where the session resumes.

The rule: slot and checkpoint are compared twice. The first comparison (`judge`) comes before another instance could
notice anything, so that a daemon that must refuse to start disturbs no healthy one. The second (`fence`) counts,
because the checkpoint cannot change any more. Each time the slot is looked at before the comparison.

Readers may see a commit late, or only after the next commit: a broker that dies after it has acknowledged a commit may
not tell the partitions (`commit_delay.py`). So the first comparison refuses only if the newest checkpoint that was
written does not fit either. The transaction of this checkpoint may be committed, open or aborted.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from cdcd.core.engine.checkpoint import Checkpoint, Source, only_slot_is_lost, refuse_sealed, resume
from cdcd.core.engine.logged import DurableLog, LoggedSession, LogOwner, judge
from cdcd.core.engine.startup_requests import (
    Fence,
    LookAtLog,
    LookAtSlot,
    PeekCheckpoint,
    ReadSource,
    Request,
    SlotSeen,
)
from cdcd.core.errors import PositionError

Step = Generator[Request[Any], Any, None]


def first_flush(told: int, start: Checkpoint, slot_confirmed: int) -> int:
    """The flushed position that a session begins with: PostgreSQL may forget everything before it.

    Args:
        told: the position that former sessions of this process reported. Another instance may have been active since,
            and may hold an undecided PREPARE before that position. So the position in the checkpoint is the limit.
    """
    return max(slot_confirmed, min(told, start.flushed_lsn))


class Positions:
    """What is known of slot and checkpoint. `judge` first, then `fence`; then `made` if the slot was created.

    What a durable log holds counts as not confirmed, because it is delivered from there (`transactions/logged.py`). A
    log that does not fit is refused also where a gap is accepted.

    Args:
        pipeline, slot_name: whose log it must be.
        accept_gap: start although slot and checkpoint do not meet.
        when_needed: `snapshot.mode: when_needed`: a slot that is lost is replaced, and the tables are read again.
    """

    def __init__(
        self, *, accept_gap: bool, when_needed: bool, pipeline: str = "", slot_name: str = ""
    ) -> None:
        self._pipeline = pipeline
        self._slot_name = slot_name
        self.accept_gap = accept_gap
        self._when_needed = when_needed
        self.slot: SlotSeen | None = None
        """The slot, if there is one that can be used."""
        self.unusable: PositionError | None = None
        """Why the slot that is there cannot be used."""
        self.found: Checkpoint | None = None
        """The newest checkpoint."""
        self.gap: PositionError | None = None
        """What lies between checkpoint and slot, if that is accepted."""
        self.logged: LoggedSession | None = None
        """What is delivered from the durable log before live streaming; None: nothing."""
        self.delivered_logs: tuple[int, ...] = ()
        """Numbers of logged sessions that are of no more use."""
        self._source: Source | None = None
        self._told = 0
        """A position that PostgreSQL was told because of a checkpoint in Kafka."""

    def judge(self) -> Step:
        """Compare with what readers see, and with what they may see soon if that does not fit."""
        yield from self._look_at_slot()
        self.found = yield PeekCheckpoint(told=self._slot_confirmed)
        try:
            yield from self._compare()
        except PositionError:
            # Again: an instance that stood still after its look may find what another one has done since.
            yield from self._look_at_slot()
            self.found = yield PeekCheckpoint(newest=True, told=self._slot_confirmed)
            yield from self._compare()

    @property
    def _slot_confirmed(self) -> int:
        """The position that PostgreSQL was told, if nothing was confirmed without Kafka; 0: it is not known."""
        return 0 if self.slot is None else self.slot.confirmed or 0

    def fence(self) -> Step:
        """The slot is looked at afterwards: a former instance may have moved it until it was shut out."""
        self.found = yield Fence(self._told)
        yield from self._look_at_slot()
        yield from self._compare()

    def _look_at_slot(self) -> Step:
        """To be done before the checkpoint is read: a running instance writes it first, and moves the slot later."""
        slot: SlotSeen | None = yield LookAtSlot()
        self.unusable = None if slot is None else slot.problem
        if self.unusable is not None and not self._when_needed:
            raise self.unusable
        self.slot = None if self.unusable is not None else slot

    def _compare(self) -> Step:
        """Find out whether the slot continues where the checkpoint ends.

        Raises:
            PositionError: it does not, and nobody accepts the gap; or the pipeline is sealed.
        """
        slot, found = self.slot, self.found
        refuse_sealed(found)
        source: Source = yield ReadSource(found, None if slot is None else slot.confirmed)
        log: DurableLog | None = yield LookAtLog()
        # Positions in the log were confirmed without Kafka. The log begins at a position that Kafka had reached.
        sessions = () if log is None else log.sessions
        self._told = sessions[0].begin if sessions else source.slot_confirmed or 0
        self.logged, self.delivered_logs = None, ()
        if log is not None:
            owner = LogOwner(
                self._pipeline, self._slot_name, source.system_identifier, source.timeline, source.stream
            )
            judged = judge(log, owner, found, replace(source, log=log.folder))
            source, self.logged, self.delivered_logs = judged.source, judged.deliver, judged.remove
        self._source = source
        try:
            resume(found, source, accept_gap=False)
        except PositionError as gap:
            if not (self.accept_gap or self._reads_again(source)):
                raise
            # Without a slot, only the gap is known. A slot that exists but cannot be used has a reason of its own.
            self.gap = gap if self.unusable is None else self.unusable
        else:
            self.gap = None

    def _reads_again(self, source: Source) -> bool:
        """Whether `snapshot.mode: when_needed` closes the gap by reading the tables again."""
        found = self.found
        return self._when_needed and found is not None and only_slot_is_lost(found, source)

    @property
    def reads_because(self) -> PositionError | None:
        """Why the tables are read again; None: they are not."""
        if self.unusable is not None:
            return self.unusable
        assert self._source is not None
        return self.gap if self._reads_again(self._source) else None

    def made(self, slot: SlotSeen) -> None:
        """The slot was created."""
        assert self._source is not None
        self.slot = slot
        self._source = replace(self._source, slot_confirmed=slot.confirmed)

    def resumed(self) -> Checkpoint:
        """The checkpoint from which the session goes on."""
        assert self._source is not None
        return resume(self.found, self._source, accept_gap=self.gap is not None)
