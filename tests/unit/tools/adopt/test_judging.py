"""What becomes of options: none is left out, defaults count, secrets are shown nowhere."""

import re
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from cdcd.tools.adopt.judging import OptionFinding, find, judge, with_present_names, with_worker
from cdcd.tools.adopt.options import OPTIONS, PRODUCER, ByValue
from cdcd.tools.adopt.references import References
from cdcd.tools.adopt.verdicts import VerdictKind

LISTED = [
    (name, default if equals else None)
    for line in (Path(__file__).parent / "debezium-3.7.0.options").read_text().splitlines()
    if not line.startswith("#")
    for name, equals, default in [line.partition("=")]
]
"""What Debezium and Connect themselves list, with defaults."""

AVRO = "io.confluent.connect.avro.AvroConverter"
MINIMAL = {
    "name": "inventory",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "database.hostname": "db",
    "database.user": "debezium",
    "database.password": "hunter2",
    "database.dbname": "inventory",
    "topic.prefix": "inventory",
    "plugin.name": "pgoutput",
}

EQUAL = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "value.converter.replace.null.with.default": "false",
    "decimal.handling.mode": "string",
    "interval.handling.mode": "string",
    "skipped.operations": "none",
    "extended.headers.enabled": "false",
    "topic.creation.default.replication.factor": "3",
}


def of(options: dict[str, str]) -> dict[str, OptionFinding]:
    return {finding.name: finding for finding in judge({**MINIMAL, **options}, References())}


def verdict(**option: str):
    """Of one option; __ stands for a point."""
    ((name, value),) = option.items()
    name = name.replace("__", ".")
    return of({name: value})[name].verdict


def test_every_option_that_debezium_and_connect_list_has_a_row_that_takes_its_default() -> None:
    for name, default in LISTED:
        option = find(name)
        assert option is not None, name
        found = option.judge(name, default or "")
        assert found.kind is not VerdictKind.UNKNOWN, name
        assert found.why.endswith((".", ":", ";", "+")), name


def test_a_default_that_makes_a_difference_is_in_the_table() -> None:
    for name, default in LISTED:
        option = find(name)
        assert option is not None, name
        if default is None:
            continue
        if option.default is None:
            assert option.judge(name, default).kind in {VerdictKind.IRRELEVANT, VerdictKind.SAME}, name
        elif option.default != default:
            assert option.judge(name, option.default) == option.judge(name, default), name


def test_no_option_has_two_rows() -> None:
    for table in (OPTIONS, PRODUCER):
        names = [option.name for option in table]
        assert len(names) == len(set(names))


def test_no_mode_of_snapshots_makes_cdcd_read_the_rows_again() -> None:
    option = find("snapshot.mode")
    assert option is not None
    rule = option.rule
    assert isinstance(rule, ByValue)
    assert {verdict.keys["snapshot.mode"] for verdict in rule.verdicts.values()} == {"never"}
    assert rule.otherwise is None


def test_a_connector_that_is_set_up_as_the_page_says_differs_in_the_headers_and_unknown_types_only() -> None:
    found = judge({**MINIMAL, **EQUAL, "include.unknown.datatypes": "true"}, References())
    different = {
        finding.name
        for finding in found
        if finding.verdict.kind not in {VerdictKind.SAME, VerdictKind.IRRELEVANT}
    }
    assert different == {"include.unknown.datatypes"}


def test_what_nobody_set_is_judged_by_what_debezium_takes() -> None:
    found = of({})
    assert found["decimal.handling.mode"].is_default
    assert found["decimal.handling.mode"].verdict.kind is VerdictKind.DIFFERENT
    assert found["skipped.operations"].verdict.keys == {"topics.truncate": False}
    assert found["slot.name"].verdict.keys == {"postgres.slot": "debezium"}
    assert found["key.converter"].verdict.kind is VerdictKind.DIFFERENT


@pytest.mark.parametrize(
    ("option", "kind", "keys"),
    [
        ({"tombstones.on.delete": "false"}, VerdictKind.SAME, {"topics.tombstones": False}),
        ({"status.update.interval.ms": "2500"}, VerdictKind.SAME, {"postgres.status_interval_s": 2.5}),
        ({"slot.failover": "true"}, VerdictKind.SAME, {"postgres.failover": True}),
        (
            {"skipped.operations": "c,t"},
            VerdictKind.SAME,
            {"topics.truncate": False, "topics.skipped_operations": ["c"]},
        ),
        (
            {"skipped.operations": "u"},
            VerdictKind.SAME,
            {"topics.truncate": True, "topics.skipped_operations": ["u"], "snapshot.signals": "off"},
        ),
        ({"skipped.operations": "x"}, VerdictKind.UNKNOWN, {}),
        ({"decimal.handling.mode": "double"}, VerdictKind.SAME, {"format.decimal_handling_mode": "double"}),
        (
            {"decimal.handling.mode": "precise"},
            VerdictKind.DIFFERENT,
            {"format.decimal_handling_mode": "precise"},
        ),
        ({"time.precision.mode": "connect"}, VerdictKind.SAME, {"format.time_precision_mode": "connect"}),
        (
            {"time.precision.mode": "structured"},
            VerdictKind.DIFFERENT,
            {"format.time_precision_mode": "structured"},
        ),
        (
            {"interval.handling.mode": "numeric"},
            VerdictKind.SAME,
            {"format.interval_handling_mode": "numeric"},
        ),
        (
            {"binary.handling.mode": "base64-url-safe"},
            VerdictKind.SAME,
            {"format.binary_handling_mode": "base64-url-safe"},
        ),
        ({"hstore.handling.mode": "map"}, VerdictKind.SAME, {"format.hstore_handling_mode": "map"}),
        (
            {"schema.name.adjustment.mode": "avro"},
            VerdictKind.SAME,
            {"format.schema_name_adjustment_mode": "avro"},
        ),
        (
            {"unavailable.value.placeholder": "gone"},
            VerdictKind.SAME,
            {"format.unavailable_value_placeholder": "gone"},
        ),
        ({"plugin.name": "decoderbufs"}, VerdictKind.DIFFERENT, {}),
        ({"slot.drop.on.stop": "true"}, VerdictKind.DIFFERENT, {}),
        ({"transforms": "unwrap"}, VerdictKind.IMPOSSIBLE, {}),
        (
            {"transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState"},
            VerdictKind.IRRELEVANT,
            {},
        ),
        ({"transforms.unwrap.add.fields": "op"}, VerdictKind.IRRELEVANT, {}),
        ({"transforms.route.type": "io.debezium.transforms.ContentBasedRouter"}, VerdictKind.IRRELEVANT, {}),
        ({"predicates": "p"}, VerdictKind.IRRELEVANT, {}),
        ({"value.converter": AVRO}, VerdictKind.DIFFERENT, {"format.value": "avro"}),
        ({"key.converter": AVRO}, VerdictKind.IMPOSSIBLE, {}),
        (
            {"value.converter.schema.registry.url": "http://r:1"},
            VerdictKind.SAME,
            {"registry.url": "http://r:1"},
        ),
        (
            {"value.converter.schema.registry.url": "http://r:1, http://s:1"},
            VerdictKind.DIFFERENT,
            {"registry.url": "http://r:1"},
        ),
        (
            {"value.converter.schema.registry.url": "https://u:hunter2@r:1/x"},
            VerdictKind.IMPOSSIBLE,
            {"registry.url": "https://r:1/x"},
        ),
        (
            {"value.converter.auto.register.schemas": "false"},
            VerdictKind.SAME,
            {"registry.register_schemas": False},
        ),
        ({"value.converter.use.latest.version": "true"}, VerdictKind.IMPOSSIBLE, {}),
        (
            {
                "value.converter.value.subject.name.strategy": "io.confluent.kafka.serializers.subject."
                "RecordNameStrategy"
            },
            VerdictKind.SAME,
            {"registry.subjects": "record"},
        ),
        ({"value.converter.value.subject.name.strategy": "com.example.Own"}, VerdictKind.IMPOSSIBLE, {}),
        (
            {"value.converter.schema.registry.ssl.truststore.location": "/a.pem"},
            VerdictKind.SAME,
            {"registry.ca_file": "/a.pem"},
        ),
        ({"value.converter.schema.registry.ssl.truststore.location": "/a.jks"}, VerdictKind.IMPOSSIBLE, {}),
        (
            {"value.converter.schema.registry.ssl.keystore.location": "/a.pem"},
            VerdictKind.DIFFERENT,
            {"registry.certificate_file": "/a.pem", "registry.key_file": "/a.pem"},
        ),
        ({"value.converter.replace.null.with.default": "true"}, VerdictKind.DIFFERENT, {}),
        ({"key.converter.schemas.enable": "true"}, VerdictKind.SAME, {"format.key": "json_schema"}),
        ({"value.converter.schemas.enable": "true"}, VerdictKind.SAME, {"format.value": "json_schema"}),
        (
            {"column.mask.with.3.chars": "public.a.b"},
            VerdictKind.DIFFERENT,
            {"columns.mask": {"public.a.b": "***"}},
        ),
        ({"column.mask.hash.SHA-256.with.salt.pepper": "public.a.b"}, VerdictKind.IMPOSSIBLE, {}),
        ({"message.key.columns": ""}, VerdictKind.IRRELEVANT, {}),
        (
            {"message.key.columns": "public.a:b,c;  (x|y)\\.orders:id"},
            VerdictKind.DIFFERENT,
            {"key.columns": {"public.a": ["b", "c"], "x.orders": ["id"], "y.orders": ["id"]}},
        ),
        ({"message.key.columns": "public.[ab]:id"}, VerdictKind.IMPOSSIBLE, {}),
        ({"message.key.columns": "public.a:id;public.a:b"}, VerdictKind.IMPOSSIBLE, {}),
        ({"message.key.columns": "public.a"}, VerdictKind.UNKNOWN, {}),
        ({"max.queue.size.in.bytes": "1048576"}, VerdictKind.SAME, {"kafka.queue_bytes_max": 1048576}),
        ({"topic.creation.default.partitions": "-1"}, VerdictKind.DIFFERENT, {}),
        (
            {"topic.creation.default.cleanup.policy": "compact"},
            VerdictKind.SAME,
            {"topics.create.config.cleanup.policy": "compact"},
        ),
        (
            {"producer.override.compression.type": "zstd"},
            VerdictKind.SAME,
            {"kafka.properties.compression.type": "zstd"},
        ),
        ({"producer.override.ssl.keystore.location": "/a.jks"}, VerdictKind.IMPOSSIBLE, {}),
        ({"producer.override.frobnicate": "1"}, VerdictKind.UNKNOWN, {}),
        ({"table.frobnicate": "1"}, VerdictKind.UNKNOWN, {}),
        ({"schema.include": "app"}, VerdictKind.UNKNOWN, {}),
        ({"frobnicate": "1"}, VerdictKind.DIFFERENT, {}),
        ({"errors.retry.timeout.ms": "1"}, VerdictKind.DIFFERENT, {}),
        ({"database.initial.statements": "SET lock_timeout = 1000;"}, VerdictKind.DIFFERENT, {}),
        ({"database.initial.statements": "ALTER TABLE a.b REPLICA IDENTITY FULL"}, VerdictKind.DIFFERENT, {}),
        ({"database.initial.statements": "SET a.b = 'x;;y'; DELETE FROM t"}, VerdictKind.IMPOSSIBLE, {}),
        ({"openlineage.integration.enabled": "true"}, VerdictKind.DIFFERENT, {}),
        ({"tombstones.on.delete": "perhaps"}, VerdictKind.UNKNOWN, {}),
        ({"tombstones.on.delete": "${file:/a:b}"}, VerdictKind.UNKNOWN, {}),
        ({"decimal.handling.mode": "roman"}, VerdictKind.UNKNOWN, {}),
        ({"name": "Inventory-Connector"}, VerdictKind.DIFFERENT, {"name": "inventory_connector"}),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else str(value),
)
def test_an_option_by_its_value(option: dict[str, str], kind: VerdictKind, keys: dict[str, object]) -> None:
    name = re.sub(r"SHA-256\.with\.salt\.pepper", "<algorithm>.with.salt.<salt>", next(iter(option)))
    found = of(option)[name].verdict
    assert (found.kind, dict(found.keys)) == (kind, keys)


@pytest.mark.parametrize(
    "option",
    [
        "database.password",
        "database.sslpassword",
        "frobnicate",
        "driver.password",
        "column.mask.hash.SHA-256.with.salt.hunter2",
        "value.converter.basic.auth.user.info",
        "key.converter.schema.registry.basic.auth.user.info",
        "value.converter.bearer.auth.token",
        "value.converter.schema.registry.url",
        "producer.override.sasl.jaas.config",
        "producer.override.ssl.truststore.password",
        "producer.override.ssl.keystore.key",
        "producer.override.ssl.key.password",
        "transforms.encrypt.key",
        "signal.consumer.sasl.jaas.config",
        "notification.http.url",
    ],
)
def test_a_secret_is_in_no_finding(option: str) -> None:
    value = "https://user:hunter2@host/" if option.endswith("url") else "hunter2"
    references = References()
    found = judge({**MINIMAL, option: value}, references)
    assert "hunter2" not in repr(found)
    assert "hunter2" not in repr(references)


def test_a_login_is_read_with_the_password_by_reference() -> None:
    login = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"cdcd\" password='x' "
        'password="hunter2";'
    )
    references = References()
    (found,) = [
        finding
        for finding in judge({**MINIMAL, "producer.override.sasl.jaas.config": login}, references)
        if finding.name.endswith("jaas.config")
    ]
    assert found.verdict.keys == {
        "kafka.properties.sasl.username": "cdcd",
        "kafka.properties.sasl.password": "${PRODUCER_OVERRIDE_SASL_PASSWORD}",
    }
    assert references.given["PRODUCER_OVERRIDE_SASL_PASSWORD"] == "hunter2"


JSON = "org.apache.kafka.connect.json.JsonConverter"


def keys_of(options: dict[str, str], references: References | None = None) -> dict[str, object]:
    found: dict[str, object] = {}
    for finding in judge({**MINIMAL, **options}, references or References()):
        found |= finding.verdict.keys
    return {
        key: value
        for key, value in found.items()
        if key.startswith(("registry.", "format.k", "format.v", "cloudevents."))
    }


def test_a_connector_with_avro_has_one_registry_with_its_login() -> None:
    references = References()
    both = {
        f"{part}.converter{name}": value
        for part in ("key", "value")
        for name, value in {
            "": AVRO,
            ".schema.registry.url": "http://registry:8081",
            ".basic.auth.credentials.source": "USER_INFO",
            ".basic.auth.user.info": "cdcd:hunter2",
            ".schemas.enable": "true",
        }.items()
    }
    assert keys_of(both, references) == {
        "format.key": "avro",
        "format.value": "avro",
        "registry.url": "http://registry:8081",
        "registry.user": "cdcd",
        "registry.password": "${REGISTRY_PASSWORD}",
    }
    assert references.given["REGISTRY_PASSWORD"] == "hunter2"
    other = {**both, "value.converter.basic.auth.user.info": "cdcd:another"}
    found = of(other)["value.converter.basic.auth.user.info"].verdict
    assert found.kind is VerdictKind.IMPOSSIBLE


PROTOBUF = "io.confluent.connect.protobuf.ProtobufConverter"


def test_a_connector_with_protobuf_has_its_registry_and_the_differences_are_told() -> None:
    both = {
        f"{part}.converter{name}": value
        for part in ("key", "value")
        for name, value in {
            "": PROTOBUF,
            ".schema.registry.url": "http://registry:8081",
            ".optional.for.nullables": "true",
            ".enhanced.protobuf.schema.support": "true",
            ".scrub.invalid.names": "true",
            ".schemas.enable": "true",
            ".enhanced.avro.schema.support": "true",
            ".generate.index.for.unions": "false",
        }.items()
    }
    assert keys_of(both) == {
        "format.key": "protobuf",
        "format.value": "protobuf",
        "registry.url": "http://registry:8081",
    }
    kinds = {name: finding.verdict.kind for name, finding in of(both).items()}
    for part in ("key", "value"):
        assert kinds[f"{part}.converter"] is VerdictKind.DIFFERENT
        assert kinds[f"{part}.converter.optional.for.nullables"] is VerdictKind.SAME
        assert kinds[f"{part}.converter.scrub.invalid.names"] is VerdictKind.SAME
        assert kinds[f"{part}.converter.schemas.enable"] is VerdictKind.IRRELEVANT
        assert kinds[f"{part}.converter.enhanced.avro.schema.support"] is VerdictKind.IRRELEVANT
        assert kinds[f"{part}.converter.generate.index.for.unions"] is VerdictKind.IRRELEVANT


@pytest.mark.parametrize(
    ("option", "kind"),
    [
        ({"optional.for.nullables": "false"}, VerdictKind.DIFFERENT),
        ({"wrapper.for.nullables": "true"}, VerdictKind.DIFFERENT),
        ({"wrapper.for.nullables": "false"}, VerdictKind.SAME),
        ({"scrub.invalid.names": "false"}, VerdictKind.DIFFERENT),
        ({"use.latest.version": "true"}, VerdictKind.IMPOSSIBLE),
        ({"auto.register.schemas": "false"}, VerdictKind.SAME),
        ({"enhanced.protobuf.schema.support": "false"}, VerdictKind.SAME),
    ],
)
def test_each_option_of_protobuf_converter_has_a_verdict(option: dict[str, str], kind: VerdictKind) -> None:
    ((name, value),) = option.items()
    found = of({"value.converter": PROTOBUF, f"value.converter.{name}": value})
    assert found[f"value.converter.{name}"].verdict.kind is kind


def test_keys_in_protobuf_beside_other_values_are_json() -> None:
    for values in (JSON, AVRO):
        options = {"key.converter": PROTOBUF, "value.converter": values}
        assert of(options)["key.converter"].verdict.kind is VerdictKind.IMPOSSIBLE
        assert "format.key" not in keys_of(options)


def test_options_of_protobuf_mean_nothing_beside_avro() -> None:
    options = {"value.converter": AVRO, "value.converter.optional.for.nullables": "true"}
    found = of(options)["value.converter.optional.for.nullables"].verdict
    assert (found.kind, found.why) == (VerdictKind.IRRELEVANT, "value.converter does not have this option.")


JSON_SCHEMA = "io.confluent.connect.json.JsonSchemaConverter"


def test_a_connector_with_json_schemas_has_its_registry_and_the_differences_are_told() -> None:
    both = {
        f"{part}.converter{name}": value
        for part in ("key", "value")
        for name, value in {
            "": JSON_SCHEMA,
            ".schema.registry.url": "http://registry:8081",
            ".auto.register.schemas": "false",
            ".object.additional.properties": "false",
            ".use.optional.for.nonrequired": "true",
            ".decimal.format": "BASE64",
            ".schemas.enable": "true",
            ".optional.for.nullables": "true",
        }.items()
    }
    assert keys_of(both) == {
        "format.key": "json_registry",
        "format.value": "json_registry",
        "registry.url": "http://registry:8081",
        "registry.register_schemas": False,
    }
    kinds = {name: finding.verdict.kind for name, finding in of(both).items()}
    assert kinds["key.converter"] is VerdictKind.SAME
    assert kinds["value.converter"] is VerdictKind.DIFFERENT
    for part in ("key", "value"):
        assert kinds[f"{part}.converter.object.additional.properties"] is VerdictKind.DIFFERENT
        assert kinds[f"{part}.converter.use.optional.for.nonrequired"] is VerdictKind.IRRELEVANT
        assert kinds[f"{part}.converter.decimal.format"] is VerdictKind.SAME
        assert kinds[f"{part}.converter.schemas.enable"] is VerdictKind.IRRELEVANT
        assert kinds[f"{part}.converter.optional.for.nullables"] is VerdictKind.IRRELEVANT


@pytest.mark.parametrize("values", [JSON, AVRO, PROTOBUF])
def test_keys_with_json_schemas_beside_other_values_are_json(values: str) -> None:
    options = {"key.converter": JSON_SCHEMA, "value.converter": values}
    assert of(options)["key.converter"].verdict.kind is VerdictKind.IMPOSSIBLE


@pytest.mark.parametrize("converter", [JSON, JSON_SCHEMA])
@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({}, VerdictKind.IMPOSSIBLE),
        ({"decimal.handling.mode": "precise"}, VerdictKind.IMPOSSIBLE),
        ({"decimal.handling.mode": "string"}, VerdictKind.IRRELEVANT),
        ({"decimal.handling.mode": "double"}, VerdictKind.IRRELEVANT),
    ],
)
def test_decimals_as_numbers_are_refused_where_there_are_decimals(
    converter: str, more: dict[str, str], kind: VerdictKind
) -> None:
    options = {"value.converter": converter, "value.converter.decimal.format": "NUMERIC", **more}
    assert of(options)["value.converter.decimal.format"].verdict.kind is kind


def test_avro_has_no_format_of_decimals() -> None:
    options = {"value.converter": AVRO, "value.converter.decimal.format": "NUMERIC"}
    assert of(options)["value.converter.decimal.format"].verdict.kind is VerdictKind.IRRELEVANT


def test_two_registries_are_refused() -> None:
    options = {
        "key.converter": AVRO,
        "value.converter": AVRO,
        "key.converter.schema.registry.url": "http://a",
        "value.converter.schema.registry.url": "http://b",
    }
    found = of(options)["key.converter.schema.registry.url"].verdict
    assert (found.kind, dict(found.keys)) == (VerdictKind.IMPOSSIBLE, {})
    assert keys_of(options)["registry.url"] == "http://b"


def test_json_converter_writes_defaults_for_null_unless_it_is_told_not_to() -> None:
    name = "value.converter.replace.null.with.default"
    assert of({"value.converter": JSON})[name].is_default
    assert of({"value.converter": JSON})[name].verdict.kind is VerdictKind.DIFFERENT
    assert name not in of({"value.converter": AVRO})
    assert of({"value.converter": AVRO, name: "true"})[name].verdict.kind is VerdictKind.IRRELEVANT


def test_options_of_a_registry_mean_nothing_beside_json() -> None:
    options = {"value.converter": JSON, "value.converter.schema.registry.url": "http://a"}
    assert of(options)["value.converter.schema.registry.url"].verdict.kind is VerdictKind.IRRELEVANT
    assert keys_of({"key.converter": AVRO, "value.converter": JSON})["format.value"] == "json_schema"


def test_a_login_or_token_of_a_config_provider_stays_a_reference() -> None:
    part = {"value.converter": AVRO, "value.converter.bearer.auth.token": "${directory:/run:token}"}
    assert keys_of(part)["registry.token_file"] == "/run/token"
    part = {"value.converter": AVRO, "value.converter.basic.auth.user.info": "${file:/a:login}"}
    assert "registry.user" not in keys_of(part)
    part = {"value.converter": AVRO, "value.converter.basic.auth.user.info": "u:${env:PW}"}
    assert keys_of(part)["registry.password"] == "${PW}"


def test_a_worker_gives_what_the_connector_has_not() -> None:
    worker = {
        "bootstrap.servers": "kafka:9092",
        "key.converter": "Avro",
        "key.converter.schema.registry.url": "http://r",
        "value.converter": "Json",
        "value.converter.schemas.enable": "true",
        "producer.linger.ms": "5",
        "producer.acks": "all",
        "group.id": "connect",
    }
    own = {"value.converter": "Other", "producer.override.linger.ms": "7"}
    assert with_worker(own, worker) == {
        "key.converter": "Avro",
        "key.converter.schema.registry.url": "http://r",
        "producer.override.linger.ms": "7",
        "producer.override.acks": "all",
        "value.converter": "Other",
    }


FLATTENED = {
    "transforms": " unwrap ",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
    "transforms.unwrap.add.fields": "op, source.lsn:pos",
    "transforms.unwrap.add.fields.prefix": "meta_",
    "transforms.unwrap.add.headers": "table",
}


def test_the_transform_that_flattens_is_carried_over() -> None:
    found = {
        name: finding.verdict for name, finding in of(FLATTENED).items() if name.startswith("transforms")
    }
    assert {verdict.kind for verdict in found.values()} == {VerdictKind.SAME}
    keys: dict[str, object] = {}
    for verdict in found.values():
        keys |= verdict.keys
    assert keys == {
        "event_flattening.enabled": True,
        "event_flattening.delete_tombstone_handling_mode": "rewrite",
        "event_flattening.add_fields": ["op", "source.lsn:pos"],
        "event_flattening.add_fields_prefix": "meta_",
        "event_flattening.add_headers": ["table"],
    }


def test_beside_a_transform_that_stands_in_the_way_records_are_flattened() -> None:
    found = of(
        {
            **FLATTENED,
            "transforms": "unwrap,hoist",
            "transforms.hoist.type": "org.apache.kafka.connect.transforms.HoistField$Value",
        }
    )
    assert found["transforms"].verdict.kind is VerdictKind.SAME
    assert found["transforms.hoist.type"].verdict.kind is VerdictKind.IMPOSSIBLE
    assert found["transforms.unwrap.type"].verdict.keys == {"event_flattening.enabled": True}
    assert found["transforms.unwrap.add.fields"].verdict.kind is VerdictKind.SAME


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("add.fields", "before.id"),
        ("add.headers", "transaction.id"),
        ("route.by.field", "kind"),
        ("drop.fields.header.name", "h"),
    ],
)
def test_what_flattening_cannot_do_stands_in_the_way_with_what_to_do(option: str, value: str) -> None:
    verdict = of({**FLATTENED, f"transforms.unwrap.{option}": value})[f"transforms.unwrap.{option}"].verdict
    assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.IMPOSSIBLE, {})
    assert "accept" in verdict.why.lower()


@pytest.mark.parametrize(
    ("former", "mode"),
    [
        ({"drop.tombstones": "false", "delete.handling.mode": "rewrite"}, "rewrite-with-tombstone"),
        ({"delete.handling.mode": "rewrite"}, "rewrite"),
        ({"delete.handling.mode": "drop"}, "drop"),
        ({"drop.tombstones": "false"}, "tombstone"),
        ({"delete.handling.mode": "none"}, "delete-to-tombstone"),
        ({"drop.tombstones": "false", "delete.handling.mode": "NONE"}, "tombstone"),
    ],
)
def test_the_former_options_for_deletes_become_the_mode_that_took_their_place(
    former: dict[str, str], mode: str
) -> None:
    options = {name: value for name, value in FLATTENED.items() if "tombstone.handling" not in name}
    found = of({**options, **{f"transforms.unwrap.{name}": value for name, value in former.items()}})
    for name in former:
        verdict = found[f"transforms.unwrap.{name}"].verdict
        assert verdict.kind is VerdictKind.DIFFERENT
        assert dict(verdict.keys) == {"event_flattening.delete_tombstone_handling_mode": mode}


def test_beside_the_new_option_the_former_ones_do_not_count_and_an_unknown_value_is_told() -> None:
    name = "transforms.unwrap.delete.handling.mode"
    assert of({**FLATTENED, name: "none"})[name].verdict.kind is VerdictKind.IRRELEVANT
    options = {each: value for each, value in FLATTENED.items() if "tombstone.handling" not in each}
    assert of({**options, name: "sometimes"})[name].verdict.kind is VerdictKind.UNKNOWN


@pytest.mark.parametrize(
    "name",
    ["topics", "topics.regex", "errors.deadletterqueue.topic.name", "consumer.override.max.poll.records"],
)
def test_options_of_sink_connectors_are_irrelevant(name: str) -> None:
    assert of({name: "x"})[name].verdict.kind is VerdictKind.IRRELEVANT


@pytest.mark.parametrize("plugin", ["wal2json", "wal2json_rds_streaming"])
def test_a_slot_of_another_plugin_gives_way_to_a_slot_of_pgoutput(plugin: str) -> None:
    verdict = of({"plugin.name": plugin})["plugin.name"].verdict
    assert verdict.kind is VerdictKind.DIFFERENT
    assert "--takeover creates a slot of pgoutput" in verdict.why


def test_kerberos_needs_another_build_of_librdkafka_and_its_keys_are_written() -> None:
    found = of(
        {
            "producer.override.sasl.mechanism": "GSSAPI",
            "producer.override.sasl.kerberos.service.name": "kafka",
            "producer.override.sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required "
            'useKeyTab=true keyTab="/etc/k.keytab" principal="cdcd@EXAMPLE.ORG";',
        }
    )
    login = found["producer.override.sasl.jaas.config"].verdict
    assert (login.kind, dict(login.keys)) == (
        VerdictKind.IMPOSSIBLE,
        {
            "kafka.properties.sasl.kerberos.principal": "cdcd@EXAMPLE.ORG",
            "kafka.properties.sasl.kerberos.keytab": "/etc/k.keytab",
        },
    )
    assert found["producer.override.sasl.mechanism"].verdict.kind is VerdictKind.IMPOSSIBLE
    assert "without Kerberos" in login.why
    assert found["producer.override.sasl.kerberos.service.name"].verdict.kind is VerdictKind.SAME
    # The verdict names the missing part.
    with pytest.raises(KafkaException, match="No provider for SASL mechanism GSSAPI"):
        Producer(
            {"bootstrap.servers": "127.0.0.1:1", "sasl.mechanism": "GSSAPI", "security.protocol": "SASL_SSL"}
        )


BEATING = {"heartbeat.interval.ms": "5000"}


@pytest.mark.parametrize(
    ("name", "value", "kind", "keys"),
    [
        ("heartbeat.interval.ms", "5000", VerdictKind.SAME, {"heartbeat.interval_s": 5}),
        ("heartbeat.interval.ms", "1500", VerdictKind.SAME, {"heartbeat.interval_s": 1.5}),
        ("heartbeat.interval.ms", "10", VerdictKind.DIFFERENT, {"heartbeat.interval_s": 0.1}),
        ("heartbeat.interval.ms", "soon", VerdictKind.UNKNOWN, {}),
        ("heartbeat.action.query", " ", VerdictKind.IRRELEVANT, {}),
        (
            "heartbeat.action.query",
            "UPDATE public.beat SET at = now();",
            VerdictKind.DIFFERENT,
            {"heartbeat.action_query": "UPDATE public.beat SET at = now()"},
        ),
        ("heartbeat.action.query", "SET search_path TO x; SELECT 1", VerdictKind.IMPOSSIBLE, {}),
        ("topic.heartbeat.prefix", "__debezium-heartbeat", VerdictKind.SAME, {}),
        ("topic.heartbeat.prefix", "beats", VerdictKind.SAME, {"topics.heartbeat": "beats.inventory"}),
        ("topic.heartbeat.name", "beats", VerdictKind.DIFFERENT, {"topics.heartbeat": "beats"}),
        ("heartbeat.topics.prefix", "__debezium-heartbeat", VerdictKind.SAME, {}),
        ("heartbeat.topics.prefix", "beats", VerdictKind.DIFFERENT, {}),
    ],
)
def test_heartbeats_are_carried_over(
    name: str, value: str, kind: VerdictKind, keys: dict[str, object]
) -> None:
    found = of({**BEATING, name: value})[name].verdict
    assert (found.kind, found.keys) == (kind, keys)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("heartbeat.action.query", "SELECT 1"),
        ("topic.heartbeat.prefix", "beats"),
        ("topic.heartbeat.name", "beats"),
    ],
)
def test_without_an_interval_nothing_of_a_heartbeat_counts(name: str, value: str) -> None:
    found = of({name: value})[name].verdict
    assert (found.kind, found.keys) == (VerdictKind.IRRELEVANT, {})


def test_the_full_name_of_the_topic_wins() -> None:
    found = of({**BEATING, "topic.heartbeat.name": "all", "topic.heartbeat.prefix": "beats"})
    assert found["topic.heartbeat.name"].verdict.keys == {"topics.heartbeat": "all"}
    assert found["topic.heartbeat.prefix"].verdict.kind is VerdictKind.IRRELEVANT


EVENTS = "io.debezium.converters.CloudEventsConverter"


def test_cloudevents_are_carried_over_with_the_converters_defaults() -> None:
    assert keys_of({"value.converter": EVENTS}) == {
        "format.value": "cloudevents",
        "cloudevents.data": "json_schema",
        "cloudevents.extension_attributes": True,
    }
    found = of({"value.converter": EVENTS, "value.converter.schemas.enable": "true"})
    assert found["value.converter"].verdict.kind is VerdictKind.DIFFERENT
    assert found["value.converter.schemas.enable"].verdict.kind is VerdictKind.IRRELEVANT
    bare = {
        "value.converter": EVENTS,
        "value.converter.json.schemas.enable": "false",
        "value.converter.extension.attributes.enable": "false",
        "value.converter.metadata.source": "value,id:generate, type:generate",
        "value.converter.schema.cloudevents.name": "x",
    }
    assert keys_of(bare) == {"format.value": "cloudevents", "cloudevents.extension_attributes": False}
    assert not [name for name, each in of(bare).items() if name.startswith("value.") and each.verdict.kind in {
        VerdictKind.IMPOSSIBLE, VerdictKind.UNKNOWN}]  # fmt: skip


def test_cloudevents_with_data_in_avro_have_the_registry_of_their_data() -> None:
    options = {
        "key.converter": AVRO,
        "key.converter.schema.registry.url": "http://r:1",
        "value.converter": EVENTS,
        "value.converter.data.serializer.type": "avro",
        "value.converter.avro.schema.registry.url": "http://r:1",
        "value.converter.avro.basic.auth.credentials.source": "USER_INFO",
        "value.converter.avro.basic.auth.user.info": "cdcd:hunter2",
        "value.converter.json.schemas.enable": "true",
    }
    references = References()
    assert keys_of(options, references) == {
        "format.key": "avro",
        "format.value": "cloudevents",
        "cloudevents.data": "avro",
        "cloudevents.extension_attributes": True,
        "registry.url": "http://r:1",
        "registry.user": "cdcd",
        "registry.password": "${REGISTRY_PASSWORD}",
    }
    other = of({**options, "value.converter.avro.schema.registry.url": "http://s:1"})
    assert other["key.converter.schema.registry.url"].verdict.kind is VerdictKind.IMPOSSIBLE
    in_json = of({**options, "value.converter.data.serializer.type": "json"})
    assert in_json["value.converter.avro.schema.registry.url"].verdict.kind is VerdictKind.IRRELEVANT
    assert in_json["key.converter"].verdict.kind is VerdictKind.IMPOSSIBLE


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("serializer.type", "avro"),
        ("opentelemetry.tracing.attributes.enable", "true"),
        ("metadata.source", "header"),
        ("metadata.source", "value,id:header"),
        ("schema.data.name.source.header.enable", "true"),
    ],
)
def test_what_cloudevents_of_cdcd_cannot_be_stands_in_the_way(option: str, value: str) -> None:
    name = f"value.converter.{option}"
    assert of({"value.converter": EVENTS, name: value})[name].verdict.kind is VerdictKind.IMPOSSIBLE
    json_converter = "org.apache.kafka.connect.json.JsonConverter"
    assert of({"value.converter": json_converter, name: value})[name].verdict.kind is VerdictKind.IRRELEVANT


def test_keys_cannot_be_cloudevents() -> None:
    assert of({"key.converter": EVENTS})["key.converter"].verdict.kind is VerdictKind.IMPOSSIBLE


def test_flattened_records_are_no_cloudevents() -> None:
    found = of({**FLATTENED, "value.converter": EVENTS})
    transforms = [finding.verdict for name, finding in found.items() if name.startswith("transforms.")]
    assert {verdict.kind for verdict in transforms} == {VerdictKind.IMPOSSIBLE}
    assert not any(verdict.keys for verdict in transforms)


def test_former_names_count_for_a_connector_without_a_topic_prefix() -> None:
    given = {"table.whitelist": "public.orders", "toasted.value.placeholder": "x"}
    assert with_present_names({**given, "database.server.name": "shop"}) == {
        **given,
        "database.server.name": "shop",
        "topic.prefix": "shop",
        "table.include.list": "public.orders",
        "unavailable.value.placeholder": "x",
    }
    # Tutorials leave database.server.name in place, and Debezium 2.0 and later do not read it.
    for beside in ({}, {"database.server.name": "other"}):
        options = {**given, **beside, "topic.prefix": "shop"}
        assert with_present_names(options) == options
        judged = {finding.name: finding for finding in judge(options, References())}
        assert judged["topic.prefix"].verdict.keys == {"topics.prefix": "shop"}
        assert all(judged[name].verdict.kind is VerdictKind.IRRELEVANT for name in beside)
    both = {"table.whitelist": "public.a", "table.include.list": "public.b"}
    assert with_present_names(both) == both


@pytest.mark.parametrize(
    "name",
    [
        "database.history.kafka.topic",
        "schema.history.internal.kafka.bootstrap.servers",
        "include.schema.changes",
        "internal.key.converter",
        "_comment",
        "table.whitelist",
        "producer.max.request.size",
        "offset.storage",
    ],
)
def test_options_that_the_connector_does_not_read_are_irrelevant(name: str) -> None:
    assert of({name: "x"})[name].verdict.kind is VerdictKind.IRRELEVANT


@pytest.mark.parametrize(
    ("query", "translated"),
    [
        ("SELECT * FROM public.orders WHERE id >= 5", 'SELECT * FROM {rows} AS "orders" WHERE id >= 5'),
        ("select * from orders", 'select * FROM {rows} AS "orders"'),
        ('SELECT o.* FROM "public"."orders" o WHERE o.id > 1;', "SELECT o.* FROM {rows} o WHERE o.id > 1"),
        (
            "SELECT * FROM public.orders AS o JOIN public.orders_old x ON x.id = o.id",
            "SELECT * FROM {rows} AS o JOIN public.orders_old x ON x.id = o.id",
        ),
        ("SELECT * FROM public.orders ORDER BY id", None),
        ("SELECT * FROM public.orders WHERE id IN (SELECT id FROM public.orders)", None),
        ("SELECT * FROM public.others", None),
    ],
)
def test_a_query_of_snapshots_becomes_one_of_chunks(query: str, translated: str | None) -> None:
    begin = "snapshot.select.statement.overrides"
    found = of({begin: "public.orders", f"{begin}.public.orders": query})[f"{begin}.public.orders"].verdict
    assert found.kind is VerdictKind.DIFFERENT
    assert found.keys.get("snapshot.queries") == (translated and {"public.orders": translated})
    alone = of({f"{begin}.public.orders": query})[f"{begin}.public.orders"].verdict
    assert alone.kind is VerdictKind.IRRELEVANT


def test_an_empty_prefix_of_added_fields_is_no_prefix() -> None:
    unwrap = "io.debezium.transforms.ExtractNewRecordState"
    options = {
        "transforms": "unwrap",
        "transforms.unwrap.type": unwrap,
        "transforms.unwrap.add.fields": "op:_op",
        "transforms.unwrap.add.fields.prefix": "",
        "transforms.unwrap.add.headers.prefix": " ",
    }
    judged = {finding.name: finding.verdict for finding in judge(options, References())}
    assert judged["transforms.unwrap.add.fields.prefix"].keys == {"event_flattening.add_fields_prefix": ""}
    assert judged["transforms.unwrap.add.headers.prefix"].keys == {"event_flattening.add_headers_prefix": ""}
