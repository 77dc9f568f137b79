"""How fast a backlog is drained: the daemon to Kafka, and pg_recvlogical to /dev/null, on the same content."""

import json
import resource
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from cdcd.core.protocol.lsn import Lsn
from deploy.local.kafka_broker import KafkaBroker
from deploy.local.postgres_packages import client_program
from deploy.local.postgres_server import PostgresServer
from tests.bench.forms import start_daemon
from tests.bench.processes import cpu_by_thread, cpu_s, peak_rss_bytes, user_s

PUBLICATION = "bench"
RECVLOGICAL = "pg_recvlogical"


@dataclass(frozen=True, slots=True)
class Drained:
    """One run. Times in seconds; `first_s` and `streaming_s` are the daemon's only.

    `start_cpu_s` is the CPU time of all its threads until the stream begins, most of it for loading modules; the rest
    of `first_s` it waits, for a server's answer or for a core, and works on the first rows.
    `wall_s` is from the start of the process to the last acknowledgement; `streaming_s` from the first one to the last.
    """

    who: str
    rows: int
    wall_s: float
    cpu_s: float
    walsender_cpu_s: float
    peak_rss_bytes: int = 0
    first_s: float = 0.0
    start_cpu_s: float = 0.0
    streaming_s: float = 0.0
    threads: dict[str, float] | None = None
    user_s: float = 0.0
    """User time without the start."""

    @property
    def rate(self) -> float:
        """Rows a second over the whole run."""
        return self.rows / self.wall_s

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU a row, without the start."""
        return (self.cpu_s - self.start_cpu_s) / self.rows * 1e6

    @property
    def user_us(self) -> float:
        """Microseconds of user time a row, without the start."""
        return self.user_s / self.rows * 1e6

    @property
    def walsender_cpu_us(self) -> float:
        """The same of the process that sends them."""
        return self.walsender_cpu_s / self.rows * 1e6


def drain_with_pg_recvlogical(server: PostgresServer, slot: str, end: int, rows: int) -> Drained:
    """Read the slot up to `end` and throw it away."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    subprocess.run(
        [
            client_program("pg_recvlogical"),
            f"--dbname={server.dsn('bench')}",
            f"--slot={slot}",
            "--start",
            "--no-loop",
            "--file=/dev/null",
            f"--endpos={Lsn(end)}",
            "--option=proto_version=1",
            f"--option=publication_names={PUBLICATION}",
        ],
        check=True,
    )
    wall_s = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Drained(RECVLOGICAL, rows, wall_s, used, 0.0)


def drain_with_cdcd(
    server: PostgresServer,
    broker: KafkaBroker,
    slot: str,
    end: int,
    rows: int,
    folder: Path,
    form: str,
    **settings: Any,
) -> Drained:
    """Run the daemon in that form until Kafka has acknowledged `end`."""
    config = folder / f"{slot}.json"
    config.write_text(json.dumps(daemon_config(server, broker, slot, **settings)))
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": slot,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 100,
        }
    )
    started = time.monotonic()
    log = (folder / f"{slot}.log").open("wb")
    daemon = start_daemon(form, config, log)
    try:
        consumer.assign([TopicPartition(f"{slot}.checkpoint", 0, 0)])
        first_s, last_s, start_cpu_s, start_user_s = 0.0, 0.0, 0.0, 0.0
        begun = 0
        walsender = Walsender(server, slot)
        while not last_s:
            if daemon.poll() is not None:
                raise RuntimeError(
                    f"the daemon ended with {daemon.returncode}: {config.with_suffix('.log').read_text()}"
                )
            if not start_cpu_s and b'"stream.started"' in config.with_suffix(".log").read_bytes():
                start_cpu_s, start_user_s = cpu_s(daemon.pid), user_s(daemon.pid)
            for message in consumer.consume(500, 0.01):
                if message.error() is not None:
                    continue
                checkpoint = json.loads(message.value() or b"{}")
                now = time.monotonic() - started
                reached = Lsn.parse(checkpoint["end_lsn"])
                begun = begun or reached
                if reached > begun and not first_s:
                    first_s = now
                if reached >= end:
                    last_s = now
                    break
            walsender.look()
        threads = cpu_by_thread(daemon.pid)
        return Drained(
            form,
            rows,
            last_s,
            cpu_s(daemon.pid),
            walsender.cpu_s,
            peak_rss_bytes(daemon.pid),
            first_s,
            start_cpu_s,
            last_s - first_s,
            threads,
            user_s(daemon.pid) - start_user_s,
        )
    finally:
        consumer.close()
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(60)
        log.close()


class Walsender:
    """The CPU time of the process that serves a slot, as long as it lives."""

    def __init__(self, server: PostgresServer, slot: str) -> None:
        self._server = server
        self._slot = slot
        self._pid: int | None = None
        self.cpu_s = 0.0

    def look(self) -> None:
        if self._pid is None:
            query = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{self._slot}'"
            ((self._pid,),) = self._server.execute(query)
        if self._pid is not None and Path(f"/proc/{self._pid}").exists():
            self.cpu_s = cpu_s(self._pid)


def daemon_config(server: PostgresServer, broker: KafkaBroker, slot: str, **settings: Any) -> dict[str, Any]:
    """A pipeline over the benchmark's publication with a slot, topics and a name of its own."""
    return {
        "name": slot,
        "postgres": {
            "dsn": server.dsn("bench"),
            "slot": slot,
            "publication": PUBLICATION,
            **settings.get("postgres", {}),
        },
        "kafka": {"bootstrap_servers": broker.bootstrap_servers, **settings.get("kafka", {})},
        "snapshot": {"mode": "never"},
        "spool": {"directory": str(server.data_dir.parent / f"spool-{slot}")},
        "http": {"port": 0},
        **{name: section for name, section in settings.items() if name not in {"postgres", "kafka"}},
    }
