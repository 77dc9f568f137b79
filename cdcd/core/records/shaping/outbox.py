"""A shape (`shape.py`) that makes the records of published events.

An event that cannot be published is never lost silently, and never ends the daemon: a logical message goes to the
topic of logical messages, a row goes to its table's own topic, and the observer is told why. At most one such
report is made per `REPORT_S`, because anybody may send many such events. A message that is too large for the topic
of logical messages gets no record.
"""

from collections.abc import Mapping
from typing import Final

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.facts import EventRefused, Observer, cut_short
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import Insert, LogicalMessage, Relation
from cdcd.core.protocol.reader import read_message
from cdcd.core.records.encoder import Encoder, EncoderSettings
from cdcd.core.records.shaping.outbox_rows import OutboxRows
from cdcd.core.records.shaping.publishing import PREFIX, read_event
from cdcd.core.records.shaping.settings import Outbox
from cdcd.core.records.shaping.shape import Counts, Part, Shape, of_row
from cdcd.core.transactions.drafts import SpoolItem

REPORT_S: Final = 10
"""Minimum of seconds between reports of refused events."""

REASON_MAX: Final = 400
"""Maximum number of characters of the reason in a report."""

PUBLISHED: Final = "published"
REFUSED: Final = "refused"
IGNORED: Final = "ignored"
"""Ops of `counts`: published events; events that could not be published, whatever record they have instead; updates
and deletes in outbox tables, which have no record."""


def shaped(inner: Encoder, outbox: Outbox, settings: EncoderSettings, observe: Observer) -> Encoder:
    """Return `inner`, which makes the records of events, if any are published."""
    if outbox.is_on:
        inner.shape_by(OutboxShape(outbox, settings, observe))
    return inner


class OutboxShape(Shape):
    """Publishes events. See `Shape` for the methods."""

    def __init__(self, outbox: Outbox, settings: EncoderSettings, observe: Observer) -> None:
        self._outbox = outbox
        self._topics = frozenset(outbox.topics)
        self._protections = settings.protections
        self._observe = observe
        self._rows: dict[int, OutboxRows] = {}
        self._names: dict[int, str] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._instead: dict[tuple[str, str], int] = {}
        """Number of records that `inner.counts` has because of refused events."""
        self._quiet_until_us = 0
        self._left_out = 0

    @property
    def is_on(self) -> bool:
        return self._outbox.messages or bool(self._rows)

    def counted(self, counts: Counts) -> Counts:
        found = {**counts, **self._counts}
        for each, count in self._instead.items():
            found[each] -= count
        return {each: count for each, count in found.items() if count}

    def check(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        self._made(relation, table)

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        rows = self._made(relation, table)
        self._names[relation.oid] = f"{relation.schema}.{relation.name}"
        if rows is None:
            self._rows.pop(relation.oid, None)
        else:
            self._rows[relation.oid] = rows

    def _made(self, relation: Relation, table: TableDescription) -> OutboxRows | None:
        outbox = self._outbox.tables.get((relation.schema, relation.name))
        if outbox is None:
            return None
        return OutboxRows(relation, outbox, self._topics, self._protections.in_force(relation, table))

    def takes(self, item: SpoolItem, in_stream: bool) -> bool:
        if not isinstance(item, bytes):
            return False
        return self._is_published(item, in_stream) or of_row(item, in_stream, self._rows) is not None

    def parts(self, part: Part, in_stream: bool, now_us: int) -> list[Part]:
        if peek.tag_of(part.frame) == peek.MESSAGE:
            return self._publish(part, in_stream, now_us)
        message = read_message(part.frame, XLOG_HEADER, in_stream=in_stream)
        oid = peek.relation_of_row(part.frame, in_stream)
        name = self._names[oid]
        if not isinstance(message, Insert):
            _count(name, IGNORED, self._counts)
            return []
        try:
            record = self._rows[oid].event(message.new)
        except ValueError as error:
            self._refuse(name, str(error), part.frame, now_us)
            _count(name, "c", self._instead)
            return [part]
        _count(name, PUBLISHED, self._counts)
        return [Part(part.frame, record=record)]

    def _is_published(self, frame: bytes, in_stream: bool) -> bool:
        return (
            self._outbox.messages
            and peek.tag_of(frame) == peek.MESSAGE
            and peek.message_prefix(frame, in_stream) == PREFIX
        )

    def _publish(self, part: Part, in_stream: bool, now_us: int) -> list[Part]:
        """Return the event's record; the part itself if the event is refused and is encoded like any other message."""
        message = read_message(part.frame, XLOG_HEADER, in_stream=in_stream)
        assert isinstance(message, LogicalMessage)
        left_out = peek.shortened_bytes(part.frame)
        size, most = max(len(message.content), left_out), self._outbox.message_bytes_max
        if size > most or left_out >= 0:
            self._refuse("", f"it has {size} bytes, and {most} are allowed", part.frame, now_us)
            return []
        try:
            record = read_event(message.content, self._topics)
        except ValueError as error:
            self._refuse("", str(error), part.frame, now_us)
            _count("", "m", self._instead)
            return [part]
        _count("", PUBLISHED, self._counts)
        return [Part(part.frame, record=record)]

    def _refuse(self, table: str, reason: str, frame: bytes, now_us: int) -> None:
        _count(table, REFUSED, self._counts)
        if now_us < self._quiet_until_us:
            self._left_out += 1
            return
        self._quiet_until_us = now_us + REPORT_S * 1_000_000
        left_out, self._left_out = self._left_out, 0
        self._observe(
            EventRefused(
                table=table,
                reason=cut_short(reason, REASON_MAX),
                lsn=str(Lsn(peek.lsn_of(frame))),
                left_out=left_out,
            )
        )


def _count(table: str, op: str, counts: dict[tuple[str, str], int]) -> None:
    counts[table, op] = counts.get((table, op), 0) + 1
