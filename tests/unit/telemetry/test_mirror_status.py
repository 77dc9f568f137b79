import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from cdcd.core.errors import EXIT_CODES
from cdcd.telemetry.mirror_lines import lines, quarantine_lines
from cdcd.telemetry.mirror_status import (
    FOUND,
    LogStatus,
    MirrorStatus,
    Point,
    Quarantined,
    Stopped,
    TableStatus,
    TargetStatus,
    Unreadable,
)

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
TARGET = TargetStatus(
    kind="mirror",
    name="`lake`.`public`.`orders`",
    lsn="0/16B3748",
    consistent_lsn=None,
    written_at=NOW - timedelta(seconds=12),
    held=0,
    behind=None,
    schema_id="00000000000000aa",
    columns=7,
    files=3,
    delete_files=2,
    size=1000,
)
HEALTHY = TableStatus("public.healthy", "shop.public.healthy", (TARGET,))
STOPPED = TableStatus(
    "public.stopped",
    "shop.public.stopped",
    (replace(TARGET, written_at=NOW - timedelta(hours=3), held=12, held_since=NOW - timedelta(minutes=20)),),
    stopped=Stopped(
        NOW - timedelta(hours=3), False, "column n changed from integer to text.", "Read it again."
    ),
)
WAITING = replace(
    HEALTHY, table="public.waiting", stopped=Stopped(NOW - timedelta(minutes=2), True, "No description.", "")
)
POISONED = replace(HEALTHY, table="public.poisoned", quarantined={"it is no JSON": 2, "it has no key": 10})


LARGE = replace(
    HEALTHY, table="public.large", targets=(replace(TARGET, size=9_600_000_000, buckets=2, buckets_apt=16),)
)


def status(*tables: TableStatus, **more: object) -> MirrorStatus:
    return replace(MirrorStatus("shop", "iceberg", "/lake", NOW, tables), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("table", "level"),
    [
        (HEALTHY, "ok"),
        (STOPPED, "error"),
        (WAITING, "warning"),
        (POISONED, "warning"),
        (replace(HEALTHY, left_out=True), "warning"),
        (replace(STOPPED, quarantined={"x": 1}), "error"),
        (replace(HEALTHY, targets=(replace(TARGET, held=5),)), "ok"),
    ],
)
def test_only_what_a_person_must_mend_is_an_error(table: TableStatus, level: str):
    assert table.level == level
    assert status(table).exit_code == (FOUND if level == "error" else 0)


def test_a_table_that_cannot_be_read_is_an_error_and_the_code_is_documented():
    assert status(HEALTHY, unreadable=(Unreadable("x", "gone", "look"),)).exit_code == FOUND
    assert "cdcd mirror status" in EXIT_CODES[FOUND]


def test_problems_come_first_and_then_the_names():
    tables = (replace(HEALTHY, table="public.a"), POISONED, WAITING, STOPPED)
    assert [table.table for table in status(*tables).ordered] == [
        "public.stopped", "public.poisoned", "public.waiting", "public.a",
    ]  # fmt: skip


def test_a_person_reads_the_problems_before_the_tables():
    shown = list(lines(status(HEALTHY, POISONED, WAITING, STOPPED, point=Point("0/1000", NOW)), 80))
    assert shown == [
        "shop: 4 tables, iceberg in /lake",
        "common LSN 0/1000, recorded 0.0 s ago",
        "1 stopped, 1 waiting, 1 with records in quarantine",
        "the newest change in any table was written 12 s ago",
        "",
        "STOPPED public.stopped, for 3 h, since 2026-01-01 09:00:00 UTC",
        "    column n changed from integer to text.",
        "    Read it again.",
        "QUARANTINE public.poisoned: 12 records",
        "    10 × it has no key",
        "    2 × it is no JSON",
        "WAITING public.waiting, for 2 min, since 2026-01-01 11:58:00 UTC",
        "    No description.",
        "",
        "  TABLE           NEWEST LSN WRITTEN HELD  WAITS COLUMNS FILES",
        "! public.stopped   0/16B3748     3 h   12 20 min       7     5",
        "? public.poisoned  0/16B3748    12 s    -      -       7     5",
        "? public.waiting   0/16B3748    12 s    -      -       7     5",
        "  public.healthy   0/16B3748    12 s    -      -       7     5",
    ]


def test_without_a_problem_that_is_said():
    shown = list(lines(status(HEALTHY), 80))
    assert shown[:2] == ["shop: 1 table, iceberg in /lake", "no problem found"]
    assert list(lines(status(), 80)) == ["shop: 0 tables, iceberg in /lake", "no problem found"]


def test_three_hundred_tables_fit_a_screen_of_eighty_columns():
    message = "the target cannot follow: " + "a long explanation of what changed and why that is so, " * 3
    long = "a_namespace_of_thirty_letters.a_table_with_a_name_as_long_as_postgresql_lets_it_be_63"
    target = replace(TARGET, lsn="FFFFFFFF/FFFFFFFF", held=12345, behind=1234567, files=12345, columns=1600)
    tables = [
        TableStatus(f"{long}_{number}", f"t{number}", (target, replace(target, kind="changelog")))
        for number in range(300)
    ]
    stop = Stopped(
        NOW - timedelta(days=40), False, message, "cdcd mirror --config FILE --snapshot public.orders"
    )
    tables[299] = replace(tables[299], stopped=stop)
    shown = list(lines(status(*tables), 80))
    # A name is never broken, because people copy it.
    assert [line for line in shown if len(line) > 80] == [
        f"STOPPED {long}_299, for 40 d, since 2025-11-22 12:00:00 UTC"
    ]
    rows = shown[shown.index("") + 1 :]
    assert rows[0].startswith("STOPPED")
    listed = [line for line in shown if "FFFFFFFF/FFFFFFFF" in line]
    assert len(listed) == 600
    assert listed[0].startswith("! ")
    assert " changelog" not in listed[0]
    assert "changelog" in listed[1]


def test_what_a_terminal_would_obey_is_not_shown():
    evil = replace(STOPPED, table="a\x1b[31m.b", stopped=Stopped(NOW, False, "x\x07\ny", ""))
    assert not {"\x1b", "\x07"} & set(
        "\n".join(lines(status(evil, unreadable=(Unreadable("\x1b", "\x1b", ""),)), 80))
    )


def test_a_program_finds_every_key_whatever_is_known():
    nothing = replace(
        TARGET,
        lsn=None,
        written_at=None,
        delete_files=None,
        behind=None,
        consistent_lsn=None,
    )
    full = status(
        STOPPED, POISONED, point=Point("0/1000", NOW), unreadable=(Unreadable("x", "gone", "look"),)
    )
    bare = status(replace(HEALTHY, targets=(nothing,)))
    told, silent = full.to_json(), bare.to_json()
    assert told.keys() == silent.keys()
    assert told["tables"][0].keys() == silent["tables"][0].keys()
    assert told["tables"][0]["targets"][0].keys() == silent["tables"][0]["targets"][0].keys()
    assert json.loads(json.dumps(told)) == told
    assert told["exit_code"] == FOUND
    assert told["at"] == "2026-01-01T12:00:00+00:00"
    assert told["consistent"] == {"lsn": "0/1000", "at": "2026-01-01T12:00:00+00:00"}
    assert told["tables"][0]["stopped"] == {
        "since": "2026-01-01T09:00:00+00:00",
        "waits": False,
        "message": "column n changed from integer to text.",
        "hint": "Read it again.",
    }
    assert (silent["consistent"], silent["tables"][0]["stopped"]) == (None, None)
    assert silent["tables"][0]["targets"][0]["written_age_s"] is None
    assert told["tables"][1]["targets"][0]["written_age_s"] == 12.0


def test_a_table_whose_commits_write_much_metadata_is_named_with_what_to_do_and_is_no_problem():
    worn = replace(HEALTHY, targets=(replace(TARGET, versions=17_280, metadata_bytes=23_000_000),))
    said = "\n".join(lines(status(worn), 200))
    assert f"MANY VERSIONS {HEALTHY.table}: 17,280 in 23,000,000 bytes of metadata" in said
    assert "maintenance.versions_max" in said
    assert (worn.level, status(worn).exit_code) == ("ok", 0)
    (target,) = status(worn).to_json()["tables"][0]["targets"]
    assert (target["versions"], target["metadata_bytes"]) == (17_280, 23_000_000)
    for fitting in (replace(TARGET, versions=500, metadata_bytes=700_000), TARGET):
        assert "MANY VERSIONS" not in "\n".join(lines(status(replace(HEALTHY, targets=(fitting,))), 200))


def test_a_table_that_has_outgrown_its_buckets_is_named_with_the_command_and_is_no_problem():
    said = "\n".join(lines(status(LARGE), 200))
    assert "LARGE public.large: 9,600,000,000 bytes in 2 buckets" in said
    assert "--relayout public.large" in said
    assert (LARGE.level, status(LARGE).exit_code) == ("ok", 0)
    assert status(LARGE).to_json()["tables"][0]["targets"][0]["buckets_apt"] == 16
    fitting = replace(LARGE, targets=(replace(TARGET, buckets=4, buckets_apt=16),))
    assert "LARGE" not in "\n".join(lines(status(fitting), 200))


LOG = LogStatus(
    name="`lake`.`cdcd`.`log`",
    topics=2,
    lsn="0/16B3748",
    newest_at=NOW - timedelta(seconds=20),
    appended_at=NOW - timedelta(seconds=15),
    first_day=date(2025, 12, 25),
    maintained_at=NOW - timedelta(minutes=5),
    offsets={"shop.public.t": {1: 7, 0: 3}},
    behind=4,
    stopped={},
    files=12,
    size=4_000,
    versions=100,
    metadata_bytes=109_000,
)


def test_a_log_is_a_part_of_the_status_for_people_and_for_programs():
    one = status(HEALTHY, log=LOG)
    head = "log `lake`.`cdcd`.`log`: 2 topics, LSN 0/16B3748, newest record 20 s old, 4 behind Kafka"
    assert list(lines(one, 100))[2:5] == [
        f"{head}, records since 2025-12-25",
        "  12 files, 4,000 bytes, 100 versions in 109,000 bytes of metadata, maintained 5 min ago",
        "the newest change in any table was written 12 s ago",
    ]
    found = json.loads(json.dumps(one.to_json()))["log"]
    assert (found["offsets"], found["behind"], found["newest_age_s"], found["first_day"]) == (
        {"shop.public.t": {"0": 3, "1": 7}}, 4, 20.0, "2025-12-25",
    )  # fmt: skip
    assert status(HEALTHY).to_json()["log"] is None
    assert one.exit_code == 0


def test_a_topic_that_stopped_in_the_log_is_an_error_with_its_way_on():
    one = status(
        HEALTHY,
        log=replace(LOG, stopped={"shop.public.t": ("the topic was deleted", "Run in Spark: DELETE")}),
    )
    said = "\n".join(lines(one, 100))
    assert one.exit_code == FOUND
    assert "1 stopped in the log" in said
    assert "STOPPED TOPIC shop.public.t" in said
    assert "the topic was deleted." in said
    assert "Run in Spark: DELETE" in said


def test_a_log_with_much_metadata_says_what_to_do():
    said = "\n".join(lines(status(HEALTHY, log=replace(LOG, metadata_bytes=5_000_000)), 100))
    assert "MANY VERSIONS `lake`.`cdcd`.`log`: 100 in 5,000,000 bytes of metadata" in said


def test_a_folded_table_that_is_late_and_one_that_must_be_read_again_are_named():
    late = replace(HEALTHY, targets=(replace(TARGET, held=9, held_since=NOW - timedelta(hours=2)),))
    soon = replace(HEALTHY, targets=(replace(TARGET, held=9, held_since=NOW - timedelta(minutes=2)),))
    gone = replace(HEALTHY, targets=(replace(TARGET, is_expired=True),))
    assert "LATE public.healthy: 9 changes in the log, the oldest 2 h old" in "\n".join(
        lines(status(late), 100)
    )
    assert "LATE" not in "\n".join(lines(status(soon), 100))
    assert "READ AGAIN public.healthy: the log has deleted changes" in "\n".join(lines(status(gone), 100))
    assert status(gone).exit_code == FOUND


def test_the_quarantine_is_listed_with_places_and_reasons():
    one = Quarantined("shop.public.t", 1, 7, NOW, "its JSON is not that of a change")
    assert list(quarantine_lines([one], 2)) == [
        "2026-01-01 12:00:00 UTC  shop.public.t[1]@7  its JSON is not that of a change"
    ]
    assert list(quarantine_lines([one], 1))[1:] == ["These are the newest 1 record. --limit shows more."]
    assert list(quarantine_lines([], 1)) == ["no record in quarantine"]
    assert one.to_json()["at"] == "2026-01-01T12:00:00+00:00"
