"""`cdcd trace`: the records of one row, on real servers."""

import pytest

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import configuration, until
from tests.integration.forked import run_cdcd


@pytest.mark.postgres(only=18, also=[13])
def test_a_row_is_followed_to_its_records(database: Database, broker: KafkaBroker, daemon, unique: str):
    # GIVEN a pipeline that has delivered rows from a snapshot and from the stream
    database.execute("CREATE TABLE items (order_id int, line int, note text, PRIMARY KEY (order_id, line))")
    database.execute("INSERT INTO items SELECT 1, g, 'a' FROM generate_series(1, 50) g")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            filters={"tables": {"public.items": {"keep": "row.line < 100"}}},
            topics={"create": {"partitions": 3}},
            snapshot={"mode": "initial"},
        )
    )
    process.await_event("table.read", table="public.items")
    database.execute("UPDATE items SET note = 'b' WHERE line = 7")
    database.execute("DELETE FROM items WHERE line = 7")
    process.await_metric("cdcd_events_total", lambda count: count == 1, "d", "public.items")

    def trace(*words: str) -> tuple[int, list[str]]:
        done = run_cdcd("trace", "--config", str(process.config_path), *words)
        return done.returncode, done.stdout.splitlines() + done.stderr.splitlines()

    # WHEN the row is traced
    def complete() -> tuple[int, list[str]] | None:
        found = trace("public.items", "1", "7")
        return found if len([line for line in found[1] if "offset" in line]) == 4 else None

    code, shown = until(complete, "the records do not come")
    # THEN the command prints the row's four records, all in one partition
    assert code == 0
    records = [line.split() for line in shown if "offset" in line]
    assert [words[0] for words in records] == ["READ", "UPDATE", "DELETE", "TOMBSTONE"]
    assert len({words[words.index("->") + 2] for words in records}) == 1
    assert any("by filters.tables, public.items" in line for line in shown)
    assert any("LSN " in line and "after the commit" in line for line in shown)
    # AND one column of the key, given by name, finds all rows with that value
    code, shown = trace("public.items", "order_id=1", "--last", "2")
    assert (code, [line for line in shown if line.startswith("records")]) == (
        0,
        ["records      53, the last 2:"],
    )
    # AND for a row that the filter leaves out, the command prints the reason
    database.execute("INSERT INTO items VALUES (1, 100, 'c')")
    code, shown = trace("public.items", "1", "100")
    assert code == 10
    assert "             The filter may leave the row out." in shown
