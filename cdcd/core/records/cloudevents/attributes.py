"""The attributes of a CloudEvent, which are in the value around the data, or in headers.

The attributes are those of Debezium's CloudEventsConverter 3.7, in the same order. The modes are those of
CloudEvents' Kafka protocol binding 1.0. cdcd differs from the converter where the converter's record is not a valid
event, or does not say what it is:

- `id` is unique for each event, and the same if the event is made again: it has the LSN of the commit, the number
  of the event in the transaction, the table's oid and the op. Debezium's `id` has the LSN of the change, which
  several rows of one command can share, and the LSN of the previous transaction, which is not known after a
  restart.
- `iodebeziumtxId` is called `iodebeziumsourcetxid`, because names of attributes must be in lower case, and
  `iodebeziumtxid` is already the id of the transaction block.
- An attribute without a value is left out. For a reader this is the same as null (JSON event format, 2.2).
- The record has the header `content-type`, which says the mode.
- Data in Avro is in the member `data_base64`, and not as text in `data` (JSON event format, 3.1.1).
- Logical messages, and BEGIN and END of transactions, are events with their own types. Debezium's converter writes
  null for these.

Tombstones are not events, and have none of these headers.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import Final

from cdcd.core.catalog.temporal import iso_timestamp_of
from cdcd.core.records.cloud_events import STRUCTURED
from cdcd.core.records.debezium_json.pieces import Part
from cdcd.core.records.debezium_json.source_block import TransactionFacts
from cdcd.core.records.debezium_json.strings import escaped
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.debezium_json.transaction_metadata import TableCount, TransactionMetadata
from cdcd.core.records.encoder import EncoderSettings

Attributes = list[tuple[str, bytes]]
"""Names and values (UTF-8) of attributes, in the order in which they are written."""

DATA_CHANGE: Final = "DataChangeEvent"
MESSAGE: Final = "MessageEvent"
TRANSACTION: Final = "TransactionMetadataEvent"
"""Kinds of events, each of which is the end of the attribute `type`. Debezium has only the first one."""

_TYPE: Final = "io.debezium.connector.postgresql."
_CONTENT_TYPE: Final = "content-type"
_STRUCTURED_TYPE: Final = b"application/cloudevents+json; charset=UTF-8"
AVRO_DATA: Final = b"application/avro"
JSON_DATA: Final = b"application/json"

_SAME: Final = -1
_ID: Final = 0
_OP: Final = 1
_SEQUENCE: Final = 2
_LSN: Final = 3
_EVENT_NO: Final = 4
_TOTAL: Final = 5
_ORDER: Final = 6
"""Which part of an attribute's value differs between the events of one table in a transaction; _SAME if none does."""

_Part = tuple[str, bytes, int]
"""An attribute: its name, its value if it is _SAME, and its kind, which is one of the above."""


class EventForm:
    """Makes the value and the headers of an event from attributes and data."""

    def __init__(self, settings: EncoderSettings, content_type: bytes) -> None:
        self.is_structured = settings.events.mode == STRUCTURED
        self.is_base64 = content_type != JSON_DATA
        self.data_member = b'"data_base64":"' if self.is_base64 else b'"data":'
        self.end = b'"}' if self.is_base64 else b"}"
        self._content_type = content_type
        self._source = f"/debezium/postgresql/{settings.prefix}".encode()
        self.structured_headers: Headers = [(_CONTENT_TYPE, _STRUCTURED_TYPE)]

    def begin(self, kind: str, unix_us: int) -> Attributes:
        """Return the attributes after `id` that every event has."""
        return [
            ("source", self._source),
            ("specversion", b"1.0"),
            ("type", (_TYPE + kind).encode()),
            ("time", iso_timestamp_of(unix_us // 1000 * 1000, 3).encode()),
            ("datacontenttype", self._content_type),
        ]

    def value(self, before_data: Sequence[Part], data: Sequence[Part]) -> bytes:
        """Return the value of a structured event; `before_data` ends with the name of the data's member.

        `data` is given in parts, which are joined only once.
        """
        parts = [b64encode(b"".join(data))] if self.is_base64 else data
        return b"".join((*before_data, *parts, self.end))

    def event(self, attributes: Attributes, data: bytes) -> tuple[bytes, Headers]:
        """Return value and headers of an event, all of whose attributes are given."""
        if not self.is_structured:
            return data, [(header_of(name), value) for name, value in attributes]
        pieces = [b"{", *[member(name) + escaped(value) + b'",' for name, value in attributes]]
        return self.value([*pieces, self.data_member], [data]), [*self.structured_headers]


class Events:
    """Makes the events of one table, or of logical messages; `renew` must be called first in each transaction.

    Attributes:
        transaction: number of the transaction for which the attributes were renewed.
        header_bytes: bytes of the last event's attributes if they are headers, else 0. They count as bytes of the
            record, because headers can be several times as large as the value of a small row.
        data_schema: URL of the data's schema; empty if there is none.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        form: EventForm,
        kind: str,
        described: TableFragments | None = None,
        metadata: TransactionMetadata | None = None,
    ) -> None:
        self.transaction = -1
        self.data_schema = b""
        self.header_bytes = 0
        self._same_bytes = 0
        self._form = form
        self._kind = kind
        self._extensions = settings.events.extensions
        self._version = settings.version.encode()
        self._name = settings.prefix.encode()
        self._database = settings.database.encode()
        self._table_id = b";op:"
        self._schema = self._table = self._schema_id = b""
        self._qualified = "."
        if described is not None:
            relation = described.relation
            self._table_id = b";table:%d;op:" % relation.oid
            self._schema = relation.schema.encode()
            self._table = relation.name.encode()
            self._qualified = f"{relation.schema}.{relation.name}"
            self._schema_id = (described.schema_id or "").encode()
        self._metadata = metadata
        self._count: TableCount | None = None
        self._id = b""
        self._sequence = b""
        self._quote = b'\\"' if form.is_structured else b'"'
        self._slots: list[int] = []
        self._pieces: list[bytes] = []
        self._headers: Headers = []
        self._places: list[int] = []

    def renew(self, facts: TransactionFacts) -> None:
        """Make the attributes that all events of the table share in the transaction."""
        self._id = b"commit_lsn:%d;event:" % facts.commit_lsn
        quote = self._quote
        last = b"null" if facts.last_commit_lsn is None else b"%b%d%b" % (quote, facts.last_commit_lsn, quote)
        self._sequence = b"[%b,%b" % (last, quote)
        metadata = self._metadata
        self._count = None
        if metadata is not None and metadata.id:
            self._count = metadata.table(self._qualified)
        attributes: list[_Part] = [("id", b"", _ID)]
        attributes += [(name, value, _SAME) for name, value in self._form.begin(self._kind, facts.unix_us)]
        if self.data_schema:
            attributes.append(("dataschema", self.data_schema, _SAME))
        if self._extensions:
            attributes += self._of_source(facts)
        if self._form.is_structured:
            self._cut(attributes)
        else:
            self._take_headers(attributes)

    def _of_source(self, facts: TransactionFacts) -> list[_Part]:
        """Return the attributes from the source block and from the transaction block.

        Whole numbers become text, as in Debezium's events.
        """
        micros = facts.unix_us
        fields: list[_Part] = [
            ("op", b"", _OP),
            ("version", self._version, _SAME),
            ("connector", b"postgresql", _SAME),
            ("name", self._name, _SAME),
            ("tsms", b"%d" % (micros // 1000), _SAME),
            ("snapshot", facts.snapshot.encode(), _SAME),
            ("db", self._database, _SAME),
            ("sequence", b"", _SEQUENCE),
            ("tsus", b"%d" % micros, _SAME),
            ("tsns", b"%d" % (micros * 1000), _SAME),
            ("schema", self._schema, _SAME),
            ("table", self._table, _SAME),
            ("sourcetxid", b"" if facts.xid is None else b"%d" % facts.xid, _SAME),
            ("lsn", b"", _LSN),
            ("origin", (facts.origin or "").encode(), _SAME),
            ("originlsn", b"" if facts.origin_lsn is None else b"%d" % facts.origin_lsn, _SAME),
            ("commitlsn", b"%d" % facts.commit_lsn, _SAME),
            ("eventserialno", b"", _EVENT_NO),
            ("schemaid", self._schema_id, _SAME),
        ]
        if self._count is not None and self._metadata is not None:
            # The id is JSON, and has no characters that need an escape.
            fields += [
                ("txid", self._metadata.id[1:-1], _SAME),
                ("txtotalorder", b"", _TOTAL),
                ("txdatacollectionorder", b"", _ORDER),
            ]
        return [(f"iodebezium{name}", value, slot) for name, value, slot in fields if value or slot >= 0]

    def _cut(self, attributes: list[_Part]) -> None:
        """Make the JSON of the attributes in pieces, between which the differing values (`_slots`) are put later."""
        self._slots = []
        self._pieces = []
        text = b"{"
        for name, value, slot in attributes:
            text += member(name)
            if slot >= 0:
                self._slots.append(slot)
                self._pieces.append(text)
                text = b""
            text += escaped(value) + b'",'
        self._pieces.append(text + self._form.data_member)

    def _take_headers(self, attributes: list[_Part]) -> None:
        self._slots = []
        self._places = []
        self._headers = []
        for name, value, slot in attributes:
            if slot >= 0:
                self._slots.append(slot)
                self._places.append(len(self._headers))
            self._headers.append((header_of(name), value))
        self._same_bytes = sum([len(name) + len(value) for name, value in self._headers])

    def make(
        self, op: str, mark: str, lsn: int, event_no: int, data: Sequence[Part], others: Headers | None
    ) -> tuple[bytes, Headers]:
        """Return the value and the headers of an event.

        Args:
            data: the data in parts, which are joined only once because they can be large.
            op: the op of the record.
            mark: the text in place of the op in `id`, to distinguish two records with the same op.
            others: headers that the record has besides the event's headers.
        """
        count, metadata = self._count, self._metadata
        total = order = 0
        if count is not None and metadata is not None:
            metadata.total += 1
            count.records += 1
            total, order = metadata.total, count.records
        form = self._form
        if form.is_structured:
            before: list[bytes] = []
            for number, slot in enumerate(self._slots):
                before.append(self._pieces[number])
                before.append(self._value(slot, op, mark, lsn, event_no, total, order))
            before.append(self._pieces[-1])
            return form.value(before, data), [*form.structured_headers, *(others or ())]
        headers = self._headers.copy()
        size = self._same_bytes
        for number, slot in enumerate(self._slots):
            place = self._places[number]
            value = self._value(slot, op, mark, lsn, event_no, total, order)
            size += len(value)
            headers[place] = (headers[place][0], value)
        self.header_bytes = size
        return b"".join(data), [*headers, *(others or ())]

    def _value(self, slot: int, op: str, mark: str, lsn: int, event_no: int, total: int, order: int) -> bytes:
        """Return the value of an attribute as it is written at its place."""
        if slot == _ID:
            return b"%b%d%b%b" % (self._id, event_no, self._table_id, mark.encode())
        if slot == _OP:
            return op.encode()
        if slot == _SEQUENCE:
            return b"%b%d%b]" % (self._sequence, lsn, self._quote)
        if slot == _LSN:
            return b"%d" % lsn
        if slot == _EVENT_NO:
            return b"%d" % event_no
        return b"%d" % (total if slot == _TOTAL else order)


def member(name: str) -> bytes:
    """Return the beginning of a JSON object's member whose value is text."""
    return f'"{name}":"'.encode()


def header_of(attribute: str) -> str:
    """Return the name of the header that an attribute has in binary mode."""
    return _CONTENT_TYPE if attribute == "datacontenttype" else f"ce_{attribute}"
