"""The owner of the database sets defaults for its sessions, which must not stop, hold up or mislead the pipeline.

The owner may run `ALTER DATABASE … SET` without any right of cdcd's role. Each session of cdcd passes the settings that
matter when it connects, and these take precedence over the settings of the database.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import psycopg
import pytest

from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import WAIT_S, Daemon, configuration
from tests.integration.forked import run_cdcd

pytestmark = pytest.mark.postgres(only=[13, 18])

StartDaemon = Callable[[Mapping[str, Any]], Daemon]

TIMEOUTS: Final = {
    "statement_timeout": "20ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "20ms",
}
NEWER_TIMEOUTS: Final = {"idle_session_timeout": "20ms", "transaction_timeout": "20ms"}
WAITING: Final = {
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
}
WRITTEN: Final = {
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "datestyle": "German",
    "intervalstyle": "sql_standard",
    "timezone": "Asia/Tokyo",
    "xmlbinary": "hex",
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "quote_all_identifiers": "on",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "client_min_messages": "debug5",
    "row_security": "off",
}
SHADOWING: Final = {"search_path": "mal, pg_catalog, public"}

SHADOWS: Final = """
CREATE SCHEMA mal;
CREATE TABLE mal.ran (what text);
GRANT USAGE ON SCHEMA mal TO public; GRANT INSERT ON mal.ran TO public;
CREATE FUNCTION mal.format(text, VARIADIC text[]) RETURNS text LANGUAGE sql AS
    'INSERT INTO mal.ran VALUES (''format''); SELECT ''format''::text';
CREATE FUNCTION mal.same(oid, oid) RETURNS bool LANGUAGE sql AS
    'INSERT INTO mal.ran VALUES (''=''); SELECT true';
CREATE OPERATOR mal.= (leftarg = oid, rightarg = oid, function = mal.same);
CREATE TABLE mal.pg_class (oid oid, relname name, relkind "char");
CREATE TABLE mal.pg_publication (oid oid, pubname name);
GRANT SELECT ON mal.pg_class, mal.pg_publication TO public
"""


@pytest.fixture
def owner(database: Database, unique: str) -> Iterator[str]:
    """A role that owns the database and has no other right."""
    role = f"{unique[:50]}_owner"
    database.execute(f"CREATE ROLE {role} LOGIN")
    database.execute(f'ALTER DATABASE "{database.name}" OWNER TO {role}')
    yield role
    database.server.execute(f'ALTER DATABASE "{database.name}" RESET ALL')
    database.execute(f'ALTER DATABASE "{database.name}" OWNER TO postgres')
    database.execute(f"DROP OWNED BY {role} CASCADE")
    database.execute(f"DROP ROLE {role}")


@pytest.mark.attack(
    gains="an end, a wait, other values, or a function of the owner's that runs", before="withstood"
)
@pytest.mark.parametrize(
    "settings", [TIMEOUTS, WAITING, WRITTEN, SHADOWING], ids=["timeouts", "waiting", "written", "shadowing"]
)
def test_defaults_of_the_database_change_nothing(
    database: Database,
    broker: KafkaBroker,
    daemon: StartDaemon,
    owner: str,
    settings: dict[str, str],
):
    name = database.name
    # GIVEN values whose text depends on settings, and a role for cdcd that has no more rights than it needs
    database.execute("CREATE TABLE t (id int PRIMARY KEY, b bytea, f float8, d date, i interval, a text[])")
    row = "'\\x00ff', 0.1, '2026-02-03', '1 day -2 hours', '{a,NULL,\\\\}'"
    database.execute(f"INSERT INTO t VALUES (1, {row})")
    database.execute(f'CREATE PUBLICATION "cdcd_{name}" FOR TABLE t')
    with psycopg.connect(database.dsn(user=owner), autocommit=True) as session:
        for statement in filter(str.strip, SHADOWS.split(";\n") if settings is SHADOWING else []):
            session.execute(statement.encode())
        more = NEWER_TIMEOUTS if settings is TIMEOUTS and database.version >= 17 else {}
        # WHEN the owner sets the defaults
        for key, value in {**settings, **more}.items():
            quoted = value if key == "search_path" else f"'{value}'"
            session.execute(f'ALTER DATABASE "{database.name}" SET {key} = {quoted}'.encode())
    process = daemon(
        configuration(name, database.dsn(), broker.bootstrap_servers, snapshot={"mode": "initial"})
    )
    process.await_event("snapshot.finished", rows=1)
    process.await_streaming()
    others = {
        "default_transaction_read_only": "off",
        "standard_conforming_strings": "on",
        "array_nulls": "on",
    }
    others |= dict.fromkeys({**TIMEOUTS, **more}, "0")
    options = " ".join(f"-c {key}={value}" for key, value in others.items())
    with psycopg.connect(database.dsn(options=options)) as writer:
        writer.execute(f"INSERT INTO public.t VALUES (2, {row})".encode())
    # THEN snapshot and stream have the same values as without these defaults
    process.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.t")
    (read,), (written,) = (rows_of(broker, f"{name}.public.t", op) for op in ("r", "c"))
    assert {**read, "id": 2} == written
    assert written["f"] == 0.1
    assert written["b"] == "AP8="
    # AND `cdcd check` and `cdcd verify` succeed
    for command in (["check"], ["verify"]):
        done = run_cdcd(*command, "--config", str(process.config_path))
        assert done.returncode == 0, done.stdout + done.stderr
    assert not [one for one in process.events if one["level"] in {"error", "critical"}]
    assert not process.saw("reconnect.scheduled")
    assert process.stop() == 0
    if settings is SHADOWING:
        assert database.execute("SELECT what FROM mal.ran") == []


def rows_of(broker: KafkaBroker, topic: str, op: str) -> list[dict[str, Any]]:
    """The rows of the topic's records with this `op`."""
    with Reader(broker.bootstrap_servers, topic.partition(".")[0]) as reader:
        values = [
            json.loads(raw.value) for raw in reader.read_all(WAIT_S) if raw.topic == topic and raw.value
        ]
    return [value["after"] for value in values if value["op"] == op]
