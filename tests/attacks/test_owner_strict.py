"""Owners whose tables come into a strict pipeline while it runs: their code must not run as a role of somebody else.

The pipeline has `security.strict: true` and a reader for each of its owners. The stranger's table is published later.
Its index calls a function, which writes into the server's log by whose rights it runs.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest

from cdcd.core.table_names import table_text
from deploy.local import KafkaBroker
from tests.attacks.owned import Owned
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, drop_slot
from tests.integration.forked import run_cdcd

pytestmark = pytest.mark.postgres(only=[13, 18])

StartDaemon = Callable[[dict[str, Any]], Daemon]


class Strict:
    """The pipeline of two owners, and a stranger who owns schemas in the same database."""

    def __init__(self, owned: Owned) -> None:
        self.owned = owned
        self.stranger = f"{owned.unique[:40]}_str"
        self._log_from = 0

    def create(self) -> None:
        run = self.owned.database.execute
        self.owned.create()
        run(f'ALTER PUBLICATION "cdcd_{self.owned.unique}" ADD TABLE ann.late, bob.late')
        run(f'CREATE ROLE "{self.stranger}" LOGIN')
        self._log_from = len(self.owned.database.server.log())

    def add_table(self, schema: str) -> None:
        """The stranger creates a table that everybody may read, in a schema of this name, and it is published."""
        run = self.owned.database.execute
        run(f'CREATE SCHEMA "{schema}" AUTHORIZATION "{self.stranger}"')
        run(f'CREATE TABLE "{schema}".t (id int PRIMARY KEY, n int NOT NULL, word text)')
        run(f"INSERT INTO \"{schema}\".t SELECT g, g, repeat('x', 400) FROM generate_series(1, 1000) g")
        run(
            f'CREATE FUNCTION "{schema}".evil(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN '
            f"IF current_user NOT IN ('postgres', '{self.stranger}') THEN "
            f"RAISE LOG 'STOLEN {self.owned.unique} as %', current_user; END IF; RETURN 0; END $$"
        )
        run(f'ALTER TABLE "{schema}".t OWNER TO "{self.stranger}"')
        run(f'CREATE INDEX ON "{schema}".t ((n + "{schema}".evil(1)))')
        run(f'GRANT USAGE ON SCHEMA "{schema}" TO PUBLIC; GRANT SELECT ON "{schema}".t TO PUBLIC')
        run(f'ALTER PUBLICATION "cdcd_{self.owned.unique}" ADD TABLE "{schema}".t')

    def stolen(self) -> list[str]:
        """By whose rights the stranger's function ran."""
        log = self.owned.database.server.log()[self._log_from :]
        return sorted(
            {line.rpartition(" as ")[2] for line in log.splitlines() if f"STOLEN {self.owned.unique}" in line}
        )


@pytest.fixture
def strict(database: Database, unique: str) -> Iterator[Strict]:
    found = Strict(Owned(database, unique, {}, with_readers=True))
    found.create()
    try:
        yield found
    finally:
        found.owned.drop()
        database.execute(f'DROP OWNED BY "{found.stranger}" CASCADE; DROP ROLE "{found.stranger}"')


@pytest.mark.attack(
    gains="the rights of cdcd's role, or of the reader of another owner, by a table that is published later",
    before="failed",
)
@pytest.mark.parametrize("schema", ["strange", "ann.x"])
def test_a_table_of_an_owner_without_a_reader_is_refused_by_name_and_its_code_does_not_run(
    strict: Strict, schema: str, broker: KafkaBroker, daemon: StartDaemon
):
    config = strict.owned.settings(broker, security={"strict": True})
    process = daemon(config)
    process.await_event("snapshot.finished")
    process.await_streaming()
    strict.add_table(schema)
    said = process.await_event("table.failed", table=table_text(schema, "t"))
    assert strict.stranger in said["error"]
    assert "postgres.readers" in said["hint"]
    strict.owned.database.execute("UPDATE ann.t SET n = 0 WHERE id = 1")
    process.await_metric("cdcd_events_total", lambda count: count == 1, "u", "ann.t")
    run_cdcd("verify", "--config", str(process.config_path), environment={**os.environ})
    assert process.stop() == 0
    # The stranger does not end the next start either, and it is told.
    process.start()
    told = process.await_event("owners.untrusted")
    assert strict.stranger in told["found"]
    process.await_streaming()
    assert process.stop() == 0
    assert strict.stolen() == []


@pytest.mark.attack(
    gains="the rights of another owner's reader, by the name of a schema that its pattern seems to match",
    before="failed",
)
def test_a_schema_with_a_dot_is_not_read_by_the_reader_of_the_part_before_the_dot(
    strict: Strict, broker: KafkaBroker, daemon: StartDaemon
):
    process = daemon(strict.owned.settings(broker))
    process.await_event("snapshot.finished")
    process.await_streaming()
    strict.add_table("ann.x")
    process.await_event("table.read", table='"ann.x".t')
    assert process.stop() == 0
    # Without security.strict, cdcd's own role reads tables that have no reader, and `cdcd check` warns of it.
    assert set(strict.stolen()) == {strict.owned.main}


@pytest.mark.attack(gains="the end of a pipeline that ran before, after its slot was lost", before="failed")
def test_a_strangers_table_does_not_end_a_start_that_makes_a_lost_slot_again(
    strict: Strict, broker: KafkaBroker, daemon: StartDaemon
):
    process = daemon(
        strict.owned.settings(
            broker,
            security={"strict": True},
            snapshot={"mode": "when_needed"},
            tables={"on_error": "set_aside"},
        )
    )
    process.await_event("snapshot.finished")
    process.await_streaming()
    assert process.stop() == 0
    drop_slot(strict.owned.database.dsn(), f"cdcd_{strict.owned.unique}")
    strict.add_table("strange")
    process.start()
    process.await_streaming()
    told = process.await_event("owners.untrusted")
    assert strict.stranger in told["found"]
    assert process.stop() == 0
    assert strict.stolen() == []


@pytest.mark.attack(
    gains="the end of a pipeline at its next start, by a GRANT that gives the reader a further right",
    before="withstood",
)
@pytest.mark.parametrize(
    "grant",
    [
        'GRANT "{owner}" TO "{reader}"',
        'GRANT ALL ON ALL TABLES IN SCHEMA ann TO "{reader}"',
        'GRANT EXECUTE ON FUNCTION ann.evil(int) TO "{reader}"',
    ],
)
def test_an_owner_who_gives_rights_to_the_reader_of_another_owner_ends_no_start(
    strict: Strict, grant: str, broker: KafkaBroker, daemon: StartDaemon
):
    # GIVEN a strict pipeline that ran before
    owned = strict.owned
    process = daemon(owned.settings(broker, security={"strict": True}))
    process.await_event("snapshot.finished")
    process.await_streaming()
    assert process.stop() == 0
    # WHEN an owner gives the other owner's reader what is theirs. From PostgreSQL 16 on, that is not their own role.
    owner = f"{owned.unique[:40]}_ann_owner"
    is_refused = "{owner}" in grant and owned.database.server.version >= 16
    refused = pytest.raises(psycopg.errors.InsufficientPrivilege) if is_refused else nullcontext()
    with psycopg.connect(owned.database.dsn(user=owner), autocommit=True) as sql, refused:
        sql.execute(grant.format(owner=owner, reader=owned.readers["bob"]))
    # THEN the next start goes on, and the table of the other owner is read
    process.start()
    process.await_streaming()
    owned.database.execute("UPDATE bob.t SET n = 0 WHERE id = 1")
    process.await_metric("cdcd_events_total", lambda count: count == 1, "u", "bob.t")
    assert process.stop() == 0
