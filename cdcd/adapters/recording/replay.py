"""Replay of a recording by the daemon's own engine, with the arguments that the daemon's engine got.

The rule: an engine decides by its arguments only. There are two ways to replay.

- *Exact.* The start is the same, and each method is called in order with the recorded times. Every action must be
  the recorded one, and the records are equal to the daemon's, byte for byte. A difference is an error.
- *Free.* The start differs (other topics, other limits, another version of cdcd, a part of the recording). Frames
  and answers come in the recorded order, a question gets the recorded answer to the same question, and a shipped
  batch counts as delivered at once. Records of changes are the same except for the effects of the start; rows of
  tables that were read beside the stream may lie between other transactions. There are no heartbeats, because they
  describe the daemon's deliveries.

Both ways emit the delivered batches. A session after a crash begins at the position of its checkpoint, and so does
its replay.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from cdcd import __version__
from cdcd.adapters.recording import events as recorded
from cdcd.adapters.recording.replayed_session import BEGIN, END, GO_ON, ReplayedSession
from cdcd.adapters.recording.segments import RecordedCommit, RecordedPlace, Tear
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.session_start import SessionStart
from cdcd.core.engine.settings import HeartbeatSettings
from cdcd.core.errors import FatalError
from cdcd.core.facts import Observer
from cdcd.core.transactions.position import Position
from cdcd.core.transactions.spool import Spool

Adapt = Callable[[SessionStart], SessionStart]


def as_recorded(start: SessionStart) -> SessionStart:
    """Return the recorded start unchanged."""
    return start


class Replay:
    """A replay; call `run` once with the events of a recording.

    Args:
        emit: called with each delivered batch; batches of one Kafka transaction are passed in sequence.
        note: called with one sentence for the operator at a time.
        adapt: returns the changed start of each session.
        begin, end: commits before `begin`, and commits after `end`, are left out.
        spool_directory: directory for large transactions.

    Attributes:
        sessions, exact_sessions: number of replayed sessions, and of exactly replayed ones.
        records: number of emitted records.
    """

    def __init__(
        self,
        emit: Callable[[Batch], None],
        note: Callable[[str], None],
        observe: Observer,
        spool_directory: str,
        *,
        adapt: Adapt = as_recorded,
        begin: RecordedPlace | None = None,
        end: RecordedPlace | None = None,
    ) -> None:
        self.sessions = 0
        self.exact_sessions = 0
        self.records = 0
        self._emit = emit
        self.note = note
        self._observe = observe
        self._spool_directory = spool_directory
        self._adapt = adapt
        self._begin, self._end = begin, end
        self._emitting = begin is None
        self._session: ReplayedSession | None = None

    def run(self, events: Iterable[recorded.Event | Tear]) -> None:
        """Replay the events.

        Raises:
            RecordingError: the recording is altered, or an exact replay differs.
        FatalError: the last session ends by it, as the daemon did, or would.
        """
        try:
            for event in events:
                if isinstance(event, Tear):
                    self.note(
                        f"{event.path} is torn at offset {event.offset}: the process that recorded was killed. "
                        "Everything before that is replayed."
                    )
                elif isinstance(event, recorded.SegmentBegan) and (event.first or self._session is None):
                    self._begin_session(event)
                elif self._session is not None:
                    self._session.take(event)
                    if self._session.has_ended:
                        return
            if self._session is not None:
                self._session.finish(None)
                if isinstance(self._session.failure, FatalError):
                    raise self._session.failure
        finally:
            if self._session is not None:
                self._session.close()

    def _begin_session(self, event: recorded.SegmentBegan) -> None:
        before = self._session
        if before is not None:
            before.finish(event)
            before.close()
        start = self._adapt(event.start)
        is_whole = self._begin is None and self._end is None
        exact = start == event.start and event.first and event.version == __version__ and is_whole
        if not exact:
            start = replace(start, settings=replace(start.settings, heartbeat=HeartbeatSettings()))
            # The end of the durable log's logged session does not matter for other records or limits.
            start = replace(start, logged_until=0)
        if before is not None and not before.exact:
            start = _not_before(before.position, start)
        self._session = ReplayedSession(
            event,
            start,
            Spool(self._spool_directory, start.spool_bytes),
            self._observe,
            exact=exact,
            replay=self,
        )
        self.sessions += 1
        self.exact_sessions += exact
        self._session.begin()

    def deliver(self, batches: list[Batch]) -> None:
        if not self._emitting:
            return
        for batch in batches:
            self.records += len(batch.records)
            self._emit(batch)

    def judge(self, commit: RecordedCommit) -> int:
        if self._end is not None and not self._end.reaches(commit):
            return END
        if not self._emitting and self._begin is not None and not self._begin.is_behind(commit):
            return BEGIN
        return GO_ON

    def begun(self) -> None:
        self._emitting = True


def _not_before(done: Position, start: SessionStart) -> SessionStart:
    """Return the start without emitted changes, because in a free replay a shipped batch counts as
    delivered at once.
    """
    checkpoint = start.checkpoint
    if done.end_lsn <= checkpoint.position.end_lsn:
        return start
    return replace(start, checkpoint=replace(checkpoint, position=Position(done.commit_lsn, done.end_lsn)))
