"""What both formats do alike, over a format that is a few dictionaries. No Spark."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType

from cdcd.core.errors import ConfigError, FencedError, PositionError
from cdcd.core.facts import Fact
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.buckets import BUCKET
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from cdcd.mirror.targets.fencing import Stamp
from cdcd.mirror.targets.lakehouse import Lakehouse
from cdcd.mirror.targets.layout import PLAIN, Deletes, Layout
from cdcd.mirror.targets.making import BUCKETS, DELETES, KIND, SCHEMA, SCHEMA_AT
from cdcd.mirror.targets.pinned import Tag
from cdcd.mirror.targets.state import Place, State
from cdcd.mirror.targets.table_format import Commit, TableFormat
from cdcd.mirror.targets.target import Files, Kind, Maintained
from cdcd.mirror.watching.progress import TableRestored
from tests.spark.source_model import FORM

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


class FakeSpark:
    """Takes statements down; tables have the columns that they are told to have."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.columns: dict[str, Any] = {}
        self._jsparkSession = self

    def sessionUUID(self) -> str:  # noqa: N802 - Spark's name
        return "one"

    def sql(self, statement: str) -> Any:
        self.said.append(statement)
        return SimpleNamespace(head=lambda: None)

    def table(self, _: str) -> Any:
        fields = [SimpleNamespace(name=name, dataType=type_) for name, type_ in self.columns.items()]
        return SimpleNamespace(schema=fields, filter=lambda _condition: SimpleNamespace(isEmpty=lambda: True))


class FakeFormat(TableFormat):
    """Tables by name: properties and versions, newest first."""

    format = "fake"

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, dict[str, str]] = {}
        self.versions: list[tuple[int, State]] = []
        self.tagged: list[tuple[int, Tag]] = []
        self.whole = True
        self.carried: list[State] = []
        self.looks = 0
        self.foreign: dict[int, int] = {}
        """By the number of the look at the newest version: the version of a commit without a state."""

    def exists(self, spark: SparkSession, name: str) -> bool:
        return name in self.tables

    def properties(self, spark: SparkSession, name: str) -> Mapping[str, str]:
        return self.tables[name]

    def create(
        self,
        spark: SparkSession,
        name: str,
        columns: str,
        properties: Mapping[str, str],
        *,
        view: str | None = None,
        by: str | None = None,
    ) -> None:
        self.tables[name] = {"columns": columns, "by": by or "", **properties}

    @contextmanager
    def carrying(self, spark: SparkSession, state: State) -> Iterator[None]:
        yield
        self.carried.append(state)
        self.versions.insert(0, (len(self.versions), state))

    def commits(self, spark: SparkSession, name: str) -> Iterator[Commit]:
        for number, (version, state) in enumerate(self.versions):
            yield Commit(version, state, NOW - timedelta(minutes=number))

    def files(self, spark: SparkSession, name: str) -> Files:
        return Files(2, None, 100)

    def list_tables(self, spark: SparkSession) -> Iterator[str]:
        yield from self.tables

    def take_back(self, spark: Any, name: str, version: int) -> None:
        self.versions = [each for each in self.versions if each[0] <= version]

    def is_whole(self, spark: SparkSession, name: str) -> bool:
        return self.whole

    def current(self, spark: SparkSession, name: str) -> int | None:
        self.looks += 1
        return self.foreign.get(self.looks) or next((version for version, _ in self.versions), None)

    def version(self, spark: SparkSession, name: str, version: int) -> DataFrame:
        return cast("DataFrame", f"{name}@{version}")

    def tag(self, spark: SparkSession, name: str, version: int, tag: Tag) -> None:
        self.tagged.append((version, tag))

    def append(self, rows: DataFrame, name: str) -> None:
        raise AssertionError

    def name_of(self, schema: TableSchema, kind: Kind) -> str:
        return f"{schema.name}.{kind}"

    def own_name(self, name: str) -> str:
        return name

    def maintain(self, *_: Any) -> Maintained:
        return Maintained(0, 0, 0)


class Fake(Lakehouse):
    """A target over `its` tables."""

    def __init__(self, its: FakeFormat | None = None) -> None:
        self.its = its or FakeFormat()
        super().__init__(self.its)


@pytest.fixture
def spark_() -> Any:
    return FakeSpark()


def prepare(target: Fake, spark: Any, form: TableSchema = FORM, at: tuple[int, int] = (1, 1)) -> TableSchema:
    return target.prepare(spark, "t", form, Kind.MIRROR, at)


def made() -> dict[str, str]:
    """The properties of a table that a former process made."""
    return {SCHEMA: FORM.to_json(), SCHEMA_AT: "[1, 1]", KIND: Kind.MIRROR.value}


def test_a_new_table_says_what_it_is(spark_: Any):
    target = Fake()
    assert prepare(target, spark_) == FORM
    made = target.its.tables["t"]
    assert made["columns"] == (
        "`id` bigint, `n` int, `title` string, `body` string,"
        " `_cdcd_commit_lsn` BIGINT, `_cdcd_event_no` BIGINT, `_cdcd_unknown` ARRAY<STRING>"
    )
    assert (TableSchema.from_json(made[SCHEMA]), made[SCHEMA_AT], made[KIND]) == (FORM, "[1, 1]", "mirror")
    assert target.reached(spark_, "t") == State()


def test_a_mirror_with_buckets_says_how_many_and_a_changelog_has_none(spark_: Any):
    target = Fake()
    target.prepare(spark_, "t", FORM, Kind.MIRROR, (1, 1), Layout(8))
    target.prepare(spark_, "log", FORM, Kind.CHANGELOG, (1, 1), Layout(8))
    assert target.its.tables["t"]["columns"].endswith(", `_cdcd_bucket` INT")
    assert (target.its.tables["t"]["by"], target.its.tables["t"][BUCKETS]) == (BUCKET, "8")
    assert BUCKET not in target.its.tables["log"]["columns"]
    assert (target.its.tables["log"]["by"], target.its.tables["log"].get(BUCKETS)) == ("", None)
    # Another process finds the number in the table, whatever the configuration says by now.
    later = Fake()
    later.its.tables = target.its.tables
    later.prepare(spark_, "t", FORM, Kind.MIRROR, (1, 1), Layout(2))
    assert later.layout(spark_, "t") == Layout(8)


def test_a_mirror_that_marks_deletes_says_so_and_a_changelog_does_not(spark_: Any):
    target = Fake()
    marks = Layout(4, Deletes.MARK)
    target.prepare(spark_, "t", FORM, Kind.MIRROR, (1, 1), marks)
    target.prepare(spark_, "log", FORM, Kind.CHANGELOG, (1, 1), marks)
    assert target.its.tables["t"]["columns"].endswith(", `_cdcd_deleted` BOOLEAN, `_cdcd_bucket` INT")
    assert (target.its.tables["t"][DELETES], target.its.tables["log"].get(DELETES)) == ("mark", None)
    later = Fake()
    later.its.tables = target.its.tables
    assert [later.layout(spark_, name) for name in ("t", "log", "none")] == [marks, PLAIN, None]


def test_labels_of_a_key_move_its_rows_to_their_buckets(spark_: Any):
    target = Fake()
    mood = ColumnSchema("id", 1, "mood", 16400, -1, StringType(), labels=((1, "sad"), (2, "ok")))
    form = replace(FORM, columns=(mood, *FORM.columns[1:]))
    target.prepare(spark_, "t", form, Kind.MIRROR, (1, 1), Layout(8))
    target._known.tables["t"].empty = False
    spark_.columns = {"id": StringType()}
    new = replace(mood, labels=((1, "blue"), (2, "ok")))
    target.prepare(spark_, "t", replace(form, columns=(new, *form.columns[1:])), Kind.MIRROR, (1, 1))
    (update,) = [said for said in spark_.said if said.startswith("UPDATE")]
    value = "CASE `id` WHEN 'sad' THEN 'blue' ELSE `id` END"
    assert f"SET `id` = {value}, _cdcd_bucket = pmod(CAST(pmod(pmod(xxhash64({value})" in update


def test_what_a_table_has_is_looked_up_once_and_again_after_an_error(spark_: Any):
    target = Fake()
    target.its.tables["t"] = made()
    target.its.versions = [(7, State(commit_lsn=70, partitions={0: Place(70, 1, 1, 5)}))]
    assert target.reached(spark_, "t").commit_lsn == 70
    target.its.versions = []
    assert target.reached(spark_, "t").commit_lsn == 70
    target.forget("t")
    assert target.reached(spark_, "t").commit_lsn == 0


def test_the_newest_version_is_whoevers_and_its_state_the_mirrors_own(spark_: Any):
    target = Fake()
    assert target.newest(spark_, "t") is None
    target.its.tables["t"] = made()
    target.its.versions = [(7, State(commit_lsn=70)), (6, State(commit_lsn=60))]
    # GIVEN a commit of somebody else, which comes between two looks
    target.its.foreign = {2: 8, 3: 8, 4: 8}
    newest = target.newest(spark_, "t")
    # THEN it is looked once more, and the version is that commit's
    assert newest is not None
    assert (str(newest.rows), newest.state.commit_lsn, newest.schema) == ("t@8", 70, FORM)
    target.its.versions = []
    target.its.whole = False
    with pytest.raises(PositionError):
        target.newest(spark_, "t")


def test_a_table_that_somebody_else_made_is_refused(spark_: Any):
    target = Fake()
    target.its.tables["t"] = {"owner": "bob"}
    with pytest.raises(PositionError, match="was not made by this program"):
        prepare(target, spark_)


def test_the_steps_to_a_new_form_are_recorded_one_by_one_with_the_position(spark_: Any):
    target = Fake()
    target.its.tables["t"] = made()
    state = State(commit_lsn=5)
    target.its.versions = [(1, state)]
    spark_.columns = {"id": LongType(), "n": IntegerType(), "title": StringType(), "body": StringType()}
    id_, n, title, _ = FORM.columns
    flag = ColumnSchema("flag", 9, "integer", 23, -1, IntegerType())
    new = replace(
        FORM, schema_id="2", columns=(id_, replace(n, spark=LongType()), replace(title, name="head"), flag)
    )
    assert prepare(target, spark_, new, (9, 1)) == new
    steps = [said for said in spark_.said if "TBLPROPERTIES" not in said]
    assert steps == [
        "ALTER TABLE t DROP COLUMN `body`",
        "ALTER TABLE t RENAME COLUMN `title` TO `head`",
        "ALTER TABLE t ALTER COLUMN `n` TYPE bigint",
        "ALTER TABLE t ADD COLUMN `flag` int",
    ]
    assert len(target.its.carried) == len(steps) + 1
    stamps = [state.stamp, *[carried.stamp for carried in target.its.carried]]
    assert [carried.made_on for carried in target.its.carried] == stamps[:-1]
    assert all(replace(carried, stamp=state.stamp, made_on=None) == state for carried in target.its.carried)
    # A partition that lags brings the old form: the table keeps the new one.
    assert prepare(target, spark_, FORM, (8, 1)) == new


def test_what_cannot_be_followed_leaves_the_table_as_it_is(spark_: Any):
    target = Fake()
    prepare(target, spark_)
    id_, n, *rest = FORM.columns
    text = replace(FORM, schema_id="2", columns=(id_, replace(n, type="text", spark=StringType()), *rest))
    with pytest.raises(IncompatibleSchemaError):
        prepare(target, spark_, text, (9, 1))
    assert spark_.said == []
    assert json.loads(target.its.tables["t"][SCHEMA])["schema_id"] == "form-1"


def test_a_table_as_of_an_lsn_is_the_newest_version_that_is_not_later(spark_: Any):
    target = Fake()
    target.its.versions = [
        (9, State(consistent_lsn=90)), (8, State()), (7, State(consistent_lsn=70)),
    ]  # fmt: skip
    assert cast("str", target.read(spark_, "t", 95)) == "t@9"
    assert cast("str", target.read(spark_, "t", 89)) == "t@7"
    target.its.whole = False
    with pytest.raises(PositionError, match="no version from LSN 60"):
        target.read(spark_, "t", 60)


def test_the_version_at_a_point_is_looked_up_once_until_there_is_another_commit(spark_: Any):
    target = Fake()
    assert target.pin(spark_, "t") is None
    prepare(target, spark_)
    # Nothing was committed that a point could name.
    assert target.pin(spark_, "t", Tag(5, 1)) is None
    with target._known.commit(spark_, "t", State(commit_lsn=7)):
        pass
    first = target.its.versions[0][0]
    assert [target.pin(spark_, "t"), target.pin(spark_, "t", Tag(7, 1))] == [first, first]
    # A table without changes is not looked at again, and gets the tags of later points too.
    target.its.versions.insert(0, (99, State(commit_lsn=7)))
    assert target.pin(spark_, "t", Tag(9, 1)) == first
    assert target.its.tagged == [(first, Tag(7, 1)), (first, Tag(9, 1))]


def test_a_version_of_another_process_is_not_pinned(spark_: Any):
    target = Fake()
    prepare(target, spark_)
    with target._known.commit(spark_, "t", State(commit_lsn=7)):
        pass
    target.its.versions.insert(0, (99, State(commit_lsn=8, stamp=Stamp("other", 1))))
    with pytest.raises(FencedError):
        target.pin(spark_, "t", Tag(9, 1))
    assert target.its.tagged == []


def test_commits_on_another_one_than_they_name_are_taken_back_before_the_next_one_and_told(spark_: Any):
    one, two, old = Stamp("one", 1), Stamp("two", 1), Stamp("old", 1)
    placed = State(commit_lsn=6, stamp=one, made_on=old)
    # GIVEN a changelog with a commit of each of two processes. Both commits name the same commit in `made_on`
    target = Fake()
    target.its.tables["log"] = made() | {KIND: Kind.CHANGELOG.value}
    target.its.versions = [
        (2, State(commit_lsn=7, stamp=two, made_on=old)),
        (1, placed),
        (0, State(commit_lsn=5, stamp=old)),
    ]
    facts: list[Fact] = []
    target.tell(facts.append)
    # WHEN another process looks at it
    assert target.reached(spark_, "log").commit_lsn == 6
    assert facts == [], "nothing is taken back before it commits itself"
    # THEN the process restores the commit of LSN 6 before its own first commit, and tells it once
    for lsn in (9, 10):
        with target._known.commit(spark_, "log", State(commit_lsn=lsn)):
            pass
    assert [state.commit_lsn for _, state in target.its.versions] == [10, 9, 6, 6, 5]
    (told,) = facts
    assert isinstance(told, TableRestored)
    assert (told.table, told.version) == ("log", 1)


@pytest.mark.parametrize("made_on", [None, Stamp("old", 1)])
def test_a_commit_that_lies_on_the_one_it_names_or_names_none_stays(spark_: Any, made_on: Stamp | None):
    target = Fake()
    target.its.tables["log"] = made() | {KIND: Kind.CHANGELOG.value}
    target.its.versions = [
        (1, State(commit_lsn=7, stamp=Stamp("one", 1), made_on=made_on)),
        (0, State(commit_lsn=5, stamp=Stamp("old", 1))),
    ]
    facts: list[Fact] = []
    target.tell(facts.append)
    assert target.reached(spark_, "log").commit_lsn == 7
    with target._known.commit(spark_, "log", State(commit_lsn=9)):
        pass
    assert [state.commit_lsn for _, state in target.its.versions] == [9, 7, 5]
    assert facts == []


def test_a_format_without_tags_says_what_to_do(spark_: Any):
    with pytest.raises(ConfigError, match="lsn-0-9") as refused:
        TableFormat.tag(FakeFormat(), spark_, "t", 1, Tag(9, 1))
    assert "tag_interval_s" in refused.value.hint


def test_a_name_is_known_without_its_catalog():
    assert Fake().bare_name("`lake`.`public`.`a``b`") == "public.a`b"


def test_a_table_says_when_its_newest_changes_were_written(spark_: Any):
    target = Fake()
    target.its.tables["t"] = made()
    old = State(commit_lsn=60, partitions={0: Place(60, 1, 1, 4)})
    new = State(commit_lsn=70, partitions={0: Place(70, 1, 1, 5)})
    # The newest two commits changed no row; the commit before them brought the changes.
    target.its.versions = [(4, new), (3, new), (2, new), (1, old)]
    found = target.inspect(spark_, "t")
    assert found is not None
    assert (found.state, found.written_at) == (new, NOW - timedelta(minutes=2))
    assert (found.schema, found.kind, found.files) == (FORM, Kind.MIRROR, Files(2, None, 100))


def test_a_table_without_a_position_is_empty_or_refused_and_one_of_somebody_else_is_passed_over(spark_: Any):
    target = Fake()
    target.its.tables |= {"t": made(), "other": {"owner": "bob"}}
    assert target.inspect(spark_, "other") is None
    found = target.inspect(spark_, "t")
    assert found is not None
    assert (found.state, found.written_at) == (None, None)
    target.its.whole = False
    # The topic may not have all rows any more, so the way on is the database.
    with pytest.raises(PositionError, match="No version of t") as refusal:
        target.inspect(spark_, "t")
    assert "Drop t, then read the table again: cdcd mirror " in refusal.value.hint
    assert f"--snapshot {FORM.table} " in refusal.value.hint
    # To look takes no notice of who writes: another process may do so at any time.
    assert target._known._fence._known == {}
