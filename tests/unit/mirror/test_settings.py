from typing import Any

from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.settings import MirrorSettings
from cdcd.mirror.targets.layout import Deletes, Layout
from cdcd.mirror.targets.partitions import Field


def settings(**given: Any) -> MirrorSettings:
    return MirrorSettings(
        "shop", KafkaSource("b:1"), "shop", "shop.schemas", "shop.checkpoint", "/tmp/x", **given
    )


def test_without_a_choice_every_table_is_mirrored_and_none_has_a_history():
    assert settings().wants("public.orders")
    assert not settings().keeps_history("public.orders")


def test_what_is_excluded_is_left_out_even_if_it_is_included():
    chosen = settings(include=("public.*",), exclude=("public.secret*",))
    assert chosen.wants("public.orders")
    assert not chosen.wants("public.secrets")
    assert not chosen.wants("audit.log")


def test_patterns_are_of_letters_as_they_are():
    assert not settings(include=("public.Orders",)).wants("public.orders")


def test_patterns_are_those_of_the_daemons_configuration():
    chosen = settings(include=('"public".order?', "public.a[1]"), history=('public."a*"',))
    assert [chosen.wants(f"public.{table}") for table in ("orders", "order", "a[1]", "a1")] == [
        True,
        False,
        True,
        False,
    ]
    assert chosen.keeps_history("public.a*")
    assert not chosen.keeps_history("public.ab")


def test_a_table_is_read_again_as_the_first_pattern_that_fits_says():
    chosen = settings(reload=True, reload_for=(("public.audit_*", False), ("public.*", True)))
    assert [chosen.reloads(table) for table in ("public.audit_x", "public.x", "other.x")] == [
        False,
        True,
        True,
    ]
    assert not settings().reloads("public.x")


def test_what_becomes_of_deleted_rows_is_as_the_first_pattern_that_fits_says():
    mark, remove = Deletes.MARK, Deletes.REMOVE
    chosen = settings(buckets=4, deletes_for=(("public.audit_*", remove), ("public.*", mark)))
    tables = ("public.audit_x", "public.x", "other.x")
    assert [chosen.layout_of(table) for table in tables] == [
        Layout(4, each) for each in (remove, mark, remove)
    ]
    assert settings(deletes=mark).layout_of("public.x") == Layout(1, mark)


def test_a_mirror_is_partitioned_as_the_first_pattern_that_fits_says_and_has_buckets_only_if_asked_for():
    days, none = (Field("at", "days"),), ()
    chosen = settings(partition_by=(("public.audit_*", none), ("public.*", days)))
    tables = ("public.audit_x", "public.x", "other.x")
    assert [chosen.layout_of(table).fields for table in tables] == [none, days, none]
    assert [chosen.buckets_of(table, 2**40) > 1 for table in tables] == [True, False, True]
    assert settings(partition_by=(("*.*", days),), buckets=8).layout_of("public.x", 2**40) == Layout(
        8, fields=days
    )
