"""Events of a recording: every call of the engine's methods in order, with its arguments.

The rule: the engine decides by its arguments only. So a session's beginning and its list of calls define the
session, and an engine that gets the same calls makes the same records, including processing times.

An event is a tag and its values. Three kinds of event are frequent, so their values stay Python objects until their
block is packed (`blocks.py`): `(now, frames)`, `(letter, now, unix_us)` for `next`, and `(now,)` for a delivery.

`next` records when the engine was asked for an action, and the kind of this action. A question is recorded too, so
that a replay with other settings finds the answer by its question.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from cdcd.adapters.recording.blocks import Item, RecordingError, unpack
from cdcd.adapters.recording.values import Reader, write_value
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.engine.actions import (
    Action,
    Answer,
    Ask,
    BeginStream,
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
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.session_start import SessionStart
from cdcd.core.errors import ConfigError, PositionError
from cdcd.core.protocol.messages import Relation
from cdcd.core.snapshot.reading import Visibility

RAISED: Final = b"!"
"""Letter for an error that the engine raised in place of an action."""

KINDS: Final[Mapping[type[Any], bytes]] = {
    Ship: b"s",
    Status: b"u",
    Describe: b"d",
    EnsureTopics: b"t",
    BeginStream: b"b",
    Ask: b"a",
    Turn: b"r",
    RunHeartbeatQuery: b"h",
    Wait: b"w",
    End: b"e",
}
"""Letters of actions."""

Known = tuple[Relation, TableDescription, dict[int, TypeDescription]]
"""A relation with the catalog's description of its table and types."""


@dataclass(frozen=True, slots=True)
class SegmentBegan:
    """The beginning of a segment, with everything that a replay needs to begin here.

    Attributes:
        version: version of the cdcd that recorded.
        first: True if the session begins here too; False if it continues from the segment before.
        flushed: flushed position at the beginning of the session.
        relations: table descriptions in force. Empty at the beginning of a session.
        previewed: further descriptions from the catalog, for relations that only rolled-back transactions
            described. The catalog is not asked for these relations again.
        last_commit_lsn: commit LSN of the last transaction before; 0: unknown. The records of the next transaction
            contain it.
        now: monotonic seconds; `unix_us`: wall clock in µs.
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
        """Return the event as bytes."""
        start = {field.name: getattr(self.start, field.name) for field in fields(SessionStart)}
        start["checkpoint"] = self.start.checkpoint.encode()
        rest = (self.flushed, self.relations, self.previewed, self.last_commit_lsn, self.now, self.unix_us)
        return b"H" + write_value((self.version, self.first, start, *rest))

    @classmethod
    def decode(cls, reader: Reader) -> "SegmentBegan":
        """Return the event from its bytes."""
        version, first, given, *rest = reader.value()
        given["checkpoint"] = Checkpoint.decode(given["checkpoint"], "the recording")
        return cls(version, first, SessionStart(**given), *rest)


@dataclass(frozen=True, slots=True)
class Next:
    """A call of `next_action`. `action` is the letter of the returned action (`KINDS`)."""

    action: bytes
    now: float
    unix_us: int
    ticket: int = 0
    question: Question | None = None


@dataclass(frozen=True, slots=True)
class Frames:
    """A call of `frames_received`."""

    now: float
    frames: list[bytes]


@dataclass(frozen=True, slots=True)
class CatalogAnswer:
    """A call of `described`; `types` are the types that the relation's columns need."""

    now: float
    relation: Relation
    description: TableDescription
    types: dict[int, TypeDescription]
    seen: Visibility | None


@dataclass(frozen=True, slots=True)
class TopicsReady:
    """A call of `topics_ready`."""

    now: float
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicsRefused:
    """`topics_refused` was called. `refused` has each topic with the reason."""

    now: float
    refused: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class BatchRefused:
    """`refused` was called: Kafka refused records of these topics, each for a reason."""

    now: float
    refused: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """A call of `answered`."""

    now: float
    ticket: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Delivered:
    """A call of `delivered` for the batch that was shipped."""

    now: float


@dataclass(frozen=True, slots=True)
class StreamBegun:
    """A call of `stream_begun`."""

    now: float


@dataclass(frozen=True, slots=True)
class HeartbeatQueryEnded:
    """A call of `heartbeat_query_ended`."""

    now: float


@dataclass(frozen=True, slots=True)
class LockLostCall:
    """A call of `lock_lost`."""

    now: float
    message: str
    sqlstate: str
    shutting_down: bool


@dataclass(frozen=True, slots=True)
class StopCall:
    """A call of `stop`."""


Event = (
    SegmentBegan
    | Next
    | Frames
    | CatalogAnswer
    | TopicsReady
    | TopicsRefused
    | BatchRefused
    | Answered
    | Delivered
    | StreamBegun
    | HeartbeatQueryEnded
    | LockLostCall
    | StopCall
)


def item_of_next(action: Action | None, now: float, unix_us: int) -> Item:
    """Return the item that a block stores for `Next`. None: the engine raised an error."""
    if type(action) is Ask:
        return item_of(Next(KINDS[Ask], now, unix_us, action.ticket, action.question))
    return RAISED if action is None else KINDS[type(action)], now, unix_us


def item_of(event: Event) -> Item:
    """Return the item that a block stores for an event."""
    if isinstance(event, Frames):
        return event.now, event.frames
    if isinstance(event, Delivered):
        return (event.now,)
    if isinstance(event, Next) and event.question is None:
        return event.action, event.now, event.unix_us
    if isinstance(event, SegmentBegan):
        return event.encode()
    return _TAGS[type(event)] + write_value(tuple(getattr(event, field.name) for field in fields(event)))


_TAGS: Final[Mapping[type[Any], bytes]] = {
    Next: b"Q",
    CatalogAnswer: b"D",
    TopicsReady: b"T",
    TopicsRefused: b"R",
    BatchRefused: b"K",
    Answered: b"A",
    StreamBegun: b"B",
    HeartbeatQueryEnded: b"E",
    LockLostCall: b"L",
    StopCall: b"X",
}
_KINDS: Final = {tag: kind for kind, tag in _TAGS.items()}


def decode_events(data: bytes) -> Iterator[Event]:
    """Yield the events of a block. RecordingError: the block contains other data."""
    for item in unpack(data):
        try:
            yield _decode(item) if isinstance(item, bytes) else _shaped(item)
        except (TypeError, ValueError, AttributeError, KeyError, PositionError, ConfigError) as error:
            raise RecordingError(f"A recorded event {item[:1]!r} is not of its form: {error}.") from error


def _shaped(item: tuple[Any, ...]) -> Event:
    """Return the event with these values. RecordingError: no event has such values."""
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
        event: Event = SegmentBegan.decode(reader)
    else:
        kind = _KINDS.get(tag)
        if kind is None:
            raise RecordingError(f"The recording has an event {tag!r}, which this version does not know.")
        event = kind(*reader.value())
    if not reader.is_done:
        raise RecordingError(f"A recorded {type(event).__name__} has bytes left over.")
    return event
