"""When the log has a line of progress, and what is in it."""

import pytest

from cdcd.core.facts_operation import StreamProgressed
from cdcd.telemetry.progress_report import REPORT_S, ProgressReport
from cdcd.telemetry.state import Telemetry

UNIX = 1_800_000_000.0


@pytest.fixture
def telemetry() -> Telemetry:
    active = Telemetry()
    active.role = "active"
    active.server_wal_end = active.flushed_lsn = 1000
    active.caught_up = True
    active.delivered_transactions, active.delivered_rows = 100, 1000
    active.kafka_bytes = 5000
    return active


def test_a_minute_with_work_has_a_line_with_what_was_done_in_it(telemetry: Telemetry):
    report = ProgressReport(telemetry, 0.0)
    telemetry.delivered_transactions, telemetry.delivered_rows = 113, 1507
    telemetry.kafka_bytes = 9000
    # What is worked off again after a reconnect is not done again.
    telemetry.transactions, telemetry.events = {"plain": 999}, {("public.t", "c"): 9999}
    telemetry.retained_wal_bytes = 77
    assert report.due(REPORT_S - 0.1, UNIX) is None
    assert report.due(REPORT_S, UNIX) == StreamProgressed(60.0, 13, 507, 4000, 0.0, 0, 0, 0, 77)
    assert report.due(REPORT_S + 1, UNIX) is None


def test_an_idle_pipeline_that_has_caught_up_is_silent(telemetry: Telemetry):
    report = ProgressReport(telemetry, 0.0)
    for minute in range(1, 5):
        # Heartbeats are no work.
        telemetry.kafka_bytes += 40
        telemetry.heartbeat_bytes += 40
        assert report.due(minute * REPORT_S, UNIX) is None


def test_a_pipeline_that_delivers_nothing_of_what_there_is_says_so_every_minute(telemetry: Telemetry):
    report = ProgressReport(telemetry, 0.0)
    telemetry.caught_up = False
    telemetry.server_wal_end = 1700
    telemetry.last_commit_time = UNIX - 42
    telemetry._behind_since = UNIX - 42
    telemetry.queue_records, telemetry.queue_bytes = 3, 450
    for minute in (1, 2, 3):
        told = report.due(minute * REPORT_S, UNIX)
        assert told == StreamProgressed(60.0, 0, 0, 0, 42.0, 700, 3, 450, None)


def test_a_standby_says_nothing(telemetry: Telemetry):
    report = ProgressReport(telemetry, 0.0)
    telemetry.role = "standby"
    telemetry.kafka_bytes = 9000
    assert report.due(REPORT_S, UNIX) is None
