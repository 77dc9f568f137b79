"""The owner of a table makes its description larger than a record may be. All tables share the topic of them."""

import json
from collections.abc import Callable
from typing import Final

import pytest

from deploy.demo.fold import await_flushed
from deploy.local import KafkaBroker
from tests.attacks.measured import records
from tests.integration.conftest import Database
from tests.integration.daemon import WAIT_S, Daemon, configuration
from tests.integration.forked import start_cdcd

LABELS: Final = """
SELECT string_agg(quote_literal(left(md5(n::text) || md5(n || 'x'), 63)), ',') FROM generate_series(1, 16000) n
"""
"""SQL: labels that cannot be compressed, with more than 1 MB together."""

OWN: Final = (
    f"DO $$BEGIN EXECUTE 'CREATE TYPE k AS ENUM (' || ({LABELS}) || ')'; END$$",
    "CREATE TABLE own (id int PRIMARY KEY, kind k)",
    "INSERT INTO own VALUES (1)",
)


@pytest.mark.attack(gains="the end of the pipeline at every start, and of `cdcd tail`", before="failed")
@pytest.mark.postgres(only=[18])
@pytest.mark.parametrize("first", ["stream", "snapshot"])
def test_an_enum_with_more_labels_than_a_record_may_have_sets_its_table_aside_by_name(
    first: str, database: Database, broker: KafkaBroker, daemon: Callable[..., Daemon], unique: str
):
    def become() -> None:
        for statement in OWN:
            database.execute(statement)

    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    if first == "snapshot":
        become()
    running = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            snapshot={"mode": "initial"},
            tables={"on_error": "set_aside"},
        )
    )
    running.await_streaming()
    if first == "stream":
        become()
    # THEN the table is set aside, and the others go on, also after a restart and in `cdcd tail`
    aside = running.await_event("table.aside", timeout_s=60)
    assert aside["table"] == "public.own"
    assert "Column kind takes most of them, with 16000 labels" in aside["reason"]
    running.kill()
    running.start()
    running.await_streaming()
    with start_cdcd("tail", "--config", str(running.config_path), "--from", "slot", "--limit", "1") as tail:
        assert tail.stderr is not None
        assert "committed from now on" in tail.stderr.readline()
        database.execute("INSERT INTO own VALUES (2)")
        database.execute("INSERT INTO t VALUES (1, 'a')")
        shown, said = tail.communicate(timeout=WAIT_S)
    assert tail.returncode == 0, said
    assert "public.t" in shown
    assert "public.own is left out" in said
    await_flushed(database.dsn(), f"cdcd_{unique}")
    assert running.stop() == 0
    # A snapshot that the kill interrupted may read the row too.
    found = [json.loads(each.value() or b"") for each in records(broker, f"{unique}.public.t")]
    assert [each["after"]["note"] for each in found if each["op"] == "c"] == ["a"]
    assert {each["op"] for each in found} <= {"c", "r"}
