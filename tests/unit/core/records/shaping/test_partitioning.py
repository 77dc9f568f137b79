"""Records whose partition columns choose: each goes where its row is, and a row that moves leaves a delete behind."""

import json
from struct import pack
from typing import Any

import pytest

from cdcd.config.expressions import parse_expression
from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.table_rules import KeyRule, PartitionRule
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ConfigError, ProtocolError, SourceError
from cdcd.core.facts import unheard
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import (
    UNCHANGED,
    Binary,
    Column,
    Delete,
    Insert,
    Message,
    Relation,
    Truncate,
    TupleData,
    Update,
)
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import HEADER_PARTITION, EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.flattening import Flattening
from cdcd.core.records.schema_registrations import SchemaIds
from cdcd.core.records.shaping.filtering import filtered
from cdcd.core.records.shaping.partitioning import (
    partitioned,
    positive_murmur2,
    taken_out,
    without_partition,
)
from cdcd.core.records.shaping.settings import TableFilter
from tests.unit.core.records.formats import json_of

ORDERS, OTHERS = 7, 8
INT4, TEXT, INTS = 23, 25, 1007
TOPIC, OTHER_TOPIC = "shop.public.orders", "shop.public.others"
RULES = (PartitionRule("public.orders", ("customer",)),)
SETTINGS = EncoderSettings("1", "shop", "db", partition_rules=RULES)
POSITION = SnapshotPosition(lsn=1000, commit_lsn=999, first="first", last="last", others="true", event_no=5)
KEYED = TableDescription(("id",))
OLD_KEY, NEW_KEY = "__debezium.oldkey", "__debezium.newkey"


def relation(oid: int, name: str, identity: str = "f", key: tuple[str, ...] = ("id",)) -> Relation:
    columns = (("id", INT4), ("customer", INT4), ("note", TEXT))
    flagged = ("id", "customer", "note") if identity == "f" else key
    return Relation(
        None, oid, "public", name, identity,
        tuple(Column(int(each in flagged), each, kind, -1) for each, kind in columns),
    )  # fmt: skip


def frame(message: Message) -> bytes:
    return write_frame(XLogData(500, 500, 0, write_message(message)))


def row(number: int, customer: int | None, note: Any = b"n") -> TupleData:
    return (b"%d" % number, None if customer is None else b"%d" % customer, note)


def update(before: TupleData | None, after: TupleData, kind: str = "O", oid: int = ORDERS) -> Update:
    return Update(None, oid, "" if before is None else kind, before, after)


class Encoding:
    """The records of messages in one transaction."""

    def __init__(
        self,
        inner: Any = None,
        settings: EncoderSettings = SETTINGS,
        orders: Relation | None = None,
        table: TableDescription = KEYED,
    ) -> None:
        self.encoder = partitioned(inner or record_stream(settings), settings)
        self.encoder.define(orders or relation(ORDERS, "orders"), table, BUILTIN_TYPES)
        self.encoder.define(relation(OTHERS, "others"), table, BUILTIN_TYPES)
        self.encoder.begin(5, 1000, 0, None)

    def records(self, *messages: Message) -> list[Record]:
        out: list[Record] = []
        self.encoder.encode_all([frame(each) for each in messages], False, 0, out)
        return out


def partition(record: Record) -> int | None:
    return taken_out(record[3])[0]


def of(*texts: str) -> int:
    return positive_murmur2(",".join(texts).encode())


def op(record: Record) -> str | None:
    return None if record[2] is None else json.loads(record[2])["op"]


def number(record: Record) -> int:
    assert record[2] is not None
    found: int = json.loads(record[2])["source"]["event_serial_no"]
    return found


def headers(record: Record) -> dict[str, bytes]:
    return dict(without_partition(record)[3] or ())


def test_a_record_goes_where_the_values_of_its_row_say():
    found = Encoding().records(
        Insert(None, ORDERS, row(1, 70)),
        update(row(1, 70), row(1, 70, b"m")),
        update(None, row(1, 70, b"m")),
        Delete(None, ORDERS, "O", row(1, 70)),
        Insert(None, ORDERS, row(2, None)),
    )
    assert [op(each) for each in found] == ["c", "u", "u", "d", None, "c"]
    assert [partition(each) for each in found] == [of("70")] * 5 + [of("")]
    assert [number(each) for each in found if each[2]] == [1, 2, 3, 4, 5]


def test_an_update_that_moves_a_row_is_a_delete_there_and_an_insert_here():
    found = Encoding().records(update(row(1, 70), row(1, 71)), Insert(None, ORDERS, row(2, 70)))
    assert [op(each) for each in found] == ["d", None, "c", "c"]
    assert [partition(each) for each in found] == [of("70"), of("70"), of("71"), of("70")]
    assert [number(each) for each in found if each[2]] == [1, 1, 2]
    gone, tombstone, came = found[:3]
    assert headers(gone) == headers(tombstone) == {NEW_KEY: b'{"id":1}'}
    assert headers(came) == {OLD_KEY: b'{"id":1}'}
    assert {each[1] for each in found[:3]} == {b'{"id":1}'}


def test_an_update_of_the_key_moves_too_if_the_values_change_and_stays_together_if_not():
    found = Encoding().records(update(row(1, 70), row(2, 71)), update(row(3, 70), row(4, 70)))
    assert [(op(each), partition(each)) for each in found] == [
        ("d", of("70")), (None, of("70")), ("c", of("71")), ("d", of("70")), (None, of("70")), ("c", of("70"))
    ]  # fmt: skip
    assert headers(found[0]) == {NEW_KEY: b'{"id":2}'}


def test_columns_of_the_replica_identity_are_enough():
    key = ("id", "customer")
    encoding = Encoding(orders=relation(ORDERS, "orders", "d", key), table=TableDescription(key))
    found = encoding.records(
        update(None, row(1, 70, b"m")),
        update((b"1", b"70", None), row(1, 71), "K"),
        Delete(None, ORDERS, "K", (b"1", b"71", None)),
    )
    assert [(op(each), partition(each)) for each in found] == [
        ("u", of("70")), ("d", of("70")), (None, of("70")), ("c", of("71")), ("d", of("71")), (None, of("71"))
    ]  # fmt: skip


def test_a_value_that_did_not_change_is_that_of_the_old_row():
    rules = (PartitionRule("public.orders", ("note", "id")),)
    settings = EncoderSettings("1", "shop", "db", partition_rules=rules)
    found = Encoding(settings=settings).records(update(row(1, 70, b"long"), row(1, 71, UNCHANGED)))
    assert [(op(each), partition(each)) for each in found] == [("u", of("long", "1"))]


def test_a_value_that_the_server_did_not_send_ends_the_daemon_by_name():
    rules = (PartitionRule("public.orders", ("note",)),)
    settings = EncoderSettings("1", "shop", "db", partition_rules=rules)
    with pytest.raises(SourceError, match="which chooses the partition"):
        Encoding(settings=settings).records(update(None, row(1, 71, UNCHANGED)))


def test_values_in_binary_form_have_the_same_texts():
    inner = record_stream(SETTINGS, binary=True)
    binary = (Binary(pack("!i", 1)), Binary(pack("!i", 70)), b"n")
    (record,) = Encoding(inner).records(Insert(None, ORDERS, binary))
    assert partition(record) == of("70")


def test_a_table_without_a_key_moves_too():
    (gone, came) = Encoding(table=TableDescription()).records(update(row(1, 70), row(1, 71)))
    assert [(op(each), each[1], partition(each)) for each in (gone, came)] == [
        ("d", None, of("70")), ("c", None, of("71"))
    ]  # fmt: skip
    assert headers(gone) == headers(came) == {}


def test_other_tables_and_truncates_are_left_alone():
    plain = record_stream(EncoderSettings("1", "shop", "db"))
    for each in (relation(ORDERS, "orders"), relation(OTHERS, "others")):
        plain.define(each, KEYED, BUILTIN_TYPES)
    plain.begin(5, 1000, 0, None)
    messages: list[Message] = [
        Insert(None, OTHERS, row(1, 70)),
        update(row(1, 70), row(1, 71), oid=OTHERS),
        Truncate(None, False, False, (ORDERS,)),
    ]
    out: list[Record] = []
    plain.encode_all([frame(each) for each in messages], False, 0, out)
    assert Encoding().records(*messages) == out


def test_without_rules_the_encoder_is_the_formats_own():
    inner = record_stream(EncoderSettings("1", "shop", "db"))
    assert partitioned(inner, EncoderSettings("1", "shop", "db")) is inner
    assert partitioned(inner, EncoderSettings("1", "shop", "db")) is inner


@pytest.mark.parametrize("skipped", ["d", "c"])
def test_a_half_that_is_skipped_has_no_record_and_the_other_goes_where_it_belongs(skipped):
    settings = EncoderSettings("1", "shop", "db", partition_rules=RULES, skipped=(skipped,))
    found = Encoding(settings=settings).records(
        update(row(1, 70), row(1, 71)), update(row(1, 71), row(1, 71, b"m"))
    )
    expected = [("c", of("71"), 1)] if skipped == "d" else [("d", of("70"), 1), (None, of("70"), None)]
    assert [(op(each), partition(each), number(each) if each[2] else None) for each in found] == [
        *expected, ("u", of("71"), 2)
    ]  # fmt: skip


def test_descriptions_and_their_like_keep_their_own_partition():
    settings = EncoderSettings("1", "shop", "db", partition_rules=RULES, schemas_topic="s")
    found = Encoding(settings=settings).records(update(row(1, 70), row(1, 71)))
    assert [each[0] for each in found] == ["s", TOPIC, TOPIC, TOPIC]
    assert partition(found[0]) is None
    assert json.loads(found[0][2] or b"")["moves"] is True


def test_compiled_code_writes_other_events_into_its_buffer_and_moves_as_ever():
    inner = record_stream(SETTINGS)
    json_of(inner).writes = True
    messages: list[Message] = [
        Insert(None, ORDERS, row(1, 70)),
        update(row(1, 70), row(1, 71)),
        Delete(None, ORDERS, "O", row(1, 71)),
    ]
    assert Encoding(inner).records(*messages) == Encoding().records(*messages)
    assert json_of(inner).writes


def test_rows_of_a_streamed_transaction_are_not_drafted():
    encoding = Encoding()
    kept = [
        write_frame(XLogData(5, 5, 0, write_message(Insert(9, oid, row(1, 70))))) for oid in (ORDERS, OTHERS)
    ]
    drafts = encoding.encoder.draft_all(list(kept), {OTHERS: (9, relation(OTHERS, "others"))})
    assert drafts[0] == kept[0]
    assert not isinstance(drafts[1], bytes)
    out: list[Record] = []
    encoding.encoder.encode_all(drafts, True, 0, out)
    assert [(each[0], partition(each)) for each in out] == [(TOPIC, of("70")), (OTHER_TOPIC, None)]


def test_avro_events_and_flattened_records_move_as_well():
    moved = update(row(1, 70), row(1, 71))
    ids = SchemaIds("http://registry")
    avro = EncoderSettings(
        "1", "shop", "db", partition_rules=RULES, value_format="avro", key_format="avro", schema_ids=ids
    )
    inner = record_stream(avro)
    inner.define(relation(ORDERS, "orders"), KEYED, BUILTIN_TYPES)
    for at, use in enumerate(inner.unregistered(ORDERS)):
        ids.put(use, at + 1)
    found = Encoding(inner, avro).records(moved)
    assert [partition(each) for each in found] == [of("70"), of("70"), of("71")]
    assert [each[2] is None for each in found] == [False, True, False]
    assert found[0][3] is not None
    assert found[0][3][0][0] == NEW_KEY
    events = EncoderSettings("1", "shop", "db", partition_rules=RULES, value_format="cloudevents")
    found = Encoding(record_stream(events), events).records(moved)
    assert [partition(each) for each in found] == [of("70"), of("70"), of("71")]
    flat = EncoderSettings("1", "shop", "db", partition_rules=RULES, flattening=Flattening("rewrite"))
    found = Encoding(record_stream(flat), flat).records(moved)
    assert [partition(each) for each in found] == [of("70"), of("70"), of("71")][-len(found) :]


def test_a_value_without_a_form_is_named_in_both_halves():
    decimal = Relation(
        None, ORDERS, "public", "orders", "f",
        tuple(Column(1, each, kind, -1) for each, kind in (("id", INT4), ("customer", INT4), ("note", 1700))),
    )  # fmt: skip

    settings = EncoderSettings("1", "shop", "db", partition_rules=RULES, modes=Modes(decimal="precise"))
    found = Encoding(settings=settings, orders=decimal).records(
        update(row(1, 70, b"NaN"), row(1, 71, b"NaN"))
    )
    assert [partition(each) for each in found] == [of("70"), of("70"), of("71")]
    assert all(headers(each)["cdcd.unwritable"] == b'["note"]' for each in found)


def test_a_malformed_row_is_refused_in_the_encoders_words():
    with pytest.raises(ProtocolError, match="orders"):
        Encoding().records(Insert(None, ORDERS, (b"1", b"2")))


def test_a_filter_stands_in_front_so_that_rows_enter_and_leave_in_their_own_partitions():
    text = "row.note == 'n'"
    encoder = filtered(
        partitioned(record_stream(SETTINGS), SETTINGS),
        (TableFilter("public.orders", text, parse_expression(text)),),
        SETTINGS,
        unheard,
    )
    encoder.define(relation(ORDERS, "orders"), KEYED, BUILTIN_TYPES)
    encoder.begin(5, 1000, 0, None)
    found: list[Record] = []
    messages = [
        update(row(1, 70), row(1, 71)),
        update(row(1, 71), row(1, 72, b"m")),
        update(row(1, 72, b"m"), row(1, 73, b"o")),
        update(row(1, 73, b"o"), row(1, 74)),
    ]
    encoder.encode_all([frame(each) for each in messages], False, 0, found)
    assert [(op(each), partition(each), number(each) if each[2] else None) for each in found] == [
        ("d", of("70"), 1), (None, of("70"), None), ("c", of("71"), 1), ("d", of("71"), 2), (None, of("71"), None),
        ("c", of("74"), 4),
    ]  # fmt: skip


def test_an_array_chooses_no_partition():
    columns = (Column(1, "id", INT4, -1), Column(1, "customer", INTS, -1))
    with pytest.raises(ConfigError, match=r"column customer of public\.orders, which is an array"):
        Encoding(orders=Relation(None, ORDERS, "public", "orders", "f", columns))


def test_a_table_that_is_altered_so_that_former_values_are_not_sent_is_refused():
    encoding = Encoding()
    with pytest.raises(ConfigError, match="PostgreSQL does not send its former value"):
        encoding.encoder.define(relation(ORDERS, "orders", "d"), KEYED, BUILTIN_TYPES)


def test_a_table_that_is_no_longer_matched_goes_by_its_key():
    encoding = Encoding()
    encoding.encoder.define(relation(ORDERS, "archive"), KEYED, BUILTIN_TYPES)
    assert [partition(each) for each in encoding.records(Insert(None, ORDERS, row(1, 70)))] == [None]


class TestRowsThatAreRead:
    def encoded(
        self, lines: list[bytes], dropped: set[bytes], settings: EncoderSettings = SETTINGS
    ) -> list[Record]:
        encoder = partitioned(record_stream(settings), settings)
        encoder.define(relation(ORDERS, "orders"), KEYED, BUILTIN_TYPES)
        out: list[Record] = []
        encoder.encode_rows(ORDERS, lines, POSITION, 0, out, dropped)
        return out

    def test_they_go_where_changes_of_them_go(self):
        settings = EncoderSettings("1", "shop", "db", partition_rules=RULES, schemas_topic="s")
        found = self.encoded([b"1\t70\ta\n", b"2\t\\N\tb\n", b"3\t71\ta\\tb\n"], set(), settings)
        assert [each[0] for each in found] == ["s", TOPIC, TOPIC, TOPIC]
        assert [partition(each) for each in found[1:]] == [of("70"), of(""), of("71")]

    def test_rows_that_are_left_out_for_their_key_do_not_shift_the_others(self):
        lines = [b"%d\t%d\ta\n" % (each, 70 + each) for each in range(1, 3000)]
        dropped = {b'{"id":%d}' % each for each in (1, 2, 1500, 2999)}
        found = self.encoded(lines, dropped)
        assert len(found) == 2995
        for record in found:
            after = json.loads(record[2] or b"")["after"]
            assert partition(record) == of(str(after["customer"]))
            assert after["customer"] == 70 + after["id"]

    def test_nor_do_rows_with_values_that_have_no_form(self):

        settings = EncoderSettings("1", "shop", "db", partition_rules=RULES, modes=Modes(decimal="precise"))
        encoder = partitioned(record_stream(settings), settings)
        columns = tuple(
            Column(1, each, kind, -1) for each, kind in (("id", INT4), ("customer", INT4), ("n", 1700))
        )
        encoder.define(Relation(None, ORDERS, "public", "orders", "f", columns), KEYED, BUILTIN_TYPES)
        out: list[Record] = []
        lines = [b"1\t70\t1\n", b"2\t71\tNaN\n", b"3\t72\tNaN\n"]
        encoder.encode_rows(ORDERS, lines, POSITION, 0, out, {b'{"id":2}'})
        assert [partition(each) for each in out] == [of("70"), of("72")]


def test_the_key_that_is_chosen_stays_the_key():
    settings = EncoderSettings(
        "1", "shop", "db", partition_rules=RULES, key_rules=(KeyRule("public.orders", ("note",)),)
    )
    (record,) = Encoding(settings=settings).records(Insert(None, ORDERS, row(1, 70)))
    assert record[1] == b'{"note":"n"}'
    assert partition(record) == of("70")


def test_the_sink_takes_the_header_out_wherever_it_stands():
    header = (HEADER_PARTITION, b"\x00\x00\x01\x00")
    assert taken_out(None) == (None, None)
    assert taken_out([("a", b"b")]) == (None, [("a", b"b")])
    assert taken_out([header]) == (256, None)
    assert taken_out([("a", b"b"), header, ("c", b"d")]) == (256, [("a", b"b"), ("c", b"d")])


@pytest.mark.parametrize(
    ("data", "hashed"),
    [
        # UtilsTest.java of Kafka, testMurmur2.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_kafkas_java_client(data, hashed):
    assert positive_murmur2(data) == hashed & 0x7FFFFFFF


def test_bytes_above_127_and_no_bytes_have_a_hash():
    assert positive_murmur2(b"") == 275646681
    assert 0 <= positive_murmur2(bytes(range(128, 256))) < 2**31
