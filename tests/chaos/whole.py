"""One large transaction, killed again and again: a `read_committed` reader sees none of its rows, or all of them.

The daemon is ended by SIGKILL at random moments of its work on the transaction: before its first record is in Kafka,
or when Kafka holds a random share of the records. Three observers judge:

- a reader that runs all the time: wherever it reaches the end of what it may see, it has met no row of the transaction
  or each of them once;
- another reader after each kill, which reads the topic from its beginning;
- the peak memory of every run of the daemon (VmHWM), which is taken before its end.

    python -m tests.chaos.whole [--rows 2000000] [--kills 10] [--streaming on,off] [--version 18] [--form compiled]
"""

import argparse
import json
import random
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, TopicPartition

from deploy.demo.fold import await_flushed
from deploy.local import POSTGRES_VERSIONS, KafkaBroker, PostgresServer
from tests.bench.forms import FORMS, environment
from tests.integration.daemon import Daemon, configuration
from tests.integration.visible_records import await_stored, stored, visible, watermark_consumer
from tests.scratch import scratch_folder

NAME: Final = "whole"
TOPIC: Final = f"{NAME}.public.t"
DATABASE: Final = "large"
MEMORY_MAX: Final = 200 * 1000 * 1000
"""Bytes that any run of the daemon may take at its peak."""

WHOLE_BYTES_MAX: Final = 4 << 30
"""`kafka.transaction.whole_bytes_max`: a record has about 550 bytes, and two million exceed the default (1 GiB)."""

WORK_S: Final = 1200.0
"""A run of the daemon has delivered what it is waited for within this time."""

EARLY: Final = 0.2
"""Share of the kills that come soon after streaming has begun, while most records are not in Kafka yet."""

EARLY_S: Final = 4.0
"""At most so many seconds after it."""

LAST_SHARE: Final = 0.97
"""The largest share of the records at which the daemon is killed: behind it, it may commit before it is killed."""

_TABLE: Final = "CREATE TABLE t (id int PRIMARY KEY, note text)"
_BEFORE: Final = "INSERT INTO t VALUES (0, 'before')"
_LARGE: Final = "INSERT INTO t SELECT g, md5(g::text) FROM generate_series(1, {rows}) g"


@dataclass(frozen=True, slots=True)
class Kill:
    """One run of the daemon, from its start to SIGKILL.

    Attributes:
        moment: when it was killed, for a person.
        records: how many this run had put into Kafka.
        seen: how many of the transaction's rows a reader of committed records found afterwards.
        peak_bytes: the largest resident set of the run.
    """

    moment: str
    records: int
    seen: int
    peak_bytes: int


@dataclass(slots=True)
class Outcome:
    """What became of the transaction."""

    streaming: str
    rows: int
    kills: list[Kill] = field(default_factory=list)
    last_peak_bytes: int = 0
    looks: int = 0
    """How often the running reader was at the end of what it may see."""
    once: int = 0
    """Rows that the running reader met exactly once."""
    again: int = 0
    cut: bool = False
    """The daemon said that it delivers the transaction in parts."""
    seconds: float = 0.0

    @property
    def peak_bytes(self) -> int:
        """Of all runs."""
        return max(self.last_peak_bytes, *(kill.peak_bytes for kill in self.kills))

    @property
    def sound(self) -> bool:
        """Each row once, nothing before all of it, memory bounded."""
        return (
            self.once == self.rows
            and not self.again
            and not self.cut
            and not any(kill.seen for kill in self.kills)
            and self.peak_bytes < MEMORY_MAX
        )

    def lines(self) -> list[str]:
        """A Markdown table with a row for each run of the daemon, and a sentence."""
        verdict = "whole" if self.sound else "NOT SOUND"
        said = (
            f"streaming {self.streaming}: {verdict}; {self.once:,} of {self.rows:,} rows once, {self.again} again; "
            f"the running reader was {self.looks:,} times at the end and had met none or all; "
            f"peak memory {self.peak_bytes / 1e6:.0f} MB; {self.seconds:.0f} s"
        )
        rows = [(kill.moment, kill.records, kill.seen, kill.peak_bytes) for kill in self.kills]
        rows.append(("not killed", self.rows, self.once, self.last_peak_bytes))
        return [
            "| streaming | run | killed | records of this run | rows visible then | peak memory |",
            "|---|---|---|---|---|---|",
            *(
                f"| {self.streaming} | {number} | {moment} | {records:,} | {seen:,} | {peak / 1e6:.0f} MB |"
                for number, (moment, records, seen, peak) in enumerate(rows, 1)
            ),
            "",
            said,
        ]


class RunningReader:
    """A `read_committed` consumer that never stops; a context manager. `failure` says what it must not have seen."""

    def __init__(self, servers: str, rows: int) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "running",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
            }
        )
        self._rows = rows
        self._times = bytearray(rows + 1)
        self._stop = threading.Event()
        self._all = threading.Event()
        self._thread = threading.Thread(target=self._read, name="reader")
        self.met = 0
        self.looks = 0
        self.failure = ""

    def __enter__(self) -> Self:
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def await_all(self, timeout_s: float) -> None:
        """Until the reader is at the end and has met every row."""
        assert self._all.wait(timeout_s), f"{self.met} of {self._rows} rows within {timeout_s:g} s"

    def counts(self) -> tuple[int, int]:
        """How many rows were met exactly once, and how many more often."""
        return self._times.count(1, 1), sum(times > 1 for times in self._times[1:])

    def _read(self) -> None:
        try:
            while not self._stop.is_set():
                for message in self._consumer.consume(10_000, 0.1):
                    error = message.error()
                    if error is None:
                        number = json.loads(message.key() or b"{}")["id"]
                        self._times[number] = min(2, self._times[number] + 1)
                        self.met += number > 0
                    elif error.code() == KafkaError._PARTITION_EOF:
                        self._look()
                    else:
                        self.failure = self.failure or str(error)
        except Exception as failure:  # noqa: BLE001 - it is told where the thread is joined
            self.failure = repr(failure)

    def _look(self) -> None:
        """At the end of what is visible."""
        self.looks += 1
        if self.met == self._rows:
            self._all.set()
        elif self.met:
            self.failure = self.failure or f"{self.met} of {self._rows} rows were visible, and no more"


def moments(dice: random.Random, kills: int) -> list[tuple[float | None, float]]:
    """When the daemon is killed: at which share of the records in Kafka; None: so many seconds after it streams."""
    early = round(kills * EARLY)
    found: list[tuple[float | None, float]] = [
        (None, dice.uniform(0, EARLY_S)) if kill < early else (dice.uniform(0, LAST_SHARE), 0.0)
        for kill in range(kills)
    ]
    dice.shuffle(found)
    return found


def run(
    streaming: str,
    *,
    rows: int,
    kills: int,
    dice: random.Random,
    version: int = POSTGRES_VERSIONS[-1],
    form: str = "compiled",
) -> Outcome:
    """Write one transaction of `rows` and kill the daemon that delivers it, on servers of its own."""
    with (
        scratch_folder() as folder,
        PostgresServer(version, folder / "postgres") as postgres,
        KafkaBroker(folder / "kafka") as broker,
    ):
        postgres.execute(f"CREATE DATABASE {DATABASE}")
        postgres.execute(_TABLE, DATABASE)
        dsn, servers = postgres.dsn(DATABASE), broker.bootstrap_servers
        config = configuration(
            NAME,
            dsn,
            servers,
            postgres={"streaming": streaming},
            kafka={"transaction": {"whole_bytes_max": WHOLE_BYTES_MAX}},
        )
        with Daemon(folder / "daemon", config, environment=environment(form)) as daemon:
            daemon.start()
            daemon.await_streaming()
            postgres.execute(_BEFORE, DATABASE)
            daemon.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.t")
            await_flushed(dsn, f"cdcd_{NAME}")
            with closing(watermark_consumer(servers)) as watermarks, RunningReader(servers, rows) as reader:
                outcome = Outcome(streaming, rows)
                began = time.monotonic()
                postgres.execute(_LARGE.format(rows=rows), DATABASE)
                for moment in moments(dice, kills):
                    outcome.kills.append(_kill(daemon, servers, watermarks, moment, rows))
                daemon.start()
                reader.await_all(WORK_S)
                await_flushed(dsn, f"cdcd_{NAME}")
                outcome.last_peak_bytes = daemon.peak_memory_bytes()
            assert not reader.failure, reader.failure
            outcome.seconds = time.monotonic() - began
            outcome.looks = reader.looks
            outcome.once, outcome.again = reader.counts()
            outcome.cut = any(event["event"] == "transaction.large" for event in daemon.events)
            code = daemon.stop()
            assert code == 0, f"SIGTERM: exit code {code}\n{daemon.last_words()}"
    return outcome


def _kill(
    daemon: Daemon, servers: str, watermarks: Consumer, moment: tuple[float | None, float], rows: int
) -> Kill:
    """Start, wait for the moment, then SIGKILL, then look."""
    share, early_s = moment
    # The records of former runs stay where they are, aborted.
    before = stored(watermarks, TOPIC)
    if not daemon.is_running():
        daemon.start()
    daemon.await_streaming()
    if share is None:
        time.sleep(early_s)
    else:
        await_stored(watermarks, TOPIC, before + max(1, round(share * rows)), WORK_S)
    assert daemon.is_running(), f"the daemon ended by itself:\n{daemon.last_words()}"
    peak = daemon.peak_memory_bytes()
    daemon.kill()
    said = f"{early_s:.1f} s after it streamed" if share is None else f"at {share:.0%} of the records"
    return Kill(said, stored(watermarks, TOPIC) - before, visible(servers, TOPIC) - 1, peak)


def main(arguments: Sequence[str] | None = None) -> int:
    """Each way of streaming once; 0 when every transaction was whole."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.whole")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--streaming", default="on,off", help="one or more of off, on and parallel")
    parser.add_argument("--version", type=int, choices=POSTGRES_VERSIONS, default=POSTGRES_VERSIONS[-1])
    parser.add_argument("--form", choices=FORMS, default="compiled")
    parser.add_argument("--seed", type=int, help="a random one by default")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}, {options.form}, PostgreSQL {options.version}", flush=True)
    failed = 0
    for streaming in options.streaming.split(","):
        settings: dict[str, Any] = {"rows": options.rows, "kills": options.kills}
        try:
            outcome = run(
                streaming,
                **settings,
                dice=random.Random(f"{seed} {streaming}"),
                version=options.version,
                form=options.form,
            )
        except Exception:  # noqa: BLE001 - the other ways shall run all the same
            failed += 1
            print(f"{streaming} FAILED", flush=True)
            traceback.print_exc()
            continue
        failed += not outcome.sound
        print("", *outcome.lines(), sep="\n", flush=True)
    print("\nall whole" if not failed else f"\n{failed} NOT SOUND")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
