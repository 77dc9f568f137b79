"""One session of a replay: an engine with the recorded events as arguments (the rules are in `replay.py`)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from cdcd.adapters.recording import events as recorded
from cdcd.adapters.recording.blocks import RecordingError
from cdcd.adapters.recording.segments import CommitFinder, RecordedCommit
from cdcd.core.catalog.claims import IS_CLAIMED
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.engine.actions import (
    Action,
    Ask,
    BeginStream,
    Describe,
    End,
    EnsureTopics,
    Looked,
    Question,
    Ship,
    Wait,
)
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.building import build_engine
from cdcd.core.engine.session_start import SessionStart
from cdcd.core.errors import CdcdError, ClaimedError, SinkError, TransientError
from cdcd.core.facts import Observer
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import Begin as BeginMessage
from cdcd.core.protocol.messages import Commit as CommitMessage
from cdcd.core.protocol.messages import Message
from cdcd.core.protocol.writer import write_message
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.position import Position
from cdcd.core.transactions.spool import Spool

PACED: Final = frozenset({recorded.KINDS[Ship], recorded.KINDS[End], b"u", recorded.RAISED})
"""Letters of actions that a free replay carries out when the engine returns them, not when they were recorded."""

GO_ON: Final = 0
BEGIN: Final = 1
END: Final = 2
"""Treatment of a commit: replay it; skip everything before it; skip it and end the replay."""


class ReplayRules(Protocol):
    """The replay that a session belongs to."""

    def deliver(self, batches: list[Batch]) -> None:
        """Take the batches of a committed Kafka transaction."""

    def judge(self, commit: RecordedCommit) -> int:
        """Return the treatment of a commit."""

    def begun(self) -> None:
        """Note that everything before a commit (`BEGIN`) has been skipped."""

    def note(self, text: str) -> None:
        """Tell the operator."""


class ReplayedSession:
    """A session of a replay; call `begin`, `take` for each event, `finish`, and `close`.

    Attributes:
        exact: True for an exact replay (see `replay.py`).
        has_ended: True after `judge` has ended the replay.
        failure: error that ended the session; None if there is none.
    """

    def __init__(
        self,
        event: recorded.SegmentBegan,
        start: SessionStart,
        spool: Spool,
        observe: Observer,
        *,
        exact: bool,
        replay: ReplayRules,
    ) -> None:
        self.exact = exact
        self.has_ended = False
        self.failure: CdcdError | None = None
        self._event = event
        self._replay = replay
        self._commits = CommitFinder()
        # Only status updates depend on it.
        flushed = min(event.flushed, start.checkpoint.position.end_lsn)
        self._engine = build_engine(start, spool, Ledger(flushed), observe, event.now)
        self._now, self._unix_us = event.now, event.unix_us
        self._out: Ship | None = None
        self._parts: list[Batch] = []
        self._describe: Describe | None = None
        self._descriptions: dict[int, tuple[TableDescription, Mapping[int, TypeDescription]]] = {}
        self._asked: dict[int, Question] = {}
        self._recorded_questions: dict[int, Question] = {}
        self._begins = False
        self._over = False

    @property
    def position(self) -> Position:
        """Position up to which everything is delivered."""
        return self._engine.checkpoint.position

    def begin(self) -> None:
        """Pass to the engine what its stream has described so far, if the session is joined in its middle."""
        event = self._event
        if event.first:
            return
        self._engine.stream_begun(self._now)
        for relation, description, types in (*event.relations, *event.previewed):
            self._descriptions[relation.oid] = (description, types)
        # Of a transaction that the checkpoint covers, only the descriptions count.
        end_lsn = self.position.end_lsn
        commit_lsn = min(event.last_commit_lsn, end_lsn - 1)
        if commit_lsn > 0:
            messages: list[Message] = [BeginMessage(commit_lsn, 0, 1)]
            messages += [relation for relation, _, _ in event.relations]
            messages.append(CommitMessage(commit_lsn, end_lsn, 0))
            frames = [
                write_frame(XLogData(commit_lsn, commit_lsn, 0, write_message(each))) for each in messages
            ]
            self._engine.frames_received(frames, self._now)
        self._until(lambda: self._engine.wants_frames)

    def take(self, event: recorded.Event) -> None:
        """Process the next event of the session. RecordingError: an exact replay differs, or an answer is missing."""
        if self._over:
            return
        try:
            _TAKEN[type(event)](self, event)
        except RecordingError:
            raise
        except CdcdError as error:
            # The daemon's session also ended with this error.
            self._end(error)

    def finish(self, following: recorded.SegmentBegan | None) -> None:
        """End the session; `following` begins the next one."""
        if not self.exact:
            self._drain()
            return
        out, self._out = self._out, None
        checkpoint = self._engine.checkpoint
        if following is not None:
            resumed = following.start.checkpoint.position
            if out is not None and out.batch.closes and resumed == out.checkpoint.position:
                # The broker had the batch, although its answer was not received.
                self._delivered(out)
            elif resumed.end_lsn > checkpoint.position.end_lsn:
                self._replay.note(
                    f"What was committed between {Lsn(checkpoint.position.end_lsn)} and {Lsn(resumed.end_lsn)} is not "
                    "in the recording, because the process was killed before it was written."
                )
        elif out is not None and out.batch.records:
            self._replay.note(
                f"{len(out.batch.records)} records were on their way to Kafka when the recording ends. They are left "
                "out, because the recording does not say whether they arrived."
            )

    def close(self) -> None:
        """Release the memory and files of the session."""
        self._engine.assembler.close()

    # Events, in the order of `events.py`.

    def _goes_on(self, _event: recorded.SegmentBegan) -> None:
        """Ignore a segment that begins in the middle of the session."""

    def _next(self, event: recorded.Next) -> None:
        self._now, self._unix_us = event.now, event.unix_us
        if event.question is not None:
            self._recorded_questions[event.ticket] = event.question
        if not self.exact:
            if event.action not in PACED:
                self._step()
            return
        action = self._engine.next_action(event.now, event.unix_us)
        letter = recorded.KINDS[type(action)]
        if letter != event.action:
            raise RecordingError(
                f"The replay differs from the recording: the next action of the daemon was {_name(event.action)}, "
                f"that of the replay is {_name(letter)}.",
                hint="The same version, configuration and recording must give the same actions: report this as a bug.",
            )
        self._carry_out(action)

    def _frames(self, event: recorded.Frames) -> None:
        self._now = event.now
        if self.exact:
            self._engine.frames_received(event.frames, event.now)
            return
        frames: list[bytes] = []
        for frame in event.frames:
            commit = self._commits.commit_of(frame)
            verdict = GO_ON if commit is None else self._replay.judge(commit)
            if verdict != GO_ON:
                self._receive(frames)
                self._drain()
                frames = []
                if verdict == END:
                    self.has_ended = True
                    return
                # Everything before the commit is delivered by now, and skipped.
                self._replay.begun()
            frames.append(frame)
        self._receive(frames)

    def _described(self, event: recorded.CatalogAnswer) -> None:
        self._descriptions[event.relation.oid] = (event.description, event.types)
        if not self.exact and not self._until(lambda: self._is_asked_for(event.relation.oid)):
            return
        asked, self._describe = self._describe, None
        assert asked is not None
        types = {**BUILTIN_TYPES, **event.types}
        self._engine.described(asked.relation, event.description, types, event.now, event.seen)

    def _topics_ready(self, event: recorded.TopicsReady) -> None:
        if self.exact:
            self._engine.topics_ready(event.topics, event.now)

    def _topics_refused(self, event: recorded.TopicsRefused) -> None:
        if self.exact:
            self._engine.topics_refused(_errors(event.refused), event.now)

    def _batch_refused(self, event: recorded.BatchRefused) -> None:
        out, self._out = self._out, None
        if out is not None:
            self._engine.refused(out.batch, _errors(event.refused), event.now)

    def _answered(self, event: recorded.Answered) -> None:
        answer = event.answer
        if isinstance(answer, Looked):
            answer = replace(answer, types={**BUILTIN_TYPES, **answer.types})
        if self.exact:
            self._engine.answered(event.ticket, answer, event.now)
            return
        question = self._recorded_questions.pop(event.ticket, None)
        if question is None or not self._until(lambda: question in self._asked.values()):
            # The question was asked before this replay began, or this replay does not ask it.
            return
        ticket = next(ticket for ticket, asked in self._asked.items() if asked == question)
        del self._asked[ticket]
        self._engine.answered(ticket, answer, event.now)

    def _batch_delivered(self, event: recorded.Delivered) -> None:
        out, self._out = self._out, None
        if out is not None:
            self._engine.delivered(out.batch, event.now)
            self._delivered(out)

    def _stream_begun(self, event: recorded.StreamBegun) -> None:
        if not self.exact and self._engine.is_reading:
            self._until(lambda: self._begins)
        self._engine.stream_begun(event.now)

    def _heartbeat_query_ended(self, event: recorded.HeartbeatQueryEnded) -> None:
        if self.exact:
            self._engine.heartbeat_query_ended(event.now)

    def _lock_lost(self, event: recorded.LockLostCall) -> None:
        if self.exact:
            self._engine.lock_lost(
                TransientError(event.message),
                event.sqlstate,
                shutting_down=event.shutting_down,
                now=event.now,
            )

    def _stopped(self, _event: recorded.StopCall) -> None:
        if self.exact:
            self._engine.stop()

    # Actions.

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Ship):
            self._out = action
        elif isinstance(action, Describe):
            self._describe = action
        elif isinstance(action, Ask):
            self._asked[action.ticket] = action.question
        elif isinstance(action, BeginStream):
            self._begins = True
        elif isinstance(action, End):
            self._end(action.error)
        elif isinstance(action, EnsureTopics) and not self.exact:
            self._engine.topics_ready(action.topics, self._now)

    def _end(self, error: CdcdError | None) -> None:
        self._over = True
        self.failure = error
        if error is not None:
            self._replay.note(f"The session ends: {error}")

    def _delivered(self, out: Ship) -> None:
        self._parts.append(out.batch)
        if out.batch.closes:
            parts, self._parts = self._parts, []
            self._replay.deliver(parts)

    # Free replay.

    def _receive(self, frames: list[bytes]) -> None:
        if not frames or self._over:
            return
        if not self._until(lambda: self._engine.wants_frames):
            raise RecordingError(
                "The recording has no answer to a question that the engine has now.",
                hint="Replay it with the version of cdcd that recorded it.",
            )
        self._engine.frames_received(frames, self._now)

    def _step(self) -> Action:
        """Return the engine's next action; shipped batches before it are delivered."""
        while True:
            try:
                action = self._engine.next_action(self._now, self._unix_us)
            except CdcdError as error:
                # A daemon's session would end with this error, too. The next session continues from the checkpoint.
                action = End(error)
            self._carry_out(action)
            if self._out is not None:
                out, self._out = self._out, None
                self._engine.delivered(out.batch, self._now)
                self._delivered(out)
            elif type(action) is not Ship and recorded.KINDS[type(action)] not in PACED:
                return action
            if self._over:
                return action

    def _until(self, is_so: Callable[[], bool]) -> bool:
        """Run the engine until `is_so` returns True. Returns False if the engine has nothing to do before that."""
        while not is_so():
            waits = isinstance(self._step(), Wait) or self._over
            if waits and (self._over or not self._answer_again()):
                return is_so()
        return True

    def _answer_again(self) -> bool:
        """Answer the engine's request for a relation with the last description, if everything waits for it."""
        asked = self._describe
        if asked is None or asked.relation.oid not in self._descriptions:
            return False
        self._describe = None
        description, types = self._descriptions[asked.relation.oid]
        self._engine.described(asked.relation, description, {**BUILTIN_TYPES, **types}, self._now)
        return True

    def _is_asked_for(self, oid: int) -> bool:
        return self._describe is not None and self._describe.relation.oid == oid

    def _drain(self) -> None:
        """Process and deliver everything that was received."""
        if not self._over:
            self._until(lambda: False)


def _errors(refused: tuple[tuple[str, str], ...]) -> dict[str, CdcdError]:
    # A recording has only the messages of errors.
    return {
        topic: ClaimedError(message) if IS_CLAIMED in message else SinkError(message)
        for topic, message in refused
    }


def _name(letter: bytes) -> str:
    names = {value: kind.__name__ for kind, value in recorded.KINDS.items()}
    return names.get(letter, "an error")


_TAKEN: Final[Mapping[type[Any], Callable[[ReplayedSession, Any], None]]] = {
    recorded.SegmentBegan: ReplayedSession._goes_on,
    recorded.Next: ReplayedSession._next,
    recorded.Frames: ReplayedSession._frames,
    recorded.CatalogAnswer: ReplayedSession._described,
    recorded.TopicsReady: ReplayedSession._topics_ready,
    recorded.TopicsRefused: ReplayedSession._topics_refused,
    recorded.BatchRefused: ReplayedSession._batch_refused,
    recorded.Answered: ReplayedSession._answered,
    recorded.Delivered: ReplayedSession._batch_delivered,
    recorded.StreamBegun: ReplayedSession._stream_begun,
    recorded.HeartbeatQueryEnded: ReplayedSession._heartbeat_query_ended,
    recorded.LockLostCall: ReplayedSession._lock_lost,
    recorded.StopCall: ReplayedSession._stopped,
}
"""Method of each event."""
