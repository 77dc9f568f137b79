"""Whether the log has all changes that a table lacks, after retention, lost records, and the loss of the log."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.core.errors import SinkError
from cdcd.mirror.base import part
from cdcd.mirror.base.part import LacksChangesError, LogReader, OvertakenError, Part, Place, lone_tombstones
from cdcd.mirror.base.position import Position
from cdcd.mirror.log.positions import Began

BOUND = 100
BEGAN = Began("T", {0: 5, 1: 9}, {0: 20, 1: 20})


def read(
    monkeypatch: pytest.MonkeyPatch,
    position: Position,
    *,
    cut: tuple[int, int] | None = None,
    cut_at: tuple[int, int] | None = None,
    topic_id: str | None = "T",
    **place: Any,
) -> Part:
    """Read a part whose last truncate is `cut`, in the partition and at the offset `cut_at`."""
    spark: Any = None
    reader = LogReader(spark, Place("public.t", "t", "lake.t", "lake.log", **place), lambda _: {}, BOUND)

    def parts(lower: int, from_cut: tuple[int, int] | None = None) -> Part:
        found = cut if from_cut or (cut is not None and cut[0] > lower) else None
        return Part(lower, found, None if found is None else cut_at)

    monkeypatch.setattr(reader, "_parts", parts)
    return reader.part(position, topic_id, whole=False)


def test_a_part_begins_after_the_position_or_at_its_last_truncate(monkeypatch: pytest.MonkeyPatch):
    assert read(monkeypatch, Position(50, 50)) == Part(50)
    assert read(monkeypatch, Position(50, 50), cut=(70, 3), cut_at=(0, 30)) == Part(69, (70, 3), (0, 30))


def test_a_table_that_another_driver_has_folded_further_waits(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(OvertakenError, match="beyond the LSN"):
        read(monkeypatch, Position(50, BOUND + 1))


def test_a_table_behind_the_first_change_that_retention_left_stops_until_a_truncate(
    monkeypatch: pytest.MonkeyPatch,
):
    with pytest.raises(SinkError, match="lacks the table's changes up to LSN 0/3C") as stopped:
        read(monkeypatch, Position(50, 50), log_begins=60)
    assert "cdcd tables resume public.t" in stopped.value.hint
    assert read(monkeypatch, Position(50, 50), log_begins=60, cut=(70, 1), cut_at=(0, 3)).cut == (70, 1)
    assert read(monkeypatch, Position(60, 60), log_begins=60) == Part(60)


@pytest.mark.parametrize(
    ("ends", "topic_id", "stops"),
    [
        # The table has all records before the log's first ones.
        ({0: 20, 1: 9}, "T", False),
        ({0: 20, 1: 9}, None, False),
        # It lacks records of one partition, or it never had one.
        ({0: 20, 1: 7}, "T", True),
        ({0: 20}, "T", True),
        ({}, None, True),
        # Its offsets are those of a topic that was deleted.
        ({0: 20, 1: 9}, "S", True),
    ],
)
def test_a_table_stops_if_the_log_began_after_records_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch, ends: dict[int, int], topic_id: str | None, stops: bool
):
    position = Position(50, 50, ends=ends)
    if not stops:
        assert read(monkeypatch, position, topic_id=topic_id, began=BEGAN) == Part(50)
        return
    with pytest.raises(SinkError, match="lacks records before it") as stopped:
        read(monkeypatch, position, topic_id=topic_id, began=BEGAN)
    assert "cdcd tables resume public.t" in stopped.value.hint


@pytest.mark.parametrize(
    ("cut_at", "firsts", "stops"),
    [
        # Kafka got the truncate when the records were gone.
        ((0, 20), {}, False),
        ((2, 0), {}, False),
        # It got the truncate before, so their LSNs must tell.
        ((0, 19), {1: 69}, False),
        ((0, 19), {1: 70}, True),
        ((0, 19), {}, True),
    ],
)
def test_a_truncate_ends_the_stop_if_it_came_after_the_records_that_are_gone(
    monkeypatch: pytest.MonkeyPatch, cut_at: tuple[int, int], firsts: dict[int, int], stops: bool
):
    monkeypatch.setattr(part, "at_version", lambda *_: None)
    monkeypatch.setattr(part, "first_lsns", lambda *_: firsts)
    position = Position(50, 50, ends={0: 20})
    if stops:
        with pytest.raises(SinkError, match="lacks records before it"):
            read(monkeypatch, position, cut=(70, 1), cut_at=cut_at, began=BEGAN)
    else:
        assert read(monkeypatch, position, cut=(70, 1), cut_at=cut_at, began=BEGAN).cut == (70, 1)


TOMBSTONES = [
    # A delete with its tombstone.
    (0, 1, "change", "c", "1"),
    (0, 2, "change", "d", "1"),
    (0, 3, "tombstone", None, "1"),
    # A tombstone whose delete is gone, of a row that came before it, and of one that did not.
    (0, 4, "change", "c", "2"),
    (0, 5, "tombstone", None, "2"),
    (0, 6, "tombstone", None, "3"),
    # The delete before the last tombstone of a key is another one.
    (0, 40, "tombstone", None, "1"),
    # A delete in quarantine.
    (1, 1, "change", "c", "4"),
    (1, 2, "unreadable", None, "4"),
    (1, 3, "tombstone", None, "4"),
    (1, 9, "tombstone", None, "5"),
]


@pytest.mark.parametrize(
    ("since", "more", "found"),
    [
        ({0: 0}, {"is_new": False}, [(0, 5), (0, 6), (0, 40), (1, 9)]),
        ({0: 6, 1: 10}, {"is_new": False}, [(0, 6), (0, 40)]),
        ({0: 6}, {"is_new": False, "others": False}, [(0, 6), (0, 40)]),
        ({}, {"is_new": True}, [(0, 5), (0, 40)]),
        ({1: 0}, {"is_new": True, "others": False}, []),
        ({}, {"is_new": False, "others": False}, []),
    ],
)
def test_a_tombstone_whose_delete_compaction_has_removed_is_found(
    spark: SparkSession, since: dict[int, int], more: dict[str, bool], found: list[tuple[int, int]]
):
    log = spark.createDataFrame(TOMBSTONES, "part int, off bigint, kind string, op string, key string")
    assert sorted([tuple(row) for row in lone_tombstones(log, since, **more).collect()]) == found


def test_a_table_of_a_compacted_topic_stops_if_a_delete_is_gone(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    rows = [("t", *row, b"", 60) for row in TOMBSTONES]
    columns = (
        "topic string, part int, off bigint, kind string, op string, key string, value binary, lsn bigint"
    )
    log = spark.createDataFrame(rows, columns)
    monkeypatch.setattr(part, "at_version", lambda *_: log)
    known = Position(50, 50, ends={0: 5, 1: 10})
    with pytest.raises(LacksChangesError, match=r"before the tombstone at t\[0\]@") as stopped:
        read(monkeypatch, known, is_compacted=True)
    assert "cdcd tables resume public.t" in stopped.value.hint
    assert "min.compaction.lag.ms" in stopped.value.hint
    # Kafka does not compact other topics.
    assert read(monkeypatch, known) == Part(50)
    assert read(monkeypatch, Position(50, 50, ends={0: 41, 1: 10}), is_compacted=True) == Part(50)
