import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from cdcd.config.loading import Config, parse_config
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Column, Insert, LogicalMessage, Relation, Truncate
from cdcd.core.protocol.writer import write_message
from cdcd.core.transactions.steps import NonTransactionalMessage, Opened
from cdcd.tools.operations.change_lines import Filter, ReadRecord
from cdcd.tools.operations.record import record as record_now
from cdcd.tools.operations.replay import Range
from cdcd.tools.operations.replay import replay as replay_now
from cdcd.tools.operations.tail import RecordDecoder, Shown, filter_of, follow_topics, topics_of
from tests.unit.config.test_loading import parse
from tests.unit.core.engine.tables import KEYED, relation
from tests.unit.core.transactions import wire

CONFIG = parse_config(
    "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'k:9092'}\n"
    "topics: {names: {'public.a$b': shop.public.dollar}}\n",
    {},
)
RECORD = ReadRecord(
    "t", None, b'{"op":"c","source":{"schema":"public","table":"a","ts_ms":0},"after":{"id":1}}'
)


@pytest.mark.parametrize(
    ("tables", "read", "left"),
    [
        (
            (),
            {"shop.public.a", "shop.message", "shop.eu.public.a"},
            {"shop.checkpoint", "shop.schemas", "bank.a.b"},
        ),
        (("public.a",), {"shop.public.a"}, {"shop.public.ab", "shop.message"}),
        (("public.a$b",), {"shop.public.dollar"}, {"shop.public.a_b"}),
        (("public.*",), {"shop.public.a", "shop.public.dollar"}, {"shop.message", "shop.schemas"}),
        (("public.a", "public.*"), {"shop.public.a", "shop.public.b"}, {"shop.checkpoint"}),
    ],
)
def test_only_topics_that_may_have_the_records_are_read(tables, read, left):
    wants = topics_of(CONFIG, tables)
    assert {topic for topic in read | left if wants(topic)} == read


def test_heartbeats_are_not_shown_whatever_their_topic_is_called():
    config = parse("heartbeat: {interval_s: 5}\ntopics: {heartbeat: shop.heartbeat}\n")
    wants = topics_of(config, ())
    assert wants("shop.public.orders")
    assert not wants("shop.heartbeat")


def test_a_pattern_or_a_condition_that_cannot_be_read_is_told_before_anything_is_asked():
    with pytest.raises(ConfigError, match="--table"):
        filter_of(("orders",), "")
    with pytest.raises(ConfigError, match="--where"):
        filter_of((), "=")


def with_template(template: str, *, flattened: bool = False):
    return parse_config(
        "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'k:9092'}\n"
        f"topics: {{name: '{template}'}}\nevent_flattening: {{enabled: {str(flattened).lower()}}}\n",
        {},
    )


def test_topics_are_found_by_the_template_of_the_configuration():
    wants = topics_of(with_template("{prefix}.app.{table}"), ("public.a",))
    assert {topic for topic in ("shop.public.a", "shop.app.a", "shop.app.b") if wants(topic)} == {
        "shop.app.a"
    }


ROUTED = (
    "routes: {tables: {public.a: {rules: [{when: row.b == 1, topic: '{prefix}.{schema}.{table}-eu'}]}}}\n"
)


def test_all_topics_of_a_table_are_read():
    config = parse_config(
        f"name: shop\npostgres: {{dsn: host=db}}\nkafka: {{bootstrap_servers: 'k:9092'}}\n{ROUTED}"
        "event_flattening: {enabled: true}\n",
        {},
    )
    wants = topics_of(config, ("public.a",))
    assert [wants(topic) for topic in ("shop.public.a", "shop.public.a-eu", "shop.public.b")] == [
        True,
        True,
        False,
    ]
    shown = filter_of(("public.a",), "", config)
    assert shown.wanted(ReadRecord("shop.public.a-eu", None, b'{"id":1}')) is not None


def test_flattened_records_show_their_table_only_by_a_topic_that_is_named():
    config = with_template("{prefix}.app.{table}", flattened=True)
    shown = filter_of(("public.a",), "", config)
    assert shown.wanted(ReadRecord("shop.app.a", None, b'{"id":1}')) is not None
    assert shown.wanted(ReadRecord("shop.app.b", None, b'{"id":1}')) is None
    with pytest.raises(ConfigError, match=r"topics\.name"):
        filter_of(("public.*",), "", config)


def test_a_slot_shows_no_change_of_a_table_that_is_left_out():
    config = parse_config(
        "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'k:9092'}\n"
        "tables: {exclude: [public.audit]}\n",
        {},
    )
    decoder = RecordDecoder(config, "db")
    for oid, name in ((1, "orders"), (2, "audit")):
        decoder.define(relation(oid, name), KEYED, {})
    decoder.begin(Opened("", 7, 100, 0, None, 0))
    frames = [wire.frame(Insert(None, oid, (b"1", b"x"))) for oid in (2, 1)]
    frames.append(wire.frame(Truncate(None, False, False, (1, 2))))
    records = [record for frame in frames for record in decoder.decode(frame, False)]
    assert [topic for topic, *_ in records] == ["shop.public.orders"] * 2
    assert [json.loads(value or b"")["source"]["event_serial_no"] for _, _, value, _ in records] == [2, 3]


def record(config: Config, folder: Path) -> None:
    record_now(config, folder, 1, notice=lambda _: None)


def replay(config: Config, folder: Path) -> None:
    replay_now(folder, config, "stdout", Range(None, None), show=lambda _: None, notice=lambda _: None)


@pytest.mark.parametrize("run", [record, replay])
def test_what_holds_all_tables_is_refused_with_a_configuration_that_leaves_some_out(run, tmp_path):
    config = parse_config(
        "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'k:9092'}\n"
        "tables: {include: [public.audit]}\n",
        {},
    )
    with pytest.raises(ConfigError) as caught:
        run(config, tmp_path)
    assert "without `tables`" in caught.value.hint


def test_after_so_many_records_enough_is_shown():
    lines: list[str] = []
    shown = Shown(Filter(), as_objects=False, show=lines.append, notice=lines.append, limit=2)
    shown.take(iter([RECORD] * 5))
    assert (len(lines), shown.is_full) == (2, True)


def test_notices_go_elsewhere_and_are_taken_once():
    lines: list[str] = []
    notices: list[str] = []
    shown = Shown(Filter(), as_objects=True, show=lines.append, notice=notices.append)
    for _ in range(2):
        shown.take(iter([ReadRecord("t", None, b"no json"), RECORD]))
    assert (len(lines), len(notices), shown.is_full) == (2, 1, False)


def test_a_reader_that_has_gone_is_noticed_although_nothing_comes():
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        shown = Shown(Filter(), as_objects=True, show=print, notice=print, watched=stream)
        shown.take(iter(()))
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            shown.take(iter(()))


EVENTS = parse_config(
    "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'k:9092'}\nformat: {value: cloudevents}\n",
    {},
)


def test_topics_with_cloudevents_are_refused_before_anything_is_asked():
    said: list[str] = []
    shown = Shown(Filter(), as_objects=True, show=said.append, notice=said.append)
    with pytest.raises(ConfigError, match=r"topics does not read format\.value: cloudevents") as refusal:
        follow_topics(EVENTS, shown, (), beginning=False, notice=said.append)
    assert not said
    assert "--from slot" in refusal.value.hint


def test_changes_of_a_slot_are_envelopes_whatever_the_daemon_writes():
    decoder = RecordDecoder(EVENTS, "db")
    decoder.define(Relation(None, 1, "public", "t", "d", (Column(1, "id", 23, -1),)), TableDescription(), {})
    decoder.begin(Opened("", 7, 1000, 0, 900, 0))
    message = write_message(Insert(None, 1, (b"1",)))
    ((_, _, value, headers),) = decoder.decode(write_frame(XLogData(500, 500, 0, message)), False)
    assert json.loads(value or b"")["after"] == {"id": 1}
    assert headers is None


@pytest.mark.parametrize("prefix", ["cdcd.snapshot", "cdcd.watermark", "cdcd.context"])
def test_messages_that_may_have_a_token_are_not_shown_but_counted(prefix: str):
    decoder = RecordDecoder(EVENTS, "db")
    decoder.define(relation(1, "orders"), KEYED, {})
    decoder.begin(Opened("", 7, 100, 0, None, 0))
    secret = LogicalMessage(None, True, 5, prefix, b'{"token": "s3cr3t"}')
    assert decoder.decode(wire.frame(secret), False) == []
    ((_, _, value, _),) = decoder.decode(wire.frame(Insert(None, 1, (b"1", b"x"))), False)
    assert json.loads(value or b"")["source"]["event_serial_no"] == 2
    alone = wire.frame(replace(secret, transactional=False))
    assert decoder.decode_message(NonTransactionalMessage(alone, False, 5, 0, 0)) == []


def test_a_table_that_cannot_be_described_is_left_out_with_a_notice():
    said: list[str] = []
    decoder = RecordDecoder(EVENTS, "db", notice=said.append)
    odd = replace(relation(1, "odd"), name="b\ufdd0e9")
    decoder.define(odd, KEYED, {})
    decoder.define(relation(2, "orders"), KEYED, {})
    decoder.begin(Opened("", 7, 100, 0, None, 0))
    records = [
        record
        for oid in (1, 2)
        for record in decoder.decode(wire.frame(Insert(None, oid, (b"1", b"x"))), False)
    ]
    assert [topic for topic, *_ in records] == ["shop.public.orders"]
    assert "cannot be decoded" in said[0]
