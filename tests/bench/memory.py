"""How much memory the daemon needs for large messages and rows: a table of value size, kind and peak.

    python -m tests.bench.memory [--sizes 50 100 200 400] [--kinds unasked message …] [--form uncompiled|compiled]
                                 [--version 18] [--control-groups] [--results FILE]

Each case is one daemon with one large value. The peak is the daemon's VmHWM (proc(5)). The rule beside it is that of
docs/sizing.md: 150 MB, three times the largest message on the wire, and twice the record where it is delivered. The
longest step of the event loop is what asyncio's debug mode reports.
"""

import argparse
import os
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from confluent_kafka.admin import AdminClient, NewTopic

from deploy.local.kafka_broker import KafkaBroker
from deploy.local.postgres_server import PostgresServer
from tests.bench.control_groups import limited
from tests.bench.forms import FORMS, environment, prepare
from tests.bench.results import write_section
from tests.integration.daemon import Daemon, configuration, confirmed, wal_end
from tests.schema_registry import SchemaRegistry
from tests.scratch import scratch_folder

MIB: Final = 1 << 20
MB: Final = 1_000_000

BASE_MB: Final = 150
"""What the daemon needs with its default limits, without a large value (docs/sizing.md)."""

WIRE_COPIES: Final = 3
"""Copies of the largest message: libpq's buffer, libpq's copy for the caller, and the frame."""

RECORD_COPIES: Final = 2
"""Copies of a record that is delivered: the parts of its value, and the value."""

AFTER_S: Final = 9.0
"""Seconds after the position is confirmed at which the memory that the daemon kept is read."""

SERVER: Final = {"max_wal_size": "8GB", "shared_buffers": "256MB", "logical_decoding_work_mem": "64MB"}

RECORD_BYTES_MAX: Final = 1_000_000_000
"""Maximum size in bytes of a record that the producer and the topic for large records accept."""

BROKER: Final = {"socket.request.max.bytes": "1000000000"}
"""Settings of the broker. It closes the connection of a client that sends a larger request."""

TEXT: Final = "repeat(md5('a'), {size} / 32)"
MESSAGE: Final = f"SELECT pg_logical_emit_message({{transactional}}, 'x', {TEXT})"
STREAMED: Final = "INSERT INTO filler SELECT n, repeat('x', 1000) FROM generate_series(1, 100000) n; "


@dataclass(frozen=True, slots=True)
class Kind:
    """One way in which a large value comes.

    Attributes:
        does: SQL that writes the value; `{size}` is its size in bytes.
        wire: bytes on the wire for one byte of the value.
        record: bytes of the record for one byte of the value; 0: no record with the value is made.
        settings: sections of the configuration.
        before: SQL that is run before the daemon starts.
        format: format of keys and values.
    """

    does: str
    wire: float = 1.0
    record: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    before: str = ""
    format: str = "json"


CLAIM: Final[dict[str, Any]] = {"kafka": {"oversized": "claim_check", "claim_check_directory": "{folder}"}}
ASKED: Final[dict[str, Any]] = {"postgres": {"messages": True}}
ROW: Final = "INSERT INTO large VALUES (1, {value})"
BYTEA: Final = "convert_to(" + TEXT + ", 'SQL_ASCII')"

ARRAY: Final = "ARRAY['small', " + TEXT + "]"
ESCAPES: Final = "ARRAY[repeat('\"', {size} / 2)]"
"""An array with one element. The server sends two bytes for each quote."""

SMALL: Final = "array_fill('a'::text, ARRAY[{size} / 2])"
"""An array of elements that take two bytes on the wire."""

DEAD_LETTER: Final[dict[str, Any]] = {
    "kafka": {"oversized": "dead_letter", "properties": {"message.max.bytes": RECORD_BYTES_MAX}}
}

KINDS: Final[dict[str, Kind]] = {
    "unasked": Kind(MESSAGE.format(transactional="false", size="{size}")),
    "unasked, transactional": Kind(MESSAGE.format(transactional="true", size="{size}")),
    "unasked, streamed": Kind(STREAMED + MESSAGE.format(transactional="true", size="{size}")),
    "asked": Kind(MESSAGE.format(transactional="false", size="{size}"), settings=ASKED),
    "asked, streamed": Kind(STREAMED + MESSAGE.format(transactional="true", size="{size}"), settings=ASKED),
    "asked, claim_check": Kind(
        MESSAGE.format(transactional="false", size="{size}"), record=4 / 3, settings={**ASKED, **CLAIM}
    ),
    "text, fail": Kind(ROW.format(value=TEXT)),
    "text, claim_check": Kind(ROW.format(value=TEXT), record=1.0, settings=CLAIM),
    "text, streamed, claim_check": Kind(STREAMED + ROW.format(value=TEXT), record=1.0, settings=CLAIM),
    "bytea, fail": Kind(ROW.format(value=BYTEA).replace("large", "large_bytea"), wire=2.0),
    "bytea, claim_check": Kind(
        ROW.format(value=BYTEA).replace("large", "large_bytea"), wire=2.0, record=4 / 3, settings=CLAIM
    ),
    "bytea, binary, claim_check": Kind(
        ROW.format(value=BYTEA).replace("large", "large_bytea"),
        record=4 / 3,
        settings={**CLAIM, "postgres": {"binary": True}},
    ),
    "text, old and new, claim_check": Kind(
        "UPDATE large SET note = 'new' WHERE id = 0",
        wire=2.0,
        record=2.0,
        settings=CLAIM,
        before="ALTER TABLE large REPLICA IDENTITY FULL; INSERT INTO large VALUES (0, " + TEXT + ")",
    ),
    "text, snapshot, claim_check": Kind(
        "SELECT 1",
        record=1.0,
        settings={**CLAIM, "snapshot": {"mode": "initial"}},
        before="INSERT INTO large VALUES (0, " + TEXT + ")",
    ),
    "text, snapshot, fail": Kind(
        "SELECT 1",
        settings={"snapshot": {"mode": "initial"}},
        before="INSERT INTO large VALUES (0, " + TEXT + ")",
    ),
    "text, dead_letter": Kind(ROW.format(value=TEXT), record=1.0, settings=DEAD_LETTER),
    "array, claim_check": Kind(
        ROW.format(value=ARRAY).replace("large", "large_array"), record=1.0, settings=CLAIM
    ),
    "array, snapshot, claim_check": Kind(
        "SELECT 1",
        record=1.0,
        settings={**CLAIM, "snapshot": {"mode": "initial"}},
        before="INSERT INTO large_array VALUES (0, " + ARRAY + ")",
    ),
    "avro, text, claim_check": Kind(ROW.format(value=TEXT), record=1.0, settings=CLAIM, format="avro"),
    "avro, bytea, claim_check": Kind(
        ROW.format(value=BYTEA).replace("large", "large_bytea"),
        wire=2.0,
        record=1.0,
        settings=CLAIM,
        format="avro",
    ),
    "protobuf, text, claim_check": Kind(
        ROW.format(value=TEXT), record=1.0, settings=CLAIM, format="protobuf"
    ),
    "protobuf, bytea, claim_check": Kind(
        ROW.format(value=BYTEA).replace("large", "large_bytea"),
        wire=2.0,
        record=1.0,
        settings=CLAIM,
        format="protobuf",
    ),
    "cloudevents, text, claim_check": Kind(
        ROW.format(value=TEXT), record=1.0, settings=CLAIM, format="cloudevents"
    ),
    "cloudevents, bytea, claim_check": Kind(
        ROW.format(value=BYTEA).replace("large", "large_bytea"),
        wire=2.0,
        record=4 / 3,
        settings=CLAIM,
        format="cloudevents",
    ),
    "array of quotes, claim_check": Kind(
        ROW.format(value=ESCAPES).replace("large", "large_array"), record=1.0, settings=CLAIM
    ),
    "array of small elements, claim_check": Kind(
        ROW.format(value=SMALL).replace("large", "large_array"), record=2.0, settings=CLAIM
    ),
    "avro, array, claim_check": Kind(
        ROW.format(value=ARRAY).replace("large", "large_array"), record=1.0, settings=CLAIM, format="avro"
    ),
    "avro, array of small elements, claim_check": Kind(
        ROW.format(value=SMALL).replace("large", "large_array"), record=1.5, settings=CLAIM, format="avro"
    ),
    "protobuf, array, claim_check": Kind(
        ROW.format(value=ARRAY).replace("large", "large_array"), record=1.0, settings=CLAIM, format="protobuf"
    ),
    "protobuf, array of small elements, claim_check": Kind(
        ROW.format(value=SMALL).replace("large", "large_array"),
        record=2.5,
        settings=CLAIM,
        format="protobuf",
    ),
    "avro, old and new, claim_check": Kind(
        "UPDATE large SET note = 'new' WHERE id = 0",
        wire=2.0,
        record=2.0,
        settings=CLAIM,
        before="ALTER TABLE large REPLICA IDENTITY FULL; INSERT INTO large VALUES (0, " + TEXT + ")",
        format="avro",
    ),
    "protobuf, old and new, claim_check": Kind(
        "UPDATE large SET note = 'new' WHERE id = 0",
        wire=2.0,
        record=2.0,
        settings=CLAIM,
        before="ALTER TABLE large REPLICA IDENTITY FULL; INSERT INTO large VALUES (0, " + TEXT + ")",
        format="protobuf",
    ),
    "bytea, snapshot, claim_check": Kind(
        "SELECT 1",
        wire=2.0,
        record=4 / 3,
        settings={**CLAIM, "snapshot": {"mode": "initial"}},
        before="INSERT INTO large_bytea VALUES (0, " + BYTEA + ")",
    ),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One case. Sizes in MB of 10^6 bytes."""

    kind: str
    size_mb: float
    peak_mb: float
    allowed_mb: float
    kept_mb: float
    step_s: float
    outcome: str


def measure(
    server: PostgresServer,
    broker: KafkaBroker,
    registry: str,
    folder: Path,
    name: str,
    size: int,
    *,
    form: str,
    in_group: bool,
) -> Measured:
    """Run one daemon through one large value of `size` bytes."""
    kind = KINDS[name]
    slot = re.sub("[^a-z]+", "_", name) + f"_{size // MB}_{int(time.time()) % 100000}"
    server.execute(f"CREATE DATABASE {slot}")
    dsn = server.dsn(slot)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE filler (id int, note text)")
        for table, type_name in (("large", "text"), ("large_bytea", "bytea"), ("large_array", "text[]")):
            connection.execute(
                f"CREATE TABLE {table} (id int PRIMARY KEY, body {type_name}, note text)".encode()
            )
            connection.execute(f"ALTER TABLE {table} ALTER body SET STORAGE EXTERNAL".encode())
        if kind.before:
            connection.execute(kind.before.format(size=size).encode())
    place = folder / slot
    place.mkdir()
    settings = _filled(kind.settings, str(place))
    if kind.format != "json":
        settings["format"] = {
            "key": "json" if kind.format == "cloudevents" else kind.format,
            "value": kind.format,
        }
        settings["registry"] = {"url": registry}
    if settings.get("kafka", {}).get("oversized") == "dead_letter":
        make_topic(broker, f"{slot}.dead_letter")
    settings["postgres"] = {"slot": slot, "messages": None, **settings.get("postgres", {})}
    daemon = Daemon(
        place,
        configuration(slot, dsn, broker.bootstrap_servers, **settings),
        environment={**environment(form), "PYTHONASYNCIODEBUG": "1"},
    )
    allowed = BASE_MB + (WIRE_COPIES * kind.wire + RECORD_COPIES * kind.record) * size / MB
    with daemon, limited(int(allowed * MB)) if in_group else nullcontext() as join:
        daemon.start()
        if join is not None:
            join(daemon.pid)
        peak = _Peak(daemon)
        outcome = "delivered"
        try:
            peak.until(lambda: daemon.saw("stream.started"))
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(kind.does.format(size=size).encode())
            end = wal_end(dsn)
            peak.until(lambda: confirmed(dsn, slot) >= end)
        except _EndedError as error:
            outcome = str(error)
        kept = 0
        if daemon.is_running():
            peak.for_seconds(AFTER_S)
            kept = _resident(daemon.pid)
            daemon.stop()
        steps = [float(found) for found in re.findall(r"took (\d+\.\d+) seconds", daemon.output())]
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(
            b"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
        )
        connection.execute(f"DROP DATABASE {slot} WITH (FORCE)".encode())
    return Measured(name, size / MB, peak.bytes / MB, allowed, kept / MB, max(steps, default=0.0), outcome)


def make_topic(broker: KafkaBroker, name: str) -> None:
    """Create a topic that takes records of `RECORD_BYTES_MAX`."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topic = NewTopic(name, num_partitions=1, config={"max.message.bytes": str(RECORD_BYTES_MAX)})
    for created in admin.create_topics([topic]).values():
        created.result()


class _EndedError(Exception):
    """The daemon ended."""


class _Peak:
    """The highest VmHWM that was seen while something was awaited."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.bytes = 0

    def until(self, look: Callable[[], bool], timeout_s: float = 300.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not look():
            self._see()
            if time.monotonic() > deadline:
                raise _EndedError("no end in time")
            time.sleep(0.02)
        self._see()

    def for_seconds(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= ends)

    def _see(self) -> None:
        if not self._daemon.is_running():
            code = self._daemon.wait()
            failed = [event for event in self._daemon.events if event["event"] == "fatal"]
            raise _EndedError(
                f"exit {code}: {failed[-1]['message'] if failed else self._daemon.last_words()}"
            )
        try:
            self.bytes = max(self.bytes, self._daemon.peak_memory_bytes())
        except (OSError, ValueError):
            return


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _filled(value: Any, folder: str) -> Any:
    if isinstance(value, dict):
        return {name: _filled(each, folder) for name, each in value.items()}
    return value.replace("{folder}", folder) if isinstance(value, str) else value


def report(found: list[Measured]) -> list[str]:
    """The table, as Markdown."""
    lines = [
        "| kind | value MB | peak MB | rule MB | kept MB | longest step s | outcome |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.kind} | {one.size_mb:.0f} | {one.peak_mb:.0f}{'' if one.peak_mb <= one.allowed_mb else ' **above**'} "
        f"| {one.allowed_mb:.0f} | {one.kept_mb:.0f} | {one.step_s:.2f} | {one.outcome[:90]} |"
        for one in found
    ]
    return lines


def main() -> None:
    """Measure what the arguments say and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[50, 100, 200, 400], help="in MB of 10^6 bytes"
    )
    parser.add_argument("--kinds", choices=list(KINDS), nargs="+", default=list(KINDS))
    parser.add_argument(
        "--control-groups",
        action="store_true",
        help="run each daemon in a control group whose limit is what the rule allows; root only",
    )
    parser.add_argument("--form", choices=FORMS, default="uncompiled")
    parser.add_argument("--version", type=int, default=18)
    parser.add_argument(
        "--heap-mb", type=int, default=400, help="of the broker; dead letters need several times their size"
    )
    parser.add_argument("--results", type=Path, help="where the table also goes, as Markdown")
    arguments = parser.parse_args()
    prepare(arguments.form)
    found = []
    with (
        scratch_folder("memory") as folder,
        KafkaBroker(folder / "kafka", settings=BROKER, heap_mb=arguments.heap_mb) as broker,
        SchemaRegistry() as registry,
        PostgresServer(arguments.version, folder / "postgres", settings=SERVER) as server,
    ):
        for name in arguments.kinds:
            for size in arguments.sizes:
                one = measure(
                    server,
                    broker,
                    registry.url,
                    folder,
                    name,
                    size * MB,
                    form=arguments.form,
                    in_group=arguments.control_groups,
                )
                print(report([one])[-1], flush=True)
                found.append(one)
    text = "\n".join(report(found))
    print(text)
    if arguments.results:
        write_section(arguments.results, "Memory", "python -m tests.bench.memory", text)


if __name__ == "__main__":
    main()
