"""What stands between the events of tables and their records: published events, partitions, routes and filters.

A stream of records has a list of shapes (`RecordStream.shapes`). An event goes through them in their order, and each
shape turns it into parts: none, the event itself, or several ones. The stream encodes the parts that are left. Rows of
COPY go through the same list, as lines.

The rule: each event of a transaction counts once, whatever is made of it, because the stream counts it and no shape
does. So `events_done` in a checkpoint and `event_serial_no` in records have the same meaning with and without shapes.
Events that a shape takes are not drafted: they are kept as frames until their commit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.protocol import peek
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.encoder import Encoded, Record, SnapshotPosition
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.transactions.drafts import SpoolItem

FILTERED: Final = "filtered"
FILTER_FAILED: Final = "filter_failed"
ROUTE_FAILED: Final = "route_failed"
FIELD_FAILED: Final = "field_failed"
"""Ops of `counts`: events and rows without a record, because their row does not match a filter; events and rows for
which a filter, a rule of a route or a computed field had no answer. The latter also count under the op of the record
that they got."""

DEAD_LETTER: Final = "dead_letter"
"""Op of `counts`: records that went to the topic for dead letters (`records/dead_letters.py`). They also count under
their own op."""

NO_RECORD: Final = frozenset({FILTERED, FILTER_FAILED, ROUTE_FAILED, FIELD_FAILED, DEAD_LETTER})
"""Ops of `counts` that do not stand for records."""

Header = tuple[str, bytes]

Counts = dict[tuple[str, str], int]
"""Number of records or events, by table and op."""

T = TypeVar("T")


def of_row(item: SpoolItem, in_stream: bool, tables: dict[int, T]) -> T | None:
    """Return the entry in `tables` for the table whose row the event has; None if there is no entry, or if it is not an
    event of a row.
    """
    if not isinstance(item, bytes) or peek.tag_of(item) not in peek.ROWS:
        return None
    return tables.get(peek.relation_of_row(item, in_stream))


class ShapedPart:
    """A part of an event, which is encoded by itself under the number of the event.

    Attributes:
        frame: the message that is encoded.
        oid: the relation of `topic`, `left` and `came`.
        topic: topic of the records; "" if it is the relation's own.
        moves: whether an update is encoded as a delete and an insert.
        left: header for the records of the row as it was, which name their partition; None if there is none.
        came: header for the records of the row as it is now.
        record: the record that is written in place of those of `frame`; None if `frame` is encoded.
    """

    moves: bool = False
    left: Header | None = None
    came: Header | None = None

    def __init__(self, frame: bytes, oid: int = 0, topic: str = "", record: Record | None = None) -> None:
        self.frame = frame
        self.oid = oid
        self.topic = topic
        self.record = record


@dataclass(frozen=True, slots=True)
class Lines:
    """Rows of COPY that go to one topic; "" is the table's own."""

    topic: str
    lines: list[bytes]


@dataclass(frozen=True, slots=True)
class Needs:
    """What the records of an event need besides the topics and schemas of its table.

    Attributes:
        topics: topics that the event has made.
        schemas: schemas without an id.
    """

    topics: tuple[str, ...] = ()
    schemas: tuple[SchemaUse, ...] = ()


NO_NEEDS: Final = Needs()


class Shape:
    """A step between events and records, which changes nothing. Subclasses define what they change."""

    @property
    def is_on(self) -> bool:
        """Whether there may be events that the shape takes."""
        return False

    def check(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        """Raise ConfigError if the relation cannot have this shape. The former description stays in force."""

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        """Take the description of a relation, which `check` and the catalog have accepted."""

    def takes(self, item: SpoolItem, in_stream: bool) -> bool:
        """Return whether the shape may change the event; drafts are not changed."""
        return False

    def parts(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        """Return the parts that an event becomes; None if the event stays as it is.

        Raises:
            ValueError, IndexError: the message is malformed. The format reports how.
            FatalError: the event cannot be shaped.
        """
        return None

    @property
    def has_needs(self) -> bool:
        """Whether an event may need a topic or a schema of its own."""
        return False

    @property
    def made_topics(self) -> tuple[str, ...]:
        """The topics that events have made, for the checkpoint."""
        return ()

    def needs(self, item: SpoolItem, in_stream: bool) -> Needs:
        """Return what the shape's records of an event need. The caller owes: `parts` of the event comes after the
        topics are ready, and the schemas are registered, or both are refused (`topic_refused`, `schema_refused`).
        """
        return NO_NEEDS

    def topic_refused(self, topic: str, reason: str) -> bool:
        """Note that records cannot go to a topic. Returns False if no event has made it."""
        return False

    def schema_refused(self, use: SchemaUse, reason: str) -> bool:
        """Note that the registry refuses a schema. Returns False if no record of the shape uses it."""
        return False

    def rows(self, oid: int, given: Lines, lsn: int, now_us: int) -> list[Lines]:
        """Return what rows of COPY become; `lsn` is the position up to which they are valid."""
        return [given]

    def encoded(self, oid: int, given: Lines, encoded: Encoded, topic: str, records: list[Record]) -> None:
        """Change the records of rows in place.

        Args:
            topic: the table's own topic. Records of other topics are descriptions.
        """

    def topics(self, oid: int) -> tuple[str, ...]:
        """Return the topics that rows of a relation may go to besides its own."""
        return ()

    def counted(self, counts: Counts) -> Counts:
        """Return the stream's counts, with those of this shape."""
        return counts


class Shapes:
    """The shapes of a stream, in the order in which events go through them.

    Attributes:
        active: the shapes that may take events.
    """

    def __init__(self) -> None:
        self._all: list[Shape] = []
        self.active: list[Shape] = []

    def put(self, shape: Shape) -> None:
        """Put a shape in front of the others."""
        self._all.insert(0, shape)
        self.active = [each for each in self._all if each.is_on]

    def check(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        """Raise ConfigError if the relation cannot have one of the shapes. Nothing changes."""
        for shape in self._all:
            shape.check(relation, table, types)

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        """Take the description of a relation, which `check` and the catalog have accepted."""
        for shape in self._all:
            shape.define(relation, table, types)
        self.active = [each for each in self._all if each.is_on]

    def takes(self, item: SpoolItem, in_stream: bool) -> bool:
        """Return whether a shape may change the event."""
        return any(shape.takes(item, in_stream) for shape in self.active)

    def parts(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        """Return the parts that an event becomes; None if the event stays as it is. See `Shape.parts` for errors."""
        parts: list[ShapedPart] | None = None
        for shape in self.active:
            if parts is None:
                parts = shape.parts(frame, in_stream, now_us)
                continue
            shaped: list[ShapedPart] = []
            for part in parts:
                made = None if part.record is not None else shape.parts(part.frame, in_stream, now_us)
                if made is None:
                    shaped.append(part)
                    continue
                for each in made:
                    _give_topic(each, part)
                shaped += made
            parts = shaped
        return parts

    @property
    def has_needs(self) -> bool:
        """See `Shape.has_needs`."""
        return any(shape.has_needs for shape in self.active)

    @property
    def made_topics(self) -> tuple[str, ...]:
        """See `Shape.made_topics`."""
        return tuple([topic for shape in self._all for topic in shape.made_topics])

    def needs(self, item: SpoolItem, in_stream: bool) -> Needs:
        """See `Shape.needs`. Only one shape has an event of its own."""
        for shape in self.active:
            if shape.has_needs:
                return shape.needs(item, in_stream)
        return NO_NEEDS

    def topic_refused(self, topic: str, reason: str) -> bool:
        """See `Shape.topic_refused`."""
        return any(shape.topic_refused(topic, reason) for shape in self.active)

    def schema_refused(self, use: SchemaUse, reason: str) -> bool:
        """See `Shape.schema_refused`."""
        return any(shape.schema_refused(use, reason) for shape in self.active)

    def rows(self, oid: int, lines: list[bytes], lsn: int, now_us: int) -> list[Lines]:
        """Return what becomes of rows of COPY, at least one entry. See `Shape.rows`."""
        given = [Lines("", lines)]
        for shape in self.active:
            given = [part for each in given for part in shape.rows(oid, each, lsn, now_us)]
        return given

    def encoded(self, oid: int, given: Lines, encoded: Encoded, topic: str, records: list[Record]) -> None:
        """See `Shape.encoded`."""
        for shape in self.active:
            shape.encoded(oid, given, encoded, topic, records)

    def topics(self, oid: int) -> list[str]:
        """Return the topics that rows of a relation may go to besides its own."""
        return [topic for shape in self.active for topic in shape.topics(oid)]

    def counted(self, counts: Counts) -> Counts:
        """Return the stream's counts, with those of the shapes."""
        for shape in reversed(self._all):
            counts = shape.counted(counts)
        return counts


def _give_topic(made: ShapedPart, part: ShapedPart) -> None:
    """Give what a shape has made of a part the topic of that part, unless it has one of its own."""
    if part.topic and not made.topic:
        made.oid, made.topic = part.oid, part.topic


def put_header(records: list[Record], known: int, topic: str, header: tuple[str, bytes]) -> None:
    """Add a header to the records of a topic after the first `known` ones; other records are descriptions."""
    for number in range(known, len(records)):
        name, key, value, headers = records[number]
        if name == topic:
            records[number] = (name, key, value, [*(headers or ()), header])


def placed_lines(
    position: SnapshotPosition, before: int, count: int, *, first: bool, last: bool
) -> SnapshotPosition:
    """Return the position of some of the rows; `before` records precede theirs."""
    marker_of_first = position.first if first else position.others
    marker_of_last = position.last if last else position.others
    if count == 1 and first and not last:
        # A single row has the marker of a last row.
        marker_of_last = marker_of_first
    return SnapshotPosition(
        lsn=position.lsn,
        commit_lsn=position.commit_lsn,
        first=marker_of_first,
        last=marker_of_last,
        others=position.others,
        event_no=position.event_no + before,
        op=position.op,
    )
