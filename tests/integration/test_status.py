"""`cdcd status` of pipelines as they are: streaming, stopped, lost, never started, and with a side that is away."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdcd.core.protocol.lsn import Lsn
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import await_released, configuration, drop_slot, until
from tests.integration.forked import run_cdcd


def status(file: Path, *options: str) -> tuple[int, dict[str, Any]]:
    run = run_cdcd("status", "--config", str(file), "--format", "json", *options)
    assert run.stderr == ""
    shown = json.loads(run.stdout)
    assert shown["exit_code"] == run.returncode
    return run.returncode, shown


def codes(shown: dict[str, Any]) -> list[str]:
    return [problem["code"] for problem in shown["problems"]]


@pytest.mark.postgres(only=18, also=[13])
def test_a_pipeline_from_before_its_start_to_the_loss_of_its_slot(
    database: Database, broker: KafkaBroker, daemon, unique: str, tmp_path: Path
):
    # GIVEN a pipeline that was never started
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    config = configuration(unique, database.dsn(), broker.bootstrap_servers, snapshot={"mode": "initial"})
    file = tmp_path / "cdcd.yaml"
    file.write_text(yaml.safe_dump(config))
    code, shown = status(file)
    assert (code, codes(shown), shown["summary"]) == (10, ["instance.none"], "not started yet")
    # WHEN it streams
    database.execute("INSERT INTO orders SELECT generate_series(1, 50)")
    process = daemon(config)
    process.await_streaming()
    process.await_event("table.read", table="public.orders")
    database.execute("INSERT INTO orders VALUES (51)")
    process.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.orders")
    url = f"http://{process.await_event('daemon.started')['http']}"

    def is_well(found: tuple[int, dict[str, Any]]) -> bool:
        return found[0] == 0 and [each["changes"] for each in found[1]["tables"]] == [1]

    # THEN nothing is wrong, and the numbers are those of the daemon
    code, shown = until(
        # The list of tables is sampled, so it follows the events.
        lambda: found if is_well(found := status(process.config_path, "--url", url)) else None,
        "not well",
    )
    assert codes(shown) == []
    assert shown["active"]["pid"]
    assert shown["slot"]["active"]
    assert shown["daemon"]["role"] == "active"
    (table,) = shown["tables"]
    assert (table["table"], table["state"]) == ("public.orders", "published")
    assert (table["rows_read"], table["changes"]) == (50, 1)
    assert shown["snapshot"]["rows"] == 50
    # AND WHEN it is stopped
    process.stop()
    # The daemon waits for a second that the server has read its last position.
    await_released(database.dsn(), f"cdcd_{unique}")
    code, shown = status(process.config_path)
    assert (code, codes(shown), shown["daemon"], shown["active"]) == (10, ["instance.none"], None, None)
    # Behind it may lie WAL of the server itself, which was confirmed.
    assert Lsn.parse(shown["checkpoint"]["end_lsn"]) <= Lsn.parse(shown["slot"]["confirmed_flush_lsn"])
    assert "PostgreSQL keeps" in shown["problems"][0]["message"]
    # AND WHEN somebody drops the slot
    drop_slot(database.dsn(), f"cdcd_{unique}")
    code, shown = status(process.config_path)
    assert (code, codes(shown)[0]) == (6, "position")
    # AND WHEN a slot is there again, and WAL of nobody lies between
    database.execute(f"SELECT pg_create_logical_replication_slot('cdcd_{unique}', 'pgoutput')")
    code, shown = status(process.config_path)
    assert (code, codes(shown)[0]) == (6, "position")


@pytest.mark.postgres(only=18)
def test_a_side_that_is_away_gives_its_own_code_and_the_other_is_shown(
    database: Database, broker: KafkaBroker, unique: str, tmp_path: Path
):
    file = tmp_path / "cdcd.yaml"
    file.write_text(yaml.safe_dump(configuration(unique, database.dsn(), "127.0.0.1:1")))
    code, shown = status(file)
    assert (code, "kafka.away" in codes(shown)) == (4, True)
    assert shown["slot"] is None
    assert shown["standbys"] == []
    file.write_text(
        yaml.safe_dump(
            configuration(unique, "host=127.0.0.1 port=1 dbname=x user=x", broker.bootstrap_servers)
        )
    )
    code, shown = status(file)
    assert (code, codes(shown)) == (3, ["postgres.away"])


@pytest.mark.postgres(only=18)
def test_prepared_transactions_and_a_second_instance_are_seen(
    database: Database, broker: KafkaBroker, daemon, unique: str
):
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    config = configuration(
        unique, database.dsn(), broker.bootstrap_servers, postgres={"prepared_warning_age_s": 1}
    )
    first = daemon(config)
    first.await_streaming()
    second = daemon(config)
    second.await_event("standby.waiting")
    with database.connect(autocommit=False) as open_one:
        open_one.execute("INSERT INTO orders VALUES (1)")
        open_one.execute(f"PREPARE TRANSACTION 'of {unique}'")
        open_one.commit()
    code, shown = until(
        lambda: found if "prepared.old" in codes((found := status(first.config_path))[1]) else None,
        "the transaction was never old",
    )
    assert code == 0
    assert [each["gid"] for each in shown["prepared"]] == [f"of {unique}"]
    assert len(shown["standbys"]) == 1
    assert shown["standbys"][0]["pid"] != shown["active"]["pid"]
