import random

import pytest

from cdcd.core.errors import TransientError
from cdcd.core.facts import Fact
from cdcd.core.facts.operation import KafkaUnreachable, StreamProgressed
from cdcd.telemetry.state import (
    COMMIT_BUCKETS_S,
    REPORT_S,
    Histogram,
    ProgressReport,
    Telemetry,
    liveness,
    readiness,
)

NOW = 1_800_000_000.0


@pytest.fixture
def telemetry():
    return Telemetry()


@pytest.fixture
def active(telemetry):
    telemetry.role = "active"
    telemetry.streaming = True
    telemetry.server_wal_end = telemetry.flushed_lsn = 1000
    telemetry.caught_up = True
    return telemetry


def test_a_new_telemetry_knows_nothing(telemetry):
    assert telemetry.lag_bytes() is None
    assert telemetry.lag_s(NOW) is None
    assert telemetry.prepared_oldest_age_s(NOW) == 0


def test_standing_by_forgets_what_the_active_instance_knew_and_keeps_the_totals(active):
    active.retained_wal_bytes = 1 << 30
    active.prepared_oldest_time = NOW
    active.events = {("public.t", "c"): 7}
    active.stand_by()
    assert (active.lag_bytes(), active.lag_s(NOW), active.retained_wal_bytes) == (None, None, None)
    assert active.prepared_oldest_age_s(NOW) == 0
    assert active.events == {("public.t", "c"): 7}


def test_an_attribute_that_is_not_there_cannot_be_set(telemetry):
    with pytest.raises(AttributeError):
        telemetry.recieved_lsn = 5


def test_the_lag_in_bytes_is_what_the_server_has_and_the_broker_does_not(telemetry):
    telemetry.server_wal_end = 1000
    telemetry.flushed_lsn = 400
    assert telemetry.lag_bytes() == 600


def test_the_lag_in_bytes_is_never_below_nothing(telemetry):
    telemetry.server_wal_end = 400
    telemetry.flushed_lsn = 1000
    assert telemetry.lag_bytes() == 0


def test_there_is_no_lag_in_bytes_when_caught_up(telemetry):
    telemetry.server_wal_end = 1000
    telemetry.flushed_lsn = 400
    telemetry.caught_up = True
    assert (telemetry.lag_bytes(), telemetry.lag_s(NOW)) == (0, 0)


def test_there_is_no_lag_in_seconds_when_caught_up(telemetry):
    telemetry.last_commit_time = NOW - 3600
    telemetry.caught_up = True
    assert telemetry.lag_s(NOW) == 0


def test_the_lag_in_seconds_is_the_age_of_the_last_delivered_commit(telemetry):
    telemetry.last_commit_time = NOW - 7
    telemetry.caught_up = False
    assert telemetry.lag_s(NOW) == 7


def test_after_a_quiet_night_the_lag_counts_from_the_first_change(telemetry, monkeypatch):
    telemetry.last_commit_time = NOW - 30_000
    telemetry.caught_up = True
    monkeypatch.setattr("time.time", lambda: NOW - 2)
    telemetry.caught_up = False
    telemetry.caught_up = False
    assert telemetry.lag_s(NOW) == 2


def test_a_clock_that_is_behind_the_servers_gives_no_negative_age(telemetry):
    telemetry.last_commit_time = telemetry.prepared_oldest_time = NOW + 5
    assert telemetry.lag_s(NOW) == 0
    assert telemetry.prepared_oldest_age_s(NOW) == 0


@pytest.mark.parametrize(("seconds", "bucket"), [(0, 0), (0.001, 0), (0.0011, 1), (30, 13), (31, 14)])
def test_a_commit_is_counted_in_the_bucket_whose_bound_it_does_not_pass(telemetry, seconds, bucket):
    telemetry.observe_commit(seconds)
    assert telemetry.commits.counts.index(1) == bucket
    assert telemetry.kafka_transactions == 1
    assert telemetry.commits.sum == seconds
    assert len(telemetry.commits.counts) == len(COMMIT_BUCKETS_S) + 1


class TestLiveness:
    def test_a_beating_heart_is_alive(self, telemetry):
        assert liveness(telemetry, telemetry.loop_heartbeat + 30, 30).well

    def test_a_stuck_loop_is_not(self, telemetry):
        health = liveness(telemetry, telemetry.loop_heartbeat + 31, 30)
        assert not health.well
        assert health.detail == {"alive": False, "reasons": ["the event loop is stuck for 31 s"]}

    def test_waiting_for_postgres_is_alive(self, telemetry):
        telemetry.role = "starting"
        assert liveness(telemetry, telemetry.loop_heartbeat, 30).well


class TestReadiness:
    def test_an_active_instance_that_keeps_up_is_ready(self, active):
        health = readiness(active, NOW, 100, 10)
        assert health.well
        assert health.detail == {"ready": True, "role": "active", "lag_bytes": 0, "lag_s": 0.0}

    def test_a_standby_is_ready_because_its_job_is_to_wait(self, telemetry):
        telemetry.role = "standby"
        assert readiness(telemetry, NOW, 100, 10).detail == {"ready": True, "role": "standby"}

    def test_an_instance_that_starts_is_not_ready(self, telemetry):
        health = readiness(telemetry, NOW, 100, 10)
        assert not health.well
        assert health.detail["reasons"] == ["not connected yet"]

    def test_an_instance_that_reconnects_is_not_ready(self, active):
        active.streaming = False
        health = readiness(active, NOW, 100, 10)
        assert not health.well
        assert health.detail["reasons"] == ["not streaming: reconnecting to PostgreSQL or Kafka"]

    def test_an_instance_that_reads_the_initial_snapshot_is_not_ready(self, active):
        active.reading = True
        health = readiness(active, NOW, 100, 10)
        assert health.detail["snapshot"] == "reading"
        assert health.detail["reasons"] == [
            "not streaming yet: reading the initial snapshot (see ready.during_snapshot)"
        ]

    def test_reading_the_initial_snapshot_may_count_as_ready_however_far_the_stream_is_behind(self, active):
        active.reading = True
        active.flushed_lsn = 0
        active.caught_up = False
        health = readiness(active, NOW + 1e6, 100, 10, during_snapshot=True)
        assert health.well
        assert health.detail["snapshot"] == "reading"
        # WHEN the stream begins, or is lost
        active.reading = False
        assert len(readiness(active, NOW + 1e6, 100, 10, during_snapshot=True).detail["reasons"]) == 2
        active.reading, active.streaming = True, False
        assert "reconnecting" in str(readiness(active, NOW, None, None, during_snapshot=True).detail)

    def test_an_instance_that_is_behind_is_not_ready_and_says_each_reason(self, active):
        active.flushed_lsn = 899
        active.last_commit_time = NOW - 11
        active.caught_up = False
        active._behind_since = 0.0
        assert readiness(active, NOW, 101, 11).well
        assert readiness(active, NOW, 100, 10).detail["reasons"] == [
            "101 bytes behind, more than ready.lag_bytes_max = 100",
            "11 s behind, more than ready.lag_s_max = 10",
        ]

    def test_without_limits_being_behind_is_no_reason(self, active):
        active.flushed_lsn = 0
        active.caught_up = False
        assert readiness(active, NOW + 1e6, None, None).well


def test_a_side_that_does_not_answer_is_a_reason_not_to_be_ready(active):
    failure = TransientError("Connection refused")
    active.reach.failed("kafka", failure, asked_at=1.0, patience_s=3.0, now=4.0)
    found = readiness(active, NOW, None, None)
    assert not found.well
    assert found.detail["reasons"] == ["Kafka is unreachable: Connection refused"]
    active.reach.answered("kafka", 5.0)
    assert readiness(active, NOW, None, None).well


def test_a_standby_without_postgres_is_not_ready(telemetry):
    telemetry.role = "standby"
    assert readiness(telemetry, NOW, None, None).well
    telemetry.reach.failed("postgres", TransientError("gone"), asked_at=1.0, patience_s=3.0, now=4.0)
    found = readiness(telemetry, NOW, None, None)
    assert found.detail == {
        "ready": False, "role": "standby", "reasons": ["PostgreSQL is unreachable: gone"],
    }  # fmt: skip


def test_what_waits_is_told_with_an_outage(active):
    facts: list[Fact] = []
    active.reach.observe(facts.append)
    active.queue_records, active.queue_bytes, active.retained_wal_bytes = 3, 500, 1 << 20
    active.reach.failed("kafka", TransientError("gone", hint="h"), asked_at=1.0, patience_s=3.0, now=4.0)
    assert facts == [KafkaUnreachable("gone", "h", 3, 500, 1000, 1 << 20)]


BOUNDS = (0.01, 0.1, 1.0)
FILLED_AT = 800_000_000_000_000


def test_a_bucket_has_its_upper_end():
    histogram = Histogram(BOUNDS)
    for value in (0.0, 0.01, 0.011, 1.0, 1.1):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1, 1]
    assert histogram.sum == pytest.approx(2.121)


def test_many_ages_at_once_are_counted_as_they_are_one_by_one():
    dice = random.Random(7)
    ages_us = [dice.choice((0, 9_999, 10_000, 10_001, 100_000, 999_999, 1_000_001)) for _ in range(500)]
    single, together = Histogram(BOUNDS), Histogram(BOUNDS)
    for age in ages_us:
        single.observe(age / 1e6)
    together.observe_ages([FILLED_AT - age for age in ages_us], FILLED_AT)
    assert together.counts == single.counts
    assert together.sum == pytest.approx(single.sum)


def test_a_commit_after_now_is_no_age_at_all():
    histogram = Histogram(BOUNDS)
    histogram.observe_ages([FILLED_AT + 5_000_000, FILLED_AT - 50_000], FILLED_AT)
    assert histogram.counts == [1, 1, 0, 0]
    assert histogram.sum == pytest.approx(0.05)


def test_no_ages_count_nothing():
    histogram = Histogram(BOUNDS)
    histogram.observe_ages([], FILLED_AT)
    assert (histogram.counts, histogram.sum) == ([0, 0, 0, 0], 0)


UNIX = 1_800_000_000.0


@pytest.fixture
def reported() -> Telemetry:
    active = Telemetry()
    active.role = "active"
    active.server_wal_end = active.flushed_lsn = 1000
    active.caught_up = True
    active.delivered_transactions, active.delivered_rows = 100, 1000
    active.kafka_bytes = 5000
    return active


def test_a_minute_with_work_has_a_line_with_what_was_done_in_it(reported: Telemetry):
    report = ProgressReport(reported, 0.0)
    reported.delivered_transactions, reported.delivered_rows = (
        113,
        1507,
    )
    reported.kafka_bytes = 9000
    # What is worked off again after a reconnect is not done again.
    reported.transactions, reported.events = (
        {"plain": 999},
        {("public.t", "c"): 9999},
    )
    reported.retained_wal_bytes = 77
    assert report.due(REPORT_S - 0.1, UNIX) is None
    assert report.due(REPORT_S, UNIX) == StreamProgressed(60.0, 13, 507, 4000, 0.0, 0, 0, 0, 77)
    assert report.due(REPORT_S + 1, UNIX) is None


def test_an_idle_pipeline_that_has_caught_up_is_silent(reported: Telemetry):
    report = ProgressReport(reported, 0.0)
    for minute in range(1, 5):
        # Heartbeats are no work.
        reported.kafka_bytes += 40
        reported.heartbeat_bytes += 40
        assert report.due(minute * REPORT_S, UNIX) is None


def test_a_pipeline_that_delivers_nothing_of_what_there_is_says_so_every_minute(
    reported: Telemetry,
):
    report = ProgressReport(reported, 0.0)
    reported.caught_up = False
    reported.server_wal_end = 1700
    reported.last_commit_time = UNIX - 42
    reported._behind_since = UNIX - 42
    reported.queue_records, reported.queue_bytes = 3, 450
    for minute in (1, 2, 3):
        told = report.due(minute * REPORT_S, UNIX)
        assert told == StreamProgressed(60.0, 0, 0, 0, 42.0, 700, 3, 450, None)


def test_a_standby_says_nothing(reported: Telemetry):
    report = ProgressReport(reported, 0.0)
    reported.role = "standby"
    reported.kafka_bytes = 9000
    assert report.due(REPORT_S, UNIX) is None
