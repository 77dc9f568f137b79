"""The key and the topic of a record, from a real server to the broker."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.forked import run_cdcd

StartDaemon = Callable[[dict[str, Any]], Daemon]
Found = list[tuple[str, bytes | None, dict[str, Any]]]

IDENTITIES = ("DEFAULT", "FULL", "USING INDEX other", "DEFAULT")


def read(broker: KafkaBroker, name: str, changes: int) -> Found:
    """Topic, key and envelope of the changes of rows, when there are as many."""

    def look() -> Found | None:
        own = {f"{name}.{topic}" for topic in ("checkpoint", "schemas")}
        with Reader(broker.bootstrap_servers, name) as reader:
            records = [each for each in reader.read_all() if each.topic not in own and each.value is not None]
        found = [(each.topic, each.key, json.loads(each.value or b"")) for each in records]
        return found if len(found) >= changes else None

    return until(look, f"{changes} changes")


def test_a_key_has_the_same_bytes_in_snapshot_and_stream_whatever_the_replica_identity(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    # GIVEN a table whose primary key, and another index, have its columns in the other order
    database.execute("CREATE TABLE t (a int, note text, b text NOT NULL, PRIMARY KEY (b, a))")
    database.execute("CREATE UNIQUE INDEX other ON t (b, a)")
    database.execute("INSERT INTO t VALUES (1, 'snapshot', 'x')")
    process = daemon(
        configuration(unique, database.dsn(), broker.bootstrap_servers, snapshot={"mode": "initial"})
    )
    process.await_streaming()

    # WHEN its row changes under each replica identity
    for identity in IDENTITIES:
        database.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
        database.execute(f"UPDATE t SET note = '{identity}'")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute("DELETE FROM t")

    # THEN all records have one key
    found = read(broker, unique, len(IDENTITIES) + 2)
    assert [envelope["op"] for _, _, envelope in found] == ["r", *["u"] * len(IDENTITIES), "d"]
    assert {key for _, key, _ in found} == {b'{"a":1,"b":"x"}'}


@pytest.mark.postgres(only=18, also=[13, 14, 15, 16, 17])
def test_tables_whose_topics_would_collide_have_those_that_the_configuration_gives_them(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    # GIVEN three tables with one topic by the rule, and two names for them
    for table in ("pallet a", "pallet_a", "pallet.a"):
        database.execute(f'CREATE TABLE "{table}" (id int PRIMARY KEY)')
    database.execute('INSERT INTO "pallet a" VALUES (1)')
    names = {"public.pallet a": f"{unique}.public.pallet-a", 'public."pallet.a"': f"{unique}.public.dot"}
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            topics={"names": names},
            snapshot={"mode": "initial"},
        )
    )
    process.await_streaming()

    # WHEN each gets a row
    for number, table in enumerate(("pallet a", "pallet_a", "pallet.a"), start=2):
        database.execute(f'INSERT INTO "{table}" VALUES ({number})')

    # THEN each row is in the topic of its table
    found = {
        (topic, envelope["source"]["table"], envelope["after"]["id"])
        for topic, _, envelope in read(broker, unique, 4)
    }
    assert found == {
        (f"{unique}.public.pallet-a", "pallet a", 1),
        (f"{unique}.public.pallet-a", "pallet a", 2),
        (f"{unique}.public.pallet_a", "pallet_a", 3),
        (f"{unique}.public.dot", "pallet.a", 4),
    }


@pytest.mark.postgres(only=18, also=[13, 14, 15, 16, 17])
def test_a_template_names_the_topics_of_snapshot_and_stream_and_those_that_are_dropped(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    # GIVEN a template in another order, and a row in a table
    database.execute("CREATE TABLE pallet (id int PRIMARY KEY)")
    database.execute("INSERT INTO pallet VALUES (1)")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            topics={"name": "{prefix}.{table}.{schema}"},
            snapshot={"mode": "initial"},
        )
    )
    process.await_streaming()

    # WHEN it changes
    database.execute("UPDATE pallet SET id = 2")

    # THEN all records are in the topic that the template names
    found = read(broker, unique, 3)
    assert [(topic, envelope["op"]) for topic, _, envelope in found] == [
        (f"{unique}.pallet.public", op) for op in "rdc"
    ]
    assert process.stop() == 0
    shown = run_cdcd("drop", "--config", str(process.config_path), "--topics", environment={**os.environ})
    assert f"{unique}.pallet.public" in shown.stdout, shown.stderr


@pytest.mark.postgres(only=18, also=[14, 15, 16, 17])
def test_tables_that_are_left_out_have_no_topic_no_snapshot_and_no_request_but_their_events_count(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    # GIVEN a publication with three tables, of which the pipeline has one
    database.execute("CREATE SCHEMA audit")
    for table in ("public.orders", "public.internal", "audit.log"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
        database.execute(f"INSERT INTO {table} VALUES (1)")
    settings = configuration(
        unique,
        database.dsn(),
        broker.bootstrap_servers,
        tables={"include": ["public.*"], "exclude": ["*.internal"]},
        snapshot={"mode": "initial"},
    )
    process = daemon(settings)
    assert process.await_event("tables.excluded")["tables"] == ["audit.log", "public.internal"]
    process.await_streaming()

    # WHEN one transaction changes all of them, and all are truncated together
    database.execute(
        "DO $$ BEGIN INSERT INTO audit.log VALUES (2); INSERT INTO orders VALUES (2); INSERT INTO internal VALUES (2);"
        " INSERT INTO orders VALUES (3); END $$"
    )
    database.execute("TRUNCATE orders, internal, audit.log")

    # THEN one table has records, with the numbers that the events have among all of them
    found = read(broker, unique, 4)
    assert {topic for topic, _, _ in found} == {f"{unique}.public.orders"}
    assert [(envelope["op"], envelope["source"]["event_serial_no"]) for _, _, envelope in found][1:] == [
        ("c", 2),
        ("c", 4),
        ("t", 1),
    ]
    refused = run_cdcd(
        "snapshot",
        "start",
        "--config",
        str(process.config_path),
        "--table",
        "audit.log",
        environment={**os.environ},
    )
    assert (refused.returncode, "left out by tables.include" in refused.stderr) == (2, True), refused.stderr

    verified = run_cdcd("verify", "--config", str(process.config_path), environment={**os.environ})
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "audit.log" not in verified.stdout

    # AND a request that was not checked is told why it fails
    signal = '{"action":"start","id":"x","tables":["audit.log"]}'
    database.execute(f"SELECT pg_logical_emit_message(true, 'cdcd.snapshot', '{signal}')")
    assert "leaves the table out" in process.await_event("table.failed")["error"]

    # WHEN an excluded table comes in, and a former one goes out
    database.execute("ALTER TABLE orders RENAME TO other_internal")
    database.execute("ALTER TABLE internal RENAME TO entries")
    database.execute("INSERT INTO entries VALUES (7)")

    # THEN its rows are in a topic
    found = read(broker, unique, 5)
    assert {topic for topic, _, envelope in found if envelope["source"]["table"] == "entries"} == {
        f"{unique}.public.entries"
    }


@pytest.mark.postgres(only=18, also=[14, 15, 16, 17])
def test_a_chosen_key_is_that_of_snapshot_stream_and_requests_and_moves_rows(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    # GIVEN a table that is keyed by its second unique column, and one whose rows share keys
    database.execute("CREATE TABLE person (id int PRIMARY KEY, mail text NOT NULL UNIQUE, note text)")
    database.execute("CREATE TABLE line (id int PRIMARY KEY, sale int)")
    database.execute("ALTER TABLE person REPLICA IDENTITY FULL")
    database.execute("ALTER TABLE line REPLICA IDENTITY FULL")
    database.execute("INSERT INTO person VALUES (1, 'a', 'x')")
    database.execute("INSERT INTO line VALUES (1, 7), (2, 7)")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            key={"columns": {"public.person": ["mail"], "*.line": ["sale"]}},
            snapshot={"mode": "initial"},
        )
    )
    assert process.await_event("key.repeats")["table"] == "public.line"
    process.await_streaming()

    # WHEN rows change with and without their keys
    database.execute("UPDATE person SET note = 'y'")
    database.execute("UPDATE person SET mail = 'b'")
    database.execute("UPDATE line SET sale = 8 WHERE id = 2")
    database.execute("DELETE FROM line")
    place = process.mark()
    signal = '{"action":"start","id":"%s","tables":["public.%s"]}'
    for table in ("person", "line"):
        database.execute(
            f"SELECT pg_logical_emit_message(true, 'cdcd.snapshot', '{signal % (table, table)}')"
        )
    process.await_event("table.read", table="public.person", after=place)
    # Rows that may share a key are read behind a truncate record.
    process.await_event("table.read", table="public.line", after=place)

    # THEN the keys are those of the configuration
    found = read(broker, unique, 12)
    keys: dict[str, list[tuple[str, bytes | None]]] = {"person": [], "line": []}
    for _, key, envelope in found:
        keys[envelope["source"]["table"]].append((envelope["op"], key))
    a, b = b'{"mail":"a"}', b'{"mail":"b"}'
    assert keys["person"] == [("r", a), ("u", a), ("d", a), ("c", b), ("r", b)]
    seven, eight = b'{"sale":7}', b'{"sale":8}'
    assert keys["line"] == [
        ("r", seven),
        ("r", seven),
        ("d", seven),
        ("c", eight),
        ("d", seven),
        ("d", eight),
        ("t", None),
    ]

    # AND cdcd verify compares what the keys tell apart
    verified = run_cdcd("verify", "--config", str(process.config_path), environment={**os.environ})
    assert "several rows may have the same key" in verified.stdout, verified.stderr
    assert "no difference found" in verified.stdout
    assert verified.returncode == 12, verified.stdout


@pytest.mark.postgres(only=18)
def test_bare_keys_are_those_of_snapshot_and_stream_and_a_table_that_cannot_have_one_is_set_aside(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    # GIVEN tables with a text as their key, without a key, and with two columns in their key
    database.execute("CREATE TABLE person (mail text PRIMARY KEY, note text)")
    database.execute("CREATE TABLE loose (id int)")
    database.execute("CREATE TABLE line (sale int, number int, PRIMARY KEY (sale, number))")
    database.execute("INSERT INTO person VALUES ('a', 'x')")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            key={"forms": {"public.*": {"bare": True}}},
            format={"key": "text"},
            tables={"on_error": "set_aside"},
            snapshot={"mode": "initial"},
        )
    )
    process.await_streaming()

    # WHEN rows of all of them change
    database.execute("UPDATE person SET mail = 'b'")
    database.execute("INSERT INTO line VALUES (1, 1)")
    database.execute("INSERT INTO loose VALUES (1)")

    # THEN keys are bare, and the one table that cannot have a bare key is set aside by name
    found = read(broker, unique, 4)
    assert [(key, envelope["op"]) for _, key, envelope in found if key] == [
        (b"a", "r"),
        (b"a", "d"),
        (b"b", "c"),
    ]
    assert [key for topic, key, _ in found if topic.endswith("loose")] == [None]
    aside = process.await_event("table.aside", table="public.line")
    assert "the key of public.line has 2 columns: sale, number" in aside["reason"]

    # AND check names the table, and verify says which tables it leaves out, without ending at one of them
    checked = run_cdcd("check", "--config", str(process.config_path), environment={**os.environ})
    assert "the key of public.line has 2 columns" in " ".join(checked.stdout.split()), checked.stdout
    verified = run_cdcd("verify", "--config", str(process.config_path), environment={**os.environ})
    said = " ".join(verified.stdout.split())
    assert "keys have a form (key.forms) that cdcd verify does not read" in said, verified.stderr
    assert "public.line" in said
    assert "the table is stopped: it is set aside since" in said
    assert verified.returncode == 12


@pytest.mark.postgres(only=18)
def test_a_table_that_comes_back_from_a_name_that_is_left_out_is_read_anew(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    # GIVEN a table with rows, and patterns that leave out names that it does not have, one of them spelled wrong
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    database.execute("INSERT INTO orders VALUES (1), (2)")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            tables={"exclude": ["*.tmp_*", "public.ordres"]},
            snapshot={"mode": "initial"},
        )
    )
    process.await_streaming()
    patterns = [each["pattern"] for each in process.events if each["event"] == "tables.unmatched"]
    assert patterns == ["*.tmp_*", "public.ordres"]

    # WHEN it is renamed to such a name, changes, and comes back
    with database.connect(autocommit=False) as connection:
        connection.execute("ALTER TABLE orders RENAME TO tmp_orders")
        connection.execute("INSERT INTO tmp_orders VALUES (3)")
        connection.execute("DELETE FROM tmp_orders WHERE id = 1")
        connection.execute("ALTER TABLE tmp_orders RENAME TO orders")
        connection.commit()
    database.execute("INSERT INTO orders VALUES (4)")

    # THEN its topic ends the former rows, and has all that are there
    found = read(broker, unique, 7)
    assert [envelope["op"] for _, _, envelope in found] == ["r", "r", "t", "c", "r", "r", "r"]
    assert [envelope["after"]["id"] for _, _, envelope in found[3:]] == [4, 2, 3, 4]
    replaced = process.await_event("table.replaced", after=0)
    assert (replaced["truncated"], replaced["read"]) == (True, True)


@pytest.mark.long
@pytest.mark.postgres(only=18)
def test_a_table_that_leaves_the_publication_for_a_moment_is_added_again(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    # GIVEN a daemon that has listed what is published
    for table in ("orders", "other"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
    database.execute(f"CREATE PUBLICATION cdcd_{unique} FOR TABLE orders")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            snapshot={"mode": "initial", "added_tables": True},
        )
    )
    process.await_streaming()
    database.execute("INSERT INTO orders VALUES (1)")
    database.execute(f"ALTER PUBLICATION cdcd_{unique} ADD TABLE other")
    process.await_event("table.added", table="public.other")

    # WHEN a row comes while its table is not in the publication
    database.execute(f"ALTER PUBLICATION cdcd_{unique} DROP TABLE orders")
    database.execute("INSERT INTO orders VALUES (2)")
    database.execute(f"ALTER PUBLICATION cdcd_{unique} ADD TABLE orders")

    # THEN its former rows end, because deletes may have been missed, and the table is read
    process.await_event("table.added", table="public.orders")
    found = read(broker, unique, 4)
    assert [(envelope["op"], (envelope["after"] or {}).get("id")) for _, _, envelope in found] == [
        ("c", 1),
        ("t", None),
        ("r", 1),
        ("r", 2),
    ]
