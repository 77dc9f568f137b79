"""The recorder of the engine's calls, which stands before the engine's methods.

The rule: each call is passed on unchanged, and recorded. A recording that fails ends by itself with an event, and
the engine is still called.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, Protocol

from cdcd import __version__
from cdcd.adapters.recording.blocks import Item, Kind, pack, size_of
from cdcd.adapters.recording.events import (
    Answered,
    BatchRefused,
    CatalogAnswer,
    Event,
    HeartbeatQueryEnded,
    Known,
    LockLostCall,
    SegmentBegan,
    StopCall,
    StreamBegun,
    TopicsReady,
    TopicsRefused,
    item_of,
    item_of_next,
)
from cdcd.adapters.recording.writer import RecordingWriter
from cdcd.core.catalog.relations import TableDescription, TypeDescription, types_of
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.engine.actions import Action, Answer, Describe, Looked, Published
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.engine import Engine
from cdcd.core.engine.session_start import SessionStart
from cdcd.core.errors import CdcdError
from cdcd.core.protocol.messages import Relation
from cdcd.core.snapshot.reading import Visibility

BLOCK_BYTES: Final = 1 << 18
"""Size in bytes at which a block ends."""

BLOCK_S: Final = 0.2
"""Seconds after which everything is written, so that a killed process loses at most this much of its recording."""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""


class Tap:
    """The engine's methods with a recording of each call. Call `begin` first, and `close` last.

    Args:
        flushed: flushed position at the beginning of the session.
        later: calls a function after some seconds (`loop.call_later`); its result has `cancel`.
        wrote: called from time to time with the bytes of this recording on disk.
        failed: called once with the reason when the recording has ended because of a failure.
    """

    def __init__(
        self,
        engine: Engine,
        start: SessionStart,
        flushed: int,
        writer: RecordingWriter,
        *,
        later: Callable[[float, Callable[[], None]], Timer],
        wrote: Callable[[int], None],
        failed: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._start = start
        self._flushed = flushed
        self._writer: RecordingWriter | None = writer
        self._limits = writer.limits
        self._later = later
        self._wrote = wrote
        self._failed = failed
        self._items: list[Item] = []
        self._size = 0
        self._timer: Timer | None = None
        self._unix_us = 0
        self._segment_us = 0
        self._tentative = False
        self._published = dict(start.published)
        self._known: dict[int, Known] = {}

    def begin(self, now: float, unix_us: int) -> None:
        """Begin the recording of the session. `now` is the time with which the engine was constructed."""
        self._unix_us = unix_us
        self._begin_segment("s", now)

    def close(self) -> None:
        """End the recording of the session."""
        if self._writer is not None:
            self._flush()
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()
            self._wrote(writer.written_bytes)
            if writer.failure:
                self._failed(writer.failure)

    # The engine's methods.

    def next_action(self, now: float, unix_us: int) -> Action:
        """See `Engine.next_action`."""
        action: Action | None = None
        try:
            action = self._engine.next_action(now, unix_us)
        finally:
            self.asked(action, now, unix_us)
        return action

    def asked(self, action: Action | None, now: float, unix_us: int) -> None:
        """Record a call of `Engine.next_action` that the pipeline made in a thread; None if the call failed."""
        self._unix_us = unix_us
        if self._writer is not None:
            self._keep(item_of_next(action, now, unix_us))
        if type(action) is Describe:
            self._tentative = action.tentative

    def frames_received(self, frames: list[bytes], now: float) -> None:
        """See `Engine.frames_received`."""
        writer = self._writer
        if writer is not None:
            share = self._share_of_limits(writer)
            if share >= 1:
                kind: Kind = "c" if self._can_begin() else "m"
                if kind == "c" or share >= 2:
                    self._begin_segment(kind, now)
            self._put((now, frames))
        self._engine.frames_received(frames, now)

    def described(
        self,
        relation: Relation,
        description: TableDescription,
        types: Mapping[int, TypeDescription],
        now: float,
        seen: Visibility | None = None,
    ) -> None:
        """See `Engine.described`."""
        used = used_types(relation, types)
        known: Known = (replace(relation, xid=None), description, used)
        if self._tentative:
            self._known.setdefault(relation.oid, known)
        else:
            self._known[relation.oid] = known
        self._note(CatalogAnswer(now, relation, description, used, seen))
        self._engine.described(relation, description, types, now, seen)

    def topics_ready(self, topics: Collection[str], now: float) -> None:
        """See `Engine.topics_ready`."""
        self._note(TopicsReady(now, tuple(topics)))
        self._engine.topics_ready(topics, now)

    def topics_refused(self, refused: Mapping[str, CdcdError], now: float) -> None:
        """See `Engine.topics_refused`."""
        self._note(TopicsRefused(now, tuple([(topic, error.message) for topic, error in refused.items()])))
        self._engine.topics_refused(refused, now)

    def refused(
        self, batch: Batch, refused: Mapping[str, CdcdError], now: float, *, is_lost: bool = False
    ) -> None:
        """See `Engine.refused`."""
        messages = tuple([(topic, error.message) for topic, error in refused.items()])
        self._note(BatchRefused(now, messages))
        self._engine.refused(batch, refused, now, is_lost=is_lost)

    def answered(self, ticket: int, answer: Answer, now: float) -> None:
        """See `Engine.answered`."""
        self._note(Answered(now, ticket, self._kept(answer)))
        self._engine.answered(ticket, answer, now)

    def delivered(self, batch: Batch, now: float) -> None:
        """See `Engine.delivered`."""
        if self._writer is not None:
            self._keep((now,))
        self._engine.delivered(batch, now)

    def stream_begun(self, now: float) -> None:
        """See `Engine.stream_begun`."""
        self._note(StreamBegun(now))
        self._engine.stream_begun(now)

    def heartbeat_query_ended(self, now: float) -> None:
        """See `Engine.heartbeat_query_ended`."""
        self._note(HeartbeatQueryEnded(now))
        self._engine.heartbeat_query_ended(now)

    def lock_lost(self, error: CdcdError, sqlstate: str, *, shutting_down: bool, now: float) -> None:
        """See `Engine.lock_lost`."""
        self._note(LockLostCall(now, error.message, sqlstate, shutting_down))
        self._engine.lock_lost(error, sqlstate, shutting_down=shutting_down, now=now)

    def stop(self) -> None:
        """See `Engine.stop`."""
        self._note(StopCall())
        self._engine.stop()

    # State that a replay needs to begin here.

    def _kept(self, answer: Answer) -> Answer:
        """Return the answer without types that it does not use."""
        if isinstance(answer, Published):
            self._published = dict(answer.tables)
        if not isinstance(answer, Looked) or answer.table is None:
            return answer
        relation = answer.table.relation
        answer = replace(answer, types=used_types(relation, answer.types))
        if relation.oid in self._known:
            self._known[relation.oid] = (self._known[relation.oid][0], answer.description, dict(answer.types))
        return answer

    def _can_begin(self) -> bool:
        """Return True if nothing is open or pending, so that a replay can begin here."""
        engine = self._engine
        assembler = engine.assembler
        return (
            assembler.is_idle
            and not assembler.streamed_open
            and not assembler.prepared_open
            and engine.incremental.progress.is_done
        )

    def _share_of_limits(self, writer: RecordingWriter) -> float:
        """Return how full the segment is. 1: it should end where a replay can begin; 2: it should end now."""
        share = writer.segment_bytes / self._limits.segment_bytes
        if self._limits.age_s_max is None:
            return share
        return max(share, (self._unix_us - self._segment_us) / (self._limits.age_s_max * 1e6 / 4))

    def _begin_segment(self, kind: Kind, now: float) -> None:
        self._segment_us = self._unix_us
        self._flush()
        writer, start = self._writer, self._start
        if writer is None:
            return
        relations: tuple[Known, ...] = ()
        previewed: tuple[Known, ...] = ()
        last_commit_lsn = self._engine.assembler.order.last_commit_lsn
        if kind != "s":
            engine = self._engine
            progress = None if start.checkpoint.snapshot is None else engine.incremental.progress
            start = replace(
                start,
                checkpoint=replace(start.checkpoint, position=engine.queue.position, snapshot=progress),
                published=self._published,
                exported=None,
            )
        if kind == "c":
            in_force = self._engine.assembler.relations.in_force()
            relations = tuple(self._known[each.oid] for each in in_force if each.oid in self._known)
            oids = {each.oid for each in in_force}
            previewed = tuple(known for oid, known in self._known.items() if oid not in oids)
        writer.begin_segment(kind, int(start.checkpoint.position.end_lsn), self._unix_us)
        self._note(
            SegmentBegan(
                __version__,
                kind == "s",
                _lean(start),
                self._flushed,
                relations,
                previewed,
                last_commit_lsn,
                now,
                self._unix_us,
            )
        )

    # Path of items to the writer.

    def _note(self, event: Event) -> None:
        if self._writer is None:
            return
        try:
            item = item_of(event)
        except Exception as error:  # noqa: BLE001  whatever it is, the engine goes on without a recording
            self._end(f"a bug in cdcd: {error!r}")
        else:
            self._put(item)

    def _end(self, failure: str) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            self._failed(failure)

    def _keep(self, item: Item) -> None:
        """Add the item to the block, and schedule the end of the block."""
        self._items.append(item)
        if self._timer is None:
            self._timer = self._later(BLOCK_S, self._flush)

    def _put(self, item: Item) -> None:
        """Add an item that may be large. A full block ends."""
        self._keep(item)
        self._size += size_of(item)
        if self._size >= BLOCK_BYTES:
            self._end_block()

    def _end_block(self) -> None:
        writer = self._writer
        if writer is None or not self._items:
            return
        writer.put(pack(self._items))
        self._items, self._size = [], 0
        if writer.failure:
            self._end(writer.failure)

    def _flush(self) -> None:
        """Write everything so far to the disk."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end_block()
        writer = self._writer
        if writer is None:
            return
        writer.flush()
        self._wrote(writer.written_bytes)
        if writer.failure:
            self._end(writer.failure)


def used_types(relation: Relation, types: Mapping[int, TypeDescription]) -> dict[int, TypeDescription]:
    """Return the types that the relation's columns need, without those that every version knows."""
    return {each.oid: each for each in types_of(relation, types) if BUILTIN_TYPES.get(each.oid) != each}


def _lean(start: SessionStart) -> SessionStart:
    """Return the start without types that it does not use."""
    exported = start.exported
    if exported is None:
        return start
    types: dict[int, TypeDescription] = {}
    for table in exported.tables.values():
        types |= used_types(table.relation, exported.types)
    return replace(start, exported=replace(exported, types=types))
