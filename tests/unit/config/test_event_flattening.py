import pytest

from cdcd.adapters.recording.values import Reader, write_value
from cdcd.config.loading import Config, parse_config
from cdcd.core.errors import ConfigError
from cdcd.core.records.flattening import AddedField, Flattening
from cdcd.daemon.settings import encoder_settings

MINIMAL = """
name: shop
postgres: {dsn: "postgresql://127.0.0.1/shop"}
kafka: {bootstrap_servers: "127.0.0.1:9092"}
"""


def configured(flattening: str, more: str = "") -> Config:
    return parse_config(f"{MINIMAL}event_flattening: {{{flattening}}}\n{more}", {})


def test_records_are_envelopes_by_default():
    assert encoder_settings(parse_config(MINIMAL, {}), "shop").flattening is None
    assert encoder_settings(configured("delete_tombstone_handling_mode: drop"), "shop").flattening is None


def test_flattening_is_what_is_configured_and_is_recorded():
    config = configured(
        "enabled: true, delete_tombstone_handling_mode: rewrite, add_fields: [op, 'source.lsn:pos'], "
        "add_headers: [table], add_headers_prefix: x_"
    )
    settings = encoder_settings(config, "shop")
    assert settings.flattening == Flattening(
        "rewrite",
        (AddedField("__op", "op"), AddedField("__pos", "source.lsn")),
        (AddedField("x_table", "source.table"),),
    )
    assert Reader(write_value(settings)).value() == settings


@pytest.mark.parametrize(
    ("flattening", "why"),
    [
        ("enabled: true, add_fields: [foo]", r"add_fields.*no such field"),
        ("enabled: true, add_headers: [transaction.id]", r"no transaction metadata"),
        ("enabled: true, add_fields: [op, 'table:op']", r"__op is there twice"),
        ("enabled: true, add_headers: ['op:a'], add_headers_prefix: 'cdcd.'", r"must not begin with cdcd"),
        ("enabled: true, add_headers: ['op:oldkey'], add_headers_prefix: '__debezium.'", r"must not begin"),
        (
            "enabled: true, delete_tombstone_handling_mode: rewrite, add_fields: ['op:deleted']",
            r"__deleted is a field of every rewritten row",
        ),
        ("add_fields: [op]", r"need enabled: true"),
        ("enabled: true, delete_tombstone_handling_mode: none", r"delete_tombstone_handling_mode"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(flattening, why):
    with pytest.raises(ConfigError, match=rf"event_flattening.*{why}"):
        configured(flattening)


@pytest.mark.parametrize(
    "more",
    [
        'format: {value: avro}\nregistry: {url: "http://127.0.0.1:8081"}\n',
        'format: {value: protobuf}\nregistry: {url: "http://127.0.0.1:8081"}\n',
        "format: {value: cloudevents}\n",
        "format: {value: json_schema}\n",
    ],
)
def test_every_format_can_be_flattened(more: str):
    assert encoder_settings(configured("enabled: true", more), "shop").flattening == Flattening()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("format: {change_header: true, value: cloudevents}", "another format.value than cloudevents"),
        ("topics: {schemas: ''}", "topics.schemas"),
        (
            "event_flattening: {enabled: true, delete_tombstone_handling_mode: drop}",
            "records of deletes",
        ),
        ("event_flattening: {enabled: true}\ntopics: {tombstones: false}", "records of deletes"),
    ],
)
def test_a_change_that_cannot_be_told_in_a_header_is_refused(more: str, why: str):
    option = "" if "format" in more else "format: {change_header: true}\n"
    with pytest.raises(ConfigError, match=rf"format.change_header needs {why}"):
        parse_config(f"{MINIMAL}{option}{more}\n", {})


@pytest.mark.parametrize("mode", ["tombstone", "rewrite", "rewrite-with-tombstone"])
def test_a_truncate_of_flattened_rows_has_a_record_if_it_is_told_in_a_header(mode: str):
    more = "format: {change_header: true}\n"
    config = configured(f"enabled: true, delete_tombstone_handling_mode: {mode}", more)
    assert config.writes_truncates
    assert encoder_settings(config, "shop").change_header
    assert not configured("enabled: true").writes_truncates
    assert not configured("enabled: true", more + "topics: {truncate: false}\n").writes_truncates
