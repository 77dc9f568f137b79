"""A process with two executors (`local-cluster`), of which one is killed in the middle of a job.

    python -m tests.spark.killed_executors append FOLDER FORMAT SERVERS PIPELINE
    python -m tests.spark.killed_executors fold FOLDER FORMAT

`append` appends a pipeline's topics to a log. One executor is frozen before, and is killed when its task waits.
`fold` folds a model of a source. The executor that reads the rows of the statement is killed.

Each prints one object as JSON.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from cdcd.mirror.base.fold import fold
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.log.job import LogJob
from cdcd.mirror.log.table import LogPlace
from cdcd.mirror.settings import MirrorSettings
from tests.integration.daemon import until
from tests.spark.base_model import WAITS_S, Lake, Slow, expected
from tests.spark.sessions import for_tests
from tests.spark.source_model import Source

CLUSTER: Final = {"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "1g"}
EXECUTOR: Final = "CoarseGrainedExecutorBackend"


def executors() -> list[int]:
    """The ids of the executors' processes, which are below this process."""
    found, todo = [], [os.getpid()]
    while todo:
        pid = todo.pop()
        children = Path(f"/proc/{pid}/task").glob("*/children")
        todo += [int(child) for each in children for child in each.read_text().split()]
        if EXECUTOR in Path(f"/proc/{pid}/cmdline").read_text():
            found.append(pid)
    return found


def executor_of(pid: int) -> int:
    """The executor above a process of Python that works for it."""
    while EXECUTOR not in Path(f"/proc/{pid}/cmdline").read_text():
        # proc(5): after the name in brackets, the state and the parent.
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert pid > 1, "no executor is above the process"
    return pid


def append(spark: SparkSession, folder: Path, table_format: str, servers: str, name: str) -> dict[str, Any]:
    settings = MirrorSettings(name, KafkaSource(servers), name, f"{name}.schemas", f"{name}.checkpoint", "")
    log = f"delta.`{folder}/log`" if table_format == "delta" else f"lake.{name}.log"
    place = LogPlace(log, table_format, str(folder / "checkpoint"))
    job = LogJob(spark, settings, place, {"bootstrap.servers": servers}, lambda _: None)
    # Both executors have a core, and each batch of the query has two tasks. So one of them waits for the frozen one.
    frozen = until(lambda: found[0] if len(found := executors()) == 2 else None, "two executors", WAITS_S)
    status = spark.sparkContext.statusTracker()

    def waiting() -> bool | None:
        stages = [status.getStageInfo(stage) for stage in status.getActiveStageIds()]
        return (
            any(stage and stage.numActiveTasks == 1 and stage.numCompletedTasks for stage in stages) or None
        )

    thread = threading.Thread(target=lambda: job.run(once=True, stop=threading.Event()))
    os.kill(frozen, signal.SIGSTOP)
    thread.start()
    try:
        until(waiting, "a task of the frozen executor", WAITS_S)
    finally:
        os.kill(frozen, signal.SIGKILL)
    thread.join(WAITS_S)
    assert not thread.is_alive()
    rows = spark.table(log).filter("kind = 'change'").select("topic", "part", "off").collect()
    return {"rows": sorted([row["topic"], row["part"], row["off"]] for row in rows)}


def folded(spark: SparkSession, folder: Path, table_format: str) -> dict[str, Any]:
    source, lake = Source(6, wanders=True), Lake(spark, str(folder), "killed", table_format)
    for _ in range(2):
        source.run(10)
        lake.write(source)
    lake.fold(min(source.after))
    slow: Any = Slow(spark, lake.format, "running", folder)
    found = []

    def run() -> None:
        found.append(fold(spark, slow, lake.place(), lake.described, source.lsn))

    thread = threading.Thread(target=run)
    thread.start()
    until(
        lambda: True if slow.there.exists() and slow.there.read_text() else None,
        "rows that are read",
        WAITS_S,
    )
    os.kill(executor_of(int(slow.there.read_text())), signal.SIGKILL)
    slow.go.touch()
    thread.join(WAITS_S)
    position = lake.format.version(spark, lake.table).position
    return {
        "attempts": [done.attempts for done in found],
        "equal": lake.rows() == expected(source, source.lsn),
        "clean": position is not None and position.clean and position.lsn == source.lsn,
    }


def main(what: str, folder: str, table_format: str, *given: str) -> None:
    spark = for_tests(Path(folder), conf=CLUSTER)
    try:
        place = Path(folder)
        found = (
            append(spark, place, table_format, *given)
            if what == "append"
            else folded(spark, place, table_format)
        )
        print(json.dumps(found), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
