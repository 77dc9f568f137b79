import json
from typing import Any

import pytest

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ProtocolError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import Encoded, EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.stream import RecordStream

RELATION = Relation(None, 1, "public", "t", "d", (Column(1, "id", 23, -1), Column(0, "note", 25, -1)))
POSITION = SnapshotPosition(
    lsn=Lsn(1000), commit_lsn=999, first="first", last="last", others="true", event_no=5
)


def encoder(**settings: Any) -> RecordStream:
    found = record_stream(EncoderSettings(version="1", prefix="p", database="d", **settings))
    found.define(RELATION, TableDescription(primary_key=("id",)), BUILTIN_TYPES)
    return found


def test_rows_are_records_with_op_r_numbered_on_and_marked():
    out: list[Record] = []
    lines = [b"1\ta\n", b"2\t\\N\n", b"3\tc\n"]
    found = encoder()
    encoded = found.encode_rows(1, lines, POSITION, 2_000_000, out, set())
    assert encoded == Encoded(3, sum(_size(each) for each in out), [b'{"id":1}', b'{"id":2}', b'{"id":3}'])
    assert [key for _, key, _, _ in out] == [b'{"id":1}', b'{"id":2}', b'{"id":3}']
    envelopes = [json.loads(value or b"") for _, _, value, _ in out]
    assert [each["source"]["snapshot"] for each in envelopes] == ["first", "true", "last"]
    assert [each["source"]["event_serial_no"] for each in envelopes] == [6, 7, 8]
    assert list(envelopes[1]) == ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    assert (envelopes[1]["before"], envelopes[1]["op"]) == (None, "r")
    assert envelopes[1]["after"] == {"id": 2, "note": None}
    source = envelopes[1]["source"]
    assert (source["lsn"], source["commit_lsn"], source["txId"], source["ts_ms"]) == (1000, 999, None, 2000)
    assert source["sequence"] == '[null,"1000"]'
    assert found.counts == {("public.t", "r"): 3}


def test_rows_whose_key_was_changed_meanwhile_are_left_out():
    out: list[Record] = []
    encoded = encoder().encode_rows(1, [b"1\ta\n", b"2\tb\n"], POSITION, 0, out, {b'{"id":1}'})
    assert (encoded.rows, encoded.keys) == (1, [b'{"id":2}'])
    assert [key for _, key, _, _ in out] == encoded.keys


def test_a_tables_description_comes_before_its_first_row_only():
    out: list[Record] = []
    found = encoder(schemas_topic="p.schemas")
    for _ in range(2):
        found.encode_rows(1, [b"1\ta\n"], POSITION, 0, out, set())
    assert [topic for topic, _, _, _ in out] == ["p.schemas", "p.public.t", "p.public.t"]
    assert json.loads(out[1][2] or b"")["source"]["schema_id"]


def test_a_malformed_row_is_refused_by_name():
    with pytest.raises(ProtocolError, match=r"public\.t read by COPY has 1 columns"):
        encoder().encode_rows(1, [b"1\n"], POSITION, 0, [], set())


def test_whether_rows_can_be_told_apart_is_known():
    found = encoder()
    assert found.tables.key_indexes(1)
    found.define(Relation(None, 2, "public", "u", "n", RELATION.columns), TableDescription(), BUILTIN_TYPES)
    assert not found.tables.key_indexes(2)
    assert found.encode_rows(2, [b"1\ta\n"], POSITION, 0, [], set()).keys is None


def _size(record: Record) -> int:
    return len(record[1] or b"") + len(record[2] or b"")


KEYED = (Column(1, "a%", 25, -1), Column(1, "b", 1700, -1), Column(0, "c", 3802, -1))


def test_what_comes_in_blocks_is_what_comes_row_by_row(monkeypatch: pytest.MonkeyPatch):
    relation = Relation(None, 3, "public", "100%", "d", KEYED)
    lines = [
        b'%d of "it"\t%b\t%b\n'
        % (row, b"NaN" if row == 7 else b"1.%d" % row, rb"\N" if row % 5 else b'{"%s":1}')
        for row in range(23)
    ]
    found: list[list[Record]] = []
    for block in (1, 4, 1000):
        monkeypatch.setattr("cdcd.core.records.debezium_json.copied_rows.BLOCK", block)
        encoding = encoder()
        encoding.define(relation, TableDescription(primary_key=("a%", "b")), BUILTIN_TYPES)
        out: list[Record] = []
        dropped = {json.dumps({"a%": '3 of "it"', "b": "1.3"}, separators=(",", ":")).encode()}
        encoded = encoding.encode_rows(3, lines, POSITION, 5, out, dropped)
        assert encoded == Encoded(22, sum(map(_size, out)), [key or b"" for _, key, _, _ in out], [3])
        found.append(out)
    assert found[0] == found[1] == found[2]
    after = [json.loads(value or b"")["after"] for _, _, value, _ in found[0]]
    assert after[0] == {"a%": '0 of "it"', "b": "1.0", "c": '{"%s":1}'}
    assert [json.loads(key or b"") for _, key, _, _ in found[0]] == [
        {"a%": row["a%"], "b": row["b"]} for row in after
    ]


def test_the_row_that_is_wrong_is_found_in_its_block():
    with pytest.raises(ProtocolError, match="column 'id' of type 23: a text of 1 bytes"):
        encoder().encode_rows(1, [b"1\ta\n", b"\xff\tb\n", b"3\tc\n"], POSITION, 0, [], set())
    with pytest.raises(ProtocolError, match="has 3 columns"):
        encoder().encode_rows(1, [b"1\ta\n", b"2\tb\tc\n"], POSITION, 0, [], set())


def test_no_rows_are_no_records():
    out: list[Record] = []
    assert encoder().encode_rows(1, [], POSITION, 0, out, set()) == Encoded(0, 0, [])
    assert out == []
