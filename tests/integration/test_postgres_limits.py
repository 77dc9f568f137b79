"""Values that PostgreSQL stores and cannot send: the daemon says so, nothing is lost, and a way on works."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.faults.trial import Outcome, Trial

MB = 1_000_000
LONG_S = 900
TEXT = "repeat(md5('a'), {bytes} / 32)"


@pytest.fixture
def one(trial: Callable[..., Trial], database: Database, broker: KafkaBroker, tmp_path: Path) -> Trial:
    """A pipeline that has delivered a row, and whose table has a text and a bytea."""
    claims = {"oversized": "claim_check", "claim_check_directory": str(tmp_path)}
    found = trial(database.dsn(), broker.bootstrap_servers, kafka=claims)
    found.start()
    found.execute("ALTER TABLE t ADD body bytea, ADD long text")
    found.execute("ALTER TABLE t ALTER body SET STORAGE EXTERNAL, ALTER long SET STORAGE EXTERNAL")
    found.insert(1)
    found.expect(1)
    return found


def ends(pipeline: Trial, statement: str) -> Outcome:
    """The end of the daemon by this statement, of which nothing is confirmed."""
    pipeline.execute(statement)
    ((committed,),) = pipeline.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")
    said = pipeline.fail(timeout_s=LONG_S)
    assert said.code == 3
    assert pipeline.confirmed() < int(committed)
    assert pipeline.read() == [1]
    return said


def table_of(pipeline: Trial, said: Outcome) -> str:
    """The table, by the query of the hint."""
    (query,) = re.findall(r"(SELECT pg_filenode_relation.* m;)", said.hint)
    pipeline.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
    ((table,),) = pipeline.execute(f"SELECT ({query.rstrip(';')})::text")
    return str(table)


@pytest.mark.soak
@pytest.mark.timeout(3 * LONG_S)
@pytest.mark.postgres(only=18)
def test_a_bytea_whose_text_is_too_large_is_told_and_comes_in_binary(one: Trial):
    value = f"convert_to({TEXT.format(bytes=540 * MB)}, 'SQL_ASCII')"
    said = ends(one, f"INSERT INTO t (id, body) VALUES (2, {value})")
    assert "invalid memory alloc request size" in said.message
    assert re.search("for the change at LSN [0-9A-F]+/[0-9A-F]+", said.message)
    assert "postgres.binary: true" in said.hint
    assert table_of(one, said) == "t"
    # WHEN the hint is followed
    one.configure(postgres={"binary": True})
    one.start()
    one.insert(3)
    one.daemon.await_event("message.large", timeout_s=LONG_S)
    one.expect(2, 3)


@pytest.mark.soak
@pytest.mark.timeout(3 * LONG_S)
@pytest.mark.postgres(only=18)
def test_an_old_and_a_new_row_that_are_too_large_together_are_told(one: Trial):
    one.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    said = ends(
        one,
        f"INSERT INTO t (id, long) VALUES (2, {TEXT.format(bytes=600 * MB)}); UPDATE t SET note = 'n' WHERE id = 2",
    )
    assert "string buffer" in said.message or "enlarge" in said.message
    assert re.search("for the change at LSN [0-9A-F]+/[0-9A-F]+", said.message)
    assert "ALTER PUBLICATION" in said.hint
    assert table_of(one, said) == "t"
