"""Owners of published tables who lock their table (LOCK TABLE is ACCESS EXCLUSIVE) in each phase of a pipeline.

A lock holds the rows of that table. Rows and changes of the other tables arrive, the log names table and holder, and
the commands of an operator answer.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pytest

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import BUSY_S, Daemon, configuration
from tests.integration.forked import run_cdcd

pytestmark = pytest.mark.postgres(only=[13, 18])

StartDaemon = Callable[[Mapping[str, Any]], Daemon]

GAINS: Final = "a pipeline that stands still for all other tables"
TOLD_S: Final = 10.0 + BUSY_S


class Pipeline:
    """Tables a, k (without a key if so wanted) and z; an owner of k, and cdcd's superuser."""

    def __init__(self, database: Database, unique: str) -> None:
        self.database, self.unique = database, unique
        self.owner = f"{unique[:50]}_owner"

    def create(self, *, keyed: bool = True, rows: int = 20_000) -> None:
        run = self.database.execute
        run(f'CREATE ROLE "{self.owner}" LOGIN; GRANT CREATE ON SCHEMA public TO "{self.owner}"')
        for table in ("a", "k", "z"):
            key = "PRIMARY KEY" if table != "k" or keyed else ""
            run(f"CREATE TABLE {table} (id int {key}, n text)")
            run(f"INSERT INTO {table} SELECT g, repeat('x', 100) FROM generate_series(1, {rows}) g")
        run(f'ALTER TABLE k OWNER TO "{self.owner}"')
        run(f'CREATE PUBLICATION "cdcd_{self.unique}" FOR TABLE a, k, z')

    def settings(self, broker: KafkaBroker, **sections: Any) -> dict[str, Any]:
        snapshot = {"mode": "initial", "parallelism": 2, "chunk_bytes": 65536, **sections.pop("snapshot", {})}
        dsn, servers = self.database.dsn(), broker.bootstrap_servers
        return configuration(self.unique, dsn, servers, snapshot=snapshot, **sections)

    @contextmanager
    def locked(self) -> Iterator[psycopg.Connection]:
        """The owner's table, locked by its owner."""
        dsn = self.database.dsn(user=self.owner, application_name="the owner's session")
        with psycopg.connect(dsn) as session:
            session.execute("LOCK TABLE k")
            yield session
            session.rollback()

    def drop(self) -> None:
        self.database.execute(f'DROP OWNED BY "{self.owner}" CASCADE; DROP ROLE "{self.owner}"')


@pytest.fixture
def pipeline(database: Database, unique: str) -> Iterator[Pipeline]:
    made = Pipeline(database, unique)
    yield made
    made.drop()


def names(event: Mapping[str, Any], session: psycopg.Connection, owner: str) -> bool:
    """Whether the event names process, role and application of the session."""
    text = json.dumps(event)
    return all(each in text for each in (str(session.info.backend_pid), owner, "the owner's session"))


@pytest.mark.attack(gains=GAINS, before="failed")
@pytest.mark.parametrize(
    ("keyed", "truncates"),
    [(True, True), (False, True), (False, False)],
    ids=["keyed", "keyless", "keyless without truncate records"],
)
def test_a_lock_in_the_first_snapshot_holds_that_table_only(
    pipeline: Pipeline, broker: KafkaBroker, daemon: StartDaemon, keyed: bool, truncates: bool
):
    pipeline.create(keyed=keyed)
    is_read = keyed or truncates
    process = daemon(pipeline.settings(broker, topics={"truncate": truncates}))
    process.await_event("snapshot.started")
    with pipeline.locked() as session:
        began = time.monotonic()
        said = process.await_event(
            "snapshot.postponed" if is_read else "snapshot.waiting", table="public.k", timeout_s=60
        )
        assert time.monotonic() - began < TOLD_S
        assert names(said, session, pipeline.owner)
        process.await_streaming()
        pipeline.database.execute("INSERT INTO a VALUES (0, 'new')")
        process.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.a")
        for table in ("public.a", "public.z"):
            assert process.await_event("table.read", table=table)["rows"] == 20_000
        assert not process.saw("reconnect.scheduled")
        if not is_read:
            # Its rows cannot be read later. It ends by its name, and is never called complete.
            assert "locked by" in process.await_event("table.failed", table="public.k")["error"]
    if is_read:
        assert process.await_event("table.read", table="public.k")["rows"] == 20_000
    else:
        assert not any(one["event"] == "table.read" and one["table"] == "public.k" for one in process.events)
    assert process.stop() == 0


@pytest.mark.attack(gains=GAINS, before="withstood")
def test_a_lock_in_a_snapshot_beside_the_stream_holds_that_table_only(
    pipeline: Pipeline, broker: KafkaBroker, daemon: StartDaemon
):
    pipeline.create()
    process = daemon(pipeline.settings(broker, snapshot={"method": "incremental"}))
    process.await_streaming()
    with pipeline.locked() as session:
        for table in ("public.a", "public.z"):
            assert process.await_event("table.read", table=table)["rows"] == 20_000
        pipeline.database.execute("INSERT INTO a VALUES (0, 'new')")
        process.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.a")
        if not any(one["event"] == "table.read" and one["table"] == "public.k" for one in process.events):
            assert names(process.await_event("snapshot.waiting", table="public.k"), session, pipeline.owner)
    assert process.await_event("table.read", table="public.k")["rows"] == 20_000
    assert process.stop() == 0


@pytest.mark.attack(gains=GAINS, before="withstood")
def test_a_lock_at_a_restart_holds_that_table_only(
    pipeline: Pipeline, broker: KafkaBroker, daemon: StartDaemon
):
    pipeline.create(rows=10)
    process = daemon(pipeline.settings(broker, columns={"exclude": ["public.*.n"]}))
    process.await_event("snapshot.finished")
    process.await_streaming()
    assert process.stop() == 0
    with pipeline.locked():
        process.start()
        process.await_streaming()
        pipeline.database.execute("INSERT INTO a VALUES (0, 'new')")
        process.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.a")
        assert not process.saw("reconnect.scheduled")
        assert process.stop() == 0


@pytest.mark.attack(gains="a first start that waits without a word", before="failed")
def test_a_lock_before_the_first_start_is_told_with_its_holder(
    pipeline: Pipeline, broker: KafkaBroker, daemon: StartDaemon
):
    """PostgreSQL creates a slot only when open transactions have ended. So the start waits, and says for whom."""
    pipeline.create(rows=10)
    with pipeline.locked() as session:
        began = time.monotonic()
        process = daemon(pipeline.settings(broker))
        said = process.await_event("slot.waiting", timeout_s=60)
        assert time.monotonic() - began < TOLD_S
        assert names(said, session, pipeline.owner)
    process.await_event("snapshot.finished")
    assert process.stop() == 0


@pytest.mark.attack(gains="a first start that waits without a word", before="failed")
def test_a_lock_while_the_publication_is_created_is_told_with_its_holder(
    pipeline: Pipeline, broker: KafkaBroker, daemon: StartDaemon
):
    pipeline.create(rows=10)
    pipeline.database.execute(f'DROP PUBLICATION "cdcd_{pipeline.unique}"')
    with pipeline.locked() as session:
        began = time.monotonic()
        process = daemon(pipeline.settings(broker, postgres={"tables": ["public.a", "public.k"]}))
        said = process.await_event("table.locked", table="public.k", timeout_s=60)
        assert time.monotonic() - began < TOLD_S
        assert names(said, session, pipeline.owner)
    process.await_event("snapshot.finished")
    assert process.stop() == 0


@pytest.fixture
def running(pipeline: Pipeline, broker: KafkaBroker, daemon: StartDaemon) -> Daemon:
    """A pipeline that streams, and has read all tables."""
    pipeline.create(rows=10)
    process = daemon(pipeline.settings(broker))
    process.await_event("snapshot.finished")
    process.await_streaming()
    return process


def cdcd(process: Daemon, *arguments: str) -> Any:
    began = time.monotonic()
    done = run_cdcd(*arguments, "--config", str(process.config_path), environment={**os.environ})
    assert time.monotonic() - began < 90, "it waited for the lock"
    return done


@pytest.mark.attack(gains="a check that never answers", before="failed")
def test_check_answers_while_a_table_is_locked(pipeline: Pipeline, running: Daemon):
    with pipeline.locked():
        checked = cdcd(running, "check", "--format", "json")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        found = {one["code"]: one for one in json.loads(checked.stdout)["findings"]}
        assert found["publication.state"]["level"] == "ok" if "publication.state" in found else True
    assert running.stop() == 0


@pytest.mark.attack(gains="a comparison that never ends", before="failed")
def test_verify_compares_the_others_and_names_the_table_that_is_locked(pipeline: Pipeline, running: Daemon):
    with pipeline.locked() as session:
        verified = cdcd(running, "verify", "--format", "json")
        assert verified.returncode == 12, verified.stdout + verified.stderr
        report = json.loads(verified.stdout)
        compared = {one["table"] for one in report["tables"]}
        assert compared == {"public.a", "public.z"}
        assert "public.k" in json.dumps(report)
        assert str(session.info.backend_pid) in verified.stdout + verified.stderr
    verified = cdcd(running, "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert running.stop() == 0


@pytest.mark.attack(gains="commands that never answer", before="withstood")
@pytest.mark.parametrize("command", [("status",), ("snapshot", "status")], ids=" ".join)
def test_commands_answer_while_a_table_is_locked(
    pipeline: Pipeline, running: Daemon, command: tuple[str, ...]
):
    with pipeline.locked():
        assert cdcd(running, *command).returncode == 0
    assert running.stop() == 0
