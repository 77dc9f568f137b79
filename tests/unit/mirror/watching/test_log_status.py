from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cdcd.mirror.base.position import Position
from cdcd.mirror.log.positions import Positions, Summary
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.watching.log_status import Base, Common, Figures, Waiting, assemble, at_point, behind
from cdcd.mirror.watching.stops import Stop
from cdcd.telemetry.mirror_status import Point
from tests.spark.source_model import FORM

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def base(name: str, position: Position | None) -> Base:
    schema = TableSchema(f"p.public.{name}", "public", name, "form", ("id",), FORM.columns, FORM.oid)
    return Base(f"lake.public.{name}", schema, position, Figures(3, 1, 99, 7, 4096, NOW))


def test_a_folded_table_says_what_waits_in_the_log_and_whether_the_log_has_deleted_changes_that_it_lacks():
    has = Positions(summary=Summary(deleted={"p.public.a": 0x2A, "p.public.b": 0x2B, "p.public.c": 1}))
    waiting = {"p.public.b": Waiting(5, NOW - timedelta(minutes=1))}
    bases = [base("c", None), base("b", Position(0x2A)), base("a", Position(0x2A))]
    a, b, c = assemble("p", bases, has, waiting, {})
    assert [each.table for each in (a, b, c)] == ["public.a", "public.b", "public.c"]
    (of_a,), (of_b,), (of_c,) = a.targets, b.targets, c.targets
    assert (of_a.lsn, of_a.held, of_a.held_since, of_a.is_expired) == ("0/2A", 0, None, False)
    assert (of_b.held, of_b.held_since, of_b.is_expired) == (5, NOW - timedelta(minutes=1), True)
    assert (of_c.lsn, of_c.is_expired) == (None, True)
    assert (of_a.files, of_a.delete_files, of_a.size, of_a.versions, of_a.metadata_bytes) == (
        3,
        1,
        99,
        7,
        4096,
    )
    assert [each.level for each in (a, b, c)] == ["ok", "error", "error"]


def test_a_table_that_stopped_and_a_topic_with_unreadable_records_are_named_also_without_a_table():
    stop = Stop("public.a", NOW, False, "it has no key", "Leave it out.")
    unread = {"p.public.b": {"no JSON": 2}}
    a, b = assemble("p", [], Positions(tables={"p.public.a": stop}), {}, unread)
    assert a.stopped is not None
    assert (a.table, a.stopped.message, a.level) == ("public.a", "it has no key", "error")
    assert (b.table, b.quarantined, b.level) == ("public.b", {"no JSON": 2}, "warning")


def test_the_log_is_behind_by_the_records_of_the_topics_that_it_reads():
    topics = {"a": "A", "b": "B", "c": "C"}
    has = Positions({"a": {0: 10}}, topics, {"c": "it was deleted"}, 1, topics)
    assert behind(has, {"a": {0: 12, 1: 3}, "b": {0: 4}, "c": {0: 99}, "other": {0: 7}}) == 9


def test_a_table_has_a_version_at_the_common_point_or_is_left_out_of_it():
    class Names:
        def bare_name(self, name: str) -> str:
            return name.removeprefix("lake.")

    target: Any = Names()
    common = Common(Point("0/30", NOW), frozenset({"public.b"}), frozenset({"public.a"}))
    bases = [base("a", Position(0x2A)), base("b", Position(0x2A))]
    a, b = [at_point(each, common, target) for each in assemble("p", bases, Positions(), {}, {})]
    assert (a.targets[0].consistent_lsn, a.left_out, a.level) == ("0/30", False, "ok")
    assert (b.targets[0].consistent_lsn, b.left_out, b.level) == (None, True, "warning")


def test_the_buckets_of_a_table_and_those_that_suit_its_size_are_told():
    (one,) = assemble("p", [replace(base("a", None), buckets=2, buckets_apt=16)], Positions(), {}, {})
    assert (one.targets[0].buckets, one.targets[0].buckets_apt, one.targets[0].is_outgrown) == (2, 16, True)
