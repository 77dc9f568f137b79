"""The owner renames a protected column whose values leave the daemon on other paths than the table's topic.

The paths are claim checks, incremental snapshots, prepared transactions, `cdcd verify`, `cdcd check`, and a filter that
reads the column under its new name.
"""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.demo.fold import await_flushed
from deploy.local import KafkaBroker
from tests.attacks.checkpoints import last_checkpoint
from tests.attacks.test_owner_protection import (
    DONE,
    GAINS,
    HASH_KEY,
    MARKER,
    assert_hidden,
    await_passed,
    carry_out,
    secret,
)
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, drop_slot, until
from tests.integration.forked import run_cdcd
from tests.integration.test_columns import everything
from tests.integration.test_snapshot_requests import ask

StartDaemon = Callable[[dict[str, Any]], Daemon]

RENAME: Final = "ALTER TABLE t RENAME COLUMN ssn TO x"
SWAP: Final = (
    "ALTER TABLE t RENAME COLUMN ssn TO tmp",
    "ALTER TABLE t RENAME COLUMN note TO ssn",
    "ALTER TABLE t RENAME COLUMN tmp TO note",
)

pytestmark = pytest.mark.attack(gains=GAINS, before="failed")


def started(
    daemon: StartDaemon, database: Database, broker: KafkaBroker, unique: str, **sections: Any
) -> Daemon:
    """A daemon that has seen the table as it was before the attack."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, ssn text, note text)")
    database.execute("CREATE TABLE done (id int PRIMARY KEY, note text)")
    columns = {"hash_key": HASH_KEY, "hash": ["public.t.ssn"]}
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            **{"columns": columns, "log": {"level": "debug"}, **sections},
        )
    )
    process.await_streaming()
    return process


def passed(process: Daemon, database: Database, broker: KafkaBroker, unique: str) -> list[bytes]:
    database.execute(f"INSERT INTO done VALUES (1, '{DONE}')")
    return await_passed(process, broker, unique)


def test_a_record_that_is_too_large_is_put_aside_without_the_value(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, scratch: Path
):
    folder = scratch / f"claims-{unique}"
    folder.mkdir()
    kafka = {"oversized": "claim_check", "claim_check_directory": str(folder)}
    process = started(daemon, database, broker, unique, kafka=kafka)
    database.execute(RENAME)
    for number in (1, 2):
        # The text is random, so that compression does not make the record small.
        database.execute(
            f"INSERT INTO t SELECT {number}, '{MARKER}-{number}', string_agg(md5(random()::text), '') "
            "FROM generate_series(1, 40000)"
        )
    records = passed(process, database, broker, unique)
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 2
    assert_hidden(process, [*records, *files])


@pytest.mark.postgres(since=15)
def test_prepared_transactions_follow_a_rename(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    process = started(daemon, database, broker, unique, postgres={"two_phase": True})
    carry_out(database, [[RENAME, secret(1, "id, x, note"), "PREPARE TRANSACTION 'one'"]])
    process.kill()
    process.start()
    database.execute("COMMIT PREPARED 'one'")
    back = "ALTER TABLE t RENAME COLUMN x TO ssn"
    carry_out(database, [[back, *SWAP, secret(2, "id, note, ssn"), "PREPARE TRANSACTION 'two'"]])
    database.execute("COMMIT PREPARED 'two'")
    assert_hidden(process, passed(process, database, broker, unique))


@pytest.mark.postgres(since=14)
def test_a_snapshot_beside_the_stream_follows_renames_between_its_chunks(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    process = started(daemon, database, broker, unique, snapshot={"chunk_bytes": 8192, "mode": "never"})
    database.execute(
        f"INSERT INTO t SELECT g, '{MARKER}-' || g, repeat('x', 500) FROM generate_series(1, 3000) g"
    )
    ask(database, action="start", tables=["public.t"])
    for statements in ((RENAME,), ("ALTER TABLE t RENAME COLUMN x TO ssn",), SWAP, SWAP, (RENAME,)):
        carry_out(database, [statements])
        database.execute("UPDATE t SET id = id + 10000 WHERE id % 500 = 0 AND id < 10000")
    process.await_event("table.read")
    assert_hidden(process, passed(process, database, broker, unique))


@pytest.mark.postgres(only=[13, 18])
def test_tables_that_come_and_go_leave_nothing_in_the_checkpoint(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    """Without end, the record would become too large for its topic, and no start could read it."""
    columns = {"hash_key": HASH_KEY, "hash": ["public.*.ssn"]}
    process = started(daemon, database, broker, unique, columns=columns)
    with database.connect() as owner:
        for number in range(100):
            owner.execute(
                "CREATE TABLE u (id int PRIMARY KEY, ssn text); "
                f"INSERT INTO u VALUES ({number}, '{MARKER}'); DROP TABLE u"
            )
    numbers = count(2)

    def bound() -> bool | None:
        """Write a row, so that there is a checkpoint, and count the bytes of the bindings."""
        database.execute(f"INSERT INTO done VALUES ({next(numbers)})")
        return len(last_checkpoint(broker, f"{unique}.checkpoint").bindings) < 400 or None

    process.await_metric("cdcd_events_total", lambda events: events >= 100, "c", "public.u")
    until(bound, "the checkpoint has the bindings of tables that were dropped")
    assert_hidden(process, passed(process, database, broker, unique))
    process.kill()
    process.start()
    process.await_streaming()


def test_verify_and_check_know_the_column_by_its_number(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    process = started(daemon, database, broker, unique)
    for statement in (*SWAP, secret(1, "id, note, ssn")):
        database.execute(statement)
    await_flushed(database.dsn(), f"cdcd_{unique}")
    for arguments in (("verify", "--target", "topics", "--table", "public.t"), ("check",)):
        said = run_cdcd(*arguments, "--config", str(process.config_path))
        assert MARKER not in said.stdout + said.stderr
        if arguments[0] == "verify":
            assert said.returncode == 0, said.stdout + said.stderr
    assert_hidden(process, list(everything(broker, unique)))


def test_no_filter_tells_a_column_that_becomes_the_protected_one(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    """A filter on a protected value would reveal it: a reader sees whether the topic has the row."""
    keep = {"keep": "!row.note.startsWith('s3')", "old_row": "assumed"}
    process = started(daemon, database, broker, unique, filters={"tables": {"public.t": keep}})
    carry_out(database, [[*SWAP, secret(1, "id, note, ssn")]])
    told = process.await_event("filter.failed")
    assert "columns.hash (public.t.ssn) protects column note" in told["reason"]
    records = passed(process, database, broker, unique)
    assert any(b'"id":1' in record for record in records)
    assert_hidden(process, records)


@pytest.mark.postgres(only=[13, 18])
@pytest.mark.parametrize("change", [(RENAME,), SWAP], ids=["renamed", "swapped"])
@pytest.mark.parametrize("by", ["command", "start"])
def test_topics_that_are_healed_after_a_lost_slot_follow_renames_that_nobody_saw(
    database: Database,
    broker: KafkaBroker,
    daemon: StartDaemon,
    unique: str,
    change: tuple[str, ...],
    by: str,
):
    # GIVEN a row of before, and a slot that is lost together with the WAL that has the renames
    mode = "initial" if by == "command" else "when_needed"
    process = started(daemon, database, broker, unique, snapshot={"mode": mode})
    carry_out(database, [[secret(1)]])
    await_flushed(database.dsn(), f"cdcd_{unique}")
    assert process.stop() == 0
    drop_slot(database.dsn(), f"cdcd_{unique}")
    names = "id, x, note" if change == (RENAME,) else "id, note, ssn"
    carry_out(
        database, [change, [secret(2, names), f"UPDATE t SET {names.split(', ')[2]} = 'other' WHERE id = 1"]]
    )
    # WHEN the differences between topic and table are sent
    if by == "command":
        healed = run_cdcd("heal", "--yes", "--config", str(process.config_path))
        assert healed.returncode == 0, healed.stderr
        assert MARKER not in healed.stdout + healed.stderr
    process.start()
    process.await_streaming()
    carry_out(database, [[secret(3, names)]])
    # THEN both rows are there, and no value of the column.
    records = passed(process, database, broker, unique)
    assert any(b'"id":2' in record for record in records)
    assert_hidden(process, records)
