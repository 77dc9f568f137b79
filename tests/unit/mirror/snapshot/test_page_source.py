import pickle

import pytest

pytest.importorskip("pyarrow")

from cdcd.adapters.postgres.shared_snapshot import SharedTable
from cdcd.core.catalog.relations import CatalogColumn, TableDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.snapshot.reading import SourcePart, SourceTable
from cdcd.core.snapshot.table_task import Part
from cdcd.mirror.snapshot.page_source import PagesReader, Plan, SnapshotPages, page_ranges

RELATION = Relation(
    None, 7, "public", "ordérs", "d", (Column(1, "id", 23, -1), Column(0, 'a "b"', 1700, 655366))
)
DESCRIPTION = TableDescription(("id",), (), (CatalogColumn("id", 1, "integer", 23, 0, None),))
PLAN = Plan(
    "host=localhost password=hunter2",
    ("print-token", "--for=hunter2"),
    5.0,
    "0000-1",
    1 << 40,
    "shop",
    "p",
    SourceTable(RELATION, "(id > 5)", (), 'public."ordérs"', False, '[[1, "id", 23, -1]]'),
    DESCRIPTION,
    [BUILTIN_TYPES[23], BUILTIN_TYPES[1700], BUILTIN_TYPES[3904]],
    1e6,
    trusted=("app",),
)
RANGES = [("public.t", 7, 8, 0, 100, 130, 1 << 20), ("public.t", 7, 8, 100, 130, 130, 1 << 20)]


def test_a_plan_comes_back_from_its_options():
    again = Plan.read(PLAN.options(RANGES)["secret"])
    assert again == PLAN
    assert again.table.relation.columns[0].is_key
    assert len({hash(again.table.relation), *map(hash, again.types)}) == 1 + len(PLAN.types)


def test_the_password_is_in_the_option_that_spark_does_not_show():
    assert [name for name, value in PLAN.options(RANGES).items() if "hunter2" in value] == ["secret"]


def test_there_is_a_task_for_each_range_and_it_is_handed_no_other():
    source = SnapshotPages(PLAN.options(RANGES))
    reader = source.reader(source.schema())
    assert isinstance(reader, PagesReader)
    assert [part.pages for part in reader.partitions()] == RANGES
    sent = pickle.loads(pickle.dumps(reader))
    assert sent.partitions() == []
    assert pickle.loads(pickle.dumps(reader.partitions()[1])).pages == RANGES[1]


def test_a_table_without_pages_has_no_rows():
    reader = SnapshotPages(PLAN.options([])).reader(SnapshotPages({}).schema())
    assert reader.partitions() == []
    assert list(reader.read(None)) == []


@pytest.mark.parametrize("pages", [1, 99, 100, 101, 1000])
def test_ranges_have_every_page_of_every_leaf_once(pages: int):
    parts = tuple(
        SourcePart(Part(oid, oid, count, count * 8192), f"public.t_{oid}")
        for oid, count in ((1, pages), (2, 0), (3, 7))
    )
    table = SharedTable(SourceTable(RELATION, "", parts), DESCRIPTION)
    ranges = page_ranges(table, 100 * 8192)
    found = [(oid, page) for _, oid, _, begin, end, _, _ in ranges for page in range(begin, end)]
    assert found == [(1, page) for page in range(pages)] + [(3, page) for page in range(7)]
    assert all(end - begin <= 100 for *_, begin, end, _, _ in ranges)


def test_a_page_that_is_larger_than_a_task_is_one():
    wide = (SourcePart(Part(1, 1, 3, 3 << 30), "public.t"),)
    table = SharedTable(SourceTable(RELATION, "", wide), DESCRIPTION)
    assert [entry[3:5] for entry in page_ranges(table, 1 << 20)] == [(0, 1), (1, 2), (2, 3)]
