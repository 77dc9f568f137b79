from dataclasses import replace
from datetime import UTC, datetime, timedelta

from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.targets.state import Origin, Place, State
from cdcd.mirror.targets.target import Files, Inspected, Kind
from cdcd.mirror.watching.status import Findings, assemble, behind
from cdcd.mirror.watching.stops import Stop
from cdcd.telemetry.mirror_status import Point
from tests.spark.source_model import FORM

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTINGS = MirrorSettings(
    "shop", KafkaSource("b:1"), "shop", "shop.schemas", "shop.checkpoint", "/c", exclude=("public.x",)
)
STATE = State(
    0x2A, 0x28, {0: Place(0x2A, 1, 1, 6)}, origin=Origin("id", {0: 0, 1: 5}), commit_time=NOW, held=3
)


def inspected(
    table: str, topic: str = "", kind: Kind = Kind.MIRROR, state: State | None = STATE
) -> Inspected:
    schema = TableSchema(
        topic or f"shop.public.{table}", "public", table, "form", ("id",), FORM.columns, FORM.oid
    )
    return Inspected(f"lake.{table}.{kind}", schema, kind, state, NOW + timedelta(seconds=2), Files(3, 1, 99))


def test_what_belongs_to_another_pipeline_or_is_excluded_is_left_out():
    found = Findings(
        inspected=[inspected("a"), inspected("x"), inspected("b", "other.public.b")],
        stops={
            "other.public.b": Stop("public.b", NOW, False, "no", ""),
            "shop.public.x": Stop("public.x", NOW, False, "no", ""),
        },
        quarantined={
            ("other.public.b", "public.b"): {"no JSON": 1},
            ("shop.public.x", "public.x"): {"no": 1},
        },
    )
    assert [table.table for table in assemble(found, SETTINGS, "delta", "/lake", NOW).tables] == ["public.a"]


def test_a_table_and_its_changelog_are_one_table_of_the_source():
    found = Findings([inspected("a", kind=Kind.CHANGELOG), inspected("a")], without=frozenset({"public.a"}))
    (table,) = assemble(found, SETTINGS, "delta", "/lake", NOW).tables
    assert [target.kind for target in table.targets] == ["mirror", "changelog"]
    assert table.left_out
    target = table.targets[0]
    assert (target.lsn, target.consistent_lsn, target.held, target.delay_s) == ("0/2A", "0/28", 3, 2.0)
    assert (target.columns, target.files, target.delete_files, target.size) == (len(FORM.columns), 3, 1, 99)


def test_a_table_that_stopped_before_its_first_batch_is_named_without_a_target():
    found = Findings(
        stops={"shop.public.a": Stop("public.a", NOW, False, "no", "do")},
        quarantined={("shop.public.b", "public.b"): {"no JSON": 2}},
        point=Point("0/28", NOW),
    )
    a, b = assemble(found, SETTINGS, "delta", "/lake", NOW).tables
    assert (a.table, a.targets, a.level) == ("public.a", (), "error")
    assert (b.table, b.quarantined, b.level) == ("public.b", {"no JSON": 2}, "warning")


def test_a_table_without_a_change_has_no_position():
    (table,) = assemble(Findings([inspected("a", state=None)]), SETTINGS, "delta", "/lake", NOW).tables
    assert (table.targets[0].lsn, table.targets[0].commit_time, table.targets[0].held) == (None, None, 0)


def test_what_a_table_lacks_is_counted_in_offsets_from_where_it_began():
    # Partition 0 is read up to offset 6; partition 1 was never written into the table, which began with it at 5.
    assert behind(inspected("a"), {0: 10, 1: 8}) == 3 + 3
    assert behind(inspected("a"), {0: 7, 1: 5}) == 0
    assert behind(inspected("a", state=None), {0: 4}) == 4
    assert behind(replace(inspected("a"), state=STATE), {}) == 0
