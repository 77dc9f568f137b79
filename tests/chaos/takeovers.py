"""`python -m tests.chaos.takeovers`: a connector of Debezium's and cdcd take one slot over from each other.

There by `cdcd adopt --takeover`, back as docs/from-debezium.md says, at 500 rows a second, again and again. In turns
nothing, the worker, the command or cdcd is killed (-9) on the way. At the end, the topic is compared with the table: no
row may be missing, cdcd wrote each row once, and in each takeover as many rows came twice as the command had said.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient

from deploy.local import KafkaBroker, PostgresServer
from tests.bench.debezium import VERSION
from tests.integration.daemon import Daemon
from tests.integration.takeovers import Scene, Writer, await_true

RATE: Final = 500.0

ROWS: Final = 1000
"""Records of either side before the other takes over."""

NAME: Final = "inventory"

KILLS: Final = ("nothing", "worker", "stopping", "comparing", "cdcd")
"""What is killed in a takeover; a word in quotes of `cdcd adopt` is the moment in which this command is."""


@dataclass(frozen=True)
class Takeover:
    """One of them: where the topic ended when cdcd began, and when it had stopped.

    Attributes:
        said: rows that come twice, as the command said.
        seconds: from the command's start until cdcd streamed.
    """

    killed: str
    begin: int
    end: int
    said: int
    seconds: float


def take_over(scene: Scene, folder: Path, killed: str, number: int) -> Takeover:
    if killed == "worker":
        scene.kill_worker()
        scene.start_worker()
    began = time.monotonic()
    if killed in {"stopping", "comparing"}:
        scene.adopt_and_kill(killed)
    code, said = scene.adopt("--takeover", "--force")
    assert code == 0, said
    assert said["takeover"]["gap"] is None, said
    begin = scene.end()
    with Daemon(folder / f"cdcd-{number}", scene.configuration()) as daemon:
        daemon.start()
        daemon.await_event("stream.started")
        seconds = time.monotonic() - began
        if killed == "cdcd":
            scene.await_records(ROWS // 2)
            daemon.kill()
            daemon.start()
        scene.await_records(ROWS)
        assert daemon.stop() == 0, daemon.last_words()
    return Takeover(killed, begin, scene.end(), said["takeover"]["twice"]["events"], seconds)


def give_back(scene: Scene, broker: KafkaBroker) -> None:
    """As docs/from-debezium.md says."""
    scene.ask("DELETE", "/offsets")
    scene.ask("PUT", "/resume")
    await_true(scene.is_read, "the connector does not read the slot")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topic = f"{NAME}.checkpoint"
    admin.delete_topics([topic])[topic].result()
    await_true(lambda: topic not in admin.list_topics(timeout=10).topics, "the checkpoint's topic stays")


def judge(scene: Scene, takeovers: list[Takeover], last: int) -> int:
    """The exit code: 0 if all was as it should be."""
    rows = [(offset, json.loads(value)["after"]["id"]) for offset, value in scene.values()]
    missing = set(range(1, last + 1)) - {row for _, row in rows}
    wrong = len(missing)
    print(f"{last} rows, {len(rows)} records, {len(missing)} missing")
    for each in takeovers:
        before = {row for offset, row in rows if offset < each.begin}
        ours = Counter(row for offset, row in rows if each.begin <= offset < each.end)
        came = sum(1 for row in ours if row in before)
        repeated = sum(ours.values()) - len(ours)
        wrong += came != each.said or repeated > 0
        print(
            f"killed {each.killed:<10} twice {came:>5}, said {each.said:>5}; repeated by cdcd {repeated}; "
            f"{each.seconds:.1f} s until cdcd streamed"
        )
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=30)
    times = parser.parse_args().times
    print(f"Debezium {VERSION}, {RATE:.0f} rows a second, {times} takeovers")
    takeovers = []
    with tempfile.TemporaryDirectory(prefix="cdcd-takeovers-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        with PostgresServer(18, folder / "postgres") as server, KafkaBroker(folder / "kafka") as broker:
            server.execute(f"CREATE DATABASE {NAME}")
            scene = Scene(folder, server, NAME, broker, NAME)
            try:
                scene.start_worker()
                with Writer(server.dsn(NAME), RATE) as writer:
                    for number in range(times):
                        scene.await_records(ROWS)
                        takeovers.append(take_over(scene, folder, KILLS[number % len(KILLS)], number))
                        print(takeovers[-1], flush=True)
                        give_back(scene, broker)
                    scene.await_records(ROWS)
                scene.await_row(writer.last)
                return judge(scene, takeovers, writer.last)
            finally:
                scene.close()


if __name__ == "__main__":
    sys.exit(main())
