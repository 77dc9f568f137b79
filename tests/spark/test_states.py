"""Tables of states (SCD2) that are folded from a log: as of each commit, they have the rows of the source."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.core.errors import SinkError, SourceError
from cdcd.mirror.base.kept import KeptFolded
from cdcd.mirror.base.part import OvertakenError
from cdcd.mirror.base.position import Position
from cdcd.mirror.base.states import fold_states
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from tests.integration.daemon import until
from tests.spark.base_model import DOCS, WAITS_S, Lake, Slow, as_row, bounds, expected, form_of
from tests.spark.source_model import Source

pytestmark = pytest.mark.timeout(2400)


class States:
    """The table of states beside the table of a lake."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.format = lake, lake.format
        self.name = lake.table.replace("docs", "docs_scd2")

    def fold(
        self, bound: int, *, spark: SparkSession | None = None, slow: Any = None, **more: Any
    ) -> KeptFolded:
        place = replace(self.lake.place(**more), name=self.name)
        return fold_states(spark or self.lake.spark, slow or self.format, place, self.lake.described, bound)

    def position(self) -> Position:
        found = self.format.version(self.lake.spark, self.name).position
        assert found is not None
        return found

    def differences(self, source: Source) -> list[Any]:
        """The commits as of which the rows differ from those of the source: LSN, rows, and the rows of the source."""
        found, position = self.lake.spark.table(self.name).collect(), self.position()
        different = []
        for lsn in [each for each in bounds(source) if each <= position.lsn]:
            rows = expected(source, lsn)
            if as_of(found, lsn) != {_without(row, unknown(found, lsn, row[0])) for row in rows}:
                different.append((lsn, as_of(found, lsn), rows))
        return different

    def states(self) -> set[tuple[Any, ...]]:
        names = "id, n, title, body, valid_from_lsn, valid_to_lsn, valid_from, valid_to, is_current, _cdcd_unknown"
        rows = self.lake.spark.sql(f"SELECT {names} FROM {self.name}").collect()
        found = {tuple(map(str, row)) for row in rows}
        assert len(found) == len(rows), "a state is there twice"
        return found


def as_of(found: list[Any], lsn: int) -> set[tuple[Any, ...]]:
    """The rows that were current at the LSN."""
    rows = [row for row in found if is_valid(row, lsn)]
    for row in rows:
        assert row["is_current"] == (row["valid_to_lsn"] is None)
        assert (row["valid_to"] is None) == (row["valid_to_lsn"] is None)
    assert len(rows) == len({row["id"] for row in rows}), "a key has two states at once"
    return {_without((row["id"], row["n"], row["title"], row["body"]), row["_cdcd_unknown"]) for row in rows}


def is_valid(row: Any, lsn: int) -> bool:
    return bool(row["valid_from_lsn"] <= lsn and (row["valid_to_lsn"] is None or row["valid_to_lsn"] > lsn))


def unknown(found: list[Any], lsn: int, key: int) -> list[str] | None:
    """The columns of a row whose values the states name as unknown."""
    names = [row["_cdcd_unknown"] for row in found if row["id"] == key and is_valid(row, lsn)]
    return names[0] if names else None


def _without(row: tuple[Any, ...], names: list[str] | None) -> tuple[Any, ...]:
    return tuple(
        ["?" if name in (names or []) else value for (name, _, _), value in zip(DOCS, row, strict=True)]
    )


@pytest.fixture(params=[ICEBERG, DELTA])
def states(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, unique: str) -> States:
    return States(Lake(spark, str(tmp_path), unique, request.param))


def test_states_are_those_of_the_source_at_each_commit_and_come_again_after_a_rollback(
    states: States,
) -> None:
    # GIVEN a source with moved keys, unsent values and truncates
    source, lake = Source(1, wanders=True), states.lake
    for _ in range(2):
        source.run(10)
        lake.write(source)
        states.fold(source.lsn)
        assert states.differences(source) == []
    found = lake.spark.table(states.name).collect()
    # A value that was not sent with a change of the key is named.
    assert {tuple(row["_cdcd_unknown"] or ()) for row in found} - {
        (),
        ("title",),
        ("body",),
        ("title", "body"),
    } == set()
    assert [row for row in found if not row["is_current"]]
    # WHEN the same fold comes again, THEN there is no commit
    nodes = states.format.version(lake.spark, states.name).nodes
    states.fold(source.lsn)
    assert len(states.format.version(lake.spark, states.name).nodes) == len(nodes)
    # WHEN the owner brings back a former version
    before = states.states()
    _, first = min((node.carried.lsn, version) for version, node in nodes.items() if node.carried is not None)
    if lake.table_format == DELTA:
        lake.spark.sql(f"RESTORE TABLE {states.name} TO VERSION AS OF {first}")
    else:
        table = states.name.removeprefix("lake.")
        lake.spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {first})")
    assert states.position().lsn < source.lsn
    # THEN the next fold brings the same states
    states.fold(source.lsn)
    assert states.states() == before


@pytest.mark.parametrize("phase", ["pinned", "committed"])
def test_a_fold_of_states_that_others_overtake_leaves_the_same_states(
    states: States, tmp_path: Path, phase: str
) -> None:
    source, lake = Source(3), states.lake
    source.run(6)
    lake.write(source)
    states.fold(source.lsn)
    source.run(5)
    middle = source.lsn
    source.run(5)
    lake.write(source)
    # WHEN a driver freezes in a fold, another one folds more, and the first one goes on
    own = lake.spark.newSession()
    slow = Slow(own, states.format, phase, tmp_path)
    errors: list[Exception] = []

    def run() -> None:
        try:
            states.fold(middle, spark=own, slow=slow)
        except OvertakenError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: True if slow.there.exists() or not thread.is_alive() else None, phase, WAITS_S)
        states.fold(source.lsn)
    finally:
        slow.go.touch()
        thread.join(WAITS_S)
    assert not thread.is_alive()
    # THEN the next fold has the states of the source
    source.run(2)
    lake.write(source)
    states.fold(source.lsn)
    position = states.position()
    assert (position.lsn, position.clean) == (source.lsn, True)
    assert states.differences(source) == []
    states.states()


def test_states_stay_when_columns_change_and_when_the_table_is_read_again(states: States) -> None:
    lake, spark = states.lake, states.lake.spark
    source = Source(5, moves=False, truncates=False)
    source.run(6)
    lake.write(source)
    states.fold(source.lsn)
    first = source.lsn
    # WHEN a column is dropped, another one is renamed, and a third one is added with a default
    lake.forms["form-3"] = form_of(
        "form-3",
        ("id", 1, "int64"),
        ("number", 2, "int32"),
        ("title", 3, "text"),
        ("note", 5, "int32"),
        note=7,
    )
    common = {"partition": 0, "schema_id": "form-3", "before": None, "event_no": 1}
    names = ("id", "number", "title", "note")
    last = {
        **common,
        "commit_lsn": first + 5,
        "op": "c",
        "after": (99, 1, "x", 2),
        "key": (99,),
        "offset": 900,
    }
    lake.append([as_row(last, names)])
    states.fold(first + 5)
    # THEN former states keep what they had, and the current ones have the default
    rows = spark.table(states.name).collect()
    now = {(row["id"], row["number"], row["title"], row["note"]) for row in rows if row["is_current"]}
    assert now == {(id_, n, title, 7) for id_, n, title, _ in expected(source, first)} | {(99, 1, "x", 2)}
    assert {row["body__dropped"] for row in rows if row["is_current"]} >= {
        row[3] for row in expected(source, first)
    }
    # WHEN the table cannot follow, it stops. When it is read again with another type
    lake.forms["form-4"] = form_of("form-4", ("id", 1, "int64"), ("number", 2, "text"))
    more = {**common, "schema_id": "form-4", "commit_lsn": first + 9}
    change = {**more, "op": "u", "after": (99, "nine"), "key": (99,), "offset": 901}
    lake.append([as_row(change, ("id", "number"))])
    with pytest.raises(IncompatibleSchemaError) as stopped:
        states.fold(first + 9)
    assert "cdcd tables resume public.docs" in stopped.value.hint
    again = {**more, "commit_lsn": first + 20}
    lake.append(
        [
            as_row({**again, "op": "t", "after": None, "key": None, "offset": 902}, ()),
            as_row(
                {**again, "op": "r", "after": (99, "nine"), "key": (99,), "event_no": 2, "offset": 903},
                ("id", "number"),
            ),
        ]
    )
    done = states.fold(first + 20)
    # THEN all states of before have ended, and what the table could not have is named
    rows = spark.table(states.name).collect()
    assert [(row["id"], row["number"], row["valid_from_lsn"]) for row in rows if row["is_current"]] == [
        (99, "nine", first + 20)
    ]
    assert done.missing == (first + 5, first + 20)
    before = [row for row in rows if row["id"] == 99 and not row["is_current"]]
    assert [(row["number__dropped"], row["title__dropped"], row["valid_to_lsn"]) for row in before] == [
        (1, "x", first + 20)
    ]
    # AND the table goes on
    lake.append(
        [as_row({**change, "commit_lsn": first + 30, "after": (99, "ten"), "offset": 904}, ("id", "number"))]
    )
    states.fold(first + 30)
    rows = spark.table(states.name).collect()
    assert [(row["number"], row["valid_to_lsn"]) for row in rows if row["valid_from_lsn"] >= first + 20] in (
        [("nine", first + 30), ("ten", None)],
        [("ten", None), ("nine", first + 30)],
    )


def test_states_are_refused_where_they_cannot_be_told(states: States) -> None:
    lake = states.lake
    source = Source(6)
    source.run(4)
    lake.write(source)
    # A column of the source has a name of the table's own.
    lake.forms["form-1"] = form_of("form-1", *DOCS, ("valid_to", 5, "text"))
    with pytest.raises(SourceError, match="valid_to has the name of a column"):
        states.fold(source.lsn)
    lake.forms["form-1"] = form_of("form-1", *DOCS)
    # The log lacks changes.
    states.fold(source.lsn)
    lsn = source.lsn
    last = {"partition": 0, "schema_id": "form-1", "before": None, "event_no": 1, "commit_lsn": lsn + 9}
    lake.append([as_row({**last, "op": "c", "after": (77, 1, "x", None), "key": (77,), "offset": 900})])
    with pytest.raises(SinkError) as lacks:
        states.fold(lsn + 9, log_begins=lsn + 1)
    assert "cdcd tables resume public.docs" in lacks.value.hint
    # The position is known no more.
    if lake.table_format == ICEBERG:
        lake.spark.sql(f"ALTER TABLE {states.name} UNSET TBLPROPERTIES ('cdcd.position')")
        lake.spark.sql(f"DELETE FROM {states.name} WHERE id = -1 OR is_current = false")
        table = states.name.removeprefix("lake.")
        lake.spark.sql(
            f"CALL lake.system.expire_snapshots(table => '{table}', older_than => now(), retain_last => 1)"
        )
        with pytest.raises(SinkError, match="no commit that is left"):
            states.fold(lsn + 9)
