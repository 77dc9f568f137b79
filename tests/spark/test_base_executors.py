"""An executor that is killed in the middle of an append or of a fold: Spark repeats its tasks, and nothing is lost."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cdcd.mirror.jars import DELTA, ICEBERG
from deploy.local.cache import REPOSITORY
from tests.spark.stage import Stage

pytestmark = pytest.mark.timeout(1800)

LIMIT_S = 1500.0


def run(what: str, folder: Path, *given: str) -> dict[str, Any]:
    """Run `killed_executors` in a process of its own, because a process has one SparkContext."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.killed_executors", what, str(folder), *given],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_fold_whose_executor_is_killed_ends_equal(tmp_path: Path, table_format: str) -> None:
    assert run("fold", tmp_path, table_format) == {"attempts": [1], "equal": True, "clean": True}


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_an_append_whose_executor_is_killed_has_each_record_once(
    stage: Stage, tmp_path: Path, table_format: str
) -> None:
    tables = [
        f"CREATE TABLE t{number} (id int PRIMARY KEY); INSERT INTO t{number} SELECT generate_series(1, 50)"
        for number in range(4)
    ]
    with stage.source(f"killed_{table_format}", *tables) as source:
        source.deliver()
        found = run("append", tmp_path, table_format, source.servers, source.name)
        places = [
            [record.topic, record.partition, record.offset]
            for number in range(4)
            for record in source.records(f"public.t{number}")
        ]
        assert len(places) == 200
        assert found == {"rows": sorted(places)}
