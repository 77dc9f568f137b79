from dataclasses import replace

from cdcd.mirror.watching.lines import lines
from cdcd.mirror.watching.progress import (
    BatchDone,
    LogAppended,
    LogExpired,
    LogShortened,
    MirrorStarted,
    Progress,
    Replayed,
    Retrying,
    SetChanged,
    TableFailed,
    TableLaidOut,
    TableMaintained,
    TableReloaded,
    TableReloading,
    TableStopped,
)

ORDERS = Progress("public.orders", 800, 750, 0x2A, 1.5)


def test_a_batch_tells_rate_position_and_the_rows_of_each_table():
    assert list(lines(BatchDone(7, (ORDERS,), 2.0))) == [
        "batch 7: 800 changes in 2.0 s, 400/s, LSN 0/2A",
        "  public.orders: 800 changes of 750 rows in 1.5 s",
    ]


def test_a_batch_of_the_log_tells_lag_and_quarantine():
    assert list(lines(LogAppended("lake.cdcd.log", 7, 900, 890, 2, 0x2A, 4.0, 1.5))) == [
        "log: 900 records in 1.5 s, the newest 4.0 s old, 2 to quarantine"
    ]
    assert list(lines(LogAppended("lake.cdcd.log", 7, 900, 890, 0, 0x2A, None, 1.5))) == [
        "log: 900 records in 1.5 s"
    ]


def test_a_consistent_batch_tells_the_common_position():
    (line,) = lines(BatchDone(7, (), 0.0, cut=0x30))
    assert line == "batch 7: 0 changes in 0.0 s, 0/s, LSN 0/30, all tables consistent"


def test_of_many_tables_those_with_most_changes_are_named():
    tables = tuple([Progress(f"public.t{number}", number, 1) for number in range(20)])
    shown = list(lines(BatchDone(1, tables, 1.0)))
    assert shown[1].startswith("  public.t19: 19 changes")
    assert shown[-1] == "  and 8 more tables"


def test_other_facts_are_a_line_and_a_hint():
    assert list(lines(TableStopped("public.x", "cannot", "do this"))) == [
        "public.x STOPPED: cannot",
        "  do this",
    ]
    assert list(lines(TableFailed("public.x", "cannot", ""))) == ["public.x failed, trying again: cannot"]
    assert list(lines(MirrorStarted("shop", 3, once=True))) == ["shop: 3 tables, what is there now"]
    assert list(lines(TableMaintained("t", 9, 1, 2))) == ["t: 9 files into 1, 2 former versions gone"]
    assert list(lines(Retrying("Kafka is away.", "Wait.", 2))) == [
        "Kafka is away. Trying again in 2.0 s. Wait."
    ]


def test_a_table_that_is_read_again_and_one_that_left_the_set_are_lines():
    assert list(lines(TableReloading("public.x", "n changed"))) == [
        "public.x is read again from the database: n changed"
    ]
    assert list(lines(TableReloading("public.x", "n changed", "someone to end"))) == [
        "public.x is read again from the database: n changed Waiting for someone to end."
    ]
    assert list(lines(TableReloaded("public.x", 7, 1, 0x30, 2.0))) == [
        "public.x was read again: 7 rows in 2.0 s, as of 0/30, 1 to quarantine"
    ]
    assert list(lines(SetChanged(0x30, ("public.x",)))) == [
        "from LSN 0/30 on, not in the common points: public.x"
    ]
    assert list(lines(SetChanged(0x30, ()))) == ["from LSN 0/30 on, all tables are in the common points"]
    assert list(lines(Replayed("public.x", 3, 1, 2))) == [
        "public.x: 3 records from quarantine, 1 stay, 2 gone from the topic"
    ]


def test_a_layout_says_buckets_deletes_and_partitions():
    done = TableLaidOut("public.a", 1, 8, "remove", "remove", 2.0, (), ("days(at)", "region"))
    (said,) = lines(done)
    assert said == (
        "public.a: 1 buckets and `deletes: remove` before,"
        " 8 buckets and `deletes: remove`, partitions by days(at), region now, in 2.0 s"
    )
    # Another partition alone is another layout.
    assert replace(done, after=1, fields_after=("region",)).changed
    (same,) = lines(replace(done, before=8, fields_before=done.fields_after))
    assert same.endswith("partitions by days(at), region already")


def test_retention_of_the_log_names_the_day_and_a_table_that_must_be_read_again():
    assert list(lines(LogShortened("lake.cdcd.log", "2026-01-01", 7, 0))) == [
        "lake.cdcd.log: 7 records from before 2026-01-01 deleted"
    ]
    assert list(lines(LogShortened("lake.cdcd.log", "2026-01-01", 7, 2))) == [
        "lake.cdcd.log: 7 records from before 2026-01-01 deleted; 2 topics are held"
    ]
    assert list(lines(LogExpired("public.t", "Changes are gone.", "Read it again."))) == [
        "public.t MUST BE READ AGAIN: Changes are gone.",
        "  Read it again.",
    ]
