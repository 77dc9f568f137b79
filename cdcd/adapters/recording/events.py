"""What a recording holds: every call of the engine's verbs, in their order, with what was given to them.

The rule: the engine decides by its arguments only. So a session's beginning and the list of the verbs that were called
are the session, and an engine that is given the same ones makes the same records, processing times included.

An event is a tag and its values. Three kinds of event are frequent, so their values stay Python objects until their
block is packed (`packed.py`): `(now, frames)`, `(letter, now, unix_us)` for `next`, and `(now,)` for a delivery.

`next` says when the engine was asked for an action, and what kind of action came. A question comes with it, so that a
replay with other settings finds the answer by its question.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from cdcd.adapters.recording.errors import RecordingError
from cdcd.adapters.recording.packed import Item, unpack
from cdcd.adapters.recording.values import Reader, write_value
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.engine.actions import (
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
from cdcd.core.engine.building import SessionStart
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import ConfigError, PositionError
from cdcd.core.protocol.messages import Relation
from cdcd.core.snapshot.visibility import Visibility

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
        return b"H" + write_value((self.version, self.first, start, *rest))

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


def item_of_next(action: Action | None, now: float, unix_us: int) -> Item:
    """What a block holds of `Next`. None: the engine raised an error."""
    if type(action) is Ask:
        return item_of(Next(KINDS[Ask], now, unix_us, action.ticket, action.question))
    return RAISED if action is None else KINDS[type(action)], now, unix_us


def item_of(event: Event) -> Item:
    """What a block holds of an event."""
    if isinstance(event, Frames):
        return event.now, event.frames
    if isinstance(event, Delivered):
        return (event.now,)
    if isinstance(event, Next) and event.question is None:
        return event.action, event.now, event.unix_us
    if isinstance(event, Began):
        return event.encode()
    return _TAGS[type(event)] + write_value(tuple(getattr(event, field.name) for field in fields(event)))


_TAGS: Final[Mapping[type[Any], bytes]] = {
    Next: b"Q",
    CatalogAnswer: b"D",
    TopicsReady: b"T",
    Answered: b"A",
    StreamBegun: b"B",
    HeartbeatQueryEnded: b"E",
    LockLost: b"L",
    Stopped: b"X",
}
_KINDS: Final = {tag: kind for kind, tag in _TAGS.items()}


def decode_events(data: bytes) -> Iterator[Event]:
    """The events of a block. RecordingError: it holds something else."""
    for item in unpack(data):
        try:
            yield _decode(item) if isinstance(item, bytes) else _shaped(item)
        except (TypeError, ValueError, AttributeError, KeyError, PositionError, ConfigError) as error:
            raise RecordingError(f"A recorded event {item[:1]!r} is not of its form: {error}.") from error


def _shaped(item: tuple[Any, ...]) -> Event:
    """The event that has these values. RecordingError: no event has them."""
    match item:
        case (float(now), list(frames)) if all(type(frame) is bytes for frame in frames):
            return Frames(now, frames)
        case (bytes(letter), float(now), int(unix_us)) if len(letter) == 1:
            return Next(letter, now, unix_us)
        case (float(now),):
            return Delivered(now)
    raise RecordingError("A recorded event has values that this version of cdcd does not know.")


def _decode(item: bytes) -> Event:
    tag, reader = item[:1], Reader(item[1:])
    if tag == b"H":
        event: Event = Began.decode(reader)
    else:
        kind = _KINDS.get(tag)
        if kind is None:
            raise RecordingError(f"The recording has an event {tag!r}, which this version does not know.")
        event = kind(*reader.value())
    if not reader.is_done:
        raise RecordingError(f"A recorded {type(event).__name__} has bytes left over.")
    return event
