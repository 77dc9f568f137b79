"""An encoder in front of another one that sends rows to topics by their values.

As `in_front.py` requires, each event of a transaction counts once, whatever is made of it. `row_routes.py` decides
which topic a row goes to, and this module changes events accordingly:

| the event | its records |
|---|---|
| insert | in the topic of the row |
| update of a row that stays in its topic | in that topic |
| update of a row that goes elsewhere | a delete in the former topic, and an insert in the new one |
| delete | in the topic of the old row |
| truncate, end of another table's rows | in all topics of the table |

The parts of an event have its number, as the two halves of an update of the key have. If the old topic is not
known, each possible topic gets the delete; if the new topic is among them, the update stays an update there.

The inner encoder makes a record for the table's own topic, which is then moved to another topic
(`Encoder.to_topic`). So the content of a record does not depend on its topic. Rows that snapshots read are divided
by topic before they are encoded, so within each topic they are in the order in which they were read.
"""

from collections.abc import Mapping

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.facts import Observer, RouteFailed
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Relation, Truncate
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.encoder import Encoded, Encoder, EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.shaping.in_front import ROUTE_FAILED, EncoderInFront
from cdcd.core.records.shaping.row_routes import ChosenRoutes, RowRoutes, contradiction
from cdcd.core.records.shaping.row_values import delete_of, insert_of, old_and_new
from cdcd.core.records.shaping.settings import TableRoutes
from cdcd.core.records.shaping.unanswered import UnansweredRows
from cdcd.core.transactions.drafts import SpoolItem


def routed(
    inner: Encoder, routes: tuple[TableRoutes, ...], settings: EncoderSettings, observe: Observer
) -> Encoder:
    """Return the encoder of a pipeline's changes, which is `inner` if no table has routes."""
    return RouteEncoder(inner, routes, settings, observe) if routes else inner


class RouteEncoder(EncoderInFront):
    """Sends rows to the topics of their routes, and passes everything else to `inner`.

    See `Encoder` for the methods.
    """

    def __init__(
        self, inner: Encoder, routes: tuple[TableRoutes, ...], settings: EncoderSettings, observe: Observer
    ) -> None:
        EncoderInFront.__init__(self, inner)
        self._chosen = ChosenRoutes(routes)
        self._protections = settings.protections
        self._names = settings.topics
        self._observe = observe
        self._routes: dict[int, RowRoutes] = {}
        self._unanswered = UnansweredRows(ROUTE_FAILED, RouteFailed, observe)

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        return {**self._inner.counts, **self._unanswered.counts}

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        self._inner.define(relation, table, types)
        chosen = self._chosen.of_table(relation)
        if not chosen:
            self._routes.pop(relation.oid, None)
            return
        self._routes[relation.oid] = RowRoutes(
            relation,
            chosen[0],
            (self._inner.tables.topic_of(relation.oid), *self._names.routed(relation.schema, relation.name)),
            types,
            self._protections,
            problem=contradiction(chosen),
            table=table,
        )

    def encode_all(self, kept: list[SpoolItem], in_stream: bool, now_us: int, out: list[Record]) -> int:
        if not self._routes:
            return self._inner.encode_all(kept, in_stream, now_us, out)
        return EncoderInFront.encode_all(self, kept, in_stream, now_us, out)

    def _shapes(self, item: SpoolItem, in_stream: bool) -> bool:
        if not isinstance(item, bytes):
            return False
        tag = peek.tag_of(item)
        if tag in peek.ROWS:
            return peek.relation_of_row(item, in_stream) in self._routes
        return tag == peek.TRUNCATE and any(
            oid in self._routes for oid in peek.relation_oids(item, in_stream)
        )

    def _shape(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        if peek.tag_of(frame) == peek.TRUNCATE:
            return self._truncate(frame, in_stream, now_us, out)
        oid = peek.relation_of_row(frame, in_stream)
        found = self._routes[oid]
        try:
            parts = self._parts(found, frame, in_stream, now_us)
        except (ValueError, IndexError) as cause:
            # The inner encoder raises the error, which names the malformed part of the message.
            self._inner.encode(frame, in_stream, now_us, out)
            raise AssertionError("a row was refused in which nothing is wrong") from cause
        size = 0
        for number, (topic, part) in enumerate(parts):
            if number:
                self._inner.skip(-1)
            known = len(out)
            size += self._inner.encode(part, in_stream, now_us, out)
            self._give(oid, topic, known, out)
        return size

    def _parts(self, found: RowRoutes, frame: bytes, in_stream: bool, now_us: int) -> list[tuple[str, bytes]]:
        """Return the events that the event becomes, each with its topic."""
        tag = peek.tag_of(frame)
        old, new, whole = old_and_new(found, frame, in_stream)
        if tag == peek.DELETE:
            return [(topic, frame) for topic in found.went(old, whole=whole)]
        topic = found.goes(new)
        if found.reason:
            self._unanswered.look_at(found, peek.lsn_of(frame), now_us)
        if tag == peek.INSERT:
            return [(topic, frame)]
        former = found.went(old, whole=whole)
        if former == [topic]:
            return [(topic, frame)]
        gone = delete_of(found, frame, in_stream)
        parts = [(each, gone) for each in former if each != topic]
        parts.append((topic, frame if topic in former else insert_of(found, frame, in_stream, whole=whole)))
        return parts

    def _truncate(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
        assert isinstance(message, Truncate), "the tag says so"
        size = self._inner.encode(frame, in_stream, now_us, out)
        for oid in message.relation_oids:
            found = self._routes.get(oid)
            if found is None:
                continue
            alone = Truncate(message.xid, message.cascade, message.restart_identity, (oid,))
            part = frame[:XLOG_HEADER] + write_message(alone)
            for topic in found.topics[1:]:
                self._inner.skip(-1)
                known = len(out)
                size += self._inner.encode(part, in_stream, now_us, out)
                self._give(oid, topic, known, out)
        return size

    def encode_end_of_rows(
        self, oid: int, between: tuple[int, int] | None, now_us: int, out: list[Record]
    ) -> int:
        size = self._inner.encode_end_of_rows(oid, between, now_us, out)
        found = self._routes.get(oid)
        for topic in () if found is None else found.topics[1:]:
            known = len(out)
            size += self._inner.encode_end_of_rows(oid, between, now_us, out)
            self._give(oid, topic, known, out)
        return size

    def _give(self, oid: int, topic: str, known: int, out: list[Record]) -> None:
        """Move the records from index `known` on, which are for the table's own topic, to another one of its topics."""
        own = self._inner.tables.topic_of(oid)
        if topic == own:
            return
        for place in range(known, len(out)):
            # There are also descriptions of tables among them.
            if out[place][0] == own:
                out[place] = self._inner.to_topic(oid, out[place], topic)

    def encode_rows(  # noqa: PLR0917  as in `Encoder`
        self,
        oid: int,
        lines: list[bytes],
        position: SnapshotPosition,
        now_us: int,
        out: list[Record],
        dropped: set[bytes],
    ) -> Encoded:
        found = self._routes.get(oid)
        if found is None:
            return self._inner.encode_rows(oid, lines, position, now_us, out, dropped)
        by_topic: dict[str, list[bytes]] = {}
        for line in lines:
            by_topic.setdefault(found.goes_line(line), []).append(line)
            self._unanswered.look_at(found, position.lsn, now_us)
        if not by_topic:
            by_topic[found.topics[0]] = []
        rows = size = 0
        keys: list[bytes] | None = []
        for number, (topic, each) in enumerate(by_topic.items(), 1):
            known = len(out)
            part = _part(position, rows, len(each), first=number == 1, last=number == len(by_topic))
            encoded = self._inner.encode_rows(oid, each, part, now_us, out, dropped)
            self._give(oid, topic, known, out)
            rows += encoded.rows
            size += encoded.bytes
            keys = None if keys is None or encoded.keys is None else keys + encoded.keys
        return Encoded(rows, size, keys)


def _part(
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
    )
