"""From options to cdcd.yaml: what is written, what is refused, what is said."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaException, Producer

from cdcd.adapters.postgres.publication import Publication, PublishedTable
from cdcd.cli.adopt import command
from cdcd.config.keys import field_at
from cdcd.config.loading import parse_config
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.lsn import Lsn
from cdcd.tools.adopt import report, settings
from cdcd.tools.adopt.adoption import Adoption, Database, adopt, read, save
from cdcd.tools.adopt.options import OPTIONS, PRODUCER
from cdcd.tools.adopt.takeover import TakeoverOutcome
from cdcd.tools.adopt.verdicts import VerdictKind
from cdcd.tools.adopt.written_events import OffsetGap, Twice
from tests.unit.tools.adopt.test_judging import EQUAL, MINIMAL

SECRET = "hunter2 'of adopt'"

OPTIONS_FILE = {
    **MINIMAL,
    **EQUAL,
    "database.password": SECRET,
    "table.include.list": r"public\.(orders|customers)",
    "transforms": "unwrap,route",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.route.type": "io.debezium.transforms.ByLogicalTableRouter",
    "table.frobnicate": SECRET,
    "driver.password": SECRET,
    "producer.override.security.protocol": "SASL_SSL",
    "producer.override.sasl.mechanism": "PLAIN",
    "producer.override.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="cdcd" password="{SECRET}";',
}


def adoption(**options: str) -> Adoption:
    given = {name.replace("__", "."): value for name, value in options.items()}
    return adopt({**MINIMAL, **given}, {"kafka.bootstrap_servers": "kafka:9092"}, "f", look=None)


def test_the_file_is_one_that_cdcd_takes() -> None:
    found = adoption(database__password="${env:PGPW}", slot__name="s1", table__include__list=r"sales\..*")
    text = settings.as_text(found.settings, report.comments(found, "connector.json"))
    config = parse_config(text, {"PGPW": "hunter2"})
    assert config.postgres.libpq() == "host=db port=5432 user=debezium dbname=inventory password='hunter2'"
    assert (config.name, config.postgres.slot, config.postgres.publication) == (
        "inventory",
        "s1",
        "dbz_publication",
    )
    assert config.postgres.tables == ("sales.*",)
    assert (config.topics.prefix, config.topics.truncate, config.snapshot.mode) == (
        "inventory",
        False,
        "never",
    )


@pytest.mark.parametrize(
    ("host", "written"),
    [
        ("db", "host=db"),
        ("a b", "host='a b'"),
        ("it's", r"host='it\'s'"),
        ("${env:H}", "host='${H}'"),
        ("${x", "host='$${x'"),
    ],
)
def test_a_dsn_is_quoted_as_libpq_wants_it(host: str, written: str) -> None:
    found = adoption(database__hostname=host)
    assert found.settings["postgres"]["dsn"].startswith(f"{written} ")


def test_a_file_of_a_secret_stays_a_file(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("hunter2")
    found = adoption(database__password=f"${{directory:{tmp_path}:pw}}")
    assert found.settings["postgres"]["password_file"] == f"{tmp_path}/pw"
    assert found.missing == []
    absent = adoption(database__password="${directory:/nowhere:pw}")
    assert absent.missing == ["/nowhere/pw"]
    with pytest.raises(ConfigError, match="/nowhere/pw is not here"):
        absent.refuse_unasked()


def test_without_brokers_or_without_a_host_there_is_no_configuration() -> None:
    with pytest.raises(ConfigError, match="brokers are not known"):
        adopt(MINIMAL, {}, "f", look=None)
    with pytest.raises(ConfigError, match=r"no database\.hostname"):
        adopt({"topic.prefix": "a"}, {"kafka.bootstrap_servers": "k:1"}, "f", look=None)


def test_a_connector_that_flattens_becomes_a_pipeline_that_does() -> None:
    found = adoption(
        transforms="unwrap",
        transforms__unwrap__type="io.debezium.transforms.ExtractNewRecordState",
        **{
            "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
            "transforms.unwrap.add.fields": "op,source.ts_ms",
        },
    )
    assert found.exit_code(()) == 0
    flattening = parse_config(
        settings.as_text(found.settings, ()), {"DATABASE_PASSWORD": "p"}
    ).event_flattening
    assert (flattening.enabled, flattening.delete_tombstone_handling_mode) == (True, "rewrite")
    assert flattening.add_fields == ("op", "source.ts_ms")


def test_transforms_that_cdcd_refuses_together_are_not_written() -> None:
    groovy = {"language": "jsr223.groovy", "topic.regex": r"inventory\.public\.orders"}
    options = {
        "transforms": "rows,parts",
        "transforms.rows.type": "io.debezium.transforms.ContentBasedRouter",
        **{f"transforms.rows.{name}": value for name, value in groovy.items()},
        "transforms.rows.topic.expression": "value.after.region == 'eu' ? 'inventory.public.eu' : null",
        "transforms.parts.type": "io.debezium.transforms.partitions.PartitionRouting",
        "transforms.parts.partition.payload.fields": "change.region",
    }
    found = adoption(**options)
    assert found.blocking == ["transforms.rows.type", "transforms.parts.type"]
    assert "routes.tables and partitioner.columns" in found.of(VerdictKind.IMPOSSIBLE)[0].verdict.why
    assert {"routes", "partitioner"}.isdisjoint(found.settings)


def test_what_transforms_become_counts_after_the_connectors_own_options() -> None:
    found = adoption(
        transforms="drop",
        **{
            "transforms.drop.type": "org.apache.kafka.connect.transforms.Filter",
            "transforms.drop.predicate": "p",
            "predicates.p.type": "org.apache.kafka.connect.transforms.predicates.RecordIsTombstone",
            "tombstones.on.delete": "true",
        },
    )
    assert found.config.topics.tombstones is False


def test_a_connector_with_heartbeats_becomes_a_pipeline_with_the_same() -> None:
    found = adoption(
        heartbeat__interval__ms="60000",
        heartbeat__action__query="SELECT public.beat()",
        topic__heartbeat__prefix="beats",
    )
    text = settings.as_text(found.settings, report.comments(found, "connector.json"))
    config = parse_config(text, {"CDCD_POSTGRES_PASSWORD": "x", **found.references.given})
    assert config.heartbeat.interval_s == 60
    assert config.heartbeat.action_query == "SELECT public.beat()"
    assert config.heartbeat_topic == "beats.inventory"


def test_what_stands_in_the_way_must_be_accepted_by_name() -> None:
    found = adoption(transforms="a", **{"table.frobnicate": "b"})
    assert found.exit_code(()) == 10
    assert found.exit_code(("transforms",)) == 10
    assert found.exit_code(("transforms", "table.frobnicate")) == 0
    assert found.exit_code(("all",)) == 0
    with pytest.raises(ConfigError, match="--accept transform is not needed:"):
        found.refuse_unneeded(("transform",))


def test_a_publication_that_nobody_looked_at_is_told_if_the_connector_leaves_tables_out() -> None:
    def kind(found: Adoption) -> str:
        return next(each.verdict.kind for each in found.findings if each.name == "publication.name")

    assert kind(adoption()) == "same"
    assert kind(adoption(table__include__list="public.a")) == "different"


@pytest.mark.parametrize(("value", "drops"), [("false", False), ("true", True), ("${env:X}", True)])
def test_a_connector_that_drops_its_slot_leaves_cdcd_another_one(value: str, drops: bool) -> None:
    found = adoption(slot__drop__on__stop=value)
    assert found.connector_slot == "debezium"
    assert found.config.postgres.slot == ("cdcd_inventory" if drops else "debezium")
    # The slot must be created while the connector runs, which takes a connection to the database.
    assert ("slot.drop.on.stop" in found.blocking) is drops
    assert adoption().config.postgres.slot == "debezium"


def published(oid: int, name: str, *, has_identity: bool = True) -> PublishedTable:
    return PublishedTable(oid, "public", name, "d", has_identity=has_identity, has_primary_key=has_identity)


def with_database(*tables: PublishedTable, **given: str) -> Adoption:
    options = {**MINIMAL, **{name.replace("__", "."): value for name, value in given.items()}}
    publication = Publication("dbz_publication", False, (), ("insert", "update"), False, tables)
    names = tuple([(table.schema, table.name) for table in tables])
    database = Database(names, publication, (), tables)
    return adopt(
        options,
        {"kafka.bootstrap_servers": "kafka:9092"},
        "f",
        look=lambda *_: database,
    )


def test_beside_another_plugin_cdcd_has_a_slot_and_a_publication_of_its_own() -> None:
    tables = published(1, "orders"), published(2, "secrets")
    found = with_database(*tables, plugin__name="decoderbufs", table__include__list="public.orders")
    assert found.blocking == []
    assert (found.config.postgres.slot, found.config.postgres.publication) == (
        "cdcd_inventory",
        "cdcd_inventory",
    )
    assert found.narrowing is not None
    statement = (
        'CREATE PUBLICATION "cdcd_inventory" FOR TABLE "public"."orders" WITH (publish = \'insert, update, delete, '
        "truncate')"
    )
    assert found.narrowing.statement.replace('"', "") == statement.replace('"', "")
    lines = list(report.endings(found, None, 100, file="f", is_url=False, refused=False))
    assert lines[:4] == [
        "Next, while the connector runs, create a slot for cdcd, and note its position:",
        f"  {found.narrowing.statement};",
        "  SELECT lsn FROM pg_create_logical_replication_slot('cdcd_inventory', 'pgoutput');",
        "Stop the connector when slot debezium is past that position:",
    ]
    whole = with_database(*tables, slot__drop__on__stop="true")
    assert (whole.blocking, whole.narrowing) == ([], None)
    assert (whole.config.postgres.slot, whole.config.postgres.publication) == (
        "cdcd_inventory",
        "dbz_publication",
    )


def test_a_table_whose_updates_would_fail_is_not_published() -> None:
    with pytest.raises(ConfigError, match=r"public\.t has no primary key and no replica identity"):
        with_database(published(1, "t", has_identity=False), plugin__name="decoderbufs")
    with pytest.raises(ConfigError, match="captures no table"):
        with_database(published(1, "t"), plugin__name="decoderbufs", table__include__list="public.x")


def test_brokers_come_from_the_option_then_from_the_worker(tmp_path: Path) -> None:
    connector, worker = tmp_path / "c.json", tmp_path / "w.properties"
    connector.write_text(json.dumps(MINIMAL))
    worker.write_text("bootstrap.servers=worker:9092\nproducer.compression.type=zstd\n")
    for kafka, brokers in ((None, "worker:9092"), ("own:9092", "own:9092")):
        found = read(connector, worker, kafka, "other", tmp_path / "cdcd.yaml", offline=True)
        assert found.config.kafka.bootstrap_servers == brokers
        assert found.config.name == "other"
        assert found.config.kafka.properties["compression.type"] == "zstd"


def test_a_file_that_is_there_is_kept_unless_it_is_forced(tmp_path: Path) -> None:
    file = tmp_path / "cdcd.yaml"
    assert save(file, "a", force=False)
    assert not save(file, "a", force=False)
    with pytest.raises(ConfigError, match="there already"):
        save(file, "b", force=False)
    assert file.read_text() == "a"
    assert save(file, "b", force=True)


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_command_writes_and_lists_without_any_secret(form: str, tmp_path: Path) -> None:
    source, file = tmp_path / "connector.json", tmp_path / "cdcd.yaml"
    source.write_text(json.dumps({"name": "inventory", "config": OPTIONS_FILE}))
    arguments = [
        str(source),
        "--kafka",
        "kafka:9092",
        "--offline",
        "--output",
        str(file),
        "--format",
        form,
        "--all",
    ]
    # click gives a command's value as the exit code only in `cdcd` itself.
    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert result.exception is None
    assert result.return_value == 10
    assert "hunter2" not in result.output + file.read_text()
    if form == "json":
        shown = json.loads(result.output)
        outcomes = {each["option"]: each["outcome"] for each in shown["options"]}
        assert (shown["exit_code"], shown["written"], shown["takeover"]) == (10, True, None)
        assert outcomes["transforms.route.type"] == "impossible"
        assert outcomes["table.frobnicate"] == "unknown"
        assert set(shown["variables"]) == {"DATABASE_PASSWORD", "PRODUCER_OVERRIDE_SASL_PASSWORD"}
    else:
        lines = [line for line in result.output.splitlines() if str(tmp_path) not in line]
        assert max(map(len, lines)) <= 80
        assert "IMPOSSIBLE transforms.route.type = io.debezium.transforms.ByLogicalTableRouter" in lines


@pytest.mark.parametrize(
    "arguments",
    [
        ["c.json", "--takeover"],
        ["http://c:1/connectors/x", "--takeover", "--offline"],
        ["c.json", "--accept", "all"],
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(command, arguments).exit_code == 2


def test_every_key_that_an_option_becomes_is_one_of_cdcd_or_of_librdkafka() -> None:
    properties: set[str] = set()
    for option in (*OPTIONS, *PRODUCER):
        for sample in (option.default or "", "1", "true", "${env:X}"):
            try:
                keys = option.judge(option.name, sample).keys
            except ValueError:
                continue
            for key in keys:
                if key.startswith("kafka.properties."):
                    properties.add(key.removeprefix("kafka.properties."))
                elif not key.startswith(("dsn.", "topics.create.config.")):
                    assert field_at(tuple(key.split("."))) is not None, key
    assert len(properties) > 10
    assert [name for name in properties if "No such configuration property" in refusal(name)] == []
    assert "No such configuration property" in refusal("max.request.size")


def refusal(name: str) -> str:
    """What librdkafka says to a property; "": it takes it."""
    try:
        Producer({name: "1", "log_level": 0})
    except KafkaException as error:
        return str(error)
    return ""


def outcome(**changes: object) -> TakeoverOutcome:
    twice = Twice(9, 8, Lsn(0x100), Lsn(0x200), None, 12, is_complete=True, is_readable=True)
    values: dict[str, Any] = {
        "slot": "s",
        "confirmed": Lsn(0x90),
        "written_up_to": Lsn(0x300),
        "offset": {"lsn": 0x1FF, "lsn_proc": 0x1FF, "lsn_commit": 0x1F0, "txId": 7},
        "twice": twice,
        "gap": None,
        "driver_confirms": False,
        "unfinished_tables": False,
    }
    return TakeoverOutcome(**{**values, **changes})


def test_a_takeover_is_told_by_lsn() -> None:
    said = " ".join(report.sentences(outcome()))
    assert "lsn 0/1FF, lsn_proc 0/1FF, lsn_commit 0/1F0, txId 7" in said
    assert "Twice: 9 events of 8 transactions, which end from 0/100 to 0/200." in said
    assert "Nothing is missing" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"gap": OffsetGap(Lsn(1), Lsn(2))},
            "Not delivered: transactions that committed after 0/1 and up to 0/2",
        ),
        (
            {"gap": OffsetGap(Lsn(1), Lsn(2)), "driver_confirms": True},
            "past the connector's offset 0/1, because its driver",
        ),
        ({"offset": {}}, "cannot check whether somebody else has moved the slot"),
        (
            {"twice": Twice(0, 0, None, None, None, 0, is_complete=True, is_readable=True)},
            "Nothing comes twice.",
        ),
        (
            {"twice": Twice(0, 0, None, None, None, 5, is_complete=True, is_readable=False)},
            "at most 5 events",
        ),
        (
            {"twice": Twice(3, 1, Lsn(1), Lsn(1), Lsn(1), 5, is_complete=False, is_readable=True)},
            "at least 3 events",
        ),
        (
            {"twice": Twice(3, 1, Lsn(1), Lsn(1), Lsn(1), 5, is_complete=True, is_readable=True)},
            "ends at 0/1 is in the topics in part",
        ),
        ({"unfinished_tables": True}, "cdcd snapshot start --table"),
        ({"offset": {}}, "Its offset: none."),
    ],
)
def test_a_takeover_tells_what_is_not_usual(changes: dict[str, object], said: str) -> None:
    assert said in re.sub(r"\s+", " ", " ".join(report.sentences(outcome(**changes))))


EVENTS = {
    "value.converter": "io.debezium.converters.CloudEventsConverter",
    "value.converter.json.schemas.enable": "false",
}


def test_a_connector_that_writes_cloudevents_becomes_a_pipeline_that_does() -> None:
    found = adopt(
        {**MINIMAL, **EVENTS, "value.converter.extension.attributes.enable": "false"},
        {"kafka.bootstrap_servers": "kafka:9092"},
        "f",
        look=None,
    )
    config = parse_config(settings.as_text(found.settings, ()), {"DATABASE_PASSWORD": "p"})
    assert config.format.value == "cloudevents"
    assert (config.cloudevents.data, config.cloudevents.extension_attributes) == ("json", False)


def test_a_configuration_without_a_name_gives_a_pipeline_that_is_called_after_its_topics() -> None:
    options = {name: value for name, value in MINIMAL.items() if name != "name"} | {"topic.prefix": "Shop-EU"}
    brokers = {"kafka.bootstrap_servers": "kafka:9092"}
    found = adopt(options, brokers, "f", look=None)
    assert found.config.name == "shop_eu"
    (said,) = [each for each in found.findings if each.name == "name"]
    assert (said.verdict.kind, "--name sets another name" in said.verdict.why) == (
        VerdictKind.DIFFERENT,
        True,
    )
    named = adopt(options, {**brokers, "name": "mine"}, "f", look=None)
    assert named.config.name == "mine"
    assert [each for each in named.findings if each.name == "name"] == []


def test_keys_for_a_person_are_comments_that_become_a_configuration() -> None:
    found = adoption(transforms="o", transforms__o__type="io.debezium.transforms.outbox.EventRouter")
    text = settings.as_text(found.settings, (), found.draft)
    secrets = {"DATABASE_PASSWORD": "x"}
    assert parse_config(text, secrets).outbox.tables == {}
    head, _, draft = text.partition("# To be completed")
    completed = draft.partition("\n")[2].replace("# ", "").replace("FILL_IN", "outbox")
    outbox = parse_config(head + completed, secrets).outbox
    assert [(name, table.topics_max) for name, table in outbox.tables.items()] == [("outbox.outbox", 100)]


@pytest.mark.parametrize(
    ("is_url", "said"),
    [
        (False, "Then stop the connector; cdcd check --config f; cdcd run --config f"),
        (
            True,
            "Then run the same command with --takeover --accept table.frobnicate, while the connector runs.",
        ),
    ],
)
def test_the_next_step_after_something_impossible_is_to_decide_about_it(is_url: bool, said: str) -> None:
    found = adoption(**{"table.frobnicate": "x"})
    first, then = report.endings(found, None, 80, file="f", is_url=is_url, refused=False)
    assert (
        first
        == "Next: decide about 1 option that is impossible or unknown: change the connector, or complete f."
    )
    assert then == said


@pytest.mark.parametrize(
    ("lists", "tables", "excluded"),
    [
        ({"schema__include__list": "public"}, ("public.*",), ()),
        (
            {"schema__include__list": "public", "table__exclude__list": r"public\.audit,public\.tmp_.*"},
            ("public.*",),
            ("public.audit", "public.tmp_*"),
        ),
        ({"table__exclude__list": r"public\.audit"}, None, ("public.audit",)),
        ({"schema__exclude__list": "audit|tmp"}, None, ("audit.*", "tmp.*")),
        # An include list makes the exclude list of the same kind void.
        (
            {"table__include__list": r"public\.a", "table__exclude__list": r"public\.b"},
            ("public.a",),
            (),
        ),
    ],
)
def test_lists_of_tables_are_translated_without_the_database(
    lists: dict[str, str], tables: tuple[str, ...] | None, excluded: tuple[str, ...]
) -> None:
    found = adoption(**lists)
    assert (found.config.postgres.tables, found.config.tables.exclude or ()) == (tables, excluded)
    assert found.blocking == []


def test_an_empty_placeholder_is_cdcds_own_and_ends_nothing() -> None:
    options = {**MINIMAL, "unavailable.value.placeholder": ""}
    found = adopt(options, {"kafka.bootstrap_servers": "kafka:9092"}, "f", look=None)
    (said,) = [each for each in found.findings if each.name == "unavailable.value.placeholder"]
    assert (said.verdict.kind, "looks like an empty text" in said.verdict.why) == (
        VerdictKind.DIFFERENT,
        True,
    )
    config = parse_config(settings.as_text(found.settings, ()), {"DATABASE_PASSWORD": "p"})
    assert config.format.placeholder == "__debezium_unavailable_value"
