import json
from collections.abc import Iterable
from typing import Any

import pytest

from cdcd.adapters.credentials.columns import hashing
from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import ColumnRule
from cdcd.core.catalog.relations import CatalogColumn, TableDescription, TypeDescription
from cdcd.core.catalog.table_rules import KeyRule
from cdcd.core.errors import ProtocolError, SourceError, TransientError
from cdcd.core.facts import Fact, Observer, unheard
from cdcd.core.facts.rules import ValueUnwritable
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import (
    UNCHANGED,
    Column,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    Truncate,
    Update,
)
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import Record, SnapshotPosition
from tests.unit.core.records.avro.reading import MESSAGE_CONTENTS
from tests.unit.core.records.avro.test_encoder import LINES, ROW_TYPES
from tests.unit.core.records.debezium_json.test_encoder import (
    BYTEA,
    COMMIT_TIME,
    ID_AND_NAME,
    INT,
    INTS,
    LSN,
    NOW_US,
    OID,
    TEXT,
    UNAVAILABLE,
    WITH_NOTE,
    column,
    relation,
    row,
)
from tests.unit.core.records.protobuf.reading import Schemas, expected


def described(of: Relation, numbers: Iterable[int] | None = None) -> TableDescription:
    """The catalog's description of a table, whose columns have these attribute numbers, else 1, 2 and so on."""
    chosen = range(1, len(of.columns) + 1) if numbers is None else numbers
    columns = [
        CatalogColumn(each.name, number, "", each.type_oid, 1, None)
        for each, number in zip(of.columns, chosen, strict=True)
    ]
    return TableDescription(columns=tuple(columns))


class Harness:
    """An encoder in a transaction, whose schemas are registered."""

    def __init__(
        self,
        of: Relation = ID_AND_NAME,
        *,
        registered: bool = True,
        numbers: Iterable[int] | None = None,
        observe: Observer = unheard,
        types: Iterable[TypeDescription] = (),
        **settings: Any,
    ) -> None:
        self.schemas = Schemas()
        self.encoder = record_stream(self.schemas.settings(**settings), False, observe)
        self.define(of, numbers, types)
        if registered:
            self.register()
            self.schemas.register(self.encoder, 0)
        self.encoder.begin(7, 1000, COMMIT_TIME, 900)

    def define(
        self, of: Relation, numbers: Iterable[int] | None = None, types: Iterable[TypeDescription] = ()
    ) -> None:
        self.encoder.define(of, described(of, numbers), {kind.oid: kind for kind in types})

    def register(self) -> int:
        return self.schemas.register(self.encoder, OID)

    def records(self, message: Message) -> list[Record]:
        out: list[Record] = []
        frame = write_frame(XLogData(LSN, LSN, 0, write_message(message)))
        size = self.encoder.encode(frame, False, NOW_US, out)
        told = sum(len(key or b"") + len(value or b"") for topic, key, value, _ in out if topic != "schemas")
        assert size == told
        return out

    def read(self, message: Message) -> list[tuple[Any, Any, dict[str, bytes]]]:
        """Keys, values and headers."""
        return [
            (
                None if key is None else self.schemas.read(key)[1],
                None if value is None else self.schemas.read(value)[1],
                dict(headers or []),
            )
            for _, key, value, headers in self.records(message)
        ]


def test_a_record_is_zero_the_id_of_the_schema_the_first_message_and_its_fields():
    harness = Harness()
    ((_, key, value, _),) = harness.records(Insert(None, OID, row("1", "a")))
    assert key == b"\0\0\0\0\x01\0\x08\x01"
    assert value is not None
    assert value.startswith(b"\0\0\0\0\x02\0" + b"\x12\x05\x08\x01\x12\x01a" + b"\x1a")


def test_null_and_zero_and_an_empty_text_are_three_things():
    harness = Harness()
    for name in (None, ""):
        ((_, value, _),) = harness.read(Insert(None, OID, row("0", name)))
        assert value["after"] == {"id": 0, "name": name}


def test_a_changed_key_is_a_delete_a_tombstone_and_a_create():
    first, tombstone, created = Harness().read(Update(None, OID, "K", row("1", None), row("2", "b")))
    assert (first[0], first[1]["op"], first[1]["before"], first[1]["after"]) == (
        {"id": 1},
        "d",
        {"id": 1, "name": None},
        None,
    )
    assert tombstone[:2] == ({"id": 1}, None)
    assert (created[0], created[1]["op"], created[1]["before"], created[1]["after"]) == (
        {"id": 2},
        "c",
        None,
        {"id": 2, "name": "b"},
    )
    assert first[2].keys() == {"__debezium.newkey"}
    assert created[2].keys() == {"__debezium.oldkey"}


def test_both_rows_of_an_update_are_there_under_replica_identity_full():
    harness = Harness(relation(*WITH_NOTE, identity="f"))
    ((_, value, _),) = harness.read(Update(None, OID, "O", row("1", "a", "x"), row("1", "b", None)))
    assert value["before"] == {"id": 1, "name": "a", "note": "x"}
    assert value["after"] == {"id": 1, "name": "b", "note": None}


def test_a_truncate_has_neither_row():
    ((key, value, _),) = Harness().read(Truncate(None, False, False, (OID,)))
    assert (key, value["op"], value["before"], value["after"]) == (None, "t", None, None)


def test_a_row_of_nulls_is_there_and_empty():
    ((_, value, _),) = Harness(relation(column("a", TEXT))).read(Insert(None, OID, row(None)))
    assert value["after"] == {"a": None}
    assert value["before"] is None


def test_a_value_that_was_not_sent_comes_from_the_old_row_else_it_is_the_placeholder():
    harness = Harness(relation(*WITH_NOTE, identity="f"))
    ((_, value, headers),) = harness.read(
        Update(None, OID, "O", row("1", "a", "long"), (b"1", b"b", UNCHANGED))
    )
    assert value["after"] == {"id": 1, "name": "b", "note": "long"}
    assert headers == {}
    # PostgreSQL sends old rows by the replica identity of the partition, with NULL for all other columns.
    ((_, value, headers),) = harness.read(
        Update(None, OID, "O", row("1", "a", None), (b"1", b"b", UNCHANGED))
    )
    assert value["after"]["note"] == UNAVAILABLE
    assert headers == {"cdcd.unchanged": b'["note"]'}
    ((_, value, headers),) = Harness(relation(*WITH_NOTE)).read(
        Update(None, OID, "", None, (b"1", b"b", UNCHANGED))
    )
    assert value["after"]["note"] == UNAVAILABLE
    assert headers == {"cdcd.unchanged": b'["note"]'}


def test_a_placeholder_that_the_type_has_no_room_for_is_null_and_named():
    booleans = 1000
    harness = Harness(relation(column("id", INT, key=True), column("flags", booleans), column("raw", BYTEA)))
    ((_, value, headers),) = harness.read(Update(None, OID, "", None, (b"1", UNCHANGED, UNCHANGED)))
    assert value["after"]["flags"] is None
    assert value["after"]["raw"] is not None
    assert json.loads(headers["cdcd.unchanged"]) == ["flags", "raw"]


def test_a_key_that_was_not_sent_is_refused():
    with pytest.raises(SourceError, match="part of the key"):
        Harness().records(Delete(None, OID, "K", (UNCHANGED, None)))


@pytest.mark.parametrize("key_format", ["protobuf", "json"])
def test_null_in_a_key_is_null_and_another_key_than_zero(key_format):
    harness = Harness(key_format=key_format)
    ((_, null, value, headers),) = harness.records(Insert(None, OID, row(None, "a")))
    ((_, zero, _, _),) = harness.records(Insert(None, OID, row("0", "a")))
    assert headers is None
    assert harness.schemas.read(value or b"")[1]["after"] == {"id": None, "name": "a"}
    assert null is not None
    assert null != zero
    if key_format == "protobuf":
        assert harness.schemas.read(null)[1] == {"id": None}
    else:
        assert null == b'{"id":null}'


def test_a_key_may_be_chosen_among_columns_that_may_be_null():
    full = relation(*WITH_NOTE, identity="f")
    harness = Harness(full, key_rules=(KeyRule("public.t", ("note", "id")),))
    ((key, _, _),) = harness.read(Insert(None, OID, row("1", "a", None)))
    assert key == {"id": 1, "note": None}


WITH_GRID = relation(column("id", INT, key=True), column("grid", INTS), column("name", TEXT))
GRID = "{{1,2},{3,4}}"


def test_null_stands_for_an_array_with_two_dimensions_and_is_reported():
    facts: list[Fact] = []
    harness = Harness(WITH_GRID, observe=facts.append)
    for text, read in (("{1,NULL,0}", [1, None, 0]), ("{}", []), (None, None)):
        assert harness.read(Insert(None, OID, row("1", text, "a")))[0][1]["after"]["grid"] == read
    assert not facts
    ((key, value, headers),) = harness.read(Insert(None, OID, row("1", GRID, "a")))
    assert key == {"id": 1}
    assert value["after"] == {"id": 1, "grid": None, "name": "a"}
    assert headers == {"cdcd.unwritable": b'["grid"]'}
    (fact,) = facts
    assert isinstance(fact, ValueUnwritable)
    assert (fact.table, fact.column) == ("public.t", "grid")
    assert "Protobuf" in fact.reason
    assert "Protobuf" in fact.hint
    assert "4" not in fact.reason
    assert harness.encoder.unwritable == {("public.t", "grid"): 1}


TIMESTAMP, VARBIT, SPARSE = 1114, 1562, 20_000


@pytest.mark.parametrize(
    ("kind", "modifier", "text"),
    [(TIMESTAMP, -1, "294276-12-31 23:59:59"), (VARBIT, 1, ""), (SPARSE, -1, "{1:2.5}/100000")],
)
@pytest.mark.parametrize("is_key", [False, True])
def test_what_has_no_place_in_the_schema_of_a_type_does_not_end_the_daemon(kind, modifier, text, is_key):
    sparse = TypeDescription(SPARSE, "public", "sparsevec", "b", "U", 0, 0, -1)
    of = relation(column("id", INT, key=True), Column(int(is_key), "v", kind, modifier))
    ((key, value, headers),) = Harness(of, types=[sparse]).read(Insert(None, OID, row("1", text)))
    assert headers == {"cdcd.unwritable": b'["v"]'}
    assert value["after"] == {"id": 1, "v": None}
    assert not is_key or key == value["after"]


@pytest.mark.parametrize("value", [b"x\xff", b"a long text with a byte that is none \xff"])
def test_text_that_is_not_utf8_is_null_and_is_named(value):
    ((_, read, headers),) = Harness().read(Insert(None, OID, (b"1", value)))
    assert list(headers) == ["cdcd.unwritable"]
    assert list(read["after"].values())[1] is None


@pytest.mark.parametrize("value", [b"", b"-", b"1x", b"+1"])
def test_a_number_that_is_none_is_refused(value):
    with pytest.raises(ProtocolError, match="not a whole number"):
        Harness().records(Insert(None, OID, (value, b"a")))


def test_rows_before_their_schemas_have_ids_are_an_error_that_a_new_session_mends():
    harness = Harness(registered=False)
    assert [(use.subject, use.kind) for use in harness.encoder.unregistered(OID)] == [
        ("golden.public.t-key", "PROTOBUF"),
        ("golden.public.t-value", "PROTOBUF"),
    ]
    with pytest.raises(TransientError, match="not registered"):
        harness.records(Insert(None, OID, row("1", "a")))


def test_the_ids_stand_in_the_schemas_topic_before_the_first_record_and_are_taken_from_there():
    harness = Harness(schemas_topic="schemas")
    told, key, value, _ = harness.records(Insert(None, OID, row("1", "a")))
    assert [topic for topic, *_ in (told, key, value)] == ["schemas"] * 3
    assert json.loads(key[1] or b"")["subject"] == "golden.public.t-key"
    again = Schemas()
    for each in (told, key, value):
        again.ids.take(each[2] or b"")
    encoder = record_stream(again.settings(schemas_topic="schemas"))
    encoder.define(ID_AND_NAME, described(ID_AND_NAME), {})
    assert encoder.unregistered(OID) == ()
    ((_, _, data, _),) = harness.records(Insert(None, OID, row("2", "a")))
    schema_id = harness.schemas.read(data or b"")[1]["source"]["schema_id"]
    assert schema_id == json.loads(told[2] or b"")["fingerprint"]


def test_a_former_reader_reads_a_table_whose_columns_were_dropped_added_and_renamed():
    """By the numbers alone: what it knows of, it reads under its own names; the rest it does not know."""
    harness = Harness(relation(*WITH_NOTE))
    harness.read(Insert(None, OID, row("1", "a", "b")))
    known = harness.schemas.texts[2]
    now = relation(column("id", INT, key=True), column("remark", TEXT), column("more", INT))
    harness.define(now, [1, 3, 4])
    assert harness.register() == 1
    ((_, _, data, _),) = harness.records(Insert(None, OID, row("1", "c", "5")))
    schema_id, new = harness.schemas.read(data or b"")
    assert new["after"] == {"id": 1, "remark": "c", "more": 5}
    assert "reserved 2;" in harness.schemas.texts[schema_id]
    harness.schemas.texts[schema_id] = known
    message = harness.schemas.message(data or b"")[1]
    assert (message.after.id, message.after.note, message.after.HasField("name")) == (1, "c", False)


def test_the_labels_of_an_enum_are_not_in_the_schema():
    harness = Harness()
    assert harness.register() == 0
    harness.define(ID_AND_NAME)
    assert harness.register() == 0


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("topic", "golden.public.t-value"),
        ("record", "golden.public.t.Envelope"),
        ("topic_record", "golden.public.t-golden.public.t.Envelope"),
    ],
)
def test_subjects_are_named_by_topic_by_message_or_by_both(strategy, subject):
    harness = Harness(registered=False, subjects=strategy)
    assert harness.encoder.unregistered(OID)[1].subject == subject


def test_keys_may_be_json_beside_values_in_protobuf():
    harness = Harness(key_format="json")
    ((_, key, value, _),) = harness.records(Insert(None, OID, row("1", "a")))
    assert key == b'{"id":1}'
    assert harness.schemas.read(value or b"")[1]["after"] == {"id": 1, "name": "a"}
    deleted = harness.records(Delete(None, OID, "K", row("1", None)))
    assert [record[1] for record in deleted] == [b'{"id":1}'] * 2


def test_protected_columns_are_replaced_and_excluded_ones_are_not_there():
    rules = (
        ColumnRule(parse_column_pattern("public.t.id", "columns"), "hash", seal=hashing(b"key")),
        ColumnRule(parse_column_pattern("public.t.name", "columns"), "mask", mask="***"),
        ColumnRule(parse_column_pattern("public.t.note", "columns"), "exclude"),
    )
    harness = Harness(relation(*WITH_NOTE), column_rules=rules)
    ((key, value, _),) = harness.read(Insert(None, OID, row("1", "secret", "secret")))
    assert value["after"].keys() == {"id", "name"}
    assert value["after"]["name"] == "***"
    assert key == {"id": value["after"]["id"]}
    assert len(key["id"]) == 64
    ((_, value, _),) = harness.read(Update(None, OID, "", None, (b"1", UNCHANGED, UNCHANGED)))
    assert value["after"].keys() == {"id", "name"}


@pytest.mark.parametrize(("mode", "content"), MESSAGE_CONTENTS)
def test_a_logical_message_has_its_content_as_a_bytea_has_it(mode, content):
    harness = Harness(modes=Modes(binary=mode))
    ((key, value, _),) = harness.read(LogicalMessage(None, True, LSN, "app", b"\x00\xffi"))
    assert key == {"prefix": "app"}
    assert value["message"] == {"prefix": "app", "content": content}
    assert (value["op"], value["ts_ms"], value["source"]["event_serial_no"]) == ("m", NOW_US // 1000, 1)


def test_a_logical_message_outside_of_transactions_has_its_own_place():
    harness = Harness()
    message = write_message(LogicalMessage(None, False, LSN, "", b""))
    out: list[Record] = []
    harness.encoder.encode_message(write_frame(XLogData(LSN, LSN, 0, message)), False, None, NOW_US, out)
    ((_, key, value, _),) = out
    assert harness.schemas.read(key or b"")[1] == {"prefix": ""}
    read = harness.schemas.read(value or b"")[1]
    assert (read["source"]["txId"], read["source"]["commit_lsn"]) == (None, LSN - 1)
    assert read["message"] == {"prefix": "", "content": ""}


def test_the_origin_of_a_transaction_is_in_its_source():
    harness = Harness()
    harness.encoder.set_origin("upstream", 77)
    ((_, value, _),) = harness.read(Insert(None, OID, row("1", "a")))
    assert (value["source"]["origin"], value["source"]["origin_lsn"]) == ("upstream", 77)


def test_a_row_that_is_large_does_not_stay_in_memory():
    harness = Harness()
    large = "x" * (2 << 20)
    ((_, value, _),) = harness.read(Insert(None, OID, row("1", large)))
    assert value["after"]["name"] == large
    ((_, value, _),) = harness.read(Insert(None, OID, row("1", "a")))
    assert value["after"]["name"] == "a"


def test_rows_of_copy_have_the_values_that_json_has():
    of = relation(*[column(f"c{at}", oid, key=at == 0) for at, oid in enumerate(ROW_TYPES)])
    schemas = Schemas()
    protobuf = record_stream(schemas.settings())
    plain = record_stream(schemas.settings(key_format="json", value_format="json"))
    position = SnapshotPosition(lsn=5, commit_lsn=9, first="first", last="last", others="true", event_no=3)
    lines = [line.encode() for line in LINES]
    out: list[list[Record]] = []
    for encoder, dropped in ((protobuf, b"\0\0\0\0\x01\0\x08\x02"), (plain, b'{"c0":2}')):
        encoder.define(of, described(of), {})
        schemas.register(encoder, OID)
        records: list[Record] = []
        encoded = encoder.encode_rows(OID, lines, position, NOW_US, records, {dropped})
        assert (encoded.rows, len(encoded.keys or [])) == (2, 2)
        assert encoded.bytes == sum(len(key or b"") + len(value or b"") for _, key, value, _ in records)
        out.append(records)
    assert protobuf.counts == plain.counts
    for ours, in_json in zip(*out, strict=True):
        for data, text in zip(ours[1:3], in_json[1:3], strict=True):
            schema_id, read = schemas.read(data or b"")
            assert read == expected(json.loads(text or b""), schemas.descriptor(schema_id))


def test_a_malformed_row_of_copy_is_explained_without_its_value():
    harness = Harness()
    position = SnapshotPosition(lsn=5, commit_lsn=9, first="true", last="true", others="true")
    with pytest.raises(ProtocolError, match="3 columns, but 2"):
        harness.encoder.encode_rows(OID, [b"1\ta\tsecret\n"], position, NOW_US, [], set())
