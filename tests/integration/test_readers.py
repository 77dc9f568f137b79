"""`postgres.readers`: which role reads which table, what is refused by name, and what `cdcd check` says."""

import base64
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdcd.cli.__main__ import main
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, drop_slot
from tests.integration.forked import run_cdcd

pytestmark = pytest.mark.postgres(only=18, also=[13])

StartDaemon = Callable[[Mapping[str, Any]], Daemon]


class Teams:
    """Two owners with a table each; cdcd's own role, and a reader for each owner."""

    def __init__(self, database: Database, unique: str) -> None:
        self.database, self.unique = database, unique
        self.main, self.ann, self.bob = (f"{unique[:44]}_{name}" for name in ("main", "ann", "bob"))
        self.roles = [self.main, self.ann, self.bob, *(f"{each}_r" for each in (self.ann, self.bob))]
        run = database.execute
        for role in self.roles:
            run(f'CREATE ROLE "{role}" LOGIN {"REPLICATION" if role == self.main else ""}')
        run(f'GRANT CREATE ON DATABASE "{database.name}" TO "{self.main}"')
        for schema, owner in (("a", self.ann), ("b", self.bob)):
            run(f'CREATE SCHEMA {schema} AUTHORIZATION "{owner}"')
            run(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, n int)")
            run(f"INSERT INTO {schema}.t SELECT g, g FROM generate_series(1, 5000) g")
            run(f'ALTER TABLE {schema}.t OWNER TO "{owner}"')
            run(f'GRANT USAGE ON SCHEMA {schema} TO "{owner}_r"; GRANT SELECT ON {schema}.t TO "{owner}_r"')
        run(f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE a.t, b.t')

    @property
    def readers(self) -> list[dict[str, Any]]:
        return [
            {"tables": ["a.*"], "user": f"{self.ann}_r"},
            {"tables": ["b.t"], "dsn": self.database.dsn(user=f"{self.bob}_r")},
        ]

    def settings(self, broker: KafkaBroker, **sections: Any) -> dict[str, Any]:
        postgres = {"readers": self.readers, **sections.pop("postgres", {})}
        snapshot = {"mode": "initial", "chunk_bytes": 65536, "added_tables": True}
        return configuration(
            self.unique,
            self.database.dsn(user=self.main),
            broker.bootstrap_servers,
            postgres=postgres,
            snapshot=snapshot,
            **sections,
        )

    def who_reads(self) -> set[str]:
        """The roles that have a session of a snapshot reader now."""
        found = self.database.execute(
            "SELECT DISTINCT usename FROM pg_stat_activity WHERE application_name LIKE '% snapshot'"
        )
        return {role for (role,) in found}

    def drop(self) -> None:
        for role in self.roles:
            self.database.execute(f'DROP OWNED BY "{role}" CASCADE; DROP ROLE "{role}"')


@pytest.fixture
def teams(database: Database, unique: str) -> Iterator[Teams]:
    made = Teams(database, unique)
    yield made
    # The sessions of a killed daemon may use a role for a moment yet.
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid()"
    )
    made.drop()


def test_tables_are_read_by_their_readers_although_the_own_role_may_not(
    teams: Teams, broker: KafkaBroker, daemon: StartDaemon
):
    # GIVEN a role of cdcd's own that has no right on any table
    process = daemon(teams.settings(broker))
    for table in ("a.t", "b.t"):
        assert process.await_event("table.read", table=table)["rows"] == 5000
    process.await_streaming()
    # WHEN rows change and a table is added
    teams.database.execute("CREATE TABLE a.late (id int PRIMARY KEY); INSERT INTO a.late VALUES (1), (2)")
    teams.database.execute(f'GRANT SELECT ON a.late TO "{teams.ann}_r"')
    teams.database.execute(f'ALTER PUBLICATION "cdcd_{teams.unique}" ADD TABLE a.late')
    # THEN the table is read beside the stream by the reader, and the topics equal the tables
    assert process.await_event("table.read", table="a.late")["rows"] == 2
    assert teams.who_reads() <= {f"{teams.ann}_r", f"{teams.bob}_r"}
    verified = run_cdcd("verify", "--config", str(process.config_path), environment={**os.environ})
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert process.stop() == 0


@pytest.mark.postgres(only=[18])
def test_after_a_lost_slot_tables_of_readers_and_encrypted_columns_are_healed_by_their_differences(
    teams: Teams, broker: KafkaBroker, daemon: StartDaemon
):
    # GIVEN a delivered table with an encrypted column, and a table of another reader
    run, slot = teams.database.execute, f"cdcd_{teams.unique}"
    run("ALTER TABLE a.t ADD secret text; UPDATE a.t SET secret = 'secret ' || id")
    key = base64.b64encode(bytes(range(32))).decode()
    process = daemon(teams.settings(broker, columns={"encrypt": ["a.t.secret"], "encryption_key": key}))
    process.await_event("snapshot.finished")
    process.await_streaming()
    assert process.stop() == 0
    # WHEN rows change in a gap, one of them in its encrypted column only
    run("UPDATE a.t SET secret = 'another' WHERE id = 1; DELETE FROM a.t WHERE id = 2")
    run("UPDATE b.t SET n = 0 WHERE id = 3; INSERT INTO b.t VALUES (6000, 1)")
    drop_slot(teams.database.dsn(), slot)
    healed = run_cdcd("heal", "--yes", "--config", str(process.config_path))
    assert healed.returncode == 0, healed.stderr
    # THEN each difference has a record, and the topics equal the tables
    events = [json.loads(line) for line in (healed.stdout + healed.stderr).splitlines() if line[:1] == "{"]
    numbers = {
        event["table"]: (event["deletes"], event["updates"], event["inserts"])
        for event in events
        if event["event"] == "table.healed"
    }
    assert numbers == {"a.t": (1, 1, 0), "b.t": (0, 1, 1)}
    assert "another" not in healed.stdout + healed.stderr
    process.start()
    process.await_streaming()
    verified = run_cdcd("verify", "--config", str(process.config_path), environment={**os.environ})
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert process.stop() == 0


@pytest.mark.parametrize("fault", ["no such role", "may not log in", "another database"])
def test_a_reader_that_cannot_connect_ends_the_start_by_its_name(
    teams: Teams, broker: KafkaBroker, daemon: StartDaemon, fault: str
):
    readers = teams.readers
    if fault == "no such role":
        readers[1] = {"tables": ["b.t"], "user": "nobody_of_this_name"}
    elif fault == "may not log in":
        teams.database.execute(f'ALTER ROLE "{teams.bob}_r" NOLOGIN')
    else:
        readers[1] = {"tables": ["b.t"], "dsn": teams.database.server.dsn("postgres", user=f"{teams.bob}_r")}
    process = daemon(teams.settings(broker, postgres={"readers": readers}))
    assert process.wait() == (2 if fault == "another database" else 3)
    assert "postgres.readers[1]" in process.output()
    # AND nothing was made: neither slot nor topic of a table
    assert teams.database.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ) == [(0,)]


def test_a_reader_without_the_right_refuses_its_table_by_name_and_nobody_else_reads_it(
    teams: Teams, broker: KafkaBroker, daemon: StartDaemon
):
    # GIVEN a reader that lost its right, while cdcd's own role could read the table
    teams.database.execute(f'REVOKE SELECT ON b.t FROM "{teams.bob}_r"')
    teams.database.execute(
        f'GRANT USAGE ON SCHEMA b TO "{teams.main}"; GRANT SELECT ON b.t TO "{teams.main}"'
    )
    process = daemon(teams.settings(broker))
    assert process.wait() == 3
    assert f'GRANT SELECT ON b.t TO "{teams.bob}_r"' in process.output().replace('\\"', '"')
    assert not process.saw("table.read") or process.events[-1].get("table") != "b.t"


def test_a_reader_that_is_dropped_in_the_run_refuses_only_its_tables(
    teams: Teams, broker: KafkaBroker, daemon: StartDaemon
):
    process = daemon(teams.settings(broker))
    process.await_event("snapshot.finished")
    process.await_streaming()
    teams.database.execute(f'ALTER ROLE "{teams.ann}_r" NOLOGIN')
    teams.database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $$" + teams.ann + "_r$$"
    )
    teams.database.execute("CREATE TABLE a.late (id int PRIMARY KEY); INSERT INTO a.late VALUES (1)")
    teams.database.execute(f'ALTER PUBLICATION "cdcd_{teams.unique}" ADD TABLE a.late')
    said = process.await_event("table.failed", table="a.late")
    assert "postgres.readers[0]" in said["error"]
    teams.database.execute("UPDATE b.t SET n = 0 WHERE id = 1")
    process.await_metric("cdcd_events_total", lambda count: count == 1, "u", "b.t")
    assert process.stop() == 0


class Checks:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys

    def __call__(self, config: dict[str, Any]) -> dict[str, list[dict[str, str]]]:
        """The findings about readers that are not ok, by code."""
        file = self._folder / "check.yaml"
        file.write_text(yaml.safe_dump(config))
        with pytest.raises(SystemExit):
            main(["check", "--config", str(file), "--format", "json"])
        found: dict[str, list[dict[str, str]]] = {}
        for one in json.loads(self._capsys.readouterr().out)["findings"]:
            if one["level"] != "ok" and one["code"].startswith(("reader.", "table.")):
                found.setdefault(one["code"], []).append(one)
        return found


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checks:
    return Checks(tmp_path, capsys)


def test_check_names_each_owner_without_a_reader_and_what_it_prints_mends_that(
    teams: Teams, broker: KafkaBroker, check: Checks
):
    found = check(teams.settings(broker, postgres={"readers": []}))
    said = found["reader.missing"]
    assert [one["level"] for one in said] == ["warning", "warning"]
    assert [teams.ann in said[0]["found"], teams.bob in said[1]["found"]] == [True, True]
    # WHEN the SQL and the YAML are taken as they are printed
    readers = []
    made = []
    for one in said:
        sql = re.search(r"Make a reader: (.*;) Then add", one["fix"])
        entry = re.search(r"postgres: (\{readers: \[.*?\}\]\})", one["fix"])
        assert sql
        assert entry
        made += re.findall(r"CREATE ROLE (\S+)", sql[1])
        teams.database.execute(sql[1])
        readers += yaml.safe_load(entry[1])["readers"]
    try:
        assert check(teams.settings(broker, postgres={"readers": readers})) == {}
    finally:
        for role in made:
            teams.database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    trusted = {"readers": [], "trusted_owners": [teams.ann, teams.bob]}
    assert "reader.missing" not in check(teams.settings(broker, postgres=trusted))


def test_check_names_every_right_that_a_reader_has_too_much(teams: Teams, broker: KafkaBroker, check: Checks):
    assert check(teams.settings(broker)) == {}
    run = teams.database.execute
    run(f'ALTER ROLE "{teams.ann}_r" REPLICATION BYPASSRLS; GRANT pg_monitor TO "{teams.ann}_r"')
    run(f'GRANT USAGE ON SCHEMA b TO "{teams.ann}_r"; GRANT SELECT ON b.t TO "{teams.ann}_r"')
    run("CREATE TABLE public.open (id int); GRANT SELECT ON public.open TO PUBLIC")
    run(f'REVOKE SELECT ON b.t FROM "{teams.bob}_r"')
    found = check(teams.settings(broker))
    rights = " ".join(one["found"] for one in found["reader.rights"])
    assert "REPLICATION, BYPASSRLS" in rights
    assert "pg_monitor" in rights
    of_ann, of_bob = found["reader.tables"]
    assert "b.t, public.open" in of_ann["found"]
    assert "b.t of them belong to other readers" in of_ann["found"]
    assert "public.open" in of_bob["found"]
    (select,) = found["table.select"]
    assert (select["level"], f"role {teams.bob}_r may not SELECT from b.t" == select["found"]) == (
        "error",
        True,
    )


def test_check_names_readers_that_are_shared_unmatched_or_refused(
    teams: Teams, broker: KafkaBroker, check: Checks
):
    teams.database.execute(
        f'GRANT USAGE ON SCHEMA b TO "{teams.ann}_r"; GRANT SELECT ON b.t TO "{teams.ann}_r"'
    )
    readers = [
        {"tables": ["*.t"], "user": f"{teams.ann}_r"},
        {"tables": ["b.t"], "user": f"{teams.bob}_r"},
        {"tables": ["c.*"], "user": "nobody_of_this_name"},
    ]
    found = check(teams.settings(broker, postgres={"readers": readers}))
    assert teams.ann in found["reader.shared"][0]["found"]
    assert [one["subject"].split()[0] for one in found["reader.unmatched"]] == ["postgres.readers[1]"]
    assert [one["level"] for one in found["reader.connect"]] == ["error"]


def test_security_strict_starts_only_with_a_reader_for_every_owner(
    teams: Teams, broker: KafkaBroker, daemon: StartDaemon, check: Checks
):
    strict = teams.settings(broker, postgres={"readers": teams.readers[:1]}, security={"strict": True})
    assert [one["level"] for one in check(strict)["reader.missing"]] == ["error"]
    process = daemon(strict)
    assert process.wait() == 2
    assert teams.bob in process.output()
    assert "b.t" in process.output()
