"""What a recording holds: every call of the engine's verbs, in their order, with what was given to them.

The rule: the engine decides by its arguments only. So a session's beginning and the list of the verbs that were called
are the session, and an engine that is given the same ones makes the same records, processing times included.

Each event is a tag, the size of what follows, and that; received frames have a form of their own (`packed_frames.py`).
`next` says when the engine was asked for an action, and what
kind of action came; a question comes with it, so that a replay with other settings finds the answer by its question.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from struct import Struct
from typing import Any, Final

from cdcd.engine.actions import (
    Action,
    Answer,
    Ask,
    Begin,
    Describe,
    End,
    EnsureTopics,
    Question,
    RunHeartbeatQuery,
    Ship,
    Status,
    Turn,
    Wait,
)
from cdcd.engine.building import SessionStart
from cdcd.errors import ConfigError, PositionError
from cdcd.protocol.messages import Relation
from cdcd.recording.errors import RecordingError
from cdcd.recording.packed_frames import TAG, pack_frames, read_frames
from cdcd.recording.values import Reader, write_value
from cdcd.rows.relations import TableDescription, TypeDescription
from cdcd.snapshots.visibility import Visibility
from cdcd.transactions.position import Checkpoint

_EVENT: Final = Struct("<cI")
_NEXT: Final = Struct("<cIcdq")

RAISED: Final = b"!"
"""The engine raised an error instead of an action."""

KINDS: Final[Mapping[type[Any], bytes]] = {
    Ship: b"s",
    Status: b"u",
    Describe: b"d",
    EnsureTopics: b"t",
    Begin: b"b",
    Ask: b"a",
    Turn: b"r",
    RunHeartbeatQuery: b"h",
    Wait: b"w",
    End: b"e",
}
"""The letters of actions."""

Known = tuple[Relation, TableDescription, dict[int, TypeDescription]]
"""A relation, and what the catalog said of it."""


@dataclass(frozen=True, slots=True)
class Began:
    """A segment begins. Everything that a replay needs to begin here.

    Attributes:
        version: of the cdcd that recorded.
        first: the session begins here too; else it goes on from the segment before.
        flushed: the flushed position that the session began with.
        relations: the descriptions that are in force. None at the beginning of a session.
        previewed: other descriptions that the catalog gave, of relations of which only transactions told that were
            rolled back. The catalog is not asked for them again.
        last_commit_lsn: of the last transaction before; 0: unknown. It is in the records of the next one.
        now: monotonic seconds; `unix_us`: the wall clock.
    """

    version: str
    first: bool
    start: SessionStart
    flushed: int
    relations: tuple[Known, ...]
    previewed: tuple[Known, ...]
    last_commit_lsn: int
    now: float
    unix_us: int

    def encode(self) -> bytes:
        """The event."""
        start = {field.name: getattr(self.start, field.name) for field in fields(SessionStart)}
        start["checkpoint"] = self.start.checkpoint.encode()
        rest = (self.flushed, self.relations, self.previewed, self.last_commit_lsn, self.now, self.unix_us)
        return _event(b"H", write_value((self.version, self.first, start, *rest)))

    @classmethod
    def decode(cls, reader: Reader) -> "Began":
        """Read it back."""
        version, first, given, *rest = reader.value()
        given["checkpoint"] = Checkpoint.decode(given["checkpoint"], "the recording")
        return cls(version, first, SessionStart(**given), *rest)


@dataclass(frozen=True, slots=True)
class Next:
    """`next_action` was called. `action` is the letter of its answer (`KINDS`)."""

    action: bytes
    now: float
    unix_us: int
    ticket: int = 0
    question: Question | None = None


@dataclass(frozen=True, slots=True)
class Frames:
    """`frames_received` was called."""

    now: float
    frames: list[bytes]


@dataclass(frozen=True, slots=True)
class CatalogAnswer:
    """`described` was called; `types` are those that the relation's columns need."""

    now: float
    relation: Relation
    description: TableDescription
    types: dict[int, TypeDescription]
    seen: Visibility | None


@dataclass(frozen=True, slots=True)
class TopicsReady:
    """`topics_ready` was called."""

    now: float
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """`answered` was called."""

    now: float
    ticket: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Delivered:
    """`delivered` was called, for the batch that was out."""

    now: float


@dataclass(frozen=True, slots=True)
class StreamBegun:
    """`stream_begun` was called."""

    now: float


@dataclass(frozen=True, slots=True)
class HeartbeatQueryEnded:
    """`heartbeat_query_ended` was called."""

    now: float


@dataclass(frozen=True, slots=True)
class LockLost:
    """`lock_lost` was called."""

    now: float
    message: str
    sqlstate: str
    shutting_down: bool


@dataclass(frozen=True, slots=True)
class Stopped:
    """`stop` was called."""


Event = (
    Began
    | Next
    | Frames
    | CatalogAnswer
    | TopicsReady
    | Answered
    | Delivered
    | StreamBegun
    | HeartbeatQueryEnded
    | LockLost
    | Stopped
)


def _event(tag: bytes, data: bytes) -> bytes:
    return _EVENT.pack(tag, len(data)) + data


def encode_next(action: Action | None, now: float, unix_us: int) -> bytes:
    """`Next`; None: the engine raised an error. The most frequent event: it has a form of its own."""
    if isinstance(action, Ask):
        asked = write_value((action.ticket, action.question))
        return _NEXT.pack(b"Q", _NEXT.size - _EVENT.size + len(asked), b"a", now, unix_us) + asked
    letter = RAISED if action is None else KINDS[type(action)]
    return _NEXT.pack(b"N", _NEXT.size - _EVENT.size, letter, now, unix_us)


def encode(event: Event) -> bytes:
    """The bytes of an event."""
    if isinstance(event, Began):
        return event.encode()
    if isinstance(event, Frames):
        return pack_frames(event.now, event.frames)
    if isinstance(event, Next):
        asked = b"" if event.question is None else write_value((event.ticket, event.question))
        tag = b"Q" if asked else b"N"
        return (
            _NEXT.pack(tag, _NEXT.size - _EVENT.size + len(asked), event.action, event.now, event.unix_us)
            + asked
        )
    tag = _TAGS[type(event)]
    return _event(tag, write_value(tuple(getattr(event, field.name) for field in fields(event))))


_TAGS: Final[Mapping[type[Any], bytes]] = {
    CatalogAnswer: b"D",
    TopicsReady: b"T",
    Answered: b"A",
    Delivered: b"K",
    StreamBegun: b"B",
    HeartbeatQueryEnded: b"E",
    LockLost: b"L",
    Stopped: b"X",
}
_KINDS: Final = {tag: kind for kind, tag in _TAGS.items()}


def decode_events(data: bytes) -> Iterator[Event]:
    """The events of a block. RecordingError: it holds something else."""
    at = 0
    while at < len(data):
        if data[at : at + 1] == TAG:
            now, frames, at = read_frames(data, at)
            yield Frames(now, frames)
            continue
        if at + _EVENT.size > len(data):
            raise RecordingError("A recorded event ends too early.")
        tag, size = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        if at + size > len(data):
            raise RecordingError("A recorded event ends too early.")
        try:
            yield _decode(tag, Reader(data[at : at + size]))
        except (TypeError, ValueError, AttributeError, KeyError, PositionError, ConfigError) as error:
            raise RecordingError(f"A recorded event {tag!r} is not of its form: {error}.") from error
        at += size


def _decode(tag: bytes, reader: Reader) -> Event:
    if tag in {b"N", b"Q"}:
        letter = reader.take(1)
        now = reader.double()
        unix_us = int.from_bytes(reader.take(8), "little", signed=True)
        ticket, question = reader.value() if tag == b"Q" else (0, None)
        event: Event = Next(letter, now, unix_us, ticket, question)
    elif tag == b"H":
        event = Began.decode(reader)
    else:
        kind = _KINDS.get(tag)
        if kind is None:
            raise RecordingError(f"The recording has an event {tag!r}, which this version does not know.")
        event = kind(*reader.value())
    if not reader.is_done:
        raise RecordingError(f"A recorded {type(event).__name__} has bytes left over.")
    return event
