import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdcd.config.defaults import section_of
from cdcd.config.keys import all_keys, field_at
from cdcd.config.loading import load_config, parse_config
from cdcd.config.reference import changed_yaml, effective_yaml, json_schema, reference_yaml
from cdcd.core.errors import ConfigError

CONFIG = Path(__file__).parents[3] / "config"


def test_the_reference_is_what_the_models_say():
    assert (CONFIG / "reference.yaml").read_text() == reference_yaml(), (
        "stale: run `cdcd config --reference > config/reference.yaml`"
    )


def test_the_reference_loads_and_equals_the_defaults():
    minimal = load_config(CONFIG / "minimal.yaml", {})
    assert load_config(CONFIG / "reference.yaml", {}) == minimal


def test_the_reference_has_every_key():
    def paths(data: dict[str, Any], parent: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for key, value in data.items():
            yield (*parent, key)
            if isinstance(value, dict):
                yield from paths(value, (*parent, key))

    assert set(paths(yaml.safe_load(reference_yaml()))) == set(all_keys())


def test_every_key_has_a_description_and_every_number_has_bounds_and_a_unit():
    counts = {"port", "partitions", "replication_factor", "records_max", "parallelism", "digits"}
    counts.add("rereads_per_hour_max")
    for path in all_keys():
        field = field_at(path)
        assert field is not None, path
        assert field.description, path
        assert field.description.endswith("."), path
        if section_of(field) is not None:
            continue
        numbers = {float, int} & {field.annotation, *getattr(field.annotation, "__args__", ())}
        if numbers:
            bounds = str(field.metadata) + str(field.annotation)
            assert "Ge(" in bounds, path
            assert "Le(" in bounds, path
            assert path[-1] in counts or {"s", "bytes"} & set(path[-1].split("_")), path


@pytest.mark.parametrize("file", sorted(CONFIG.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_example_loads(file, tmp_path):
    for secret in ("postgres-password", "kafka-password"):
        (tmp_path / secret).write_text("secret\n")
    config = load_config(file, {"SECRETS": str(tmp_path)})
    assert config.name == "shop"


def test_what_is_in_effect_is_a_file_that_loads_and_says_the_same():
    config = load_config(CONFIG / "large-transactions.yaml", {})
    assert parse_config(effective_yaml(config), {}) == config


@pytest.mark.parametrize("file", sorted(CONFIG.glob("*.yaml")), ids=lambda file: file.stem)
def test_what_is_changed_is_a_file_that_loads_and_says_the_same(file, tmp_path):
    for secret in ("postgres-password", "kafka-password"):
        (tmp_path / secret).write_text("secret\n")
    config = load_config(file, {"SECRETS": str(tmp_path)})
    shown = changed_yaml(config)
    assert parse_config(shown, {}).model_dump() == config.model_dump()
    assert len(shown.splitlines()) < len(effective_yaml(config).splitlines()) / 2


def test_what_is_changed_has_the_prefix_without_the_topics_that_follow_from_it():
    config = load_config(CONFIG / "minimal.yaml", {"CDCD_TOPICS__PREFIX": "eu"})
    shown = yaml.safe_load(changed_yaml(config))
    assert shown["topics"] == {"prefix": "eu"}


def test_what_is_in_effect_shows_no_secret():
    config = load_config(CONFIG / "minimal.yaml", {"CDCD_POSTGRES__DSN": "host=db password=s3cret"})
    assert "s3cret" not in effective_yaml(config)
    assert "dsn: host=db password=***" in effective_yaml(config)


def test_the_schema_demands_only_what_cannot_be_derived():
    schema = json_schema()
    json.dumps(schema)
    assert schema["required"] == ["name", "postgres", "kafka"]
    assert schema["$defs"]["KafkaConfig"]["required"] == ["bootstrap_servers"]
    assert schema["$defs"]["PostgresConfig"]["anyOf"] == [{"required": ["dsn"]}, {"required": ["dsn_file"]}]
    assert "required" not in schema["$defs"]["TopicsConfig"]
    assert schema["additionalProperties"] is False


def test_what_is_in_effect_can_be_loaded_again_where_secrets_come_from_files(tmp_path: Path):
    """The loaded section has the file's name and its content, and a file with both is refused."""
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 2)
    config = parse_config(
        f"""
        name: shop
        postgres: {{dsn: "host=db user=cdcd", password_file: {secret}}}
        kafka: {{bootstrap_servers: "b:1", properties_files: {{sasl.password: {secret}}}}}
        http: {{token_file: {secret}}}
        columns: {{hash: ["*.*.mail"], hash_key_file: {secret}}}
        """,
        {},
    )
    shown = effective_yaml(config)
    assert "0123456789" not in shown
    assert parse_config(shown, {}) == config


@pytest.mark.parametrize(
    ("servers", "says"),
    [
        ('["a:9092", "b:9093"]', "must be one text, not a list: 'a:9092,b:9093'"),
        ("http://a:9092", "must be host:port without a protocol: 'a:9092'"),
        ("'SASL_SSL://a:9092,SASL_SSL://b:9092'", "must be host:port without a protocol: 'a:9092,b:9092'"),
    ],
)
def test_brokers_in_the_form_of_other_programs_get_the_right_form(servers: str, says: str):
    with pytest.raises(ConfigError, match=re.escape(says)):
        parse_config(f"name: shop\npostgres: {{dsn: host=db}}\nkafka: {{bootstrap_servers: {servers}}}", {})
