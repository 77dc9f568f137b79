"""The owner of a table with computed fields changes it, so that an expression would open a protected column or fail."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from deploy.local import KafkaBroker
from tests.attacks.measured import records
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until

StartDaemon = Callable[[dict[str, Any]], Daemon]

GAINS: Final = "the values of a protected column by an expression over another one, or the end of the daemon"
MARKER: Final = "s3cr3t"

ATTACKS: Final = {
    "a protected column takes the name of the one that the expression uses": (
        ["ALTER TABLE t RENAME note TO gone", "ALTER TABLE t RENAME ssn TO note"],
        f"INSERT INTO t VALUES (2, '{MARKER}', 'x')",
        "protects column note",
    ),
    "the column has a type without a value in expressions": (
        ["ALTER TABLE t ALTER note TYPE bytea USING note::bytea"],
        f"INSERT INTO t VALUES (2, '{MARKER}', 'x')",
        "the type of column note has no value in an expression",
    ),
    "the column is dropped": (
        ["ALTER TABLE t DROP COLUMN note"],
        f"INSERT INTO t VALUES (2, '{MARKER}')",
        "there is no published column note",
    ),
}


@pytest.mark.attack(gains=GAINS, before="withstood")
@pytest.mark.postgres(only=18)
@pytest.mark.parametrize("attack", ATTACKS)
def test_the_table_is_set_aside_and_the_secret_stays_where_it_is(
    attack: str, database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    # GIVEN a field that an expression makes of a column beside a protected one
    statements, row, reason = ATTACKS[attack]
    database.execute("CREATE TABLE t (id int PRIMARY KEY, ssn text, note text)")
    database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    database.execute(f"INSERT INTO t VALUES (1, '{MARKER}', 'shown')")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            columns={"exclude": ["public.t.ssn"]},
            fields={"tables": {"public.t": {"computed": {"twice": "row.note + row.note"}}}},
            tables={"on_error": "set_aside"},
            snapshot={"mode": "initial"},
        )
    )
    process.await_streaming()
    database.execute("INSERT INTO t VALUES (10, 'x', 'now')")
    until(lambda: len(records(broker, f"{unique}.public.t")) >= 2 or None, "rows with the computed field")

    # WHEN the owner changes the table, and writes to it
    for each in (*statements, row, "INSERT INTO u VALUES (1)"):
        database.execute(each)

    # THEN the table is set aside by name, another one goes on, and nobody reads the secret
    assert reason in process.await_event("table.aside", table="public.t")["reason"]
    until(lambda: records(broker, f"{unique}.public.u") or None, "a row of the other table")
    found = records(broker, f"{unique}.public.t")
    values = b"".join([each.value() or b"" for each in found])
    assert b'"twice":"shownshown"' in values
    assert b'"twice":"nownow"' in values
    assert MARKER.encode() not in values
    assert MARKER not in process.output()
