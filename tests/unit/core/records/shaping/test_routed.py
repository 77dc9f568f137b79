"""The encoder that gives rows to topics: each event counts once, and a row is in one topic at each place."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cdcd.config.expressions import parse_expression
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.routing import RoutedTopics
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ProtocolError
from cdcd.core.facts import Fact
from cdcd.core.facts.rules import RouteFailed
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
    TupleData,
    Update,
)
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.cloud_events import BINARY, CloudEvents
from cdcd.core.records.encoder import Encoder, EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.flattening import Flattening
from cdcd.core.records.shaping.filtering import filtered
from cdcd.core.records.shaping.routed import routed
from cdcd.core.records.shaping.row_values import REPORT_S
from cdcd.core.records.shaping.settings import ASSUMED, Route, TableFilter, TableRoutes
from tests.unit.core.records.avro.reading import Schemas

ORDERS, OTHERS = 7, 8
INT4, TEXT = 23, 25
OWN, EU, US = "shop.public.orders", "shop.public.orders-eu", "shop.public.orders-us"
OTHER = "shop.public.others"
TEMPLATES = {"row.region == 'eu'": "{prefix}.{schema}.{table}-eu", "row.region == 'us'": US}
ROUTED = RoutedTopics("public.orders", tuple(TEMPLATES.values()))
SETTINGS = EncoderSettings("1", "shop", "db", routes=(ROUTED,))
POSITION = SnapshotPosition(lsn=1000, commit_lsn=999, first="first", last="last", others="true", event_no=5)


def relation(oid: int, name: str, identity: str) -> Relation:
    columns = (("id", INT4), ("region", TEXT), ("note", TEXT))
    return Relation(
        None,
        oid,
        "public",
        name,
        identity,
        tuple(Column(int(identity == "f" or each == "id"), each, kind, -1) for each, kind in columns),
    )


def chosen(**rest: str) -> tuple[TableRoutes, ...]:
    rules = tuple(Route(text, parse_expression(text), topic) for text, topic in TEMPLATES.items())
    return (TableRoutes("public.orders", rules, **rest),)


class Encoding:
    """The records of messages in one transaction."""

    def __init__(
        self,
        identity: str = "f",
        *,
        settings: EncoderSettings = SETTINGS,
        filters: tuple[TableFilter, ...] = (),
        **rest: str,
    ) -> None:
        self.facts: list[Fact] = []
        self.now_us = 0
        self.encoder = filtered(
            routed(record_stream(settings), chosen(**rest), settings, self.facts.append),
            filters,
            settings,
            self.facts.append,
        )
        for oid, name in ((ORDERS, "orders"), (OTHERS, "others")):
            self.encoder.define(relation(oid, name, identity), TableDescription(("id",)), BUILTIN_TYPES)
        self.encoder.begin(5, 1000, 0, None)

    def records(self, *messages: Message) -> list[Record]:
        out: list[Record] = []
        size = self.encoder.encode_all([frame(each) for each in messages], False, self.now_us, out)
        assert size == sum(
            len(key or b"") + len(value or b"") for topic, key, value, _ in out if topic != "schemas"
        )
        return out


def frame(message: Message) -> bytes:
    return write_frame(XLogData(500, 500, 0, write_message(message)))


def row(number: int, region: str | None = "eu", note: Any = b"n") -> TupleData:
    return (b"%d" % number, None if region is None else region.encode(), note)


def key(number: int) -> TupleData:
    return (b"%d" % number, None, None)


def insert(number: int, region: str | None = "eu", oid: int = ORDERS) -> Insert:
    return Insert(None, oid, row(number, region))


def update(number: int, before: str, after: str) -> Update:
    return Update(None, ORDERS, "O", row(number, before), row(number, after))


def told(records: list[Record]) -> list[tuple[str, str, int, int]]:
    """Topic, op, key and number of each record; "" for the op of a tombstone."""
    found = []
    for topic, one, value, _ in records:
        number = json.loads(one or b"{}").get("id", 0)
        if value is None:
            found.append((topic, "", number, 0))
        else:
            envelope = json.loads(value)
            found.append((topic, envelope["op"], number, envelope["source"]["event_serial_no"]))
    return found


def test_without_routes_the_encoders_are_the_formats_own():
    inner, rows = record_stream(SETTINGS), record_stream(SETTINGS)
    assert routed(inner, (), SETTINGS, lambda _: None) is inner
    assert routed(rows, (), SETTINGS, lambda _: None) is rows


def test_a_row_that_goes_elsewhere_is_deleted_where_it_was_and_every_event_counts_once():
    encoding = Encoding()
    assert told(
        encoding.records(
            insert(1),
            insert(2, "fr"),
            update(1, "eu", "eu"),
            update(1, "eu", "us"),
            update(2, "fr", "fr"),
            update(2, "fr", "eu"),
            update(2, "eu", "fr"),
            Delete(None, ORDERS, "O", row(1, "us")),
            insert(3, "eu", OTHERS),
        )
    ) == [
        (EU, "c", 1, 1),
        (OWN, "c", 2, 2),
        (EU, "u", 1, 3),
        (EU, "d", 1, 4),
        (EU, "", 1, 0),
        (US, "c", 1, 4),
        (OWN, "u", 2, 5),
        (OWN, "d", 2, 6),
        (OWN, "", 2, 0),
        (EU, "c", 2, 6),
        (EU, "d", 2, 7),
        (EU, "", 2, 0),
        (OWN, "c", 2, 7),
        (US, "d", 1, 8),
        (US, "", 1, 0),
        (OTHER, "c", 3, 9),
    ]
    assert not encoding.facts


def test_a_row_that_goes_elsewhere_is_deleted_as_it_was_and_inserted_as_a_whole():
    records = Encoding().records(
        Update(None, ORDERS, "O", row(1, "eu", b"large"), row(1, "us", UNCHANGED)),
    )
    gone, come = json.loads(records[0][2] or b""), json.loads(records[2][2] or b"")
    assert gone["before"] == {"id": 1, "region": "eu", "note": "large"}
    assert gone["after"] is None
    assert come["before"] is None
    assert come["after"] == {"id": 1, "region": "us", "note": "large"}
    assert [headers for *_, headers in records] == [None, None, None]


def test_an_update_of_the_key_stays_one_within_a_topic_and_is_divided_across_topics():
    encoding = Encoding()
    within = encoding.records(Update(None, ORDERS, "O", row(1), row(2)))
    assert told(within) == [(EU, "d", 1, 1), (EU, "", 1, 0), (EU, "c", 2, 1)]
    assert [name for name, _ in within[2][3] or ()] == ["__debezium.oldkey"]
    across = encoding.records(Update(None, ORDERS, "O", row(2), row(3, "us")))
    assert told(across) == [(EU, "d", 2, 2), (EU, "", 2, 0), (US, "c", 3, 2)]
    # A consumer of one topic cannot follow the row into the other.
    assert [headers for *_, headers in across] == [None, None, None]


def test_a_row_whose_old_values_are_not_known_is_deleted_where_it_may_be():
    encoding = Encoding("d", old_row=ASSUMED)
    assert told(encoding.records(Update(None, ORDERS, "", None, row(1, "us")))) == [
        (EU, "d", 1, 1),
        (EU, "", 1, 0),
        (OWN, "d", 1, 1),
        (OWN, "", 1, 0),
        (US, "u", 1, 1),
    ]
    assert told(encoding.records(Update(None, ORDERS, "K", key(1), row(2, "fr")))) == [
        (EU, "d", 1, 2),
        (EU, "", 1, 0),
        (US, "d", 1, 2),
        (US, "", 1, 0),
        (OWN, "d", 1, 2),
        (OWN, "", 1, 0),
        (OWN, "c", 2, 2),
    ]
    assert {topic for topic, op, *_ in told(encoding.records(Delete(None, ORDERS, "K", key(2)))) if op} == {
        EU,
        OWN,
        US,
    }
    assert not encoding.facts


def test_a_truncate_empties_all_topics_of_each_table():
    encoding = Encoding()
    records = encoding.records(Truncate(None, False, False, (ORDERS, OTHERS)), insert(1))
    assert told(records) == [
        (OWN, "t", 0, 1),
        (OTHER, "t", 0, 1),
        (EU, "t", 0, 1),
        (US, "t", 0, 1),
        (EU, "c", 1, 2),
    ]
    assert told(encoding.records(Truncate(None, False, False, (OTHERS,)))) == [(OTHER, "t", 0, 3)]


def test_without_records_of_truncates_there_are_none():
    settings = EncoderSettings("1", "shop", "db", routes=(ROUTED,), truncate=False)
    encoding = Encoding(settings=settings)
    assert encoding.records(Truncate(None, False, False, (ORDERS,))) == []
    assert told(encoding.records(insert(1))) == [(EU, "c", 1, 2)]


def test_the_rows_of_a_former_table_end_in_all_topics():
    encoding = Encoding()
    out: list[Record] = []
    assert encoding.encoder.encode_end_of_rows(ORDERS, None, 0, out)
    assert [(topic, op) for topic, op, *_ in told(out)] == [(OWN, "t"), (EU, "t"), (US, "t")]
    out.clear()
    encoding.encoder.encode_end_of_rows(OTHERS, (900, 3), 0, out)
    assert told(out) == [(OTHER, "t", 0, 3)]


def test_each_record_counts_for_the_metadata_of_its_transaction():
    settings = EncoderSettings("1", "shop", "db", routes=(ROUTED,), transaction_topic="shop.transaction")
    encoding = Encoding(settings=settings)
    records = encoding.records(update(1, "eu", "us"), Truncate(None, False, False, (ORDERS,)))
    places = [json.loads(value)["transaction"]["total_order"] for _, _, value, _ in records if value]
    assert places == [1, 2, 3, 4, 5]
    assert encoding.encoder.metadata is not None
    assert encoding.encoder.metadata.counts() == (("public.orders", 5),)


def test_the_description_of_a_table_stands_once_in_its_own_topic_and_names_the_others():
    settings = EncoderSettings("1", "shop", "db", routes=(ROUTED,), schemas_topic="schemas")
    records = Encoding(settings=settings).records(insert(1), insert(2, "us"))
    assert [topic for topic, *_ in records] == ["schemas", EU, US]
    described = json.loads(records[0][2] or b"")
    assert (described["topic"], described["routes"]) == (OWN, [EU, US])


def test_a_filter_comes_first():
    text = "row.note != 'draft'"
    filters = (TableFilter("public.orders", text, parse_expression(text)),)
    encoding = Encoding(filters=filters)
    records = encoding.records(
        Insert(None, ORDERS, row(1, "eu", b"draft")),
        Update(None, ORDERS, "O", row(1, "eu", b"draft"), row(1, "us", b"n")),
        Update(None, ORDERS, "O", row(1, "us", b"n"), row(1, "eu", b"draft")),
    )
    assert told(records) == [(US, "c", 1, 2), (US, "d", 1, 3), (US, "", 1, 0)]


def test_a_row_without_an_answer_goes_to_its_own_topic_and_is_told():
    rules = (
        Route("row.region > 'a'", parse_expression("row.region > 'a'"), TEMPLATES["row.region == 'eu'"]),
        Route("row.region == 'us'", parse_expression("row.region == 'us'"), US),
    )
    facts: list[Fact] = []
    encoder = routed(record_stream(SETTINGS), (TableRoutes("public.orders", rules),), SETTINGS, facts.append)
    encoder.define(relation(ORDERS, "orders", "f"), TableDescription(("id",)), BUILTIN_TYPES)
    encoder.begin(5, 1000, 0, None)
    out: list[Record] = []
    for now_us in (0, 1):
        encoder.encode(frame(insert(1, None)), False, now_us, out)
    encoder.encode(frame(Delete(None, ORDERS, "O", row(1, None))), False, REPORT_S * 1_000_000, out)
    encoder.encode(frame(insert(3, None)), False, REPORT_S * 1_000_000, out)
    assert {topic for topic, *_ in out} == {OWN}
    assert facts == [
        RouteFailed("public.orders", "> of null", "0/1F4", 0),
        RouteFailed("public.orders", "> of null", "0/1F4", 1),
    ]
    assert encoder.counts["public.orders", "route_failed"] == 3
    assert encoder.counts["public.orders", "c"] == 3


def test_an_altered_table_goes_on_in_its_own_topic():
    encoding = Encoding()
    encoding.records(insert(1))
    columns = (Column(1, "id", INT4, -1), Column(1, "country", TEXT, -1), Column(1, "note", TEXT, -1))
    altered = Relation(None, ORDERS, "public", "orders", "f", columns)
    encoding.encoder.define(altered, TableDescription(("id",)), BUILTIN_TYPES)
    found = told(encoding.records(insert(2), Delete(None, ORDERS, "O", row(1))))
    assert found[0] == (OWN, "c", 2, 2)
    assert {topic for topic, op, *_ in found[1:] if op == "d"} == {OWN, EU, US}
    assert [fact.reason for fact in encoding.facts if isinstance(fact, RouteFailed)] == [
        "there is no published column region"
    ]


def test_a_table_under_another_name_has_other_routes_or_none():
    encoding = Encoding()
    encoding.encoder.define(relation(ORDERS, "former", "f"), TableDescription(("id",)), BUILTIN_TYPES)
    assert encoding.encoder.tables.topics_of(ORDERS) == ("shop.public.former",)
    assert told(encoding.records(insert(1))) == [("shop.public.former", "c", 1, 1)]


def test_rows_of_a_streamed_transaction_are_routed_at_its_commit():
    encoding = Encoding()
    frames = [frame(Insert(9, oid, row(1, region))) for oid in (ORDERS, OTHERS) for region in ("eu", "us")]
    relations = {oid: (0, relation(oid, name, "f")) for oid, name in ((ORDERS, "orders"), (OTHERS, "others"))}
    drafted = encoding.encoder.draft_all([*frames], relations)
    assert [each for each in drafted if isinstance(each, bytes)] == frames[:2]
    out: list[Record] = []
    encoding.encoder.encode_all(drafted, True, 0, out)
    assert told(out) == [(EU, "c", 1, 1), (US, "c", 1, 2), (OTHER, "c", 1, 3), (OTHER, "c", 1, 4)]


def test_messages_go_through():
    encoding = Encoding()
    out: list[Record] = []
    message = frame(LogicalMessage(None, True, 500, "app", b"x"))
    encoding.encoder.encode(message, False, 0, out)
    encoding.encoder.encode_message(message, False, None, 0, out)
    assert [topic for topic, *_ in out] == ["shop.message", "shop.message"]


@pytest.mark.parametrize("broken", [b"\x4e\x00\x02", b"\x4b\x00\x03"], ids=["too few columns", "an old row"])
def test_a_malformed_row_is_refused_as_without_routes(broken: bytes):
    whole = frame(insert(1))
    malformed = whole.replace(b"\x4e\x00\x03", broken)
    assert malformed != whole
    with pytest.raises(ProtocolError):
        Encoding().encoder.encode(malformed, False, 0, [])


def rows_encoder() -> Encoder:
    encoder = routed(record_stream(SETTINGS), chosen(), SETTINGS, lambda _: None)
    for oid, name in ((ORDERS, "orders"), (OTHERS, "others")):
        encoder.define(relation(oid, name, "f"), TableDescription(("id",)), BUILTIN_TYPES)
    return encoder


LINES = [b"1\teu\tn\n", b"2\tfr\tn\n", b"3\teu\tn\n", b"4\tus\tn\n", b"5\t\\N\tn\n", b"6\teu\tn\n"]


def test_rows_of_a_snapshot_are_in_the_topics_of_their_routes_in_the_order_of_reading():
    encoder = rows_encoder()
    out: list[Record] = []
    encoded = encoder.encode_rows(ORDERS, LINES, POSITION, 0, out, {b'{"id":3}'})
    assert told(out) == [
        (EU, "r", 1, 6),
        (EU, "r", 6, 7),
        (OWN, "r", 2, 8),
        (OWN, "r", 5, 9),
        (US, "r", 4, 10),
    ]
    assert (encoded.rows, encoded.keys) == (5, [one for _, one, _, _ in out])
    assert encoded.bytes == sum(len(one or b"") + len(value or b"") for _, one, value, _ in out)
    assert encoder.encode_rows(OTHERS, LINES, POSITION, 0, out, set()).rows == 6
    nothing = encoder.encode_rows(ORDERS, [], POSITION, 0, out, set())
    assert (nothing.rows, nothing.bytes, nothing.keys) == (0, 0, [])


@pytest.mark.parametrize(
    ("lines", "markers"),
    [
        (LINES, ["first", "true", "true", "true", "true", "last"]),
        (LINES[1:4], ["first", "true", "last"]),
        (LINES[2:4], ["first", "last"]),
        (LINES[:1], ["last"]),
        ([LINES[0], LINES[2]], ["first", "last"]),
    ],
)
def test_the_first_and_the_last_record_of_a_snapshot_are_marked(lines: list[bytes], markers: list[str]):
    out: list[Record] = []
    rows_encoder().encode_rows(ORDERS, lines, POSITION, 0, out, set())
    assert [json.loads(value or b"")["source"]["snapshot"] for _, _, value, _ in out] == markers


def test_rows_of_a_table_without_a_key_have_no_keys():
    encoder = routed(record_stream(SETTINGS), chosen(), SETTINGS, lambda _: None)
    columns = tuple(
        Column(0, each.name, each.type_oid, -1) for each in relation(ORDERS, "orders", "n").columns
    )
    keyless = Relation(None, ORDERS, "public", "orders", "n", columns)
    encoder.define(keyless, TableDescription(()), BUILTIN_TYPES)
    out: list[Record] = []
    encoded = encoder.encode_rows(ORDERS, LINES, POSITION, 0, out, set())
    assert (encoded.rows, encoded.keys) == (6, None)
    assert [topic for topic, *_ in out] == [EU, EU, EU, OWN, OWN, US]


def test_rows_of_a_snapshot_are_filtered_before_they_are_routed():
    text = "row.region != 'us'"
    filters = (TableFilter("public.orders", text, parse_expression(text)),)
    encoder = filtered(rows_encoder(), filters, SETTINGS, lambda _: None)
    encoder.define(relation(ORDERS, "orders", "f"), TableDescription(("id",)), BUILTIN_TYPES)
    out: list[Record] = []
    encoder.encode_rows(ORDERS, LINES, POSITION, 0, out, set())
    assert [topic for topic, *_ in out] == [EU, EU, EU, OWN, OWN]


def test_a_malformed_row_of_copy_is_explained():
    with pytest.raises(ProtocolError):
        rows_encoder().encode_rows(ORDERS, [b"1\teu\n"], POSITION, 0, [], set())


def test_all_topics_of_a_table_are_known():
    encoder = Encoding().encoder
    assert encoder.tables.topics_of(ORDERS) == (OWN, EU, US)
    assert encoder.tables.topics_of(OTHERS) == (OTHER,)
    assert encoder.tables.topic_of(ORDERS) == encoder.tables.claim(ORDERS) == OWN


@pytest.mark.parametrize(
    "form",
    [
        {"value_format": "json_schema", "key_format": "json_schema"},
        {"value_format": "cloudevents"},
        {"value_format": "cloudevents", "events": CloudEvents(mode=BINARY)},
        {"flattening": Flattening("rewrite")},
    ],
    ids=["with schemas", "events", "events in headers", "flattened"],
)
def test_records_of_every_form_go_where_their_rows_do(form: dict[str, Any]):
    settings = replace(SETTINGS, **form)
    encoder = routed(record_stream(settings), chosen(), settings, lambda _: None)
    rows = routed(record_stream(settings), chosen(), settings, lambda _: None)
    for each in (encoder, rows):
        each.define(relation(ORDERS, "orders", "f"), TableDescription(("id",)), BUILTIN_TYPES)
    encoder.begin(5, 1000, 0, None)
    out: list[Record] = []
    for message in (insert(1), update(1, "eu", "us"), Update(None, ORDERS, "O", row(1, "us"), row(2, "us"))):
        encoder.encode(frame(message), False, 0, out)
    assert list(dict.fromkeys(topic for topic, *_ in out)) == [EU, US]
    events = [topic for topic, _, value, _ in out if value is not None]
    assert events == [EU, EU, US, US, US]
    out.clear()
    assert rows.encode_rows(ORDERS, LINES[:3], POSITION, 0, out, set()).rows == 3
    assert [topic for topic, *_ in out] == [EU, EU, OWN]


def test_records_in_avro_have_the_ids_of_their_topics_schemas():
    schemas = Schemas()
    settings = schemas.settings(routes=(RoutedTopics("public.orders", (US, "golden.public.orders-eu")),))
    rules = tuple(
        Route(text, parse_expression(text), "") for text in ("row.region == 'us'", "row.region == 'eu'")
    )
    routes = (TableRoutes("public.orders", rules),)
    encoder = routed(record_stream(settings), routes, settings, lambda _: None)
    rows = routed(record_stream(settings), routes, settings, lambda _: None)
    for each in (encoder, rows):
        each.define(relation(ORDERS, "orders", "f"), TableDescription(("id",)), BUILTIN_TYPES)
    assert schemas.register(encoder, ORDERS) == 6
    assert schemas.register(rows, ORDERS) == 0
    encoder.begin(5, 1000, 0, None)
    out: list[Record] = []
    for message in (insert(1), update(1, "eu", "us"), update(1, "us", "fr")):
        encoder.encode(frame(message), False, 0, out)
    rows.encode_rows(ORDERS, LINES, POSITION, 0, out, set())
    assert {topic for topic, *_ in out} == {US, "golden.public.orders", "golden.public.orders-eu"}
    for topic, one, value, _ in out:
        assert one is not None
        assert schemas.uses[schemas.read(one)[0]].subject == f"{topic}-key"
        if value is not None:
            assert schemas.uses[schemas.read(value)[0]].subject == f"{topic}-value"
