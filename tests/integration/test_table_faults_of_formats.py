"""Faults that need a schema registry, a broker with ACLs, or an encoding other than UTF-8: all tables come back."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from deploy.local import KafkaBroker, PostgresServer
from tests.attacks.test_writer_encodings import encoded
from tests.integration import created_topics, kafka_rights
from tests.integration.conftest import Database
from tests.integration.daemon import until
from tests.integration.faults.tables import (
    LARGE,
    LOADS,
    OTHERS_S,
    TableFault,
    break_tables,
    create_busy,
    envelopes,
    folded,
    insert_other,
    told_aside,
    under_load,
)
from tests.integration.faults.trial import Trial, guarded_trial
from tests.integration.test_avro import values as avro_values
from tests.integration.test_protobuf import pairs, read
from tests.schema_registry import SchemaRegistry

pytestmark = [pytest.mark.postgres(only=18), pytest.mark.chaos]

DELIVERIES = pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])

REGISTRY_S = 30.0
"""Seconds for which the stream waits for a subject to which the registry gives no answer."""

Rows = dict[int, str]
Decode = Callable[[str], list[dict[str, Any]]]
"""Returns the envelopes of a topic."""


ALTERED = "ALTER TABLE {t} ADD more int; INSERT INTO {t} VALUES (2, 'at fault', 3)"

FORMATS: dict[str, list[TableFault]] = {
    "avro": [
        TableFault(
            "twins",
            "rule",
            columns='id int PRIMARY KEY, note text, "a-b" int, a_b int',
            breaks="INSERT INTO {t} VALUES (2, 'at fault', 3, 4)",
            mends="ALTER TABLE {t} DROP a_b",
        )
    ],
    "protobuf": [],
    "json_registry": [],
}
"""Tables that the format has no schema for. In Protobuf, the second of two fields gets another name.
JSON has all names."""

REGISTERED = [
    TableFault("refused", "registry", breaks=ALTERED),
    TableFault("unanswered", "registry", breaks=ALTERED),
    TableFault("parted", "rule"),
    TableFault("keyed", "rule"),
    TableFault(
        "huge",
        "size",
        breaks=f"INSERT INTO {{t}} VALUES (2, '{LARGE}')",
        mends="DELETE FROM {t} WHERE id = 2",
    ),
]

RULES: dict[str, Any] = {
    "partitioner": {"columns": {"public.parted": ["nobody"]}},
    "key": {"columns": {"public.keyed": ["nobody"]}},
}
"""Rules that cannot be followed. They are gone when the tables come back."""


def other(one: Trial, number: int) -> float:
    """Insert a row into the table without a fault, and return the seconds until its topic has a record of it."""
    return insert_other(one, number, f"{one.name}.public.other", 90.0)


def create_tables(one: Trial, cases: Sequence[TableFault]) -> None:
    one.execute("CREATE TABLE other (id int PRIMARY KEY)")
    create_busy(one, f"{one.name}.public.busy")
    for each in cases:
        one.execute(f"CREATE TABLE {each.table} ({each.columns})")
        one.execute(f"INSERT INTO {each.table} VALUES (1, 'before')")
        if each.before:
            one.execute(each.before.format(t=each.table))


def breaks_of(one: Trial, cases: Sequence[TableFault]) -> list[tuple[TableFault, Callable[[], object]]]:
    """The faults, with what makes each."""
    return [(each, partial(one.execute, each.breaks.format(t=each.table))) for each in cases if each.breaks]


def await_aside(one: Trial, cases: Sequence[TableFault]) -> None:
    wanted = {each.name: each.fault for each in cases}
    until(
        lambda: told_aside(one) == wanted or None,
        f"{wanted}, but {told_aside(one)}: {one.daemon.last_words()}",
        90.0,
    )
    assert one.daemon.is_running()


def mend_tables(one: Trial, cases: Sequence[TableFault]) -> None:
    for each in cases:
        if each.mends:
            one.execute(each.mends.format(t=each.table))


def ask_for(one: Trial, cases: Sequence[TableFault]) -> None:
    """Ask for all tables by one request. Those that are back already are named in the answer."""
    asked = json.dumps({"action": "resume_tables", "tables": [each.name for each in cases]})
    one.execute("SELECT pg_logical_emit_message(true, 'cdcd.snapshot', %s)", asked)


def await_equal(one: Trial, cases: Sequence[TableFault], decode: Decode) -> None:
    """All topics have the rows of their tables, also a row that is inserted now."""

    def is_equal(topic: str, wanted: Rows) -> bool | None:
        return folded(decode(topic)) == wanted or None

    for each in cases:
        one.execute(f"INSERT INTO {each.table} (id, note) VALUES (9, 'after')")
        wanted = {int(number): note for number, note in one.execute(f"SELECT id, note FROM {each.table}")}
        topic = f"{one.name}.{each.name}"
        until(
            partial(is_equal, topic, wanted),
            f"{wanted} in {topic}: {one.daemon.last_words()}",
            90.0,
        )


@DELIVERIES
@LOADS
@pytest.mark.parametrize("kind", FORMATS)
def test_tables_whose_schemas_are_refused_or_not_answered_are_set_aside_and_come_back(
    trial: Callable[..., Trial],
    database: Database,
    broker: KafkaBroker,
    kind: str,
    delivery: str,
    loaded: bool,
):
    # GIVEN a pipeline with a schema registry, and tables that will have their own faults
    cases = [*REGISTERED, *FORMATS[kind]]
    one = trial(database.dsn(), broker.bootstrap_servers)
    create_tables(one, cases)
    with SchemaRegistry() as registry:

        def decode(topic: str) -> list[dict[str, Any]]:
            if kind == "avro":
                return avro_values(one.reader_servers, topic, registry)
            if kind == "json_registry":
                return [json.loads(value[5:]) for _, value in pairs(one.reader_servers, topic) if value]
            return [read(value, registry) for _, value in pairs(one.reader_servers, topic) if value]

        one.configure(
            format={"value": kind},
            registry={"url": registry.url},
            kafka={"delivery": delivery, "properties": {"message.max.bytes": 50_000}},
            snapshot={"mode": "initial"},
            tables={"on_error": "set_aside"},
            **RULES,
        )
        one.start()
        assert other(one, 1) < OTHERS_S

        numbers = count(2)
        with under_load(one, f"{one.name}.public.busy", delivery, loaded=loaded):
            # WHEN the registry refuses a subject, gives no answer for another one, and the other tables fail, too
            registry.refusing.add(f"{one.name}.public.refused-value")
            registry.failing.add(f"{one.name}.public.unanswered-value")
            break_tables(
                one,
                breaks_of(one, cases),
                lambda: other(one, next(numbers)),
                f"{kind}, {delivery}",
                loaded=loaded,
            )

            # THEN each is set aside by its own fault, and the other table waits for the answer only
            assert other(one, next(numbers)) < REGISTRY_S + OTHERS_S
            await_aside(one, cases)
            subject = f"{one.name}.public.unanswered-value"
            assert one.daemon.await_event("registry.unanswered", subject=subject)["patience_s"] == REGISTRY_S
            assert not one.daemon.saw("registry.unreachable")

            # WHEN the daemon is killed, the causes are removed, and somebody asks for the tables
            one.daemon.kill()
            mend_tables(one, cases)
            registry.refusing.clear()
            registry.failing.clear()
            one.configure(**dict.fromkeys(RULES))
            one.start()
            assert other(one, next(numbers)) < OTHERS_S
            ask_for(one, cases)

            # THEN they are equal
            await_equal(one, cases, decode)
        assert one.daemon.stop() == 0


@pytest.fixture(scope="module")
def guarded_broker(scratch: Path) -> Iterator[KafkaBroker]:
    with kafka_rights.guarded_broker(scratch / "kafka-guarded-tables") as server:
        yield server


RIGHTS = [
    TableFault("unwritable", "broker"),
    TableFault("uncreated", "topic"),
    TableFault("hidden", "topic"),
    TableFault("taken", "broker"),
]

DENIED = {
    "unwritable": AclOperation.WRITE,
    "uncreated": AclOperation.CREATE,
    "hidden": AclOperation.DESCRIBE,
    "taken": AclOperation.WRITE,
}
"""By table: the right that the topic's owner denies cdcd."""


def denial(one: Trial, table: str) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        f"{one.name}.public.{table}",
        ResourcePatternType.LITERAL,
        "User:cdcd",
        "*",
        DENIED[table],
        AclPermissionType.DENY,
    )


@DELIVERIES
@LOADS
def test_tables_whose_topics_deny_a_right_are_set_aside_and_come_back_by_themselves(
    trial: Callable[..., Trial], database: Database, guarded_broker: KafkaBroker, delivery: str, loaded: bool
):
    # GIVEN a broker with ACLs, on which some topics deny cdcd a right
    one = guarded_trial(trial, database.dsn(), guarded_broker)
    create_tables(one, RIGHTS)
    allowed = [
        (ResourceType.TOPIC, one.name, operation)
        for operation in (
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.CREATE,
            AclOperation.DESCRIBE,
            AclOperation.DESCRIBE_CONFIGS,
        )
    ] + [
        (ResourceType.TRANSACTIONAL_ID, f"cdcd-{one.name}", operation)
        for operation in (AclOperation.WRITE, AclOperation.DESCRIBE)
    ]
    prefixed, allow = ResourcePatternType.PREFIXED, AclPermissionType.ALLOW
    kafka_rights.allow(
        one.reader_servers,
        [AclBinding(kind, name, prefixed, "User:cdcd", "*", right, allow) for kind, name, right in allowed],
    )
    for table in ("unwritable", "hidden", "taken"):
        created_topics.create_topics(one.reader_servers, f"{one.name}.public.{table}")
    kafka_rights.allow(one.reader_servers, [denial(one, table) for table in DENIED if table != "taken"])
    one.configure(
        kafka={
            "delivery": delivery,
            "properties": kafka_rights.login(),
        },
        snapshot={"mode": "initial"},
        tables={"on_error": "set_aside"},
        topics={"create": {"enabled": True}},
    )
    one.start()
    assert other(one, 1) < OTHERS_S

    numbers = count(2)
    with under_load(one, f"{one.name}.public.busy", delivery, loaded=loaded):
        # WHEN another topic loses the right while records go there
        kafka_rights.allow(one.reader_servers, [denial(one, "taken")])
        break_tables(
            one,
            breaks_of(one, RIGHTS),
            lambda: other(one, next(numbers)),
            f"rights, {delivery}",
            loaded=loaded,
        )

        # THEN each table is set aside, and the other table goes on
        assert other(one, next(numbers)) < OTHERS_S
        await_aside(one, RIGHTS)

        # WHEN the rights are back, THEN the tables come back by themselves, over a kill, too
        one.daemon.kill()
        one.start()
        for table in DENIED:
            kafka_rights.revoke(one.reader_servers, denial(one, table))
        await_equal(one, RIGHTS, lambda topic: envelopes(one, topic))
        assert other(one, next(numbers)) < OTHERS_S
    assert one.daemon.stop() == 0


ODD = [
    TableFault(
        "undecodable",
        "value",
        columns="id int, note text, name text PRIMARY KEY DEFAULT gen_random_uuid()",
        before="UPDATE {t} SET name = 'a'",
        breaks="INSERT INTO {t} VALUES (2, 'at fault', E'\\xe9')",
        mends="DELETE FROM {t} WHERE id = 2",
    ),
    TableFault(
        "read",
        "value",
        columns="id int, note text, name text PRIMARY KEY DEFAULT gen_random_uuid()",
        before="INSERT INTO {t} VALUES (2, 'at fault', E'\\xe9')",
        breaks="",
        mends="DELETE FROM {t} WHERE id = 2",
    ),
    TableFault(
        "huge",
        "size",
        breaks=f"INSERT INTO {{t}} VALUES (2, '{LARGE}')",
        mends="DELETE FROM {t} WHERE id = 2",
    ),
    TableFault("keyed", "rule"),
]


@DELIVERIES
@LOADS
def test_keys_that_are_no_text_set_their_tables_aside_and_all_come_back(
    trial: Callable[..., Trial],
    postgres: PostgresServer,
    broker: KafkaBroker,
    unique: str,
    delivery: str,
    loaded: bool,
):
    # GIVEN a database of bytes, in which keys are no text
    with encoded(postgres, unique, "SQL_ASCII") as dsn:
        one = trial(dsn, broker.bootstrap_servers)
        create_tables(one, ODD)
        rules = {"key": RULES["key"]}
        one.configure(
            kafka={"delivery": delivery, "properties": {"message.max.bytes": 50_000}},
            snapshot={"mode": "initial"},
            tables={"on_error": "set_aside"},
            **rules,
        )
        one.start()
        assert other(one, 1) < OTHERS_S

        numbers = count(2)
        with under_load(one, f"{one.name}.public.busy", delivery, loaded=loaded):
            # WHEN the tables fail, THEN each is set aside by its own fault
            break_tables(
                one,
                breaks_of(one, ODD),
                lambda: other(one, next(numbers)),
                f"SQL_ASCII, {delivery}",
                loaded=loaded,
            )
            assert other(one, next(numbers)) < OTHERS_S
            await_aside(one, ODD)

            # WHEN the daemon is killed, the causes are removed, and somebody asks for the tables, THEN they are equal
            one.daemon.kill()
            mend_tables(one, ODD)
            one.configure(**dict.fromkeys(rules))
            one.start()
            assert other(one, next(numbers)) < OTHERS_S
            ask_for(one, ODD)
            await_equal(one, ODD, lambda topic: envelopes(one, topic))
        assert one.daemon.stop() == 0
        one.daemon.kill()
