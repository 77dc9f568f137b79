"""Positions of folds as properties of an Iceberg table, for versions of Spark whose MERGE cannot carry them."""

from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.mirror.base.branches import KEPT_MOST, are_needed, committing, tag_version, with_positions
from cdcd.mirror.base.part import OvertakenError
from cdcd.mirror.base.position import NO_VERSION, PROPERTY, Carried, Node, position_of
from cdcd.mirror.targets.pinned import Tag


def carried(lsn: int, pin: str, since: int = 0) -> Carried:
    return Carried(f"fold{lsn}", lsn, since, pin, "form", lsn)


def said(**folds: Carried) -> dict[str, str]:
    return {f"{PROPERTY}.{snapshot.removeprefix('s')}": each.to_json() for snapshot, each in folds.items()}


@pytest.mark.parametrize(
    ("version", "needed"),
    [("3.5.9", True), ("4.0.5", True), ("4.1.4", False), ("4.10.0", False), ("5.0.0", False)],
)
def test_a_branch_is_needed_before_spark_4_1(version: str, needed: bool):
    spark: Any = SimpleNamespace(version=version)
    assert are_needed(spark) == needed


def test_a_snapshot_has_the_position_of_its_property():
    nodes = {"1": Node(NO_VERSION), "2": Node("1"), "3": Node("2")}
    # 3 is a compaction by the owner. 9 is a snapshot of a branch whose process was killed.
    properties = said(s2=carried(20, "1"), s9=carried(90, "2")) | {"other": "x", f"{PROPERTY}.1": "no fold"}
    found = position_of("3", with_positions(nodes, properties))
    assert found is not None
    assert (found.lsn, found.clean) == (20, True)
    # The owner rolls back to the first snapshot.
    first = position_of("1", with_positions(nodes, properties))
    assert first is not None
    assert first.lsn == 0


def test_a_position_outlives_its_snapshot():
    found = position_of("3", with_positions({"3": Node("2")}, said(s2=carried(20, "1"))))
    assert found is not None
    assert found.lsn == 20


class Spark:
    """Answers questions for the heads of references, and keeps statements."""

    def __init__(self, **heads: str) -> None:
        self.heads, self.statements = heads, list[str]()

    def sql(self, statement: str) -> Any:
        self.statements.append(statement)
        head = self.heads["main"] if "'main'" in statement else self.heads["branch"]
        return SimpleNamespace(collect=lambda: [(head,)])


def test_the_position_is_there_before_the_snapshot_is_current_and_the_oldest_ones_go():
    spark: Any = Spark(main="7", branch="8")
    has = said(**{f"s{number}": carried(number, "1") for number in range(KEPT_MOST)})
    with committing(spark, "lake.s.t", carried(500, "7"), has) as name:
        spark.sql(f"MERGE INTO {name}")
    words = [statement.split(" (")[0].split("(")[0] for statement in spark.statements]
    assert words[0] == "ALTER TABLE lake.s.t CREATE BRANCH cdcd_fold_fold500 AS OF VERSION 7 RETAIN 1 DAYS"
    assert words[1] == "MERGE INTO lake.s.t.branch_cdcd_fold_fold500"
    assert words[3:] == [
        "ALTER TABLE lake.s.t SET TBLPROPERTIES",
        "CALL lake.system.fast_forward",
        "ALTER TABLE lake.s.t DROP BRANCH IF EXISTS cdcd_fold_fold500",
        "ALTER TABLE lake.s.t UNSET TBLPROPERTIES IF EXISTS",
    ]
    assert f"'{PROPERTY}.8'" in spark.statements[3]
    assert spark.statements[-1].endswith(f"('{PROPERTY}.0')")


def test_a_statement_that_fails_leaves_no_branch_and_a_table_without_a_snapshot_gets_one_first():
    spark: Any = Spark(main="7", branch="8")
    with pytest.raises(RuntimeError), committing(spark, "lake.s.t", carried(5, "7"), {}):
        raise RuntimeError
    assert [statement for statement in spark.statements if "fast_forward" in statement] == []
    assert "DROP BRANCH" in spark.statements[-1]
    with pytest.raises(OvertakenError), committing(spark, "lake.s.t", carried(5, NO_VERSION), {}):
        pass
    assert spark.statements[-1].startswith("INSERT INTO lake.s.t SELECT")


class Refs:
    """A session with the references of one table."""

    def __init__(self, *names: str) -> None:
        self.names, self.run = list(names), [""][:0]

    def table(self, name: str) -> Any:
        rows = [{"name": each} for each in self.names]
        return SimpleNamespace(filter=lambda _: SimpleNamespace(collect=lambda: rows))

    def sql(self, text: str) -> None:
        self.run.append(text)


def test_a_version_of_a_point_gets_a_tag_once_and_tags_of_former_points_go():
    spark: Any = Refs("lsn-0-10", "lsn-0-20", "mine")
    tag_version(spark, "lake.t", 7, Tag(0x30, 0x20))
    assert spark.run == [
        "ALTER TABLE lake.t DROP TAG `lsn-0-10`",
        "ALTER TABLE lake.t CREATE TAG `lsn-0-30` AS OF VERSION 7",
    ]
    # A process that was killed made the tag.
    spark = Refs("lsn-0-30")
    tag_version(spark, "lake.t", 7, Tag(0x30, 0x20))
    assert spark.run == []
