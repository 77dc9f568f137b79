"""A fifth format is one module and one row: here a stub that writes rows as lines, as PostgreSQL has their texts."""

from typing import Any

import pytest

from cdcd.config.expressions import parse_expression
from cdcd.core.catalog.copytext import split_row
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.errors import ProtocolError
from cdcd.core.protocol.frames import XLOG_HEADER, XLogData, write_frame
from cdcd.core.protocol.messages import Column, Delete, Insert, LogicalMessage, Relation, Truncate, Update
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import FORMATS, record_stream
from cdcd.core.records.debezium_json.known_tables import KnownTables
from cdcd.core.records.debezium_json.source_block import (
    CREATED,
    DELETED,
    READ,
    TRUNCATED,
    UPDATED,
    TransactionFacts,
)
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.encoder import Encoder, EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.format import CopiedRows, Current, Format, Schemas
from cdcd.core.records.shaping.filtering import filtered
from cdcd.core.records.shaping.settings import TableFilter

# The module of the format.


class LineFormat(Format):
    """A value is the op, the number of the event, and the texts of the row, separated by `|`."""

    def __init__(
        self, settings: EncoderSettings, tables: KnownTables, current: Current, observe: Any
    ) -> None:
        Format.__init__(self, None, Schemas())
        self._current = current
        self._topic = tables.names.message or ""

    def row(self, table: TableFragments, *head: Any) -> int:
        *_, width, frame, _, out = head
        if width != table.width:
            raise ValueError("the row has another number of columns than the relation")
        message = read_message(frame, XLOG_HEADER)
        assert isinstance(message, Insert | Update | Delete)
        if isinstance(message, Delete):
            return self._put(table, DELETED, message.old, out)
        op = CREATED if isinstance(message, Insert) else UPDATED
        return self._put(table, op, message.new, out)

    def _put(self, table: TableFragments, op: int, row: Any, out: list[Record]) -> int:
        if self._current.skips[op]:
            return 0
        texts = [value if isinstance(value, bytes) else b"" for value in row]
        key = b"|".join([texts[index] for index in table.key_columns if texts]) or None
        value = b"|".join([b"rcudt"[op : op + 1], b"%d" % self._current.serial, *texts])
        table.tally.counts[op] += 1
        out.append((table.topic, key, value, None))
        return len(value) + len(key or b"")

    def truncate(self, table: TableFragments, out: list[Record]) -> int:
        return self._put(table, TRUNCATED, (), out)

    def message(
        self,
        message: LogicalMessage,
        content: memoryview,
        facts: TransactionFacts,
        serial: int,
        out: list[Record],
    ) -> int:
        out.append((self._topic, message.prefix.encode(), bytes(content), None))
        return len(message.prefix) + len(content)

    def lines(self, table: TableFragments, lines: list[bytes], first: int, rows: CopiedRows) -> None:
        for line in lines:
            rows.count += 1
            self._current.serial = rows.position.event_no + rows.count
            rows.size += self._put(table, READ, split_row(line), rows.out)


# The row of the table of formats.


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> EncoderSettings:
    monkeypatch.setitem(FORMATS, "lines", LineFormat)
    return EncoderSettings("1", "shop", "db", value_format="lines", skipped=("d",))


ORDERS = Relation(None, 5, "public", "orders", "f", (Column(1, "id", 23, -1), Column(1, "state", 25, -1)))


def encode(encoder: Encoder, *messages: Any) -> list[Record]:
    out: list[Record] = []
    encoder.begin(7, 900, 0, 800)
    for message in messages:
        encoder.encode(write_frame(XLogData(500, 500, 0, write_message(message))), False, 1, out)
    return out


def test_a_new_format_has_what_the_stream_has(lines: EncoderSettings):
    encoder = record_stream(lines)
    encoder.define(ORDERS, TableDescription(("id",)), {})
    made = encode(
        encoder,
        Insert(None, 5, (b"1", b"new")),
        Delete(None, 5, "O", (b"1", b"new")),
        Update(None, 5, "O", (b"1", b"new"), (b"1", b"paid")),
        LogicalMessage(None, True, 500, "hello", b"x"),
        Truncate(None, False, False, (5,)),
    )
    # Each event has a number, also an event of a skipped operation, which has no record. The topics are as in JSON.
    assert made == [
        ("shop.public.orders", b"1", b"c|1|1|new", None),
        ("shop.public.orders", b"1", b"u|3|1|paid", None),
        ("shop.message", b"hello", b"x", None),
        ("shop.public.orders", None, b"t|5", None),
    ]
    assert encoder.counts == {("public.orders", name): 1 for name in "cut"}
    with pytest.raises(ProtocolError):
        encode(encoder, Insert(None, 5, (b"1",)))


def test_a_new_format_has_the_shapes(lines: EncoderSettings):
    keep = TableFilter("public.orders", "row.state != 'draft'", parse_expression("row.state != 'draft'"))
    encoder = filtered(record_stream(lines), (keep,), lines, lambda _: None)
    encoder.define(ORDERS, TableDescription(("id",)), {})
    made = encode(
        encoder,
        Insert(None, 5, (b"1", b"draft")),
        Update(None, 5, "O", (b"1", b"draft"), (b"1", b"new")),
    )
    out: list[Record] = []
    encoder.encode_rows(5, [b"2\tdraft\n", b"3\tnew\n"], SnapshotPosition(1, 2, "a", "b", "c"), 1, out, set())
    assert [value for _, _, value, _ in (*made, *out)] == [b"c|2|1|new", b"r|1|3|new"]
