import asyncio
from typing import Any

import pytest

from cdcd.config.loading import Config
from cdcd.core.errors import ConfigError, RegistryUnavailableError, SinkError
from cdcd.daemon.settings import require_json
from cdcd.tools.checks.records import ask_registry, examine_kinds, examine_registry
from tests.schema_registry import SchemaRegistry


def config(url: str, value: str = "avro") -> Config:
    data: dict[str, Any] = {
        "name": "shop",
        "postgres": {"dsn": "host=127.0.0.1"},
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "format": {"value": value},
        "registry": {"url": url},
    }
    return Config.model_validate(data)


def test_a_registry_that_takes_schemas_is_in_order_and_one_that_is_read_only_is_not():
    (good,) = examine_registry("READWRITE", 3, url="http://r", registers=True)
    assert (good.level, good.code) == ("ok", "registry.mode")
    (bad,) = examine_registry("READONLY", 3, url="http://r", registers=True)
    assert (bad.level, "PUT http://r/mode" in bad.fix) == ("error", True)
    (told,) = examine_registry("READONLY", 3, url="http://r", registers=False)
    assert told.level == "ok"


def test_the_registry_is_asked_and_nothing_is_registered():
    with SchemaRegistry() as server:
        findings, _ = asyncio.run(ask_registry(config(server.url)))
        assert [finding.level for finding in findings] == ["ok"]
        assert [each.split()[0] for each in server.asked] == ["GET", "GET", "GET"]
        server.login = "Bearer x"
        with pytest.raises(SinkError, match="401"):
            asyncio.run(ask_registry(config(server.url)))
        server.stop()
        with pytest.raises(RegistryUnavailableError):
            asyncio.run(ask_registry(config(server.url)))
        assert asyncio.run(ask_registry(config(server.url, "json"))) == ([], None)


@pytest.mark.parametrize("value", ["protobuf", "json_registry"])
def test_a_registry_that_does_not_know_the_type_of_schemas_is_not_in_order(value: str):
    with SchemaRegistry() as server:
        server.kinds = ["AVRO"]
        findings, _ = asyncio.run(ask_registry(config(server.url, value)))
        assert [(finding.level, finding.code) for finding in findings] == [
            ("ok", "registry.mode"),
            ("error", "registry.types"),
        ]
        assert [finding.level for finding in asyncio.run(ask_registry(config(server.url)))[0]] == ["ok"]
    assert examine_kinds([], "PROTOBUF", url="http://r") == []


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("protobuf", "json", "needs format.value: protobuf"),
        ("protobuf", "avro", "needs format.value: protobuf"),
        ("avro", "protobuf", "format.key: avro needs format.value: avro"),
        ("protobuf", "cloudevents", "needs format.value: protobuf"),
        ("json_registry", "json", "needs format.value: json_registry"),
        ("json_registry", "avro", "needs format.value: json_registry"),
        ("avro", "json_registry", "format.key: avro needs format.value: avro"),
        ("protobuf", "json_registry", "needs format.value: protobuf"),
    ],
)
def test_keys_and_values_in_two_binary_formats_are_refused(key: str, value: str, problem: str):
    data = config("http://r").model_dump(exclude_unset=True)
    with pytest.raises(ValueError, match=problem):
        Config.model_validate({**data, "format": {"key": key, "value": value}})


@pytest.mark.parametrize(
    "more",
    [
        {"record": {"directory": "/tmp/recording"}},
    ],
)
@pytest.mark.parametrize("value", ["protobuf", "json_registry"])
def test_what_formats_with_a_registry_do_not_have_is_refused_by_its_key(more: dict[str, Any], value: str):
    data = config("http://r", value).model_dump(exclude_unset=True)
    ((section, keys),) = more.items()
    with pytest.raises(ValueError, match=rf"{section}\.{next(iter(keys))}"):
        Config.model_validate({**data, **more})


def test_a_command_that_reads_json_refuses_avro_with_what_to_do():
    require_json(config("http://r", "json"), "cdcd verify", "Do that.")
    with pytest.raises(ConfigError, match=r"cdcd verify does not read format\.value: avro") as refused:
        require_json(config("http://r"), "cdcd verify", "Do that.")
    assert refused.value.hint == "Do that."
    with pytest.raises(ConfigError, match=r"cdcd verify does not read format\.value: json_registry"):
        require_json(config("http://r", "json_registry"), "cdcd verify", "Do that.")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"format": {"key": "avro", "value": "json"}}, "needs format.value: avro"),
        ({"registry": {}}, "needs registry.url"),
        ({"format": {"value": "json_registry"}, "registry": {}}, "json_registry needs registry.url"),
        ({"record": {"directory": "/tmp/recording"}}, "record.directory"),
    ],
)
def test_settings_without_what_avro_needs_are_refused(changed: dict[str, Any], problem: str):
    data = config("http://r").model_dump(exclude_unset=True)
    with pytest.raises(ValueError, match=problem):
        Config.model_validate({**data, "format": {"value": "avro"}, **changed})
