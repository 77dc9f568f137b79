"""Somebody writes a row on which a row filter of the publication fails."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, drop_slot, until
from tests.integration.test_recording import topic_records

pytestmark = pytest.mark.postgres(only=18)


@pytest.mark.attack(
    gains="a stream that ends at each start, by a row, without a word of what helps", before="failed"
)
def test_a_row_on_which_a_row_filter_fails_is_told_and_a_new_slot_heals_the_topics(
    database: Database, broker: KafkaBroker, daemon: Callable[[dict[str, Any]], Daemon], unique: str
):
    # GIVEN a publication with a filter that divides by a column
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE other (id int PRIMARY KEY)")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute(f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE other, t WHERE (100 / n > 1)')
    snapshot = {"mode": "when_needed"}
    process = daemon(configuration(unique, database.dsn(), broker.bootstrap_servers, snapshot=snapshot))
    process.await_streaming()
    database.execute("INSERT INTO t VALUES (1, 7)")

    # WHEN somebody writes a row that makes the filter fail, THEN the end names the change and what helps
    database.execute("INSERT INTO t VALUES (2, 0); INSERT INTO other VALUES (1)")
    said = process.await_event("fatal")
    assert "for the change at LSN " in said["message"]
    assert "row filter of publication" in said["hint"]
    assert process.wait() == 3

    # AND so does the next start, although the filter was corrected
    database.execute(f'ALTER PUBLICATION "cdcd_{unique}" SET TABLE other, t WHERE (n IS DISTINCT FROM 8)')
    process.start()
    assert "row filter of publication" in process.await_event("fatal")["hint"]
    assert process.wait() == 3

    # WHEN the slot is dropped as the hint says, THEN the topics are equal to the tables again
    drop_slot(database.dsn(), f"cdcd_{unique}")
    process.start()
    process.await_event("gap.healed")

    def ids(table: str) -> list[int]:
        lines = topic_records(broker.bootstrap_servers, unique).get(f"{unique}.public.{table}", [])
        return [json.loads(line)["key"]["id"] for line in lines]

    until(lambda: (sorted(ids("t")), ids("other")) == ([1, 2], [1]) or None, "the rows never came")
    assert process.stop() == 0
