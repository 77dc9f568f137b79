"""Prints the words that a person sees: at each fault that ends a start or a run, at attacks, and at outages under load.

`faults` runs the tests that break a pipeline (`FILES`), and makes a table of what `cdcd check` and `cdcd run` said in
them. The tests judge the words; the table is for people to read.

`attacks` runs tests that make each fault of `ATTACKED` happen on PostgreSQL 18, and makes a table of each warning and
error in the log, each finding of `cdcd check` that is not in order, and each command that failed.

`outages` stops Kafka for a while, and then restarts PostgreSQL, while rows are written at a rate. It prints the whole
log, and what metrics, `/readyz` and the page said before, during and after. Each row must be in the topic once.

    python -m tests.chaos.told faults [--results build/results/faults.md]
    python -m tests.chaos.told attacks [--results build/results/attacks.md] [A1 B5 …]
    python -m tests.chaos.told outages [--seconds 90] [--rate 200] [--results build/results/outages.md]
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import psycopg

from deploy.demo.fold import await_flushed
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker, PostgresServer
from deploy.local.cache import REPOSITORY
from tests.chaos.outage import Beside
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.faults.told import HEARD_IN, KEPT_IN, Heard, Told, heard, kept
from tests.integration.test_outages import ready
from tests.scratch import scratch_folder
from tests.tested_commit import tested_commit

FILES: Final = (
    "tests/integration/test_check_foresees.py",
    *sorted(str(file) for file in (REPOSITORY / "tests/integration").glob("test_bad_input_*.py")),
)

SCENARIOS: Final = "what_ends_a_run_is_foreseen_with_the_same_cure"
NAME: Final = "shop"
TOPIC: Final = f"{NAME}.public.t"
METRICS: Final = (
    "cdcd_kafka_up",
    "cdcd_postgres_up",
    "cdcd_streaming",
    "cdcd_lag_bytes",
    "cdcd_lag_seconds",
    "cdcd_wal_seconds_left",
)

COLUMNS: Final = ("fault", "command", "exit code", "seconds", "lines", "said", "what to do")

CHOSEN: Final = (
    (r"(?:/[\w.+-]+)*/(?:cdcd-|pytest-)[\w./+-]+", "…"),
    (r"(127\.0\.0\.1:|port \"?)\d{4,5}\b", r"\1…"),
    (r"\b0/[0-9A-F]{5,8}\b", "0/…"),
    (r"\b\d{19}\b", "…"),
    (r"(PID |pg_terminate_backend\()\d+", r"\1…"),
    (r"\br_[0-9a-f]{8}\b", "r_…"),
    (r"\(after \d+ ?ms", "(after … ms"),
)
"""Patterns of values that differ between two runs, each with the text that replaces the value in the table."""

FAULTS_HEAD: Final = """\
# What each fault is told with

Written by `python -m tests.chaos.told faults`: each fault that the tests plant, and what the commands said of it.

- "seconds": from the start of the command to its end; for a daemon that ran before the fault came, from the moment on \
at which the test waited for its end.
- "lines": on standard error. The report of `cdcd check` is on standard output.
- Of `cdcd check`, each error stands with its code.
- "…" stands for what differs between two runs: folders, ports, LSNs, system identifiers, processes, roles, times.
"""


_ATTACKS: Final = "tests/attacks/test_"
_SERVERS: Final = "tests/integration/test_"
_FORESEEN: Final = f"{_SERVERS}check_foresees.py::test_{SCENARIOS}[pg18-"

ATTACKED: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "A1": (
        "The owner of a table runs code while cdcd reads the table",
        (
            f"{_ATTACKS}owner_daemon.py",
            f"{_ATTACKS}owner_strict.py",
            f"{_ATTACKS}owner_locks.py::test_a_lock_in_the_first_snapshot_holds_that_table_only",
            f"{_FORESEEN}an_owner_without_a_reader]",
            f"{_FORESEEN}a_reader_of_more_than_its_tables]",
            f"{_FORESEEN}a_reader_that_may_replicate]",
            f"{_FORESEEN}a_reader_of_two_owners]",
            f"{_FORESEEN}row_level_security]",
        ),
    ),
    "A2": (
        "A column loses its protection when somebody renames it",
        (
            f"{_ATTACKS}owner_protection.py::test_a_start_refuses_a_rule_whose_column_has_another_name",
            f"{_ATTACKS}owner_protection.py::test_a_rule_that_the_operator_changes_begins_with_the_names_of_now",
            *(
                f"{_ATTACKS}owner_protection.py::test_a_value_stays_protected_while_the_daemon_runs[pg18-{change}]"
                for change in (
                    "rename the column",
                    "rename the table",
                    "swap the names of two columns",
                    "create the table again without the column",
                    "drop and create the table with other columns",
                    "a column that columns.include does not name",
                )
            ),
            f"{_ATTACKS}owner_protection.py::test_a_value_stays_protected_in_a_snapshot_after_a_rename",
            f"{_ATTACKS}owner_protection_paths.py::test_verify_and_check_know_the_column_by_its_number",
        ),
    ),
    "A3": (
        "Values and secrets in logs, errors, pages and commands",
        (
            f"{_ATTACKS}owner_protection.py::test_a_condition_shows_no_value_in_an_error",
            f"{_ATTACKS}owner_protection_paths.py::test_a_record_that_is_too_large_is_put_aside_without_the_value",
            f"{_FORESEEN}a_secret_that_others_can_read]",
            f"{_FORESEEN}a_token_that_can_be_guessed]",
            f"{_SERVERS}bad_input_config.py::test_a_dsn_that_cannot_be_read_is_told_without_its_password",
            f"{_SERVERS}password_command.py",
        ),
    ),
    "A4": (
        "Printed commands that a person pastes",
        (f"{_ATTACKS}owner_pasted.py",),
    ),
    "B1": (
        "A large logical message",
        (
            f"{_ATTACKS}connecting_messages.py::test_one_large_message_needs_no_more_memory_than_the_rule_says",
            f"{_ATTACKS}connecting_messages.py::test_a_message_beyond_the_limit_of_its_topic_becomes_its_size_and_digest",
            f"{_SERVERS}large_values_in_a_small_container.py",
        ),
    ),
    "B2": (
        "A large row",
        (
            f"{_ATTACKS}writer_rows.py::test_a_row_that_is_refused_is_refused_by_its_length",
            f"{_ATTACKS}writer_rows.py::test_the_memory_goes_back_once_the_row_is_confirmed",
        ),
    ),
    "B3": (
        "A large value and two instances",
        (
            f"{_ATTACKS}connecting_messages.py::test_active_and_standby_do_not_end_each_other_over_a_message",
            f"{_SERVERS}large_values_of_a_pair.py::test_a_row_that_fail_refuses_ends_each_instance_once_and_by_name",
        ),
    ),
    "B4": (
        "A fault of one table",
        (
            f"{_SERVERS}table_faults.py::test_a_fault_of_a_table_stops_that_table_alone_and_its_way_back_is_a_command",
            f"{_FORESEEN}tables_with_one_topic]",
            f"{_FORESEEN}two_columns_that_are_one_name_in_avro]",
        ),
    ),
    "B5": (
        "Text that cannot be decoded",
        (
            f"{_ATTACKS}writer_encodings.py::test_a_label_of_an_enum_that_cannot_be_decoded_ends_the_daemon_by_name",
            f"{_ATTACKS}writer_encodings.py::test_a_name_that_cannot_be_decoded_ends_the_daemon_by_name",
            f"{_ATTACKS}writer_encodings.py::test_a_text_within_another_type_costs_that_value_only",
            (
                f"{_ATTACKS}writer_encodings.py::"
                "test_a_key_that_cannot_be_decoded_ends_the_daemon_by_name_and_the_table_can_be_left_out"
            ),
        ),
    ),
    "B6": (
        "Forged, deep and foreign records in the checkpoint topic",
        (
            *(
                f"{_ATTACKS}topics_checkpoint.py::test_a_record_that_is_no_checkpoint_ends_nothing[pg18-{record}]"
                for record in ("deep lists", "events_done beyond all", "not UTF-8")
            ),
            f"{_ATTACKS}topics_checkpoint.py::test_deep_and_foreign_records_end_neither_the_daemon_nor_a_command",
            f"{_ATTACKS}topics_others.py::test_garbage_in_the_schemas_topic_ends_nothing",
        ),
    ),
    "B7": (
        "Snapshot requests of somebody who may only connect",
        (
            f"{_ATTACKS}connecting_requests.py::test_many_malformed_requests_are_few_lines",
            f"{_ATTACKS}connecting_requests.py::test_a_token_of_the_configuration_is_not_the_stranger_s",
            f"{_ATTACKS}connecting_requests.py::test_check_names_who_may_ask_where_everybody_may",
        ),
    ),
    "B8": (
        "Many new tables in one transaction",
        (f"{_ATTACKS}owner_many_tables.py",),
    ),
    "B9": (
        "Exhausted descriptors, a full disk, large records",
        (f"{_SERVERS}bad_input_limits.py", f"{_SERVERS}bad_input_kafka.py"),
    ),
    "B10": (
        "Somebody takes the pipeline's advisory lock or name",
        (
            f"{_ATTACKS}connecting_lock.py::test_a_stranger_who_queues_for_the_lock_does_not_get_the_pipeline",
            f"{_ATTACKS}connecting_lock.py::test_a_stranger_does_not_make_it_look_as_if_an_instance_ran",
            f"{_FORESEEN}a_slot_in_use]",
        ),
    ),
    "B11": (
        "The owner locks a table",
        (f"{_ATTACKS}owner_locks.py",),
    ),
    "B12": (
        "A request with a condition in the checkpoint topic",
        (f"{_ATTACKS}topics_checkpoint.py::test_a_condition_in_the_topic_is_never_run",),
    ),
    "C1": (
        "money of currencies that have not two digits",
        (
            f"{_FORESEEN}a_currency_that_the_role_hides]",
            f"{_ATTACKS}writer_money.py::test_a_setting_of_the_role_does_not_move_the_point",
            f"{_ATTACKS}writer_money.py::test_topics_of_an_older_cdcd_are_different_and_a_changed_default_is_told",
        ),
    ),
    "C2": (
        "A lost slot",
        (
            f"{_SERVERS}lost_slots.py",
            f"{_SERVERS}bad_input_position.py",
            f"{_FORESEEN}a_dropped_slot]",
            f"{_FORESEEN}a_lost_slot_and_a_compacted_topic]",
        ),
    ),
    "C3": (
        "Two pipelines in one prefix or with one transactional id",
        (
            f"{_FORESEEN}the_prefix_of_another_pipeline]",
            f"{_FORESEEN}the_transactional_id_of_another_pipeline]",
            f"{_FORESEEN}a_checkpoint_of_another_pipeline]",
            f"{_SERVERS}shared_id.py",
        ),
    ),
    "C4": (
        "A publication that somebody drops, creates again or alters",
        (
            f"{_FORESEEN}a_publication_made_anew_behind_the_slot]",
            f"{_FORESEEN}a_publication_that_no_longer_publishes_by_the_root]",
            f"{_SERVERS}bad_input_postgres.py",
        ),
    ),
    "C5": (
        "Partitions, and types that are dropped",
        (
            f"{_SERVERS}partitions.py::test_partitions_that_somebody_adds_are_told_and_stop_the_daemon_by_choice",
            f"{_ATTACKS}owner_partitions.py",
        ),
    ),
    "C6": (
        "Addresses that are not Kafka's, and Kafka that is away",
        (
            f"{_FORESEEN}brokers_at_postgresqls_port]",
            f"{_FORESEEN}no_broker]",
            f"{_SERVERS}bad_input_away.py",
            f"{_SERVERS}bad_input_config.py",
            (
                f"{_SERVERS}upgrade_configuration.py::"
                "test_addresses_of_brokers_with_a_protocol_are_refused_with_the_right_form"
            ),
        ),
    ),
    "C7": (
        "Rights and room that `cdcd check` foresees",
        (
            f"{_FORESEEN}no_replication_right]",
            f"{_FORESEEN}no_right_to_write_to_topics]",
            f"{_FORESEEN}no_right_to_write_to_topics_that_do_not_exist]",
            f"{_FORESEEN}no_right_to_read_the_checkpoint]",
            f"{_FORESEEN}a_spool_below_a_file]",
            f"{_SERVERS}check_foresees.py::test_a_right_that_kafka_does_not_tell_is_not_called_in_order",
        ),
    ),
    "C8": (
        "Grants on columns",
        (f"{_SERVERS}column_grants.py",),
    ),
}
"""Faults and attacks by a short name: what happens, and the tests that make it happen."""

TOLD_AT: Final = ("warning", "error", "critical")

ATTACKS_HEAD: Final = """\
# What a person is told of faults and attacks

Written by `python -m tests.chaos.told attacks`, on PostgreSQL 18. A line stands for all sentences that differ only in \
names, numbers and places. "×" is how often the log had the sentence in all tests of the fault.
"""


def attacks(results: Path, names: Sequence[str]) -> int:
    """Run the tests of `ATTACKED` (all of them, or those of these short names); return pytest's exit code."""
    chosen = {name: ATTACKED[name] for name in names or ATTACKED}
    tests = dict.fromkeys(test for _, each in chosen.values() for test in each)
    with scratch_folder() as folder:
        file = folder / "heard.jsonl"
        file.touch()
        pytest = ["env", f"{HEARD_IN}={file}", "CDCD_TEST_PG=18", sys.executable, "-m", "pytest", "-q"]
        code = subprocess.run([*pytest, *tests], cwd=REPOSITORY, check=False).returncode
        found = heard(file)
    lines = [ATTACKS_HEAD, f"{datetime.now(UTC):%Y-%m-%d}, commit {tested_commit()}.", ""]
    for name, (what, of) in chosen.items():
        said = [one for one in found if any(one.test.startswith(test.removesuffix("]")) for test in of)]
        lines += [f"## {name}: {what}", "", *told_by(said), ""]
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text("\n".join(lines), encoding="utf-8")
    return code


def told_by(processes: Sequence[Heard]) -> list[str]:
    """Return the lines of a table with each kind of sentence, and how often it was said."""
    kinds: dict[tuple[str, ...], tuple[tuple[str, ...], int]] = {}
    for one in processes:
        for sentence in sentences(one):
            kind = tuple(re.sub(r"[\d.,]+", "0", cell(each)) for each in sentence)
            first, count = kinds.get(kind, (sentence, 0))
            kinds[kind] = (first, count + 1)
    rows = [f"| {' | '.join(map(cell, (*first, count)))} |" for first, count in kinds.values()]
    return ["| by | level | what | said | what to do | × |", f"|{'---|' * 6}", *rows]


def sentences(one: Heard) -> Iterator[tuple[str, ...]]:
    """Yield what an operator reads: by which command, level, event or code, sentence, hint."""
    pipeline = re.search(r'"pipeline": ?"([^"]+)"', one.output)
    output = one.output.replace(pipeline[1], NAME) if pipeline else one.output
    words = one.command.split()
    command = " ".join(words[: 3 if words[1:2] in (["snapshot"], ["tables"]) else 2])
    plain: list[str] = []
    for line in output.splitlines():
        try:
            event = json.loads(line) if line.startswith("{") else None
        except ValueError:
            event = None
        if event is None or "event" not in event:
            plain.append(line)
        elif event.get("level") in TOLD_AT or "hint" in event or "`cdcd " in line:
            fields = {
                key: value
                for key, value in event.items()
                if key not in {"event", "level", "timestamp", "pipeline", "hint", "message", "logger"}
            }
            text = str(event.get("message", ""))
            told = " ".join(filter(None, [text, json.dumps(fields, ensure_ascii=False) if fields else ""]))
            yield command, event["level"], event["event"], told, str(event.get("hint", ""))
    text = "\n".join(plain).strip()
    if words[1:2] == ["check"] and text.startswith("{"):
        for each in json.loads(text[: text.rindex("}") + 1])["findings"]:
            if each["level"] != "ok":
                yield command, each["level"], each["code"], f"{each['subject']}: {each['found']}", each["fix"]
    elif one.code and text:
        message, _, hint = text.partition("\nhint: ")
        yield command, f"exit {one.code}", "", message[:1500], hint[:1500]


def faults(results: Path) -> int:
    """Pytest's exit code. What was told in the tests is written to `results`."""
    with scratch_folder() as folder:
        file = folder / "told.jsonl"
        file.touch()
        tests = [sys.executable, "-m", "pytest", "-q", *FILES]
        # `env` hands the variable over, so that nothing is changed in this process.
        code = subprocess.run(["env", f"{KEPT_IN}={file}", *tests], cwd=REPOSITORY, check=False).returncode
        found = kept(file)
    when = (
        f"{datetime.now(UTC):%Y-%m-%d}, commit {tested_commit()}: {len({one.fault for one in found})} faults"
    )
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}", *map(row, found)]
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text("\n".join([FAULTS_HEAD, f"{when}.", "", *lines, ""]), encoding="utf-8")
    return code


def row(told: Told) -> str:
    """A row of the table of faults."""
    cells = (
        fault_name(told.fault),
        told.command,
        told.code,
        f"{told.seconds:.1f}",
        told.lines,
        told.message or "-",
        told.hint or "-",
    )
    return f"| {' | '.join(cell(each) for each in cells)} |"


def fault_name(test: str) -> str:
    """What was broken, by the test's name and its case. The tests of scenarios have one name."""
    name, _, case = test.removeprefix("test_").removesuffix("]").partition("[")
    case = re.sub(r"^pg\d+-?", "", case)
    return (case if name == SCENARIOS else f"{name}: {case}" if case else name).replace("_", " ")


def cell(value: object) -> str:
    """The value as a Markdown table has it.

    Values that belong to one machine or one run (`CHOSEN`) are replaced, so that the file changes only if a message
    does.
    """
    text = str(value).replace(str(REPOSITORY), "…")
    for pattern, stand_in in CHOSEN:
        text = re.sub(pattern, stand_in, text)
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def rows_of(dsn: str) -> int:
    """How many rows the table t has."""
    with psycopg.connect(dsn) as connection:
        return int(connection.execute("SELECT count(*) FROM t").fetchall()[0][0])


class Rows(Beside):
    """One session that inserts rows at a rate; a context manager. It connects again when PostgreSQL was away.

    If a commit was not answered, the table tells whether its row is there.
    """

    def __init__(self, dsn: str, rate: float) -> None:
        super().__init__()
        self._dsn = dsn
        self._rate = rate
        self.rows = 0

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.rows = rows_of(self._dsn)
                with psycopg.connect(self._dsn, autocommit=True) as connection:
                    self._insert(connection)
            except psycopg.OperationalError:
                self._ended.wait(0.1)

    def _insert(self, connection: psycopg.Connection) -> None:
        began, first = time.monotonic(), self.rows
        while not self._ended.is_set():
            ahead_s = (self.rows - first) / self._rate - (time.monotonic() - began)
            if ahead_s > 0:
                self._ended.wait(ahead_s)
            connection.execute("INSERT INTO t VALUES (%s, 'a row of the shop')", (self.rows + 1,))
            self.rows += 1


class _Text(HTMLParser):
    """The words of a page's body, a line for each element that has any."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self._silent += tag in {"style", "script", "title", "svg"}

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in {"style", "script", "title", "svg"}

    def handle_data(self, data: str) -> None:
        if not self._silent and data.strip():
            self.lines.append(" ".join(data.split()))


class Outages:
    """A daemon whose servers go away, and what it says at each moment, as parts of a document."""

    def __init__(self, server: PostgresServer, broker: KafkaBroker, daemon: Daemon) -> None:
        self._server = server
        self._broker = broker
        self._daemon = daemon
        self.parts: list[str] = []

    def run(self, seconds: float) -> None:
        """Kafka is away for so long; then PostgreSQL is restarted."""
        self._daemon.await_metric("cdcd_events_total", lambda count: count > 200, "c", "public.t")
        self._await_idle()
        self._look("before")
        with self._told("kafka"):
            self._broker.stop()
            began = time.monotonic()
            self._daemon.await_event("kafka.unreachable")
            self._look(f"Kafka, {time.monotonic() - began:.0f} s away")
            time.sleep(max(0.0, began + seconds - time.monotonic()))
            self._look(f"Kafka, {time.monotonic() - began:.0f} s away")
            self._broker.start()
        self._await_idle()
        self._look("Kafka is back")
        with self._told("postgres"):
            self._server.stop()
            self._daemon.await_event("postgres.unreachable")
            self._look("PostgreSQL is away")
            mark = self._daemon.mark()
            self._server.start()
            self._daemon.await_event("stream.started", after=mark)
        self._await_idle()
        self._look("PostgreSQL is back")

    @contextmanager
    def _told(self, side: str) -> Iterator[None]:
        mark = self._daemon.mark()
        yield
        self._daemon.await_event(f"{side}.reachable", after=mark)

    def _await_idle(self) -> None:
        """Until it streams, is ready, and delivers as fast as rows come."""
        until(lambda: ready(self._daemon)["ready"] or None, "it was never ready")
        self._daemon.await_metric("cdcd_lag_seconds", lambda lag: lag < 1)

    def _look(self, moment: str) -> None:
        found, said = self._daemon.metrics(), ready(self._daemon)
        metrics = [
            f"{name} {value:g}" for name in METRICS if (value := found.get(name, {}).get(())) is not None
        ]
        page = _Text()
        page.feed(self._daemon.page("/"))
        self.parts += [
            f"## {moment[0].upper()}{moment[1:]}",
            "Metrics: " + ", ".join(f"`{one}`" for one in metrics) + ".",
            f"`/readyz`:\n\n```json\n{json.dumps(said, ensure_ascii=False)}\n```",
            "The page:\n\n```text\n" + "\n".join(page.lines) + "\n```",
        ]


def outages(seconds: float, rate: float, results: Path) -> int:
    """0 if each row is in the topic once."""
    with (
        scratch_folder() as folder,
        PostgresServer(18, folder / "postgres") as server,
        KafkaBroker(folder / "kafka") as broker,
    ):
        dsn = server.dsn()
        server.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
        # The waits and intervals are the defaults, which people meet.
        config = configuration(NAME, dsn, broker.bootstrap_servers) | {
            "postgres": {"dsn": dsn},
            "kafka": {"bootstrap_servers": broker.bootstrap_servers},
        }
        with Daemon(folder / "daemon", config) as daemon:
            daemon.start()
            daemon.await_streaming()
            both = Outages(server, broker, daemon)
            with Rows(dsn, rate):
                both.run(seconds)
            await_flushed(dsn, f"cdcd_{NAME}", 600)
            assert daemon.stop() == 0, daemon.last_words()
            log = daemon.output().replace(str(folder), "…")
        with Reader(broker.bootstrap_servers, NAME) as reader:
            ids = [
                json.loads(raw.key)["id"] for raw in reader.read_all(600) if raw.topic == TOPIC and raw.key
            ]
        rows = rows_of(dsn)
    once = ids == list(range(1, rows + 1))
    verdict = f"{'Each row came once, in order' if once else 'NOT EQUAL'}: {len(ids):,} of {rows:,} rows."
    head = (
        f"# Outages under load\n\n{datetime.now(UTC):%Y-%m-%d}, commit {tested_commit()}, "
        f"`python -m tests.chaos.told outages --seconds {seconds:g} --rate {rate:g}`: Kafka was away for "
        f"{seconds:g} s, then PostgreSQL was restarted, while {rate:g} rows a second were inserted, each in a "
        f"transaction of its own. {verdict}"
    )
    parts = [head, *both.parts, f"## The whole log\n\n```json\n{log}\n```"]
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(verdict)
    return 0 if once else 1


def main() -> int:
    """0 if the tests passed, or if each row came once."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.told")
    which = parser.add_subparsers(dest="which", required=True)
    told = which.add_parser("faults")
    told.add_argument("--results", type=Path, default=REPOSITORY / "build/results/faults.md")
    tried = which.add_parser("attacks")
    tried.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of {', '.join(ATTACKED)}; all without any"
    )
    tried.add_argument("--results", type=Path, default=REPOSITORY / "build/results/attacks.md")
    away = which.add_parser("outages")
    away.add_argument("--results", type=Path, default=REPOSITORY / "build/results/outages.md")
    away.add_argument("--seconds", type=float, default=90.0, help="without Kafka")
    away.add_argument("--rate", type=float, default=200.0, help="rows a second")
    options = parser.parse_args()
    if options.which == "faults":
        return faults(options.results)
    if options.which == "attacks":
        return attacks(options.results, options.names)
    return outages(options.seconds, options.rate, options.results)


if __name__ == "__main__":
    sys.exit(main())
