import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from cdcd.adapters.postgres.pipeline_state import Instance, PipelineState, Prepared
from cdcd.adapters.postgres.publication import Publication, PublishedTable
from cdcd.adapters.postgres.slot import SlotState
from cdcd.config.loading import parse_config
from cdcd.core.catalog.oids import Oids
from cdcd.core.catalog.patterns import TableSelection
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.checkpoint_record import Ignored
from cdcd.core.errors import EXIT_CODES, PositionError, SinkUnavailableError, TransientError
from cdcd.core.snapshot.outcomes import Outcome
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.table_task import Part, TableTask
from cdcd.core.transactions.position import Position
from cdcd.telemetry.daemon_pages import daemon_routes
from cdcd.telemetry.http import HttpRoute, HttpServer, Reply
from cdcd.telemetry.http_client import url_of
from cdcd.telemetry.state import Telemetry
from cdcd.tools.operations.pipeline_problems import FOUND, exit_code_of, problems_of
from cdcd.tools.operations.pipeline_status import Named, PipelineStatus, StatusNumbers, ask_daemon
from cdcd.tools.operations.status_display import TABLES_MAX, status_lines, status_object

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
NAMED = Named("shop", "cdcd.yaml", "cdcd_shop", "cdcd_shop", "shop.checkpoint", 300, "http://127.0.0.1:9464")
SLOT = SlotState(
    name="cdcd_shop",
    plugin="pgoutput",
    database="shop",
    temporary=False,
    active=True,
    active_pid=11,
    restart_lsn=0x100,
    confirmed_flush_lsn=0x1000,
    wal_status="reserved",
    safe_wal_size=None,
    two_phase=False,
    failover=False,
    invalidation_reason="",
    retained_bytes=3 << 20,
    current_lsn=0x1400,
)
UNREAD = replace(SLOT, active=False, active_pid=None)


def table(number: int, name: str) -> PublishedTable:
    return PublishedTable(number, "public", name, "d", True, True)


PUBLICATION = Publication(
    "cdcd_shop", False, (), ("insert", "update"), True, (table(1, "orders"), table(2, "items"))
)
SERVER = PipelineState(
    at=NOW,
    version="18.1",
    database="shop",
    slot=SLOT,
    slot_reader="shop",
    keep_bytes=None,
    active=Instance(10, "shop lock", "10.0.0.5", NOW - timedelta(hours=2)),
    standbys=(),
    publication=PUBLICATION,
    publication_is_ours=True,
    prepared=(),
)
DOWN = replace(SERVER, slot=UNREAD, slot_reader="", active=None)
CHECKPOINT = Checkpoint("7", 1, "", Position(0xF00, 0x1000), 0x1000)
NUMBERS = StatusNumbers(
    version="0.1.0",
    role="active",
    streaming=True,
    started_at=NOW - timedelta(minutes=5),
    lag_bytes=0,
    lag_s=0.0,
    queue_bytes=0,
    queue_bytes_max=20 << 20,
    spool_memory_bytes=0,
    spool_disk_bytes=0,
    streamed_open=0,
    prepared_open=0,
    changes={"public.orders": 1234},
)
WELL = PipelineStatus(NAMED, NOW, SERVER, CHECKPOINT, numbers=NUMBERS)
STANDBY = Instance(12, "shop lock", "10.0.0.6", None)
AWAY = TransientError("connecting to shop: refused", hint="Is it running?")


def progress(**more: object) -> Checkpoint:
    return replace(CHECKPOINT, snapshot=replace(Progress(), **more))  # type: ignore[arg-type]


def slot(**more: object) -> PipelineState:
    return replace(SERVER, slot=replace(SLOT, **more))  # type: ignore[arg-type]


def codes(status: PipelineStatus) -> list[tuple[str, str]]:
    return [(problem.code, problem.level) for problem in problems_of(status)]


def test_a_pipeline_that_streams_has_no_problem():
    assert (codes(WELL), exit_code_of(WELL), WELL.headline) == ([], 0, "streaming, no lag")


@pytest.mark.parametrize(
    ("status", "expected", "exit_code"),
    [
        (replace(WELL, server=AWAY), ("postgres.away", "error"), 3),
        (replace(WELL, checkpoint=SinkUnavailableError("no answer")), ("kafka.away", "error"), 4),
        (replace(WELL, server=DOWN), ("instance.none", "error"), FOUND),
        (replace(WELL, server=replace(DOWN, slot=None), checkpoint=None), ("instance.none", "error"), FOUND),
        (replace(WELL, server=replace(SERVER, slot=UNREAD)), ("instance.idle", "error"), FOUND),
        (replace(WELL, server=replace(SERVER, slot_reader="other")), ("slot.foreign", "error"), FOUND),
        (replace(WELL, ignored=Ignored(3, 7, 9, "its key is x")), ("checkpoint.ignored", "warning"), 0),
        (replace(WELL, server=slot(invalidation_reason="wal_removed")), ("slot.lost", "error"), 6),
        (replace(WELL, server=slot(plugin="test_decoding")), ("slot.unusable", "error"), 3),
        (replace(WELL, server=DOWN, position=PositionError("a gap")), ("position", "error"), 6),
        (replace(WELL, server=replace(SERVER, publication=None)), ("publication.missing", "error"), FOUND),
        (
            replace(WELL, server=replace(SERVER, publication=replace(PUBLICATION, tables=()))),
            ("publication.empty", "warning"),
            0,
        ),
        (
            replace(WELL, server=slot(wal_status="unreserved", safe_wal_size=0)),
            ("slot.endangered", "error"),
            FOUND,
        ),
        (
            replace(WELL, server=replace(slot(safe_wal_size=100), keep_bytes=1000)),
            ("slot.endangered", "warning"),
            0,
        ),
        (
            replace(WELL, server=replace(SERVER, prepared=(Prepared("it's", NOW - timedelta(hours=1)),))),
            ("prepared.old", "warning"),
            0,
        ),
        (
            replace(WELL, checkpoint=progress(paused=True, waiting=Oids((1,)))),
            ("snapshot.paused", "warning"),
            0,
        ),
        (
            replace(WELL, checkpoint=progress(outcomes=(Outcome("public.orders", "", 3, "denied"),))),
            ("snapshot.failed", "warning"),
            0,
        ),
        (replace(WELL, numbers=None, stranger="bank"), ("http.foreign", "warning"), 0),
        (
            replace(WELL, numbers=replace(NUMBERS, reasons=("9 bytes behind",))),
            ("daemon.unready", "warning"),
            0,
        ),
    ],
)
def test_each_problem_has_a_code_a_level_and_an_exit_code(status, expected, exit_code):
    assert expected in codes(status)
    assert exit_code_of(status) == exit_code
    assert exit_code in EXIT_CODES
    assert all(problem.message for problem in problems_of(status))


def test_a_lost_slot_gives_the_exit_code_although_no_instance_runs_either():
    lost = replace(WELL, server=replace(DOWN, slot=replace(UNREAD, invalidation_reason="wal_removed")))
    assert [code for code, _ in codes(lost)] == ["slot.lost", "instance.none"]
    assert exit_code_of(lost) == 6


def test_a_publication_is_not_missed_where_nothing_shows_that_the_pipeline_has_started():
    new = replace(WELL, server=replace(DOWN, slot=None, publication=None), numbers=None)
    assert codes(replace(new, checkpoint=None)) == [("instance.none", "error")]
    away = SinkUnavailableError("no answer")
    assert [code for code, _ in codes(replace(new, checkpoint=away))] == ["kafka.away", "instance.none"]


def test_nothing_is_wrong_with_a_slot_that_has_room_and_a_transaction_that_is_young():
    server = replace(
        slot(safe_wal_size=900), keep_bytes=1000, prepared=(Prepared("g", NOW - timedelta(seconds=9)),)
    )
    assert codes(replace(WELL, server=server)) == []


def test_an_instance_that_reads_the_initial_snapshot_does_not_have_to_read_the_slot():
    reading = replace(
        WELL,
        server=replace(SERVER, slot=UNREAD),
        checkpoint=progress(method="exported", waiting=Oids((1,))),
    )
    assert codes(reading) == []


def test_a_table_that_was_read_after_it_failed_is_well():
    outcomes = (Outcome("public.orders", "", 0, "denied"), Outcome("public.orders", "me", 7))
    assert codes(replace(WELL, checkpoint=progress(outcomes=outcomes))) == []


def test_what_is_down_says_how_much_wal_it_keeps_and_how_to_start_it():
    server = replace(DOWN, slot=replace(UNREAD, safe_wal_size=5 << 30))
    (problem,) = problems_of(replace(WELL, server=server, numbers=None))
    assert (
        problem.message
        == "No instance runs, and PostgreSQL keeps 3 MB of WAL for it; after 5 GB more it may be lost."
    )
    assert problem.hint == "Start the pipeline: cdcd run --config cdcd.yaml"


def test_tables_that_are_not_complete_come_first():
    task = TableTask("public.items", 2, parts=(Part(2, 2, 10, 80_000, ((0, 4),)),), rows=40)
    status = replace(
        WELL, checkpoint=progress(tasks=(task,), outcomes=(Outcome("public.gone", "", 0, "it is not there"),))
    )
    assert [(each.name, each.state, each.share, each.rows, each.changes) for each in status.tables()] == [
        ("public.gone", "failed", None, 0, None),
        ("public.items", "reading", 0.4, 40, None),
        ("public.orders", "published", None, None, 1234),
    ]


def test_rows_that_were_read_are_not_changes():
    done = (Outcome("public.orders", "", 5000, ""), Outcome("public.left", "", 7, ""))
    status = replace(
        WELL,
        checkpoint=progress(outcomes=done),
        numbers=replace(NUMBERS, changes={"public.orders": 0, "public.items": 3}, read={"public.items": 40}),
    )
    # A table that is not published any more is not shown.
    assert [(each.name, each.state, each.rows, each.changes) for each in status.tables()] == [
        ("public.items", "published", 40, 3),
        ("public.orders", "published", 5000, 0),
    ]


def test_tables_that_the_pipeline_leaves_out_are_not_its_tables():
    status = replace(WELL, selection=TableSelection(None, ("*.items",)))
    assert [each.name for each in status.tables()] == ["public.orders"]


def test_a_table_that_waits_for_its_turn_is_named():
    status = replace(WELL, checkpoint=progress(waiting=Oids((1, 2)), begun=1))
    assert [(each.name, each.state) for each in status.tables()] == [
        ("public.items", "waiting"),
        ("public.orders", "published"),
    ]


@pytest.mark.parametrize(
    "status",
    [
        WELL,
        replace(WELL, server=DOWN, numbers=None),
        replace(WELL, server=AWAY, checkpoint=SinkUnavailableError("no answer"), numbers=None),
        replace(WELL, server=replace(DOWN, slot=None, publication=None), checkpoint=None, numbers=None),
        replace(
            WELL,
            server=replace(SERVER, prepared=(Prepared("\x1b[31m" * 20, NOW),), standbys=(STANDBY,) * 2),
        ),
    ],
)
def test_eighty_columns_are_enough_and_no_name_reaches_the_terminal_raw(status):
    shown = list(status_lines(status, 80))
    assert max(map(len, shown)) <= 80
    assert not any("\x1b" in line for line in shown)
    json.dumps(status_object(status))


def test_the_lines_of_a_pipeline_that_streams():
    assert list(status_lines(WELL, 80)) == [
        "shop: streaming, no lag",
        "",
        "postgres     18.1, database shop",
        "instance     active for 2 h, from 10.0.0.5 (server process 10)",
        "slot         cdcd_shop: is being read, keeps 3 MB of WAL; confirmed 0/1000, the",
        "             server is at 0/1400 (reserved)",
        "publication  cdcd_shop: 2 tables; insert, update",
        "checkpoint   shop.checkpoint: delivered up to 0/1000",
        "snapshot     no table was read",
        "daemon       cdcd 0.1.0 at http://127.0.0.1:9464: active, runs for 5 min; queue",
        "             0 B of 20 MB, spool 0 B in memory and 0 B on disk, 0 open",
        "             transactions received",
        "",
        "TABLE            STATE     READ ROWS READ CHANGES",
        "public.items     published    -         -       -",
        "public.orders    published    -         -   1,234",
    ]


def test_of_many_tables_the_screen_shows_some_and_says_how_many_more():
    tables = tuple(table(number, f"a_rather_long_name_of_a_table_{number:04}" * 2) for number in range(300))
    status = replace(WELL, server=replace(SERVER, publication=replace(PUBLICATION, tables=tables)))
    shown = list(status_lines(status, 80))
    assert shown[-1] == f"and {300 - TABLES_MAX} tables more; --all shows them"
    assert max(map(len, shown)) <= 80
    assert len(list(status_lines(status, 80, all_tables=True))) == len(shown) - 1 + 300 - TABLES_MAX
    assert len(status_object(status)["tables"]) == 300


YAML = "name: shop\npostgres: {dsn: 'host=db'}\nkafka: {bootstrap_servers: 'k:9092'}\n"


def config(http: str):
    return parse_config(f"{YAML}http: {http}\n", {})


@pytest.mark.parametrize(
    ("http", "url"),
    [
        ("{}", "http://127.0.0.1:9464"),
        ("{host: 0.0.0.0, port: 80}", "http://127.0.0.1:80"),
        ("{host: '::'}", "http://[::1]:9464"),
        ("{host: 'fe80::1'}", "http://[fe80::1]:9464"),
        ("{host: cdcd.example.com}", "http://cdcd.example.com:9464"),
        ("{certificate_file: a, key_file: b}", "https://127.0.0.1:9464"),
        ("{port: 0}", ""),
        ("{enabled: false}", ""),
    ],
)
def test_where_the_daemon_of_a_configuration_answers(http, url):
    assert url_of(config(http)) == url


def test_the_numbers_of_a_daemon_are_read_from_its_status():
    telemetry = Telemetry("shop", "cdcd_shop")
    telemetry.role = "active"
    telemetry.server_wal_end, telemetry.flushed_lsn = 5000, 2000
    telemetry.last_commit_time = time.time() - 30
    telemetry.events = {("public.orders", "c"): 3, ("public.orders", "u"): 4, ("public.items", "d"): 1}
    telemetry.events[("public.items", "r")] = 40
    given = config("{port: 0}")
    bank = given.model_copy(update={"name": "bank"})
    with HttpServer(given.http, daemon_routes(lambda: given, telemetry)) as server:
        numbers, stranger = ask_daemon(given, f"http://127.0.0.1:{server.port}")
        assert ask_daemon(bank, f"http://127.0.0.1:{server.port}") == (None, "shop")
    assert stranger == ""
    assert numbers is not None
    assert (numbers.role, numbers.streaming, numbers.lag_bytes) == ("active", False, 3000)
    assert numbers.lag_s is not None
    assert 29 < numbers.lag_s < 40
    assert numbers.changes == {"public.orders": 7, "public.items": 1}
    assert numbers.read == {"public.orders": 0, "public.items": 40}
    assert numbers.reasons == ("not streaming: reconnecting to PostgreSQL or Kafka",)
    assert numbers.started_at is not None


def test_where_nobody_answers_there_are_no_numbers():
    assert ask_daemon(config("{port: 0}")) == (None, "")
    assert ask_daemon(config("{port: 1}")) == (None, "")


def test_another_program_on_the_port_is_not_taken_for_the_daemon():
    given = config("{port: 0}")
    with HttpServer(
        given.http, {"/v1/status": HttpRoute(get=lambda _: Reply(200, "text/html", b"[1]"))}
    ) as server:
        assert ask_daemon(given, f"http://127.0.0.1:{server.port}") == (None, "")
