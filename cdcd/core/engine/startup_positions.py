"""Steps of the start that check whether the slot continues where the checkpoint ends, and decide where the session
resumes.

The rule: slot and checkpoint are compared twice. The first comparison (`judge`) is made before another instance
could notice anything, so that a daemon that must refuse to start disturbs no healthy one. The second one (`fence`)
decides, because the checkpoint cannot change any more. Each time, the slot is read before the comparison.

Readers may see a commit late, or only after the next commit: a broker that dies after it has acknowledged a commit
may not have told the partitions (`outage.py`). So the first comparison refuses only if the newest checkpoint
that was written does not match either. The transaction of this checkpoint may be committed, open or aborted.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Any, Protocol

from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.logged import DurableLog, LoggedSession, LogOwner, judge
from cdcd.core.engine.resuming import Source, only_slot_is_lost, refuse_sealed, resume
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


class FirstFlush(Protocol):
    """The form of `first_flush`."""

    def __call__(self, told: int, start: Checkpoint, slot_confirmed: int, /, *, two_phase: bool) -> int: ...


def first_flush(told: int, start: Checkpoint, slot_confirmed: int, /, *, two_phase: bool) -> int:
    """Return the flushed position that a session begins with, before which PostgreSQL may discard everything.

    Args:
        told: the position that earlier sessions of this process reported. Another instance may have been active
            since, and may need an undecided PREPARE before that position. So the position is at most the one in the
            checkpoint.
        two_phase: the slot sends transactions at PREPARE. Then only the slot's own position counts. `told` and the
            checkpoint may be of a time when the slot did not: after a crash of PostgreSQL had set the slot back,
            another instance may have switched two_phase on, and a PREPARE before these positions is sent now, once.
    """
    return slot_confirmed if two_phase else max(slot_confirmed, min(told, start.flushed_lsn))


class StartPositions:
    """What is known about slot and checkpoint; `judge` comes first, then `fence`, and then `made` if the slot was
    created.

    Changes in a durable log count as not confirmed, because they are delivered from there
    (`engine/logged.py`). A log that does not match is refused even if a gap is accepted.

    Args:
        pipeline, slot_name: names that the log must have.
        accept_gap: whether to start although changes between checkpoint and slot are lost.
        when_needed: whether a lost slot is replaced and the tables are read again (`snapshot.mode: when_needed`).
        heals: whether the topics are compared with the tables after a gap, at the snapshot of a new slot.
        replaces: why a slot that could be used is replaced, so that the topics are healed; None: it is not.
    """

    def __init__(
        self,
        *,
        accept_gap: bool,
        when_needed: bool,
        pipeline: str = "",
        slot_name: str = "",
        heals: bool = False,
        replaces: PositionError | None = None,
    ) -> None:
        self._heals = heals
        self._replaces = replaces
        self._pipeline = pipeline
        self._slot_name = slot_name
        self.accept_gap = accept_gap
        self._when_needed = when_needed
        self.slot: SlotSeen | None = None
        """The slot; None if there is none that can be used."""
        self.unusable: PositionError | None = None
        """Why the existing slot cannot be used; None if it can."""
        self.found: Checkpoint | None = None
        """The newest checkpoint."""
        self.gap: PositionError | None = None
        """The gap between checkpoint and slot that was accepted; None if there is none."""
        self.logged: LoggedSession | None = None
        """The logged session to deliver before live streaming; None if there is none."""
        self.delivered_logs: tuple[int, ...] = ()
        """Numbers of logged sessions that are not needed any more."""
        self._source: Source | None = None
        self._told = 0
        """A position that PostgreSQL was told because of a checkpoint in Kafka."""

    def judge(self) -> Step:
        """Compare the slot with the checkpoint that readers see, and if they do not match, with the newest one that was
        written.
        """
        yield from self._look_at_slot()
        self.found = yield PeekCheckpoint(told=self._slot_confirmed)
        try:
            yield from self._compare()
        except PositionError:
            # The slot is read again, because another instance may have moved it since this one read it.
            yield from self._look_at_slot()
            self.found = yield PeekCheckpoint(newest=True, told=self._slot_confirmed)
            yield from self._compare()

    @property
    def _slot_confirmed(self) -> int:
        """The position that PostgreSQL was told, if nothing was confirmed without Kafka; 0 if not known."""
        return 0 if self.slot is None else self.slot.confirmed or 0

    def fence(self) -> Step:
        """Shut out other writers, read the checkpoint and then the slot, which an earlier instance may have moved until
        it was shut out.
        """
        self.found = yield Fence(self._told)
        yield from self._look_at_slot()
        yield from self._compare()

    def _look_at_slot(self) -> Step:
        """Read the slot; this must come before reading the checkpoint, because a running instance writes the checkpoint
        first, and moves the slot later.
        """
        slot: SlotSeen | None = yield LookAtSlot()
        self.unusable = None if slot is None else slot.problem
        if self.unusable is not None and not self._when_needed:
            raise self.unusable
        self.slot = None if self.unusable is not None else slot

    def _compare(self) -> Step:
        """Check whether the slot continues where the checkpoint ends.

        Raises:
            PositionError: it does not and the gap is not accepted, or the pipeline is sealed.
        """
        found = self.found
        refuse_sealed(found)
        if self.slot is not None and found is not None:
            reason = self._replaces or (_interrupted(found) if self._heals else None)
            if reason is not None and not (self._when_needed or self.accept_gap):
                raise reason
            if reason is not None and self._when_needed:
                self._replace(reason)
        slot = self.slot
        source: Source = yield ReadSource(found, None if slot is None else slot.confirmed)
        log: DurableLog | None = yield LookAtLog()
        # Positions in the log were confirmed without Kafka, and the log begins at a position that Kafka had reached.
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
            # If there is no slot, the gap is the reason; a slot that exists but cannot be used has its own reason.
            self.gap = gap if self.unusable is None else self.unusable
            if self._heals and self.slot is not None and self._reads_again(source):
                # Only a new slot exports a snapshot.
                self._replace(gap)
        else:
            self.gap = None

    def _replace(self, reason: PositionError) -> None:
        """Have the slot dropped and made again, because `reason` makes it useless."""
        self.unusable, self.slot = reason, None

    def _reads_again(self, source: Source) -> bool:
        """Return whether `snapshot.mode: when_needed` closes the gap by reading the tables again."""
        found = self.found
        return self._when_needed and found is not None and only_slot_is_lost(found, source)

    @property
    def reads_because(self) -> PositionError | None:
        """The reason why the tables are read again; None if they are not."""
        if self.unusable is not None:
            return self.unusable
        assert self._source is not None
        return self.gap if self._reads_again(self._source) else None

    def made(self, slot: SlotSeen) -> None:
        """Note that the slot was created."""
        assert self._source is not None
        self.slot = slot
        self._source = replace(self._source, slot_confirmed=slot.confirmed)

    def resumed(self) -> Checkpoint:
        """Return the checkpoint from which the session resumes."""
        assert self._source is not None
        return resume(self.found, self._source, accept_gap=self.gap is not None)


def _interrupted(found: Checkpoint) -> PositionError | None:
    """Return why the slot must be replaced if the last attempt to heal the topics has not ended; None if it has."""
    if found.snapshot is None or not len(found.snapshot.healing):
        return None
    return PositionError(
        "The last attempt to heal the topics did not end, and the snapshot at which the tables were compared is gone.",
        hint="Run `cdcd heal --yes` again, which makes a new slot and compares the topics with the tables again. With "
        "snapshot.mode: when_needed, `cdcd run` does so by itself.",
    )
