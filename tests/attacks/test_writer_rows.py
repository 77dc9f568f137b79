"""Rows of any size and type that somebody writes: the memory that they need is that of the rule."""

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.local import KafkaBroker
from tests.attacks.checkpoints import cases
from tests.attacks.measured import (
    MB,
    StartDaemon,
    allowed,
    await_passed,
    await_renewed,
    filled,
    records,
    run,
)
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until

BYTEA = "convert_to({}, 'SQL_ASCII')"
BASE64 = 4 / 3

VALUES = {
    "text": ("text", "{}", 1.0, 1.0),
    "text with escapes": ("text", "replace({}, 'c', chr(10))", 1.0, 1.1),
    "text with characters of four bytes": ("text", "overlay({} placing U&'\\+01D11E' from 1)", 1.0, 1.0),
    "bytea": ("bytea", BYTEA, 2.0, BASE64),
    "json": ("json", "to_json({})", 1.0, 1.0),
    "an array": ("text[]", "ARRAY[{}]", 1.0, 2.0),
}
"""Type, SQL of the value, and bytes on the wire and of the record for one byte of the text. An array with a large
element needs two copies more (docs/sizing.md)."""


class Written:
    """A database with a table of one large column, and a pipeline with claim checks."""

    def __init__(
        self, database: Database, broker: KafkaBroker, unique: str, daemon: StartDaemon, folder: Path
    ) -> None:
        self.database = database
        self.broker = broker
        self.name = unique
        self.folder = folder
        self._daemon = daemon

    def table(self, type_name: str) -> None:
        self.database.execute(f"CREATE TABLE t (id int PRIMARY KEY, body {type_name}, note text)")
        self.database.execute("ALTER TABLE t ALTER body SET STORAGE EXTERNAL")

    def started(self, **sections: Any) -> Daemon:
        """A daemon that writes large records to files, unless `kafka` says otherwise."""
        claims = {"oversized": "claim_check", "claim_check_directory": str(self.folder)}
        postgres = {"slot": self.name, **sections.pop("postgres", {})}
        given = {"kafka": claims, **sections, "postgres": postgres}
        config = configuration(self.name, self.database.dsn(), self.broker.bootstrap_servers, **given)
        process = self._daemon(config)
        process.await_event("stream.started", timeout_s=240)
        return process

    def writes(self, *statements: str) -> None:
        run(self.database, *statements)

    def passes(self, process: Daemon) -> None:
        await_passed(process, self.database, self.name)

    def claimed(self) -> list[dict[str, Any]]:
        """The records whose values are in files, read from there."""
        found = []
        for record in records(self.broker, f"{self.name}.public.t"):
            if "cdcd.claim_check" in dict(record.headers() or ()):
                claim = json.loads(record.value())["claim_check"]
                found.append(json.loads(Path(claim["file"]).read_bytes()))
        return found


@pytest.fixture
def written(
    database: Database, broker: KafkaBroker, unique: str, daemon: StartDaemon, tmp_path: Path
) -> Written:
    return Written(database, broker, unique, daemon, tmp_path)


@pytest.mark.parametrize(
    "kind",
    cases(
        {kind: kind for kind in VALUES},
        "a daemon that is out of memory at each start, by a row",
        failed={*VALUES} - {"an array"},
    ),
)
def test_a_large_row_of_each_type_needs_no_more_memory_than_the_rule_says(written, kind):
    type_name, value, wire, record = VALUES[kind]
    written.table(type_name)
    process = written.started()
    written.writes(f"INSERT INTO t VALUES (1, {value.format(filled(100))})")
    written.passes(process)
    assert process.peak_memory_bytes() < allowed(wire * 100 * MB, record * 100 * MB)
    (found,) = written.claimed()
    assert len(json.dumps(found["after"]["body"])) > 90 * MB


@pytest.mark.worst
@pytest.mark.attack(gains="a daemon that is out of memory at each start, by a row", before="failed")
def test_a_row_that_is_refused_is_refused_by_its_length(written):
    written.table("text")
    process = written.started(kafka={"oversized": "fail"})
    written.writes(f"INSERT INTO t VALUES (1, {filled(60)})")
    peaks = []
    while process.is_running():
        try:
            peaks.append(process.peak_memory_bytes())
        except (OSError, ValueError):
            break
    assert process.wait() == 4
    assert max(peaks) < allowed(60 * MB)
    failed = process.await_event("fatal")
    assert "public.t" in failed["message"]
    assert "bytes" in failed["message"]


@pytest.mark.parametrize("megabytes", [50, 200])
@pytest.mark.attack(gains="a daemon that is out of memory, by an update with the old row", before="failed")
def test_old_and_new_row_together_need_the_memory_of_one_message(written, megabytes):
    written.table("text")
    written.writes("ALTER TABLE t REPLICA IDENTITY FULL", f"INSERT INTO t VALUES (1, {filled(megabytes)})")
    process = written.started()
    written.writes("UPDATE t SET note = 'new'")
    written.passes(process)
    assert process.peak_memory_bytes() < allowed(2 * megabytes * MB, 2 * megabytes * MB)
    (found,) = written.claimed()
    assert found["before"]["body"] == found["after"]["body"]


@pytest.mark.postgres(since=14)
@pytest.mark.attack(gains="a daemon that is out of memory, by a row in binary form", before="failed")
def test_a_large_row_in_binary_form_needs_the_memory_of_the_rule(written):
    written.table("bytea")
    process = written.started(postgres={"binary": True})
    written.writes(f"INSERT INTO t VALUES (1, {BYTEA.format(filled(100))})")
    written.passes(process)
    assert process.peak_memory_bytes() < allowed(100 * MB, BASE64 * 100 * MB)


@pytest.mark.parametrize(
    "ends",
    cases(
        {ends: ends for ends in ("COMMIT", "ROLLBACK")},
        "a daemon that is out of memory, by a row in a streamed transaction",
        failed={"COMMIT"},
    ),
)
def test_a_large_row_in_a_streamed_transaction_needs_the_memory_of_the_rule(written, ends):
    written.table("text")
    process = written.started()
    written.writes(
        f"INSERT INTO t VALUES (1, {filled(100)})",
        "INSERT INTO t SELECT n, repeat('x', 1000), '' FROM generate_series(2, 20000) n",
        ends,
    )
    written.passes(process)
    assert process.peak_memory_bytes() < allowed(100 * MB, 100 * MB)
    assert len(written.claimed()) == (ends == "COMMIT")


@pytest.mark.parametrize("kind", ["text"])
@pytest.mark.attack(gains="a daemon that is out of memory at its first snapshot", before="withstood")
def test_a_large_row_in_a_snapshot_needs_the_memory_of_the_rule(written, kind):
    type_name, value, wire, record = VALUES[kind]
    written.table(type_name)
    written.writes(f"INSERT INTO t VALUES (1, {value.format(filled(100))})")
    process = written.started(snapshot={"mode": "initial"})
    # The slot begins behind the row, so its position does not tell when the row is delivered.
    until(lambda: written.claimed() or None, "the row of the snapshot was not delivered", timeout_s=240)
    assert process.peak_memory_bytes() < allowed(wire * 100 * MB, record * 100 * MB)
    assert len(written.claimed()) == 1


@pytest.mark.attack(gains="a daemon that keeps the memory of the largest row", before="failed")
def test_the_memory_goes_back_once_the_row_is_confirmed(written):
    written.table("text")
    process = written.started()
    written.writes(f"INSERT INTO t VALUES (1, {filled(100)})")
    written.passes(process)
    assert await_renewed(process) < allowed(0)
    assert process.await_event("message.large", table="public.t")["bytes"] > 100 * MB
    written.writes("INSERT INTO t VALUES (2, 'small')")
    written.passes(process)
    assert len(written.claimed()) == 1


SMALL_ELEMENTS = {
    "texts": ("text[]", "array_fill('a'::text, ARRAY[4000000])", "plain"),
    "numbers": ("numeric[]", "array_fill(1.5, ARRAY[2000000])", "plain"),
    "texts, streamed": ("text[]", "array_fill('a'::text, ARRAY[4000000])", "streamed"),
}
"""Type, SQL of an array whose conversion takes longer than `SENDER_TIMEOUT`, and how the server sends it."""

SENDER_TIMEOUT = "3s"


@pytest.mark.parametrize(
    "kind",
    cases(
        {kind: kind for kind in SMALL_ELEMENTS},
        "a session that ends before the row is delivered, at each start, by an array of small elements",
        failed={*SMALL_ELEMENTS},
    ),
)
def test_an_array_of_small_elements_does_not_stop_the_status_updates(written, kind):
    type_name, value, way = SMALL_ELEMENTS[kind]
    written.table(type_name)
    written.writes(f"ALTER DATABASE \"{written.database.name}\" SET wal_sender_timeout = '{SENDER_TIMEOUT}'")
    process = written.started()
    rows = [f"INSERT INTO t VALUES (1, {value})"]
    if way == "streamed":
        rows.append("INSERT INTO t SELECT n, NULL, repeat('x', 1000) FROM generate_series(2, 80000) n")
    written.writes(*rows)
    written.passes(process)
    # THEN the server has ended no connection, so the row was received once
    assert len([event for event in process.events if event["event"] == "stream.started"]) == 1
    assert not process.saw("session.ended")
    (found,) = written.claimed()
    assert len(found["after"]["body"]) >= 2_000_000
