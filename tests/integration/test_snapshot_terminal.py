"""What a person sees who runs the daemon on a terminal while tables are read."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import configuration
from tests.integration.terminal import Terminal


@pytest.mark.parametrize("form", ["json", "auto"])
@pytest.mark.postgres(only=18)
def test_on_a_terminal_there_is_a_bar_below_the_log_until_all_is_read(
    database: Database, broker: KafkaBroker, unique: str, tmp_path: Path, form: str
):
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, 60000) g")
    config = configuration(
        unique,
        database.dsn(),
        broker.bootstrap_servers,
        snapshot={"mode": "only", "chunk_bytes": 65_536},
        kafka={"transaction": {"bytes_max": 131_072}, "queue_bytes_max": 262_144},
        spool={"directory": str(tmp_path / "spool")},
        log={"format": form},
    )
    file = tmp_path / "cdcd.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "cdcd.cli", "run", "--config", str(file)]
    with Terminal(command, columns=160, only_errors=True) as terminal:
        assert terminal.read_to_end() == 0
        text = terminal.plain()
    # THEN there was a bar with rows, bytes, rate and time left
    bars = re.findall(r"public\.t +\S+ +(\d+)% +([\d,]+) +(\S+ \S+ of \S+ \S+) +([\d,]+) +([\d,]+) s", text)
    assert bars, text[-3000:]
    assert all(int(share) <= 100 for share, *_ in bars)
    # AND every line of the log is whole, and without a format it is for people
    wanted = {"snapshot.started", "table.read", "snapshot.finished"}
    if form == "auto":
        assert not [line for line in text.splitlines() if line.startswith("{")]
        assert all(re.search(rf"\[info +\] {event} ", text) for event in wanted)
        # AND the terminal shows the address of the page
        assert re.search(r"The page of this pipeline: http://127\.0\.0\.1:\d+/", text)
        return
    lines = [line for line in text.replace("\r", "\n").splitlines() if line.startswith("{")]
    events = [json.loads(line)["event"] for line in lines]
    assert wanted <= set(events)
