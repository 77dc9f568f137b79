import json
from collections.abc import Iterable
from typing import Any

import pytest

from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import ColumnRule
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.routing import RoutedTopics
from cdcd.core.errors import ProtocolError, SourceError, TransientError
from cdcd.core.facts import Fact, Observer, unheard
from cdcd.core.facts.rules import ValueUnwritable
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import (
    UNCHANGED,
    Column,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    Update,
)
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import Record, SnapshotPosition
from tests.unit.core.records.avro.reading import MESSAGE_CONTENTS, Schemas, as_avro_would
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


class Harness:
    """An encoder in a transaction, whose schemas are registered."""

    def __init__(
        self,
        described: Relation = ID_AND_NAME,
        *,
        registered: bool = True,
        observe: Observer = unheard,
        **settings: Any,
    ) -> None:
        self.schemas = Schemas()
        self.encoder = record_stream(self.schemas.settings(**settings), False, observe)
        self.define(described)
        if registered:
            self.schemas.register(self.encoder, OID)
            self.schemas.register(self.encoder, 0)
        self.encoder.begin(7, 1000, COMMIT_TIME, 900)

    def define(self, described: Relation, types: Iterable[TypeDescription] = ()) -> None:
        self.encoder.define(described, TableDescription(), {kind.oid: kind for kind in types})

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


def test_a_record_is_zero_the_id_of_the_schema_and_the_values():
    harness = Harness()
    ((_, key, value, _),) = harness.records(Insert(None, OID, row("1", "a")))
    assert key == b"\0\0\0\0\x01\x02"
    assert value is not None
    assert value.startswith(b"\0\0\0\0\x02\x00\x02\x02\x02\x02a")


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


def test_a_value_that_was_not_sent_comes_from_the_old_row_else_it_is_the_placeholder():
    full = relation(*WITH_NOTE, identity="f")
    harness = Harness(full)
    ((_, value, headers),) = harness.read(
        Update(None, OID, "O", row("1", "a", "long"), (b"1", b"b", UNCHANGED))
    )
    assert value["after"] == {"id": 1, "name": "b", "note": "long"}
    assert headers == {}
    # PostgreSQL sends old rows by the replica identity of the partition, with NULL for all other columns.
    ((_, value, headers),) = harness.read(
        Update(None, OID, "O", row("1", None, None), (b"1", b"b", UNCHANGED))
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


@pytest.mark.parametrize("key_format", ["avro", "json"])
def test_null_in_a_key_is_the_types_zero_and_is_named(key_format):
    harness = Harness(key_format=key_format)
    harness.records(Insert(None, OID, row("7", "a")))
    ((_, key, value, headers),) = harness.records(Insert(None, OID, row(None, "a")))
    assert key is not None
    assert value is not None
    assert harness.schemas.read(value)[1]["after"] == {"id": 0, "name": "a"}
    if key_format == "avro":
        assert harness.schemas.read(key)[1] == {"id": 0}
    else:
        assert key == b'{"id":null}'
    assert headers == [("cdcd.unwritable", b'["id"]')]
    ((_, _, _, headers),) = harness.records(Insert(None, OID, row("8", "a")))
    assert headers is None


WITH_GRID = relation(column("id", INT, key=True), column("grid", INTS), column("name", TEXT))
GRID = "{{1,2},{3,4}}"


def test_null_stands_for_an_array_with_two_dimensions_and_is_reported():
    facts: list[Fact] = []
    harness = Harness(WITH_GRID, observe=facts.append)
    assert harness.read(Insert(None, OID, row("1", "{1,NULL}", "a")))[0][1]["after"]["grid"] == [1, None]
    assert not facts
    ((key, value, headers),) = harness.read(Insert(None, OID, row("1", GRID, "a")))
    assert key == {"id": 1}
    assert value["after"] == {"id": 1, "grid": None, "name": "a"}
    assert headers == {"cdcd.unwritable": b'["grid"]'}
    (fact,) = facts
    assert isinstance(fact, ValueUnwritable)
    assert (fact.table, fact.column, fact.lsn) == ("public.t", "grid", str(Lsn(LSN)))
    assert "4" not in fact.reason
    assert harness.encoder.unwritable == {("public.t", "grid"): 1}
    # The next row is an ordinary one again, and the event stands for a minute.
    ((_, value, headers),) = harness.read(Insert(None, OID, row("1", "{}", "a")))
    assert (value["after"]["grid"], headers) == ([], {})
    harness.read(Delete(None, OID, "O", row("1", GRID, "a")))
    assert len(facts) == 1
    assert harness.encoder.unwritable == {("public.t", "grid"): 2}


def test_both_halves_of_a_changed_key_name_what_has_no_form_before_or_after():
    harness = Harness(WITH_GRID)
    records = harness.read(Update(None, OID, "O", row("1", GRID, "a"), (b"2", UNCHANGED, b"b")))
    assert [headers["cdcd.unwritable"] for _, _, headers in records] == [b'["grid"]'] * 3
    assert records[0][1]["before"]["grid"] is None
    assert records[2][1]["after"] == {"id": 2, "grid": None, "name": "b"}


def test_a_row_of_a_snapshot_has_null_for_an_array_with_two_dimensions():
    schemas = Schemas()
    facts: list[Fact] = []
    encoder = record_stream(schemas.settings(), False, facts.append)
    encoder.define(WITH_GRID, TableDescription(), {})
    schemas.register(encoder, OID)
    out: list[Record] = []
    lines = [b"1\t{1}\ta\n", b"2\t{{1}}\tb\n", b"3\t\\N\tc\n"]
    encoded = encoder.encode_rows(
        OID, lines, SnapshotPosition(1, 0, "true", "true", "true"), NOW_US, out, set()
    )
    assert encoded.rows == 3
    rows = [
        (schemas.read(value or b"")[1]["after"], headers)
        for topic, _, value, headers in out
        if topic != "schemas"
    ]
    assert rows == [
        ({"id": 1, "grid": [1], "name": "a"}, None),
        ({"id": 2, "grid": None, "name": "b"}, [("cdcd.unwritable", b'["grid"]')]),
        ({"id": 3, "grid": None, "name": "c"}, None),
    ]
    assert [type(fact) for fact in facts] == [ValueUnwritable]


TIMESTAMP, TIMESTAMPS, VARBIT, SPARSE = 1114, 1115, 1562, 20_000


@pytest.mark.parametrize(
    ("kind", "modifier", "text"),
    [
        (TIMESTAMP, -1, "294276-12-31 23:59:59"),
        (VARBIT, 1, ""),
        (SPARSE, -1, "{1:2.5}/100000"),
        (TIMESTAMPS, -1, '{"294276-12-31 23:59:59"}'),
    ],
)
@pytest.mark.parametrize("is_key", [False, True])
def test_what_has_no_place_in_the_schema_of_a_type_does_not_end_the_daemon(kind, modifier, text, is_key):
    sparse = TypeDescription(SPARSE, "public", "sparsevec", "b", "U", 0, 0, -1)
    harness = Harness(registered=False)
    described = relation(column("id", INT, key=True), Column(int(is_key), "v", kind, modifier))
    harness.define(described, [sparse])
    harness.schemas.register(harness.encoder, OID)
    ((key, value, headers),) = harness.read(Insert(None, OID, row("1", text)))
    assert headers == {"cdcd.unwritable": b'["v"]'}
    assert is_key is (value["after"]["v"] is not None)
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
    assert [use.subject for use in harness.encoder.unregistered(OID)] == [
        "shop.public.t-key".replace("shop", "golden"),
        "golden.public.t-value",
    ]
    with pytest.raises(TransientError, match="not registered"):
        harness.records(Insert(None, OID, row("1", "a")))


def test_the_ids_stand_in_the_schemas_topic_before_the_first_record_and_are_taken_from_there():
    harness = Harness(schemas_topic="schemas")
    described, key, value, _ = harness.records(Insert(None, OID, row("1", "a")))
    assert [topic for topic, *_ in (described, key, value)] == ["schemas"] * 3
    assert json.loads(key[1] or b"")["subject"] == "golden.public.t-key"
    again = Schemas()
    for each in (described, key, value):
        again.ids.take(each[2] or b"")
    encoder = record_stream(again.settings(schemas_topic="schemas"))
    encoder.define(ID_AND_NAME, TableDescription(), {})
    assert encoder.unregistered(OID) == ()
    assert len(harness.records(Insert(None, OID, row("2", "a")))) == 1


def test_a_new_column_is_another_schema_of_the_values_and_the_same_of_the_keys():
    harness = Harness()
    harness.define(relation(*WITH_NOTE))
    assert [use.subject for use in harness.encoder.unregistered(OID)] == ["golden.public.t-value"]


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("topic", "golden.public.t-value"),
        ("record", "golden.public.t.Envelope"),
        ("topic_record", "golden.public.t-golden.public.t.Envelope"),
    ],
)
def test_subjects_are_named_by_topic_by_record_or_by_both(strategy, subject):
    harness = Harness(registered=False, subjects=strategy)
    assert harness.encoder.unregistered(OID)[1].subject == subject


def test_keys_may_be_json_beside_values_in_avro():
    harness = Harness(key_format="json")
    ((_, key, value, _),) = harness.records(Insert(None, OID, row("1", "a")))
    assert key == b'{"id":1}'
    assert harness.schemas.read(value or b"")[1]["after"] == {"id": 1, "name": "a"}
    deleted = harness.records(Delete(None, OID, "K", row("1", None)))
    assert [record[1] for record in deleted] == [b'{"id":1}'] * 2


def test_protected_columns_are_replaced_and_excluded_ones_are_not_there():
    rules = (
        ColumnRule(parse_column_pattern("public.t.name", "columns"), "mask", mask="***"),
        ColumnRule(parse_column_pattern("public.t.note", "columns"), "exclude"),
    )
    harness = Harness(relation(*WITH_NOTE), column_rules=rules)
    ((_, value, _),) = harness.read(Insert(None, OID, row("1", "secret", "secret")))
    assert value["after"] == {"id": 1, "name": "***"}
    ((_, value, _),) = harness.read(Update(None, OID, "", None, (b"1", UNCHANGED, UNCHANGED)))
    assert value["after"].keys() == {"id", "name"}


@pytest.mark.parametrize(("mode", "content"), MESSAGE_CONTENTS)
def test_a_logical_message_has_its_content_as_a_bytea_has_it(mode, content):
    harness = Harness(modes=Modes(binary=mode))
    ((key, value, _),) = harness.read(LogicalMessage(None, True, LSN, "app", b"\x00\xffi"))
    assert key == {"prefix": "app"}
    assert value["message"] == {"prefix": "app", "content": content}
    assert value["op"] == "m"


ROW_TYPES = [INT, TEXT, 16, 701, 700, 1700, 1114, 1184, 1082, 1083, 2950, INTS, BYTEA, 20, 21, 3802, 600]
UUID = "00000000-0000-0000-0000-000000000001"
LINES = [
    "\t".join(fields) + "\n"
    for fields in (
        [
            *(
                "1",
                "hé\\tx",
                "t",
                "1.5",
                "-0.1",
                "12.50",
                "2024-01-31 12:34:56.789",
                "2024-01-31 12:34:56+00",
            ),
            *("2024-01-31", "12:00:00", UUID, "{1,NULL}", r"\\xff00", "-9223372036854775808", "-1"),
            *(r'{"a": "b\\\\"}', "(1,2)"),
        ],
        ["2", *[r"\N"] * (len(ROW_TYPES) - 1)],
        [
            *(
                "3",
                "a",
                "f",
                "NaN",
                "Infinity",
                "NaN",
                "infinity",
                "-infinity",
                "2024-01-31",
                "24:00:00",
                UUID,
            ),
            *("{}", r"\\x", "9223372036854775807", "1", "null", "(0,0)"),
        ],
    )
]


def test_rows_of_copy_have_the_values_that_json_has():
    described = relation(*[column(f"c{at}", oid, key=at == 0) for at, oid in enumerate(ROW_TYPES)])
    schemas = Schemas()
    avro = record_stream(schemas.settings())
    plain = record_stream(schemas.settings(key_format="json", value_format="json"))
    out: dict[str, list[Record]] = {"avro": [], "json": []}
    position = SnapshotPosition(lsn=5, commit_lsn=9, first="first", last="last", others="true", event_no=3)
    lines = [line.encode() for line in LINES]
    for name, encoder, dropped in (("avro", avro, b"\0\0\0\0\x01\x04"), ("json", plain, b'{"c0":2}')):
        encoder.define(described, TableDescription(), {})
        schemas.register(encoder, OID)
        encoded = encoder.encode_rows(OID, lines, position, NOW_US, out[name], {dropped})
        assert (encoded.rows, len(encoded.keys or [])) == (2, 2)
        assert encoded.bytes == sum(len(key or b"") + len(value or b"") for _, key, value, _ in out[name])
    assert avro.counts == plain.counts
    for in_avro, in_json in zip(out["avro"], out["json"], strict=True):
        for data, text in zip(in_avro[1:3], in_json[1:3], strict=True):
            schema_id, read = schemas.read(data or b"")
            assert read == as_avro_would(json.loads(text or b""), json.loads(schemas.texts[schema_id]))


def test_a_malformed_row_of_copy_is_explained_without_its_value():
    harness = Schemas()
    encoder = record_stream(harness.settings())
    encoder.define(ID_AND_NAME, TableDescription(), {})
    harness.register(encoder, OID)
    position = SnapshotPosition(lsn=5, commit_lsn=9, first="true", last="true", others="true")
    with pytest.raises(ProtocolError, match="3 columns, but 2"):
        encoder.encode_rows(OID, [b"1\ta\tsecret\n"], position, NOW_US, [], set())


ROUTED = EU, US = "golden.public.t-eu", "golden.public.t-us"
ROUTES = (RoutedTopics("public.t", ROUTED),)


def test_schemas_are_registered_for_each_topic_that_rows_are_routed_to():
    harness = Harness(registered=False, routes=ROUTES)
    assert [use.subject for use in harness.encoder.unregistered(OID)] == [
        f"{topic}-{part}" for topic in ("golden.public.t", *ROUTED) for part in ("key", "value")
    ]
    harness = Harness(registered=False, routes=ROUTES, subjects="record")
    assert len(harness.encoder.unregistered(OID)) == 2


def test_a_routed_record_has_the_ids_of_its_topics_schemas():
    harness = Harness(routes=ROUTES)
    for record in harness.records(Update(None, OID, "K", (b"1", None), row("2", "a"))):
        _, own_key, own_value, own_headers = record
        topic, key, value, headers = harness.encoder.to_topic(OID, record, EU)
        assert topic == EU
        pairs = [(key, own_key), (value, own_value)]
        pairs += [(mine, its) for (_, mine), (_, its) in zip(headers or [], own_headers or [], strict=True)]
        for mine, its in pairs:
            if mine is None or its is None:
                assert mine is its
                continue
            (my_id, my_value), (its_id, its_value) = harness.schemas.read(mine), harness.schemas.read(its)
            # The registry of the tests gives a schema another id under each subject.
            assert my_id != its_id
            assert harness.schemas.uses[my_id].subject.startswith(EU)
            assert my_value == its_value
    assert harness.encoder.tables.topics_of(OID) == ("golden.public.t", *ROUTED)


def test_a_record_for_its_own_topic_stays_as_it_is():
    harness = Harness(routes=ROUTES)
    (record,) = harness.records(Insert(None, OID, row("1", "a")))
    assert harness.encoder.to_topic(OID, record, record[0]) == record
