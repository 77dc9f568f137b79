"""One session of a replay: an engine, and the recorded events that are given to it (`replay.py` has the rules)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from cdcd.adapters.recording import events as recorded
from cdcd.adapters.recording.errors import RecordingError
from cdcd.adapters.recording.playback import Commit, CommitFinder
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.engine.actions import (
    Action,
    Ask,
    Begin,
    Describe,
    End,
    EnsureTopics,
    Looked,
    Question,
    Ship,
    Wait,
)
from cdcd.core.engine.building import SessionStart, build_engine
from cdcd.core.engine.queue import Batch
from cdcd.core.errors import CdcdError, TransientError
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
"""Letters of actions that a free replay takes when they come, and not when they were recorded."""

GO_ON: Final = 0
BEGIN: Final = 1
END: Final = 2
"""What becomes of a commit: it is replayed; everything before it is left out; it is left out, and the replay ends."""


class ReplayedSession:
    """Call `begin`, `take` for each event, `finish`, and `close`.

    Args:
        deliver: gets the batches of a Kafka transaction that is committed.
        judge: says of each commit what becomes of it.
        begun: called when all that was left out before a commit (`BEGIN`) has been.
        note: gets what a person should know.

    Attributes:
        exact: see `replay.py`.
        has_ended: `judge` has ended the replay.
        failure: the error that ended the session, if one did.
    """

    def __init__(
        self,
        event: recorded.Began,
        start: SessionStart,
        spool: Spool,
        observe: Observer,
        *,
        exact: bool,
        deliver: Callable[[list[Batch]], None],
        judge: Callable[[Commit], int],
        begun: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self.exact = exact
        self.has_ended = False
        self.failure: CdcdError | None = None
        self._event = event
        self._deliver = deliver
        self._judge = judge
        self._begun = begun
        self._note = note
        self._commits = CommitFinder()
        # Only what status updates say goes by it.
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
        """Everything before this is delivered."""
        return self._engine.checkpoint.position

    def begin(self) -> None:
        """A session that is joined in its middle is told what its stream has described so far."""
        event = self._event
        if event.first:
            return
        self._engine.stream_begun(self._now)
        for relation, description, types in (*event.relations, *event.previewed):
            self._descriptions[relation.oid] = (description, types)
        # A transaction that the checkpoint covers: of such a one only the descriptions count.
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
        """The next event of the session. RecordingError: an exact replay differs, or an answer is missing."""
        if self._over:
            return
        try:
            _TAKEN[type(event)](self, event)
        except RecordingError:
            raise
        except CdcdError as error:
            # The daemon's session ended by it too.
            self._end(error)

    def finish(self, following: recorded.Began | None) -> None:
        """The session is over; `following` begins the next one."""
        if not self.exact:
            self._drain()
            return
        out, self._out = self._out, None
        checkpoint = self._engine.checkpoint
        if following is not None:
            resumed = following.start.checkpoint.position
            if out is not None and out.batch.closes and resumed == out.checkpoint.position:
                # The broker had it, though the answer did not come any more.
                self._delivered(out)
            elif resumed.end_lsn > checkpoint.position.end_lsn:
                self._note(
                    f"What was committed between {Lsn(checkpoint.position.end_lsn)} and {Lsn(resumed.end_lsn)} is not "
                    "in the recording, because the process was killed before it was written."
                )
        elif out is not None and out.batch.records:
            self._note(
                f"{len(out.batch.records)} records were on their way to Kafka when the recording ends. They are left "
                "out, because the recording does not say whether they arrived."
            )

    def close(self) -> None:
        """Forget what is kept."""
        self._engine.assembler.close()

    # Events, in the order of `events.py`.

    def _goes_on(self, _event: recorded.Began) -> None:
        """A segment begins in the middle of the session."""

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
                f"The replay differs from the recording: the daemon's next action was {_name(event.action)}, this "
                f"one's is {_name(letter)}.",
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
            verdict = GO_ON if commit is None else self._judge(commit)
            if verdict != GO_ON:
                self._receive(frames)
                self._drain()
                frames = []
                if verdict == END:
                    self.has_ended = True
                    return
                # What stands before the commit is delivered by now, and left out.
                self._begun()
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

    def _answered(self, event: recorded.Answered) -> None:
        answer = event.answer
        if isinstance(answer, Looked):
            answer = replace(answer, types={**BUILTIN_TYPES, **answer.types})
        if self.exact:
            self._engine.answered(event.ticket, answer, event.now)
            return
        question = self._recorded_questions.pop(event.ticket, None)
        if question is None or not self._until(lambda: question in self._asked.values()):
            # It was asked before this replay began, or this replay has no need of it.
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

    def _lock_lost(self, event: recorded.LockLost) -> None:
        if self.exact:
            self._engine.lock_lost(
                TransientError(event.message),
                event.sqlstate,
                shutting_down=event.shutting_down,
                now=event.now,
            )

    def _stopped(self, _event: recorded.Stopped) -> None:
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
        elif isinstance(action, Begin):
            self._begins = True
        elif isinstance(action, End):
            self._end(action.error)
        elif isinstance(action, EnsureTopics) and not self.exact:
            self._engine.topics_ready(action.topics, self._now)

    def _end(self, error: CdcdError | None) -> None:
        self._over = True
        self.failure = error
        if error is not None:
            self._note(f"The session ends: {error}")

    def _delivered(self, out: Ship) -> None:
        self._parts.append(out.batch)
        if out.batch.closes:
            parts, self._parts = self._parts, []
            self._deliver(parts)

    # A free replay.

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
        """Take the next action; what is shipped on the way is delivered."""
        while True:
            try:
                action = self._engine.next_action(self._now, self._unix_us)
            except CdcdError as error:
                # A daemon's session ends by it too. The next one goes on from the checkpoint.
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
        """Work until it is so. False: there is nothing to do, and it is not."""
        while not is_so():
            waits = isinstance(self._step(), Wait) or self._over
            if waits and (self._over or not self._answer_again()):
                return is_so()
        return True

    def _answer_again(self) -> bool:
        """Describe a relation as it was described last, if that is what everything waits for."""
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
        """Work off all that was received, and deliver it."""
        if not self._over:
            self._until(lambda: False)


def _name(letter: bytes) -> str:
    names = {value: kind.__name__ for kind, value in recorded.KINDS.items()}
    return names.get(letter, "an error")


_TAKEN: Final[Mapping[type[Any], Callable[[ReplayedSession, Any], None]]] = {
    recorded.Began: ReplayedSession._goes_on,
    recorded.Next: ReplayedSession._next,
    recorded.Frames: ReplayedSession._frames,
    recorded.CatalogAnswer: ReplayedSession._described,
    recorded.TopicsReady: ReplayedSession._topics_ready,
    recorded.Answered: ReplayedSession._answered,
    recorded.Delivered: ReplayedSession._batch_delivered,
    recorded.StreamBegun: ReplayedSession._stream_begun,
    recorded.HeartbeatQueryEnded: ReplayedSession._heartbeat_query_ended,
    recorded.LockLost: ReplayedSession._lock_lost,
    recorded.Stopped: ReplayedSession._stopped,
}
"""What each event does."""
