import pytest

from cdcd.adapters.recording.values import Reader, write_value
from cdcd.config.loading import Config, parse_config
from cdcd.core.errors import ConfigError
from cdcd.core.records.available import record_stream
from cdcd.core.records.avro.encoder import RegistryFormat
from cdcd.core.records.cloud_events import CloudEvents
from cdcd.core.records.debezium_json.encoder import JsonFormat
from cdcd.daemon.settings import encoder_settings, require_json, require_no_registry

MINIMAL = """
name: shop
postgres: {dsn: "postgresql://127.0.0.1/shop"}
kafka: {bootstrap_servers: "127.0.0.1:9092"}
"""
AVRO = "cloudevents: {data: avro}\nregistry: {url: 'http://r'}"


def configured(more: str, formats: str = "value: cloudevents") -> Config:
    return parse_config(f"{MINIMAL}format: {{{formats}}}\n{more}", {})


def test_events_are_what_is_configured_and_are_recorded():
    config = configured("cloudevents: {mode: binary, data: json_schema, extension_attributes: false}")
    settings = encoder_settings(config, "shop")
    assert settings.events == CloudEvents("binary", "json_schema", extensions=False)
    assert Reader(write_value(settings)).value() == settings
    assert isinstance(record_stream(settings).format, JsonFormat)
    assert not config.needs_registry


def test_data_in_avro_have_encoders_of_their_own_and_need_a_registry():
    config = configured(AVRO)
    assert config.needs_registry
    settings = encoder_settings(config, "shop")
    assert isinstance(record_stream(settings).format, RegistryFormat)
    assert configured(AVRO, "value: cloudevents, key: avro").format.key == "avro"


@pytest.mark.parametrize(
    ("more", "formats", "why"),
    [
        ("cloudevents: {mode: binary}", "value: json", r"the keys of cloudevents need format\.value: cloudevents"),
        ("cloudevents: {data: avro}", "value: cloudevents", r"cloudevents\.data: avro needs registry\.url"),
        ("", "value: cloudevents, key: avro", r"format\.key: avro needs format\.value: avro, or cloudevents"),
        (
            "cloudevents: {data: avro, mode: binary}\nregistry: {url: 'http://r'}",
            "value: cloudevents, key: avro",
            r"format\.key: avro needs cloudevents\.mode: structured",
        ),
        (
            "cloudevents: {data: avro}\nregistry: {url: 'http://r', subjects: record}",
            "value: cloudevents",
            r"registry\.subjects: record needs another cloudevents\.data",
        ),
        (f"{AVRO}\ntopics: {{transaction_metadata: true}}", "value: cloudevents", r"topics\.transaction_metadata nee"),
        (f"{AVRO}\nrecord: {{directory: /tmp/r}}", "value: cloudevents", r"record\.directory.*cloudevents\.data: avro"),
        (
            "cloudevents: {extension_attributes: false}\ntopics: {transaction_metadata: true}",
            "value: cloudevents",
            r"needs cloudevents\.extension_attributes: true",
        ),
        ("cloudevents: {mode: batched}", "value: cloudevents", r"cloudevents\.mode"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_keys(more, formats, why):
    with pytest.raises(ConfigError, match=why):
        configured(more, formats)


def test_commands_that_read_json_refuse_events_by_name_and_a_replay_refuses_a_registry():
    with pytest.raises(ConfigError, match=r"cdcd verify does not read format\.value: cloudevents") as refusal:
        require_json(configured(""), "cdcd verify", "Do this.")
    assert refusal.value.hint == "Do this."
    require_no_registry(configured(""), "cdcd replay", "")
    with pytest.raises(ConfigError, match=r"cloudevents with cloudevents\.data: avro"):
        require_no_registry(configured(AVRO), "cdcd replay", "")
