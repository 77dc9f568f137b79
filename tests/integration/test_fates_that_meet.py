"""Tables that are set aside, and what else may happen to them meanwhile: one daemon, a table for each meeting."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from cdcd.adapters.postgres.quoting import identifier
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import until
from tests.integration.faults.tables import envelopes, folded
from tests.integration.faults.trial import Trial
from tests.integration.forked import run_cdcd

pytestmark = pytest.mark.postgres(only=18)

QUOTED = 'Odd "Name"; --'
"""A name that the shell, SQL and JSON each quote in another way."""

OPTION = 'public."Odd ""Name""; --"'
"""The same with its schema, as the configuration and commands take it."""

SETTLED_S = 60.0


def signal(one: Trial, action: str, *tables: str) -> None:
    asked = json.dumps({"action": action, "tables": list(tables)})
    one.execute("SELECT pg_logical_emit_message(true, 'cdcd.snapshot', %s)", asked)


def rows_in(one: Trial, table: str) -> dict[int, str]:
    """The rows of the table in the source: `note` by `id`."""
    return dict(one.execute(f"SELECT id, note FROM {identifier(table)}"))


def await_equal(one: Trial, table: str, topic: str = "") -> None:
    """Wait until the topic of the table has the rows of the source."""
    topic = topic or f"{one.name}.public.{table}"
    until(
        lambda: folded(envelopes(one, topic)) == rows_in(one, table) or None,
        f"{table}: {one.daemon.last_words()}",
        SETTLED_S,
    )


def stop(one: Trial, table: str) -> None:
    signal(one, "stop_tables", f"public.{table}")
    one.daemon.await_event("table.aside", table=f"public.{table}")


def names_aside(one: Trial) -> list[str]:
    """The tables that are set aside, as the daemon names them."""
    return [each["table"] for each in json.loads(one.daemon.page("/v1/status"))["set_aside"]]


@pytest.fixture
def pipeline(trial: Callable[..., Trial], database: Database, broker: KafkaBroker) -> Callable[..., Trial]:
    """`pipeline("a", "b")`: a running pipeline with these tables of two rows, which are in their topics."""

    def made(*tables: str, **sections: Any) -> Trial:
        one = trial(database.dsn(), broker.bootstrap_servers)
        one.configure(tables={"on_error": "set_aside"}, snapshot={"mode": "initial"})
        one.configure(**json.loads(json.dumps(sections).replace("{name}", one.name)))
        for table in tables:
            one.execute(f"CREATE TABLE {identifier(table)} (id int PRIMARY KEY, note text)")
            one.execute(f"INSERT INTO {identifier(table)} VALUES (1, 'one'), (2, 'two')")
        one.start()
        return one

    return made


def test_a_table_that_is_renamed_while_it_is_set_aside_comes_back_under_its_new_name(
    pipeline: Callable[..., Trial],
):
    # GIVEN a table that was stopped, and renamed since
    one = pipeline("former")
    await_equal(one, "former")
    stop(one, "former")
    one.execute("ALTER TABLE former RENAME TO present")
    one.execute("INSERT INTO present VALUES (3, 'three')")
    one.execute("DELETE FROM present WHERE id = 1")

    # WHEN somebody asks for it by its former name after the daemon has seen the present one, THEN both refuse
    refused = run_cdcd("tables", "resume", "public.former", "--config", str(one.daemon.config_path))
    assert refused.returncode == 2
    assert "There is no table public.former" in refused.stderr
    until(lambda: names_aside(one) == ["public.present"] or None, "the present name", SETTLED_S)
    signal(one, "resume_tables", "public.former")
    assert "it was renamed to public.present" in one.daemon.await_event("snapshot.refused")["reason"]
    # WHEN it comes back by its present name
    signal(one, "resume_tables", "public.present")
    one.daemon.await_event("table.returned", table="public.present")

    # THEN the topic of the present name has its rows, and that of the former name stays as it was
    await_equal(one, "present")
    assert folded(envelopes(one, f"{one.name}.public.former")) == {1: "one", 2: "two"}
    one.execute("INSERT INTO present VALUES (4, 'four')")
    await_equal(one, "present")
    assert one.daemon.stop() == 0


def test_a_table_that_is_dropped_while_it_comes_back_holds_up_nobody(pipeline: Callable[..., Trial]):
    # GIVEN a table that was asked for, and cannot be read because somebody has locked it
    one = pipeline("gone", "other")
    await_equal(one, "gone")
    stop(one, "gone")
    with one.connect() as owner:
        owner.execute("LOCK gone")
        signal(one, "resume_tables", "public.gone")
        one.daemon.await_event("table.returned", table="public.gone")
        # WHEN it is dropped instead of read
        owner.execute("DROP TABLE gone")
        owner.commit()

    # THEN other tables go on, and no table is set aside or read any more, also after a restart
    one.execute("INSERT INTO other VALUES (3, 'three')")
    await_equal(one, "other")
    one.daemon.kill()
    one.start()
    one.execute("INSERT INTO other VALUES (4, 'four')")
    await_equal(one, "other")
    one.daemon.await_metric("cdcd_snapshot_tables", lambda value: value == 0)
    listed = run_cdcd("tables", "--format", "json", "--config", str(one.daemon.config_path))
    assert listed.returncode == 0, listed.stdout
    assert one.daemon.stop() == 0


def test_a_table_with_a_name_that_needs_quoting_is_stopped_and_asked_for_twice(
    pipeline: Callable[..., Trial],
):
    one = pipeline(QUOTED, topics={"names": {OPTION: "{name}.public.odd"}})
    topic = f"{one.name}.public.odd"
    await_equal(one, QUOTED, topic)
    config = ("--config", str(one.daemon.config_path))

    # WHEN it is stopped, and stopped once more
    assert run_cdcd("tables", "stop", OPTION, *config).returncode == 0
    aside = one.daemon.await_event("table.aside")
    assert aside["table"] == f"public.{QUOTED}"
    assert aside["command"] == f"cdcd tables resume '{OPTION}'"
    one.execute(f"DELETE FROM {identifier(QUOTED)} WHERE id = 1")
    # AND asked for twice in one transaction
    resume = json.dumps({"action": "resume_tables", "tables": [f"public.{QUOTED}"]}).replace("'", "''")
    message = f"pg_logical_emit_message(true, 'cdcd.snapshot', '{resume}')"
    one.execute(f"SELECT {message}, {message}")

    # THEN it comes back once, and a request after that is refused
    one.daemon.await_event("table.read", table=f"public.{QUOTED}", rows=1)
    await_equal(one, QUOTED, topic)
    returned = [each for each in one.daemon.events if each["event"] == "table.returned"]
    assert len(returned) == 1
    signal(one, "resume_tables", f"public.{QUOTED}")
    assert "is not set aside" in one.daemon.await_event("snapshot.refused")["reason"]
    assert one.daemon.stop() == 0


@pytest.mark.long
def test_a_table_that_is_stopped_while_a_snapshot_reads_it_is_read_again_when_it_comes_back(
    pipeline: Callable[..., Trial],
):
    # GIVEN a large table that is being read
    one = pipeline("large", snapshot={"mode": "initial", "chunk_bytes": 16_384, "parallelism": 1})
    one.execute("INSERT INTO large SELECT g, repeat('x', 50) FROM generate_series(3, 50000) g")
    signal(one, "start", "public.large")
    one.daemon.await_event("snapshot.started")
    one.daemon.await_metric("cdcd_snapshot_rows_total", lambda value: value > 2)

    # WHEN it is stopped in the middle, changes, and comes back while the daemon is killed
    stop(one, "large")
    one.execute("DELETE FROM large WHERE id % 3 = 0")
    one.execute("UPDATE large SET note = 'later' WHERE id % 5 = 0")
    signal(one, "resume_tables", "public.large")
    one.daemon.await_event("table.returned", table="public.large")
    one.daemon.kill()
    one.start()

    # THEN it has the rows of the source
    await_equal(one, "large")
    assert one.daemon.stop() == 0


def test_a_partitioned_table_with_routes_is_set_aside_with_all_of_its_topics(pipeline: Callable[..., Trial]):
    # GIVEN a partitioned table that is published as a whole, whose rows go to two topics
    one = pipeline("other")
    one.execute("CREATE TABLE parted (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
    for part in range(2):
        one.execute(
            f"CREATE TABLE parted_{part} PARTITION OF parted FOR VALUES FROM ({part * 10}) TO ({part * 10 + 10})"
        )
    one.daemon.stop()
    joint = f"{one.name}.public.joint"
    one.configure(routes={"tables": {"public.parted": {"rules": [{"when": "row.id >= 10", "topic": joint}]}}})
    one.execute(f"ALTER PUBLICATION cdcd_{one.name} SET (publish_via_partition_root = true)")
    one.start()
    one.execute("INSERT INTO parted VALUES (1, 'one'), (11, 'eleven'), (12, 'twelve')")

    def rows() -> dict[int, str]:
        own = f"{one.name}.public.parted"
        return folded(envelopes(one, own)) | folded(envelopes(one, joint))

    until(lambda: rows() == rows_in(one, "parted") or None, "the rows", SETTLED_S)

    # WHEN it is set aside, and a partition loses its rows without a change in the stream
    stop(one, "parted")
    one.execute("TRUNCATE parted_1")
    one.execute("INSERT INTO parted VALUES (2, 'two'), (13, 'thirteen')")
    one.execute("INSERT INTO other VALUES (3, 'three')")
    await_equal(one, "other")
    assert rows() == {1: "one", 11: "eleven", 12: "twelve"}
    signal(one, "resume_tables", "public.parted")

    # THEN both topics have the rows of the source
    until(lambda: rows() == rows_in(one, "parted") or None, one.daemon.last_words(), SETTLED_S)
    assert one.daemon.stop() == 0
