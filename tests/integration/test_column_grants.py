"""A role that may read the published columns, and no other: snapshots, requests, `cdcd verify` and `cdcd check`."""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.cli.__main__ import main
from cdcd.core.snapshot.reading import Answer, Changed, KeyQuery, PageQuery, Refused, Rows, SourceTable
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.forked import run_cdcd
from tests.integration.test_postgres_snapshot_reader import keys, lines, look, opened, pages

StartDaemon = Callable[[Mapping[str, Any]], Daemon]

PLENTY = 1 << 30


@pytest.fixture
def role(database: Database, unique: str) -> Iterator[str]:
    """A role that may read the columns id and n of the table t, and ctid."""
    name = f"{unique[:50]}_role"
    database.execute(f'CREATE ROLE "{name}" LOGIN REPLICATION')
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, hidden text)")
    database.execute("INSERT INTO t SELECT g, g, 'hidden ' || g FROM generate_series(1, 5000) g")
    database.execute(f'GRANT SELECT (ctid, id, n) ON t TO "{name}"')
    yield name
    database.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{name}'")
    until(lambda: database.execute(f'DROP OWNED BY "{name}" CASCADE') == [] or None, "the role is still used")
    database.execute(f'DROP ROLE "{name}"')


def without_hidden(table: SourceTable) -> SourceTable:
    """The table as if the publication had a list of columns, which it can have since PostgreSQL 15."""
    columns = tuple(column for column in table.relation.columns if column.name != "hidden")
    return replace(table, relation=replace(table.relation, columns=columns))


def read(database: Database, role: str, ask: Callable[[SourceTable], PageQuery | KeyQuery]) -> Answer:
    async def answer() -> Answer:
        table = without_hidden((await look(database))["public.t"])
        async with opened(database, user=role, lock_timeout_s=30) as reader:
            return await reader.read(ask(table), PLENTY)

    return asyncio.run(answer())


@pytest.mark.postgres(only=[13, 18])
def test_pages_and_keys_are_read_with_rights_on_columns_alone(database: Database, role: str):
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    assert len(lines(read(database, role, pages))) == 5000
    assert 0 < len(lines(read(database, role, lambda table: pages(table, 1, 3)))) < 5000
    assert lines(read(database, role, lambda table: keys(table, ("7",), ("4711",)))) == [
        b"4711\t4711",
        b"7\t7",
    ]


@pytest.mark.postgres(only=[13, 18])
def test_the_hidden_column_stays_hidden_and_the_hint_does_not_open_it(database: Database, role: str):
    database.execute("CREATE PUBLICATION p FOR TABLE t")

    async def answer() -> Answer:
        table = (await look(database))["public.t"]
        async with opened(database, user=role) as reader:
            return await reader.read(pages(table, 0, 1), PLENTY)

    refused = asyncio.run(answer())
    assert isinstance(refused, Refused)
    assert "permission denied" in refused.reason
    database.execute(f'REVOKE SELECT (n) ON t FROM "{role}"')
    refused = read(database, role, lambda table: pages(table, 0, 1))
    assert isinstance(refused, Refused)
    assert f'GRANT SELECT (ctid, "id", "n") ON public.t TO "{role}"' in refused.hint


ALTERATIONS = {
    "TRUNCATE": "TRUNCATE t",
    "rewrite": "ALTER TABLE t ALTER n TYPE int USING n + 1",
    "type": "ALTER TABLE t ALTER n TYPE bigint",
    "drop": "ALTER TABLE t DROP n",
    "view": "ALTER TABLE t RENAME TO u; CREATE VIEW t AS SELECT * FROM u; GRANT SELECT ON t TO PUBLIC",
    "swap": "ALTER TABLE t RENAME TO u; CREATE TABLE t (id int PRIMARY KEY, n int, hidden text)",
}


@pytest.mark.postgres(only=[13, 18])
@pytest.mark.parametrize("by", ["pages", "keys"])
@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_what_comes_between_the_snapshot_and_the_lock_is_seen(
    database: Database, role: str, by: str, alteration: str
):
    """Parsing takes the snapshot before it waits for the lock, unlike LOCK TABLE."""
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    table = without_hidden(asyncio.run(look(database))["public.t"])
    waits = "SELECT FROM pg_locks WHERE locktype = 'relation' AND NOT granted AND relation = 't'::regclass"

    async def answer() -> Answer:
        async with opened(database, user=role, lock_timeout_s=60) as reader:
            return await reader.read(pages(table) if by == "pages" else keys(table, ("7",)), PLENTY)

    with database.connect(autocommit=False) as owner:
        owner.execute("LOCK TABLE t")

        def alter() -> None:
            until(lambda: database.execute(waits) or None, "nobody waits for the lock")
            owner.execute(ALTERATIONS[alteration])
            owner.commit()

        other = threading.Thread(target=alter)
        other.start()
        try:
            changed = asyncio.run(answer())
        finally:
            other.join()
    assert isinstance(changed, Changed), changed


@pytest.mark.postgres(only=[13, 18])
def test_the_lock_of_somebody_else_is_waited_for_no_longer_than_asked(database: Database, role: str):
    database.execute("CREATE PUBLICATION p FOR TABLE t")

    async def answer() -> Answer:
        table = without_hidden((await look(database))["public.t"])
        async with opened(database, user=role, lock_timeout_s=0.2) as reader:
            with database.connect(autocommit=False) as owner:
                owner.execute("LOCK TABLE t")
                for _ in range(2):
                    with pytest.raises(TableBusyError, match=r"public\.t is locked"):
                        await reader.read(pages(table), PLENTY)
                owner.rollback()
            return await reader.read(pages(table), PLENTY)

    assert isinstance(asyncio.run(answer()), Rows)


@pytest.mark.postgres(only=[15, 18])
def test_a_pipeline_works_with_rights_on_the_published_columns(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, role: str, unique: str
):
    database.execute(f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE t (id, n)')
    config = configuration(
        unique,
        database.dsn(user=role),
        broker.bootstrap_servers,
        snapshot={"mode": "initial", "chunk_bytes": 65536, "added_tables": True},
    )
    process = daemon(config)
    assert process.await_event("table.read", table="public.t")["rows"] == 5000
    process.await_streaming()
    database.execute("CREATE TABLE late (id int PRIMARY KEY, n int, hidden text)")
    database.execute("INSERT INTO late VALUES (1, 1, 'hidden'), (2, 2, 'hidden')")
    database.execute(f'GRANT SELECT (ctid, id, n) ON late TO "{role}"')
    database.execute(f'ALTER PUBLICATION "cdcd_{unique}" ADD TABLE late (id, n)')
    assert process.await_event("table.read", table="public.late")["rows"] == 2
    verified = run_cdcd("verify", "--config", str(process.config_path), environment={**os.environ})
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert process.stop() == 0


@pytest.mark.postgres(only=18, also=[13, 15])
def test_check_asks_for_no_more_than_the_published_columns(
    database: Database,
    broker: KafkaBroker,
    role: str,
    unique: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    has_list = database.version >= 15
    database.execute(f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE t {"(id, n)" if has_list else ""}')

    def found() -> list[dict[str, str]]:
        file = tmp_path / "check.yaml"
        config = configuration(
            unique, database.dsn(user=role), broker.bootstrap_servers, snapshot={"mode": "initial"}
        )
        file.write_text(yaml.safe_dump(config))
        with pytest.raises(SystemExit):
            main(["check", "--config", str(file), "--format", "json"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        return [one for one in findings if one["code"] == "table.select" and one["level"] != "ok"]

    if not has_list:
        # All columns are published, so all of them must be readable.
        (one,) = found()
        assert one["fix"] == f'GRANT SELECT ON public.t TO "{role}";'
        return
    assert found() == []
    database.execute(f'REVOKE SELECT (ctid, n) ON t FROM "{role}"')
    (one,) = found()
    assert one["fix"] == f'GRANT SELECT (ctid, "id", "n") ON public.t TO "{role}";'
    database.execute(one["fix"])
    assert found() == []
