"""A database of two owners who do not trust each other, and a pipeline that reads both with a reader each.

Each owner has an index whose expression calls a function of theirs. PostgreSQL calls the function while it plans a
query on the table, with the rights of the role that reads. What the function reaches stands in the server's log.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration
from tests.integration.forked import run_cdcd

OWNERS: Final = ("ann", "bob")

_EVIL: Final = """
CREATE FUNCTION {owner}.evil(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $evil$
DECLARE
    names text[] := {names};
    wanted text[] := {wanted};
    got text;
BEGIN
    IF current_user LIKE '%\\_owner' OR current_user = 'postgres' THEN RETURN 0; END IF;
    RAISE LOG 'LOOT {unique} {owner} % ran: as %',
        split_part(current_setting('application_name'), ' ', 2), current_user;
    FOR place IN 1 .. cardinality(names) LOOP
        BEGIN
            EXECUTE wanted[place] INTO got;
            RAISE LOG 'LOOT {unique} {owner} % %: got %',
                split_part(current_setting('application_name'), ' ', 2), names[place], coalesce(got, 'NULL');
        EXCEPTION WHEN OTHERS THEN
            RAISE LOG 'LOOT {unique} {owner} % %: refused %',
                split_part(current_setting('application_name'), ' ', 2), names[place], SQLSTATE;
        END;
    END LOOP;
    RETURN 0;
END $evil$
"""

_LOOT: Final = re.compile(r"LOOT (\w+) (\w+) (\S*) (\w+): (.*)")


class Owned:
    """The database, its roles, and the pipeline. Roles are named `<unique>_<owner>_owner` and `<unique>_<owner>`.

    Args:
        unique: at most 48 characters.
        attempts: SQL that the owners' functions try, by name. `{victim}` is the other owner's schema.
        with_readers: the pipeline has `postgres.readers`; without, its own role reads all tables.
    """

    def __init__(
        self, database: Database, unique: str, attempts: Mapping[str, str], *, with_readers: bool
    ) -> None:
        self.database = database
        self.unique = unique
        self.main = f"{unique[:40]}_main"
        self.readers = {owner: f"{unique[:40]}_{owner}" for owner in OWNERS}
        self._attempts = attempts
        self._with_readers = with_readers
        self._log_from = len(database.server.log())

    def create(self) -> None:
        """Make roles, tables and indexes."""
        run = self.database.execute
        run(f'CREATE ROLE "{self.main}" LOGIN REPLICATION')
        run(f'GRANT CREATE ON DATABASE "{self.database.name}" TO "{self.main}"')
        run("CREATE SCHEMA vault; CREATE TABLE vault.secret (id int PRIMARY KEY, word text)")
        run("INSERT INTO vault.secret VALUES (1, 'the word of the vault')")
        run(f'GRANT USAGE ON SCHEMA vault TO "{self.main}"; GRANT SELECT ON vault.secret TO "{self.main}"')
        for owner in OWNERS:
            role, reader = f"{self.unique[:40]}_{owner}_owner", self.readers[owner]
            run(f'CREATE ROLE "{role}" LOGIN; CREATE ROLE "{reader}" LOGIN')
            run(f'CREATE SCHEMA {owner} AUTHORIZATION "{role}"')
            for table in ("t", "late"):
                run(f"CREATE TABLE {owner}.{table} (id int PRIMARY KEY, n int NOT NULL, word text)")
                run(
                    f"INSERT INTO {owner}.{table} SELECT g, g, '{owner} says ' || repeat('x', 400) "
                    "FROM generate_series(1, 1000) g"
                )
                run(f'ALTER TABLE {owner}.{table} OWNER TO "{role}"')
            for reads in (reader, self.main):
                run(
                    f'GRANT USAGE ON SCHEMA {owner} TO "{reads}"; GRANT SELECT ON {owner}.t, {owner}.late TO "{reads}"'
                )
        for owner, victim in zip(OWNERS, reversed(OWNERS), strict=True):
            texts = {
                name: attempt.format(
                    victim=victim, main=self.main, slot=f"cdcd_{self.unique}", unique=self.unique
                )
                for name, attempt in self._attempts.items()
            }
            run(
                _EVIL.format(
                    owner=owner,
                    unique=self.unique,
                    names=_array(list(texts)),
                    wanted=_array(list(texts.values())),
                )
            )
            for table in ("t", "late"):
                run(f"CREATE INDEX ON {owner}.{table} ((n + {owner}.evil(1)))")
        # The reader need not have the right to write watermarks.
        run(
            "DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid::regprocedure FROM pg_proc "
            "WHERE proname = 'pg_logical_emit_message' LOOP "
            "EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f); "
            f"EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO \"{self.main}\"', f); "
            "END LOOP; END $$"
        )
        run(f'CREATE PUBLICATION "cdcd_{self.unique}" FOR TABLE ann.t, bob.t')

    def drop(self) -> None:
        """Drop the roles with all that they own."""
        for role in (
            self.main,
            *self.readers.values(),
            *(f"{self.unique[:40]}_{owner}_owner" for owner in OWNERS),
        ):
            self.database.execute(f'DROP OWNED BY "{role}" CASCADE; DROP ROLE "{role}"')

    def settings(self, broker: KafkaBroker, **sections: Any) -> dict[str, Any]:
        """The configuration of the pipeline."""
        readers = [{"tables": [f"{owner}.*"], "user": role} for owner, role in self.readers.items()]
        postgres = {**({"readers": readers} if self._with_readers else {}), **sections.pop("postgres", {})}
        snapshot = {
            "mode": "initial",
            "chunk_bytes": 65536,
            "added_tables": True,
            **sections.pop("snapshot", {}),
        }
        dsn = self.database.dsn(user=self.main)
        return configuration(
            self.unique, dsn, broker.bootstrap_servers, postgres=postgres, snapshot=snapshot, **sections
        )

    def loot(self) -> dict[tuple[str, str, str], set[str]]:
        """What the functions reached: results by (owner, kind of session, attempt)."""
        found: dict[tuple[str, str, str], set[str]] = {}
        for unique, owner, session, attempt, result in _LOOT.findall(
            self.database.server.log()[self._log_from :]
        ):
            if unique == self.unique:
                found.setdefault((owner, session, attempt), set()).add(result)
        return found


def _array(texts: list[str]) -> str:
    quoted = ", ".join("'" + text.replace("'", "''") + "'" for text in texts)
    return f"ARRAY[{quoted}]::text[]"


def attack(owned: Owned, broker: KafkaBroker, daemon: Callable[[Mapping[str, Any]], Daemon]) -> Daemon:
    """Read the tables in every way: at the slot's snapshot, beside the stream, and by `cdcd verify`."""
    process = daemon(owned.settings(broker))
    for owner in OWNERS:
        process.await_event("table.read", table=f"{owner}.t")
    process.await_streaming()
    for owner in OWNERS:
        owned.database.execute(f'ALTER PUBLICATION "cdcd_{owned.unique}" ADD TABLE {owner}.late')
        process.await_event("table.read", table=f"{owner}.late")
    verified = run_cdcd("verify", "--config", str(process.config_path), environment={**os.environ})
    assert verified.returncode == 0, verified.stdout + verified.stderr
    return process


def config_file(folder: Path) -> Path:
    """Where a daemon of this folder keeps its configuration."""
    return folder / "cdcd.yaml"
