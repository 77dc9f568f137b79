"""A shape (`shape.py`) that sends rows to topics by their values.

`row_routes.py` decides which topic a row goes to, and this module changes events accordingly:

| the event | its records |
|---|---|
| insert | in the topic of the row |
| update of a row that stays in its topic | in that topic |
| update of a row that goes elsewhere | a delete in the former topic, and an insert in the new one |
| delete | in the topic of the old row |
| truncate, end of another table's rows | in all topics of the table |

The parts of an event have its number, as the two halves of an update of the key have. If the old topic is not
known, each possible topic gets the delete; if the new topic is among them, the update stays an update there.

The stream makes each record for the table's own topic, and then moves it to another topic
(`RecordStream.to_topic`). So the content of a record does not depend on its topic. Rows that snapshots read are divided
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
from cdcd.core.records.encoder import Encoder, EncoderSettings
from cdcd.core.records.shaping.row_routes import ChosenRoutes, RowRoutes, contradiction
from cdcd.core.records.shaping.row_values import delete_of, insert_of, old_and_new
from cdcd.core.records.shaping.settings import TableRoutes
from cdcd.core.records.shaping.shape import ROUTE_FAILED, Counts, Lines, Part, Shape
from cdcd.core.records.shaping.unanswered import UnansweredRows
from cdcd.core.transactions.drafts import SpoolItem


def routed(
    inner: Encoder, routes: tuple[TableRoutes, ...], settings: EncoderSettings, observe: Observer
) -> Encoder:
    """Return `inner`, which sends rows to the topics of the routes, if there are any."""
    if routes:
        inner.shape_by(RouteShape(routes, settings, observe))
    return inner


class RouteShape(Shape):
    """Sends rows to the topics of their routes. See `Shape` for the methods."""

    def __init__(self, routes: tuple[TableRoutes, ...], settings: EncoderSettings, observe: Observer) -> None:
        self._chosen = ChosenRoutes(routes)
        self._protections = settings.protections
        self._names = settings.topics
        self._observe = observe
        self._routes: dict[int, RowRoutes] = {}
        self._unanswered = UnansweredRows(ROUTE_FAILED, RouteFailed, observe)

    @property
    def is_on(self) -> bool:
        return bool(self._routes)

    def counted(self, counts: Counts) -> Counts:
        return {**counts, **self._unanswered.counts}

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        chosen = self._chosen.of_table(relation)
        if not chosen:
            self._routes.pop(relation.oid, None)
            return
        self._routes[relation.oid] = RowRoutes(
            relation,
            chosen[0],
            (
                self._names.table(relation.schema, relation.name),
                *self._names.routed(relation.schema, relation.name),
            ),
            types,
            self._protections,
            problem=contradiction(chosen),
            table=table,
        )

    def takes(self, item: SpoolItem, in_stream: bool) -> bool:
        if not isinstance(item, bytes):
            return False
        tag = peek.tag_of(item)
        if tag in peek.ROWS:
            return peek.relation_of_row(item, in_stream) in self._routes
        return tag == peek.TRUNCATE and any(
            oid in self._routes for oid in peek.relation_oids(item, in_stream)
        )

    def parts(self, part: Part, in_stream: bool, now_us: int) -> list[Part]:
        frame = part.frame
        if peek.tag_of(frame) == peek.TRUNCATE:
            return self._truncates(part, in_stream)
        oid = peek.relation_of_row(frame, in_stream)
        found = self._routes[oid]
        tag = peek.tag_of(frame)
        old, new, whole = old_and_new(found, frame, in_stream)
        if tag == peek.DELETE:
            return [Part(frame, oid, topic) for topic in found.went(old, whole=whole)]
        topic = found.goes(new)
        if found.reason:
            self._unanswered.look_at(found, peek.lsn_of(frame), now_us)
        if tag == peek.INSERT:
            return [Part(frame, oid, topic)]
        former = found.went(old, whole=whole)
        if former == [topic]:
            return [Part(frame, oid, topic)]
        gone = delete_of(found, frame, in_stream)
        parts = [Part(gone, oid, each) for each in former if each != topic]
        new_frame = frame if topic in former else insert_of(found, frame, in_stream, whole=whole)
        parts.append(Part(new_frame, oid, topic))
        return parts

    def _truncates(self, part: Part, in_stream: bool) -> list[Part]:
        """Return the truncate of all tables in their own topics, and one for each further topic of each table."""
        message = read_message(part.frame, XLOG_HEADER, in_stream=in_stream)
        assert isinstance(message, Truncate), "the tag says so"
        parts = [part]
        for oid in message.relation_oids:
            found = self._routes.get(oid)
            if found is None:
                continue
            alone = Truncate(message.xid, message.cascade, message.restart_identity, (oid,))
            frame = part.frame[:XLOG_HEADER] + write_message(alone)
            parts += [Part(frame, oid, topic) for topic in found.topics[1:]]
        return parts

    def topics(self, oid: int) -> tuple[str, ...]:
        found = self._routes.get(oid)
        return () if found is None else found.topics[1:]

    def rows(self, oid: int, given: Lines, lsn: int, now_us: int) -> list[Lines]:
        found = self._routes.get(oid)
        if found is None:
            return [given]
        by_topic: dict[str, list[bytes]] = {}
        for line in given.lines:
            by_topic.setdefault(found.goes_line(line), []).append(line)
            self._unanswered.look_at(found, lsn, now_us)
        return [Lines(topic, lines) for topic, lines in by_topic.items()] or [given]
