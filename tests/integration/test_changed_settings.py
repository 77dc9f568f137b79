"""A setting that decides how rows become records is changed between two starts: `cdcd check` and the start tell."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from deploy.demo.fold import await_flushed
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration
from tests.integration.forked import run_cdcd

StartDaemon = Callable[[dict[str, Any]], Daemon]

pytestmark = pytest.mark.postgres(only=18)


def test_changed_settings_are_told_by_the_check_and_once_by_a_start(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    # GIVEN a pipeline with a filter, which has delivered
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text NOT NULL)")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    filters = {"tables": {"public.t": {"keep": "row.id > 1"}}}
    config = configuration(unique, database.dsn(), broker.bootstrap_servers, filters=filters)
    process = daemon(config)
    process.await_streaming()
    database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    assert process.stop() == 0
    assert not process.saw("settings.changed")

    # WHEN its filter and the key are others
    config = {
        **process.config,
        "filters": {"tables": {"public.t": {"keep": "row.id > 2"}}},
        "key": {"columns": {"public.t": ["id", "note"]}},
    }
    process.config_path.write_text(yaml.safe_dump(config))

    # THEN the check tells what that means for readers, and what to do
    checked = run_cdcd(
        "check", "--config", str(process.config_path), "--format", "json", environment={**os.environ}
    )
    found = [each for each in json.loads(checked.stdout)["findings"] if each["code"] == "records.setting"]
    assert checked.returncode == 0
    assert [(each["level"], each["subject"]) for each in found] == [
        ("warning", "filters.tables"),
        ("warning", "key.columns"),
    ]
    assert "Rows that only the former filters kept stay in the topics" in found[0]["found"]
    assert "topics.prefix" in found[1]["fix"]

    # AND a start tells the same once
    process.config = config
    process.start()
    process.await_streaming()
    told = [each["setting"] for each in process.events if each["event"] == "settings.changed"]
    assert told == ["filters.tables", "key.columns"]
    process.kill()
    process.start()
    process.await_streaming()
    assert not process.saw("settings.changed")
