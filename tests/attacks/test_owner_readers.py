"""Owners of published tables whose index expressions run while cdcd plans a query on their tables.

Each owner has a reader (`postgres.readers`). The function of the index runs with the rights of that reader, in the
first snapshot, in a snapshot beside the stream and in `cdcd verify`. A test is one thing that the function tries.
"""

from pathlib import Path
from typing import Final

import pytest

from deploy.local import KafkaBroker
from tests.attacks.owned import OWNERS, Owned, attack
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon

pytestmark = pytest.mark.postgres(only=[13, 18])

ATTEMPTS: Final[dict[str, tuple[str, str, str]]] = {
    "others_rows": ("SELECT word FROM {victim}.t LIMIT 1", "rows of another owner's table", "failed"),
    "unpublished_rows": ("SELECT word FROM vault.secret", "rows that only cdcd's role may read", "failed"),
    "copy_others": (
        "SELECT query_to_xml('SELECT word FROM {victim}.late LIMIT 1', true, false, '')::text",
        "rows of another owner's table, by a function that runs a query",
        "failed",
    ),
    "create_slot": (
        "SELECT pg_create_logical_replication_slot('x_{unique}', 'pgoutput', true)::text",
        "a slot that keeps WAL",
        "failed",
    ),
    "create_physical_slot": (
        "SELECT pg_create_physical_replication_slot('y_{unique}', true, true)::text",
        "a slot that keeps WAL",
        "failed",
    ),
    "peek_slot": (
        """SELECT count(*)::text FROM pg_logical_slot_peek_binary_changes('other_{unique}', NULL, 1,
        'proto_version', '1', 'publication_names', '{slot}')""",
        "the changes of another pipeline",
        "failed",
    ),
    "advance_slot": (
        "SELECT pg_replication_slot_advance('other_{unique}', pg_current_wal_lsn())::text",
        "a gap in another pipeline",
        "failed",
    ),
    "drop_slot": (
        "SELECT pg_drop_replication_slot('other_{unique}')::text",
        "the end of another pipeline",
        "failed",
    ),
    "set_role": ("SELECT set_config('role', '{main}', true)", "the rights of cdcd's role", "withstood"),
    "emit": (
        "SELECT pg_logical_emit_message(false, 'cdcd.snapshot', 'x')::text",
        "a request to the daemon, where EXECUTE is revoked from PUBLIC",
        "failed",
    ),
    "end_daemon": (
        "SELECT pg_terminate_backend(pid)::text FROM pg_stat_replication LIMIT 1",
        "the end of the stream",
        "failed",
    ),
    "read_file": ("SELECT pg_read_file('PG_VERSION')", "files of the server", "withstood"),
    "write": (
        "INSERT INTO {victim}.t VALUES (0, 0, 'mine') RETURNING word",
        "a row in another's table",
        "withstood",
    ),
    "make_schema": ("CREATE SCHEMA loot", "a place to keep what was read", "withstood"),
    "read_password": ("SELECT rolpassword FROM pg_authid LIMIT 1", "hashes of passwords", "withstood"),
}
"""SQL, what it would gain, and how commit 99c61843 fared, where cdcd's role ran it."""


class Looted:
    """What the attack gained on a server of one version. Each server is attacked once."""

    def __init__(self, owned: Owned, daemon: Daemon) -> None:
        self.unique = owned.unique
        self.loot = owned.loot()
        self.log = daemon.output()
        self.readers = dict(owned.readers)


_LOOTED: dict[int, Looted] = {}


@pytest.fixture
def looted(database: Database, broker: KafkaBroker, unique: str, scratch: Path) -> Looted:
    version = database.version
    if version not in _LOOTED:
        attempts = {name: sql for name, (sql, _, _) in ATTEMPTS.items()}
        owned = Owned(database, unique, attempts, with_readers=True)
        owned.create()
        database.execute(f"SELECT pg_create_logical_replication_slot('other_{unique}', 'pgoutput')")
        process: Daemon | None = None

        def start(config: object) -> Daemon:
            nonlocal process
            process = Daemon(scratch / unique, owned.settings(broker))
            process.start()
            return process

        try:
            attack(owned, broker, start)
            assert process is not None
            assert process.stop() == 0
            _LOOTED[version] = Looted(owned, process)
        finally:
            if process is not None:
                process.kill()
            owned.drop()
    return _LOOTED[version]


def _cases() -> list[object]:
    return [
        pytest.param(name, id=name, marks=pytest.mark.attack(gains=gains, before=before))
        for name, (_, gains, before) in ATTEMPTS.items()
    ]


@pytest.mark.parametrize("name", _cases())
def test_what_an_index_runs_while_its_table_is_read_gains_nothing(looted: Looted, name: str):
    results = {key: found for key, found in looted.loot.items() if key[2] == name}
    assert results, "the function never ran"
    gained = {key: found for key, found in results.items() if any(one.startswith("got") for one in found)}
    assert gained == {}


@pytest.mark.attack(gains="cdcd's role, while a table is planned", before="failed")
def test_the_function_of_an_index_runs_as_the_reader_of_its_owner_and_as_nobody_else(looted: Looted):
    ran = {key[:2]: found for key, found in looted.loot.items() if key[2] == "ran"}
    for owner in OWNERS:
        # Whole tables may be read without a plan, so a session in which nothing ran is fine.
        sessions = {session: found for (whose, session), found in ran.items() if whose == owner}
        assert all(found == {f"as {looted.readers[owner]}"} for found in sessions.values()), sessions


@pytest.mark.attack(gains="the end of the daemon, or a gap in silence", before="withstood")
def test_the_pipeline_goes_on_over_all_of_it(looted: Looted):
    assert '"level": "error"' not in looted.log
    assert "reconnect.scheduled" not in looted.log
