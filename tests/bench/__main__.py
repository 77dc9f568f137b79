"""`make bench`: drain rate, CPU, memory and latency, in one run and as ratios; JSON beside it.

    python -m tests.bench [--rows N] [--repeat N] [--workload inserts|mixed|single …] [--form compiled uncompiled]
                          [--against debezium] [--version 18] [--large ROWS] [--results FILE] [--profile]
    python -m tests.bench --many [TABLES] [--form compiled] [--results FILE]
    python -m tests.bench --before FOLDER [--together] [--rows N] [--repeat N] [--workload …] [--large ROWS]
                          [--results FILE]
    python -m tests.bench --recording [--rows N] [--repeat N] [--workload …] [--results FILE]
    python -m tests.bench --formats [--rows N] [--repeat N] [--results FILE]

Each reader drains the same content from a slot of its own; the runs are interleaved, so that a machine that gets
slower gets slower for all. Figures are medians, with the smallest and the largest beside them.
"""

import argparse
import contextlib
import io
import itertools
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cdcd.core.protocol.lsn import Lsn
from deploy.local.kafka_broker import KafkaBroker
from deploy.local.postgres_server import PostgresServer
from tests.bench.before import Side, compare
from tests.bench.before import report as report_before
from tests.bench.beside import measure_beside, report_beside
from tests.bench.debezium import SETTINGS as DEBEZIUM
from tests.bench.debezium import drain_with_debezium
from tests.bench.drain import (
    PUBLICATION,
    RECVLOGICAL,
    Drained,
    daemon_config,
    drain_with_cdcd,
    drain_with_pg_recvlogical,
)
from tests.bench.formats import record_bytes, variants
from tests.bench.formats import report as report_formats
from tests.bench.forms import FORMS, environment, prepare
from tests.bench.large import STREAMING, Large, measure_large
from tests.bench.latency import Latency, measure_latency
from tests.bench.many import GOALS, measure_many
from tests.bench.many import report as report_many
from tests.bench.results import write_section
from tests.bench.workloads import TABLE, WORKLOADS, Workload, load_statement
from tests.schema_registry import SchemaRegistry

SERVER_SETTINGS = {"max_wal_size": "4GB", "logical_decoding_work_mem": None, "shared_buffers": "256MB"}


def main() -> None:
    """Run what the arguments say and print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--workload", choices=list(WORKLOADS), nargs="+", default=list(WORKLOADS))
    parser.add_argument("--form", choices=FORMS, nargs="+", default=list(FORMS))
    parser.add_argument("--against", choices=["debezium"], help="drain the same with it, as it is and tuned")
    parser.add_argument("--large", type=int, default=1_000_000, help="rows of the large transaction; 0: none")
    parser.add_argument("--results", type=Path, help="where the tables also go, as Markdown")
    parser.add_argument("--version", type=int, default=18)
    parser.add_argument("--latency-seconds", type=float, default=10)
    parser.add_argument(
        "--profile",
        action="store_true",
        help="drain once and show where time goes: a flame graph where py-spy is installed, else cProfile's table",
    )
    parser.add_argument(
        "--many",
        type=int,
        nargs="?",
        const=2000,
        metavar="TABLES",
        help="measure the start with so many small tables, and nothing else",
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="FOLDER",
        help="another working tree, with its compiled daemon (make build/compiled/stamp there): both drain the same",
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="with --before or --recording: the daemons of a pair drain at the same time, for exact ratios of CPU",
    )
    parser.add_argument(
        "--recording",
        action="store_true",
        help="measure what a recording (record.directory) costs the daemon",
    )
    parser.add_argument(
        "--formats",
        action="store_true",
        help="drain the same inserts in each format, with protected columns, and with a filter",
    )
    parser.add_argument("--json", type=Path, default=Path(".cache/bench.json"))
    arguments = parser.parse_args()
    for form in ["compiled"] if arguments.formats else arguments.form:
        prepare(form)
    if arguments.many:
        _many(arguments.many, arguments.form, arguments.version, arguments.results)
        return
    with tempfile.TemporaryDirectory(prefix="cdcd-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with (
            KafkaBroker(folder / "kafka", heap_mb=1000, for_measuring=True) as broker,
            PostgresServer(arguments.version, folder / "postgres", settings=SERVER_SETTINGS) as server,
        ):
            server.execute("CREATE DATABASE bench")
            # A cluster makes the topic of its transactions for the first of them, which takes it a second or two.
            Producer(
                {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "first"}
            ).init_transactions()
            for option, title, compared in COMPARISONS:
                if getattr(arguments, option.partition(" ")[0]):
                    text = "\n".join(compared(server, broker, folder, arguments))
                    print(text)
                    if arguments.results:
                        command = f"python -m tests.bench --{option}"
                        write_section(arguments.results, title, command, text)
                    return
            if arguments.profile:
                _profile(
                    server,
                    broker,
                    folder,
                    WORKLOADS[arguments.workload[0]],
                    arguments.rows,
                    arguments.form[0],
                )
                return
            drained = {
                workload: _drain(
                    server,
                    broker,
                    folder,
                    WORKLOADS[workload],
                    arguments.rows,
                    arguments.repeat,
                    [*arguments.form, *(DEBEZIUM if arguments.against else ())],
                )
                for workload in arguments.workload
            }
            repeat = arguments.repeat
            binary = _binary(server, broker, folder, arguments.rows, repeat, arguments.form[0])
            large = _large(server, broker, folder, arguments.large, repeat, arguments.form)
            latencies = _latencies(server, broker, folder, arguments.latency_seconds, repeat, arguments.form)
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        _print(drained, binary, large, latencies, arguments.version)
    print(told.getvalue())
    if arguments.results:
        write_section(arguments.results, "Drain, large transactions, latency", "make bench", told.getvalue())
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "drained": {name: [asdict(run) for run in runs] for name, runs in drained.items()},
        "binary": {name: [asdict(run) for run in runs] for name, runs in binary.items()},
        "large": [asdict(run) for run in large],
        "latency": [asdict(latency) for latency in latencies],
    }
    arguments.json.parent.mkdir(exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1))


def _compare(
    server: PostgresServer, broker: KafkaBroker, folder: Path, arguments: argparse.Namespace
) -> list[str]:
    """The tree of `arguments.before` and this one, in pairs on the same content."""
    before = arguments.before.resolve()
    prepare(str(before))
    lines = _pairs(server, broker, folder, arguments, (Side(str(before)), Side("compiled")))
    forms = [str(before), "compiled"]
    runs = _large(server, broker, folder, arguments.large, arguments.repeat, forms)
    return [*lines, *_large_lines(runs, {str(before): "before", "compiled": "after"})]


def _recording(
    server: PostgresServer, broker: KafkaBroker, folder: Path, arguments: argparse.Namespace
) -> list[str]:
    """The compiled daemon without a recording and with one: while it drains, and while rows come steadily."""
    record = {"directory": str(folder / "recording"), "bytes_max": 8 << 30}
    plain, other = Side("compiled"), Side("compiled", {"record": record})
    lines = _pairs(server, broker, folder, arguments, (plain, other))
    rounds = measure_beside(server, broker, folder, [plain, plain, other], arguments.repeat)
    return [*lines, "", *report_beside(["without a recording", "the same once more", "with one"], rounds)]


def _pairs(
    server: PostgresServer,
    broker: KafkaBroker,
    folder: Path,
    arguments: argparse.Namespace,
    sides: tuple[Side, Side],
) -> list[str]:
    lines = [_machine(arguments.version)]
    for workload in arguments.workload:
        slots = [f"{workload}_{number}_{tree}" for number in range(arguments.repeat) for tree in ("a", "b")]
        end = _prepare(server, broker, WORKLOADS[workload], arguments.rows, slots)
        pairs = compare(
            server, broker, folder, sides, slots, end, arguments.rows, together=arguments.together
        )
        how = ", both daemons at the same time" if arguments.together else ""
        lines += [f"\n{WORKLOADS[workload].title}, {arguments.rows:,} rows{how}", *report_before(pairs)]
    return lines


def _formats(
    server: PostgresServer, broker: KafkaBroker, folder: Path, arguments: argparse.Namespace
) -> list[str]:
    """The compiled daemon in each format, in turns on the same content."""
    with SchemaRegistry() as registry:
        settings = variants(registry.url)
        slots = {
            (name, turn): f"formats_{place}_{turn}"
            for place, name in enumerate(settings)
            for turn in range(arguments.repeat)
        }
        end = _prepare(server, broker, WORKLOADS["inserts"], arguments.rows, list(slots.values()))
        runs: dict[str, list[Drained]] = {name: [] for name in settings}
        sizes: dict[str, float] = {}
        for turn in range(arguments.repeat):
            # Whoever comes first in a turn comes last in the next one.
            for name in list(settings)[:: -1 if turn % 2 else 1]:
                slot = slots[name, turn]
                drained = drain_with_cdcd(
                    server, broker, slot, end, arguments.rows, folder, "compiled", **settings[name]
                )
                runs[name].append(drained)
                sizes.setdefault(name, record_bytes(broker, f"{slot}.public.item"))
                server.execute(f"SELECT pg_drop_replication_slot('{slot}')", "bench")
    title = f"{WORKLOADS['inserts'].title}, {arguments.rows:,} rows, {arguments.repeat} turns"
    return [_machine(arguments.version), f"\n{title}\n", *report_formats(runs, sizes)]


COMPARISONS = (
    ("before <a tree of that commit>", "Before and after", _compare),
    ("recording", "Recording", _recording),
    ("formats", "Formats", _formats),
)
"""What compares daemons and nothing else: the option with its value, the title of the results, and what does it."""


def _many(tables: int, forms: list[str], version: int, results: Path | None) -> None:
    """Small tables on the demo's broker; each form has servers of its own, since topics stay."""
    lines = [f"{_machine(version)}\n", f"{tables:,} tables of ten rows ({GOALS})"]
    for form in forms:
        with tempfile.TemporaryDirectory(prefix="cdcd-bench-") as name:
            folder = Path(name)
            folder.chmod(0o755)
            with (
                KafkaBroker(folder / "kafka") as broker,
                PostgresServer(version, folder / "postgres", settings=SERVER_SETTINGS) as server,
            ):
                server.execute("CREATE DATABASE bench")
                lines += report_many(form, measure_many(server, broker, folder, form, tables))
    text = "\n".join(lines)
    print(text)
    if results:
        command = f"python -m tests.bench --many {tables} --form {' '.join(forms)}"
        write_section(results, "Many small tables", command, f"{text}\n")


def _machine(version: int) -> str:
    return (
        f"PostgreSQL {version}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        "all parts on one machine"
    )


def _prepare(
    server: PostgresServer, broker: KafkaBroker, workload: Workload, rows: int, slots: list[str]
) -> int:
    """Fill the WAL behind `slots`; returns where it ends."""
    server.execute("DROP PUBLICATION IF EXISTS bench", "bench")
    server.execute("DROP TABLE IF EXISTS item", "bench")
    server.execute(TABLE, "bench")
    server.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE item", "bench")
    for slot in slots:
        server.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')", "bench")
        _create_topic(broker, f"{slot}.checkpoint", **{"cleanup.policy": "compact"})
    server.execute(load_statement(workload, rows), "bench")
    server.execute("CHECKPOINT", "bench")
    ((end,),) = server.execute("SELECT pg_current_wal_insert_lsn()::text", "bench")
    # Something must end after the backlog, or no reader ever gets there.
    server.execute("INSERT INTO item SELECT * FROM item LIMIT 0; SELECT pg_switch_wal()", "bench")
    return Lsn.parse(end)


def _create_topic(broker: KafkaBroker, name: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for created in admin.create_topics([NewTopic(name, 1, 1, config=config)]).values():
        created.result()


def _drain(
    server: PostgresServer,
    broker: KafkaBroker,
    folder: Path,
    workload: Workload,
    rows: int,
    repeat: int,
    others: list[str],
) -> list[Drained]:
    readers = [RECVLOGICAL, *others]
    slots = [
        [f"{workload.name}_{number}_{reader.replace(' ', '_')}" for reader in readers]
        for number in range(repeat)
    ]
    end = _prepare(server, broker, workload, rows, [slot for one in slots for slot in one])
    runs = []
    for one in slots:
        for reader, slot in zip(readers, one, strict=True):
            if reader == RECVLOGICAL:
                runs.append(drain_with_pg_recvlogical(server, slot, end, rows))
            elif reader in DEBEZIUM:
                runs.append(
                    drain_with_debezium(server, broker, slot, rows - workload.missing, folder, reader)
                )
            else:
                runs.append(drain_with_cdcd(server, broker, slot, end, rows, folder, reader))
            server.execute(f"SELECT pg_drop_replication_slot('{slot}')", "bench")
            print(".", end="", file=sys.stderr, flush=True)
    return runs


def _binary(
    server: PostgresServer, broker: KafkaBroker, folder: Path, rows: int, repeat: int, form: str
) -> dict[str, list[Drained]]:
    """The inserts as text and in binary form."""
    slots = [f"{form}_{number}" for number in range(repeat) for form in ("text", "binary")]
    end = _prepare(server, broker, WORKLOADS["inserts"], rows, slots)
    runs: dict[str, list[Drained]] = {"text": [], "binary": []}
    for slot in slots:
        transfer, _, _ = slot.partition("_")
        settings = {"binary": transfer == "binary"}
        runs[transfer].append(
            drain_with_cdcd(server, broker, slot, end, rows, folder, form, postgres=settings)
        )
        server.execute(f"SELECT pg_drop_replication_slot('{slot}')", "bench")
        print(".", end="", file=sys.stderr, flush=True)
    return runs


def _large(
    server: PostgresServer, broker: KafkaBroker, folder: Path, rows: int, repeat: int, forms: list[str]
) -> list[Large]:
    runs = []
    for number, form, streaming in itertools.product(range(repeat), forms if rows else [], STREAMING):
        slot = f"large_{streaming}_{forms.index(form)}_{number}"
        server.execute("DROP PUBLICATION IF EXISTS bench; DROP TABLE IF EXISTS item", "bench")
        server.execute(TABLE, "bench")
        server.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE item", "bench")
        _create_topic(broker, f"{slot}.checkpoint", **{"cleanup.policy": "compact"})
        runs.append(measure_large(server, broker, slot, folder, rows, streaming, form))
        server.execute(f"SELECT pg_drop_replication_slot('{slot}')", "bench")
        print(".", end="", file=sys.stderr, flush=True)
    return runs


def _latencies(
    server: PostgresServer, broker: KafkaBroker, folder: Path, seconds: float, repeat: int, forms: list[str]
) -> list[Latency]:
    server.execute("DROP PUBLICATION IF EXISTS bench", "bench")
    server.execute("CREATE TABLE tick (id bigserial PRIMARY KEY, note text)", "bench")
    server.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE tick", "bench")

    def measure(name: str, form: str, delivery: str) -> Latency:
        slot = f"{name}_{delivery}_{form}"
        _create_topic(broker, f"{slot}.public.tick")
        return measure_latency(
            server, broker, slot, folder, rate=1000, seconds=seconds, delivery=delivery, form=form
        )

    for number in range(2 if seconds else 0):
        # Not counted: the broker's Java compiles what many small transactions need, which takes it twenty seconds.
        measure(f"warm{number}", forms[0], "exactly_once")
    return [
        measure(f"latency{number}", form, delivery)
        for number, form, delivery in itertools.product(
            range(repeat if seconds else 0), forms, ("exactly_once", "at_least_once")
        )
    ]


def _profile(
    server: PostgresServer, broker: KafkaBroker, folder: Path, workload: Workload, rows: int, form: str
) -> None:
    end = _prepare(server, broker, workload, rows, ["profiled"])
    config = folder / "profiled.json"
    config.write_text(json.dumps(daemon_config(server, broker, "profiled")))
    stats = folder / "profile"
    graph = Path(".cache/profile.svg")
    program = ["-m", "cdcd.cli", "run", "--config", str(config)]
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if spy:
        # Native frames too: librdkafka's hand-over and the compiled modules have no others.
        options = ["record", "--native", "--gil", "--rate", "200", "--output", str(graph)]
        command = [spy, *options, "--", sys.executable, *program]
    else:
        command = [sys.executable, "-m", "cProfile", "-o", str(stats), *program]
    daemon = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment(form))
    query = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = 'profiled'"
    while not server.execute(query.replace("%s", f"'{Lsn(end)}'"), "bench")[0][0]:
        if daemon.poll() is not None:
            raise RuntimeError(f"the daemon ended with {daemon.returncode}")
    # Of py-spy, the daemon is a child; it writes the graph when that has ended.
    children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
    os.kill(int(children[0]) if spy and children else daemon.pid, signal.SIGTERM)
    daemon.wait(60)
    if spy:
        print(f"flame graph: {graph}")
        return
    show = f"import pstats; pstats.Stats({str(stats)!r}).sort_stats('tottime').print_stats(30)"
    subprocess.run([sys.executable, "-c", show], check=True)


def _print(
    drained: dict[str, list[Drained]],
    binary: dict[str, list[Drained]],
    large: list[Large],
    latencies: list[Latency],
    version: int,
) -> None:
    print(_machine(version))
    for name, runs in drained.items():
        theirs = [run for run in runs if run.who == RECVLOGICAL]
        rows = theirs[0].rows
        print(f"\n{WORKLOADS[name].title}, {rows:,} rows")
        _line("pg_recvlogical", [run.rate for run in theirs], "rows/s")
        for form in dict.fromkeys(run.who for run in runs if run.who != RECVLOGICAL):
            _print_form(form, [run for run in runs if run.who == form], theirs)
    print("\ntext and binary transfer, CPU of walsender and daemon per row, without the start")
    for transfer, drains in binary.items():
        _line(transfer, [run.cpu_us + run.walsender_cpu_us for run in drains], "µs")
    for line in _large_lines(large, {}):
        print(line)
    if latencies:
        print("\ncommit to read_committed consumer, 1,000 single-row transactions a second")
    for form, delivery in dict.fromkeys((one.form, one.delivery) for one in latencies):
        seen = [one for one in latencies if (one.form, one.delivery) == (form, delivery)]
        print(f" {form} {delivery}, {sum(one.records for one in seen):,} records")
        _line("p50", [one.p50_ms for one in seen], "ms")
        _line("p99", [one.p99_ms for one in seen], "ms")


def _large_lines(large: list[Large], names: dict[str, str]) -> list[str]:
    """What `measure_large` found; `names` of forms, where they are folders."""
    if not large:
        return []
    lines = [f"\none transaction of {large[0].rows:,} rows, from its commit to its last record"]
    for form, streaming in dict.fromkeys((run.form, run.streaming) for run in large):
        these = [run for run in large if (run.form, run.streaming) == (form, streaming)]
        plain = [run.tail_s for run in large if (run.form, run.streaming) == (form, "off")]
        lines.append(_described(f"{names.get(form, form)} {streaming}", [run.tail_s for run in these], "s"))
        if streaming != "off":
            ratios = [run.tail_s / one for run, one in zip(these, plain, strict=True)]
            lines.append(_described("  beside off", ratios, ""))
        lines.append(_described("  peak RSS", [run.peak_rss_bytes / 1e6 for run in these], "MB"))
    return lines


def _print_form(form: str, ours: list[Drained], theirs: list[Drained]) -> None:
    rows = ours[0].rows
    print(f" {form}")
    _line("start to last ack", [run.rate for run in ours], "rows/s")
    _line("first to last ack", [rows / max(run.streaming_s, 0.001) for run in ours], "rows/s")
    _line("ratio of first to last", _ratios([rows / max(run.streaming_s, 0.001) for run in ours], theirs), "")
    _line("ratio of start to last", _ratios([run.rate for run in ours], theirs), "")
    _line("daemon CPU per row", [run.cpu_s / rows * 1e6 for run in ours], "µs")
    _line("  without the start", [run.cpu_us for run in ours], "µs")
    _line("walsender CPU per row", [run.walsender_cpu_us for run in ours], "µs")
    _line("start to first ack", [run.first_s for run in ours], "s")
    _line("  its own CPU before it", [run.start_cpu_s for run in ours], "s")
    _line("peak RSS", [run.peak_rss_bytes / 1e6 for run in ours], "MB")
    shares = sorted((ours[-1].threads or {}).items(), key=lambda item: -item[1])
    print(
        "  CPU by thread: "
        + ", ".join(f"{thread} {used / rows * 1e6:.2f} µs" for thread, used in shares if used)
    )


def _ratios(rates: list[float], theirs: list[Drained]) -> list[float]:
    return [rate / their.rate for rate, their in zip(rates, theirs, strict=True)]


def _line(what: str, values: list[float], unit: str) -> None:
    print(_described(what, values, unit))


def _described(what: str, values: list[float], unit: str) -> str:
    """The median, with the smallest and the largest."""
    digits = 0 if median(values) >= 100 else 2
    return f"  {what:<24} {median(values):,.{digits}f} {unit} ({min(values):,.{digits}f} … {max(values):,.{digits}f})"


if __name__ == "__main__":
    main()
