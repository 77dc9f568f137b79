"""Many tables of one pipeline fail at once, each in its own way: each is set aside, others go on, and all come back."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from deploy.local import KafkaBroker
from tests.integration import created_topics
from tests.integration.conftest import Database
from tests.integration.daemon import until
from tests.integration.faults.tables import (
    LARGE,
    LOADS,
    OTHERS_S,
    TableFault,
    assert_shown,
    break_tables,
    create_busy,
    insert_other,
    told_aside,
    under_load,
)
from tests.integration.faults.trial import Trial
from tests.integration.test_table_faults import filled

pytestmark = pytest.mark.postgres(only=18)

LONG = "n" * 63
"""A name as long as PostgreSQL allows."""

PADDING = "p" * 120
"""With this prefix, the topic of a table with two long names is longer than Kafka allows."""

LIMIT = 150_000
"""Largest record that the client takes. A value of `LARGE` is below it, and two of them are above."""


@dataclass(frozen=True)
class Fault(TableFault):
    """A table with a fault, and its topic.

    Attributes:
        topic: settings of the topic, which is created before the daemon starts; None: it is missing.
        mended: settings of the topic when the cause is gone.
    """

    topic: Mapping[str, str] | None = None
    mended: Mapping[str, str] | None = None


HERE: dict[str, str] = {}
"""The topic exists, with the broker's settings."""

FAULTS = [
    Fault("missing", "topic", mended=HERE),
    Fault(
        "loose",
        "topic",
        columns="id int, note text",
        before="ALTER TABLE {t} REPLICA IDENTITY FULL",
        topic={"cleanup.policy": "compact"},
        mended={"cleanup.policy": "delete"},
    ),
    Fault(
        "wide",
        "broker",
        breaks=f"INSERT INTO {{t}} VALUES (2, '{LARGE}')",
        topic={"max.message.bytes": "20000"},
        mended={"max.message.bytes": "400000"},
    ),
    Fault(
        "huge",
        "size",
        breaks=f"INSERT INTO {{t}} VALUES (2, '{LARGE}{LARGE}')",
        mends="DELETE FROM {t} WHERE id = 2",
        topic=HERE,
    ),
    Fault(
        "former",
        "size",
        before=f"INSERT INTO {{t}} VALUES (7, '{LARGE}{LARGE}')",
        breaks="",
        mends="DELETE FROM {t} WHERE id = 7",
        topic=HERE,
    ),
    Fault("filtered", "rule", topic=HERE),
    Fault("routed", "rule", topic=HERE),
    Fault("keyed", "rule", topic=HERE),
    Fault("renamed", "rule", topic=HERE),
    Fault("twins", "name", topic=HERE),
    Fault("secret", "protection", topic=HERE),
    Fault(
        "veiled",
        "protection",
        breaks="ALTER TABLE {t} DROP note; ALTER TABLE {t} ADD more text; INSERT INTO {t} VALUES (2, 'at fault')",
        topic=HERE,
    ),
    Fault(
        "rooted",
        "rule",
        columns="id int PRIMARY KEY, note text, k text) PARTITION BY RANGE (id",
        # The partition lacks its root's REPLICA IDENTITY FULL, so an update would not send a TOASTed key.
        before="ALTER TABLE {t} REPLICA IDENTITY FULL; CREATE TABLE {t}_p PARTITION OF {t} DEFAULT; "
        f"GRANT SELECT ON {{t}}_p TO {{role}}; INSERT INTO {{t}} VALUES (2, 'before', '{LARGE[:10_000]}')",
        breaks="UPDATE {t} SET note = 'at fault' WHERE id = 2",
        topic=HERE,
    ),
    Fault(
        "unsent",
        "rule",
        columns="id int PRIMARY KEY, note text, k int NOT NULL UNIQUE",
        before="INSERT INTO {t} VALUES (2, 'before', 2)",
        breaks="DELETE FROM {t} WHERE id = 2",
        topic=HERE,
    ),
    Fault(
        "early",
        "broker",
        # A single record may reach the broker within the millisecond that the topic allows. With Kafka transactions,
        # cdcd refuses the topic at once, because the topic may refuse their markers.
        breaks="INSERT INTO {t} SELECT n, 'at fault' FROM generate_series(2, 2000) n",
        topic={"message.timestamp.before.max.ms": "1"},
        mended={"message.timestamp.before.max.ms": "9223372036854775807"},
    ),
    Fault(
        "restricted",
        "snapshot",
        before="INSERT INTO {t} VALUES (2, 'unread')",
        breaks="",
        mends="GRANT SELECT ON {t} TO {role}_reader",
        topic=HERE,
    ),
    Fault(
        "unread",
        "snapshot",
        before="REVOKE SELECT ON {t} FROM {role}; INSERT INTO {t} VALUES (2, 'unread')",
        breaks="",
        mends="GRANT SELECT ON {t} TO {role}",
        topic=HERE,
    ),
]
"""The tables of one pipeline in JSON. Topics that are missing cannot be created."""

OWN_TOPICS = ("message", "events", "public.other", "public.elsewhere", "public.outbox", "public.outbox_lost")
"""Topics that exist from the beginning, besides those of the tables with faults."""

LOCKED = "keyed"
"""A table that its owner locks while it comes back."""

OUTBOXES = {"outbox": "size", "outbox_lost": "topic"}
"""Tables of events, each with its fault: an event is too large, or its topic is missing and cannot be created."""

BY_THEMSELVES = ("topic", "broker", "snapshot")
"""Faults of tables that come back by themselves, and are set aside again."""

RULES: dict[str, Any] = {
    "filters": {"tables": {"public.filtered": {"keep": "row.note != 'gone'"}}},
    "routes": {
        "tables": {
            "public.routed": {
                "rules": [{"when": "row.note != 'gone'", "topic": f"<name>{PADDING}.public.elsewhere"}]
            }
        }
    },
    "key": {"columns": {"public.keyed": ["nobody"], "public.unsent": ["k"], "public.rooted": ["k"]}},
    "fields": {"tables": {"public.renamed": {"rename": {"note": "id"}}}},
    "columns": {"exclude": ["public.secret.nobody", "public.veiled.note"]},
}
"""Rules that cannot be followed, such as a filter on a column whose old values are not sent. They are gone when the
tables come back."""


def topic_of(one: Trial, table: str) -> str:
    return f"{one.name}{PADDING}.public.{table}"


def rows_of(one: Trial, table: str) -> list[tuple[Any, ...]]:
    """The rows that the topic says the table has, with at least one column each."""
    found: dict[str, tuple[Any, ...]] = {}
    for number, (key, value, _) in enumerate(one.records(topic_of(one, table))):
        if value is None:
            continue
        change = json.loads(value)
        if change["op"] == "t":
            found.clear()
            continue
        row = change["after"] or change["before"]
        name = bytes(key).decode() if key else str(number)
        if change["op"] == "d":
            found.pop(name)
        else:
            found[name] = tuple(row.values())
    return sorted(found.values(), key=repr)


def source(one: Trial, table: str) -> list[tuple[Any, ...]]:
    return sorted(one.execute(f"SELECT * FROM {table}"), key=repr)


def is_equal(one: Trial, table: str) -> bool | None:
    return rows_of(one, table) == source(one, table) or None


def await_equal(one: Trial, table: str) -> None:
    until(partial(is_equal, one, table), f"the rows of {table}: {one.daemon.last_words()}", 60.0)


def has_records(one: Trial, topic: str) -> bool | None:
    return bool(one.records(f"{one.name}{PADDING}.{topic}")) or None


def other(one: Trial, number: int) -> float:
    """Insert a row into the table without a fault, and return the seconds until its topic has it."""
    return insert_other(one, number, topic_of(one, "other"), 60.0)


def publish(one: Trial, table: str, number: int, topic: str, payload: str = "an event") -> None:
    one.execute(f"INSERT INTO {table} VALUES (%s, %s, 'k', 'Happened', %s)", number, topic, payload)


def prepare(one: Trial, role: str) -> None:
    """Create tables, topics, a role with few rights and a publication."""
    one.execute(f"CREATE ROLE {role} LOGIN REPLICATION; CREATE ROLE {role}_reader LOGIN")
    one.execute(f"GRANT USAGE ON SCHEMA public TO {role}_reader")
    one.execute("CREATE TABLE other (id int PRIMARY KEY)")
    create_busy(one, topic_of(one, "busy"))
    one.execute(f"CREATE SCHEMA {LONG}; CREATE TABLE {LONG}.{LONG} (id int PRIMARY KEY, note text)")
    for each in FAULTS:
        one.execute(f"CREATE TABLE {each.table} ({each.columns})")
    for table in OUTBOXES:
        one.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload text)"
        )
    one.execute(f"GRANT USAGE ON SCHEMA {LONG} TO {role}; GRANT SELECT ON {LONG}.{LONG} TO {role}")
    one.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    for each in FAULTS:
        if each.before:
            one.execute(each.before.format(t=each.table, role=role))
        if each.topic is not None:
            created_topics.create_topics(one.reader_servers, topic_of(one, each.table), config=each.topic)
    one.execute("CREATE PUBLICATION everything FOR ALL TABLES WITH (publish_via_partition_root = true)")
    prefix = one.name + PADDING
    for name in ("checkpoint", "schemas"):
        created_topics.create_topics(
            one.reader_servers, f"{prefix}.{name}", config={"cleanup.policy": "compact"}
        )
    created_topics.create_topics(
        one.reader_servers,
        *(f"{prefix}.{name}" for name in OWN_TOPICS),
    )


def breaks_of(one: Trial) -> list[tuple[TableFault, Callable[[], object]]]:
    """Every fault, with what makes it."""
    made: list[tuple[TableFault, Callable[[], object]]] = [
        (each, partial(one.execute, each.breaks.format(t=each.table))) for each in FAULTS if each.breaks
    ]
    made.append(
        (TableFault(LONG, "name"), partial(one.execute, f"INSERT INTO {LONG}.{LONG} VALUES (2, 'at fault')"))
    )
    made.append((TableFault("outbox", "size"), partial(publish, one, "outbox", 1, "events", LARGE * 2)))
    made.append((TableFault("outbox_lost", "topic"), partial(publish, one, "outbox_lost", 1, "lost")))
    return made


@pytest.mark.long
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@LOADS
def test_many_tables_that_fail_at_once_are_set_aside_each_by_its_fault_and_all_come_back(
    trial: Callable[..., Trial],
    database: Database,
    broker: KafkaBroker,
    unique: str,
    delivery: str,
    loaded: bool,
):
    # GIVEN a pipeline of many tables, each of which has or will have its own fault
    role = f"role_{unique}"
    one = trial(database.dsn(), broker.bootstrap_servers)
    prepare(one, role)
    dsn = make_conninfo(database.dsn(user=role), password="hush-5ecret")
    one.configure(
        postgres={
            "dsn": dsn,
            "publication": "everything",
            "readers": [{"tables": ["public.restricted"], "user": f"{role}_reader"}],
        },
        kafka={"delivery": delivery, "properties": {"message.max.bytes": LIMIT}},
        snapshot={"mode": "initial"},
        tables={"on_error": "set_aside"},
        topics={
            "prefix": one.name + PADDING,
            "create": {"enabled": True, "replication_factor": 3},
            "names": {"public.twins": f"{one.name}{PADDING}.public.other"},
        },
        outbox={
            "topics": [f"{one.name}{PADDING}.{name}" for name in ("events", "lost")],
            "tables": {
                f"public.{table}": {"topic": f"{one.name}{PADDING}.{topic}"}
                for table, topic in (("outbox", "events"), ("outbox_lost", "lost"))
            },
        },
        **filled(RULES, one.name),
    )
    one.start()
    assert other(one, 1) < OTHERS_S

    numbers = count(2)
    with under_load(one, topic_of(one, "busy"), delivery, loaded=loaded):
        # WHEN all of them fail
        break_tables(
            one, breaks_of(one), lambda: other(one, next(numbers)), f"json, {delivery}", loaded=loaded
        )

        # THEN each is set aside by its own fault, and the other table goes on
        assert other(one, next(numbers)) < OTHERS_S
        faults = {each.table: each.fault for each in FAULTS} | OUTBOXES
        if delivery == "exactly_once":
            faults["early"] = "topic"
        wanted = {f"public.{table}": fault for table, fault in faults.items()} | {f"{LONG}.{LONG}": "name"}
        until(lambda: told_aside(one) == wanted or None, f"{wanted}, but {told_aside(one)}", 60.0)
        assert one.daemon.is_running()
        assert_shown(one, {table: fault for table, fault in wanted.items() if fault not in BY_THEMSELVES})

        # WHEN the daemon is killed, the causes are removed, and somebody asks for the tables
        one.daemon.kill()
        for each in FAULTS:
            if each.mends:
                one.execute(each.mends.format(t=each.table, role=role))
            if each.mended is not None:
                topic = topic_of(one, each.table)
                if each.topic is None:
                    created_topics.create_topics(one.reader_servers, topic, config=each.mended)
                else:
                    created_topics.set_topic(one.reader_servers, topic, each.mended)
        one.execute(f"ALTER TABLE {LONG}.{LONG} SET SCHEMA public; ALTER TABLE public.{LONG} RENAME TO short")
        created_topics.create_topics(one.reader_servers, topic_of(one, "short"))
        created_topics.create_topics(one.reader_servers, f"{one.name}{PADDING}.lost")
        one.configure(topics={**one.daemon.config["topics"], "names": None}, **dict.fromkeys(RULES))
        one.daemon.start()
        one.daemon.await_streaming()
        assert other(one, next(numbers)) < OTHERS_S
        with one.connect() as owner:
            # A table that its owner has locked waits alone.
            owner.execute(f"LOCK {LOCKED} IN ACCESS EXCLUSIVE MODE")
            # Tables that came back by themselves meanwhile are named in the answer, and the others follow the request.
            asked = json.dumps(
                {"action": "resume_tables", "tables": [f"public.{name}" for name in (*faults, "short")]}
            )
            one.execute("SELECT pg_logical_emit_message(true, 'cdcd.snapshot', %s)", asked)

            # THEN all topics have the rows of their tables, also of those that change now
            tables = [*(each.table for each in FAULTS), "short"]
            for table in tables:
                if table != LOCKED:
                    await_equal(one, table)
            one.daemon.await_event("snapshot.waiting", table=f"public.{LOCKED}")
        await_equal(one, LOCKED)

        # AND outbox tables go on with their next events
        for table, topic in (("outbox", "events"), ("outbox_lost", "lost")):
            publish(one, table, 2, topic)
            until(
                partial(has_records, one, topic),
                f"an event in {topic}",
                60.0,
            )
        other(one, next(numbers))
    assert one.daemon.stop() == 0
