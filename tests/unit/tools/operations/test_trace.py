from dataclasses import replace
from typing import Any

import pytest

from cdcd.config.loading import parse_config
from cdcd.core.catalog.oids import Oids
from cdcd.core.errors import ConfigError
from cdcd.tools.operations.trace import (
    FoundRecord,
    lines,
    matches,
    mirror_lines,
    parse_key,
    reasons,
    topics_of,
)
from tests.unit.tools.operations.test_pipeline_status import DOWN, WELL, progress

TEXT = """
name: shop
postgres: {dsn: host=db}
kafka: {bootstrap_servers: 'b:1'}
filters: {tables: {public.orders: {keep: "row.id > 7"}}}
routes: {tables: {"public.orders": {rules: [{when: "row.id > 9", topic: "{prefix}.public.big"}]}}}
"""
CONFIG = parse_config(TEXT, {})
RECORD = (
    "  UPDATE     LSN 0/2000  transaction 712  committed 2026-09-21 14:13:20.000  -> shop.public.orders [2] offset 123"
    "  written 2026-09-21 14:13:20.250, 0.2 s after the commit"
)
FOUND = FoundRecord("shop.public.orders", 2, 123, "UPDATE", 0x2000, 712, 1_790_000_000_000, 1_790_000_000_250)


def test_a_key_is_given_by_column_or_in_its_order():
    assert parse_key(["5"]) == ("5",)
    assert parse_key(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    assert parse_key(['{"a": 1, "b": null, "c": "x"}']) == {"a": "1", "b": "null", "c": "x"}
    assert parse_key(["{x"]) == ("{x",)
    # A value may contain =, if the text before = is not the name of a column.
    assert parse_key(["2=3"]) == ("2=3",)
    with pytest.raises(ConfigError, match="column=value"):
        parse_key(["a=1", "2"])


@pytest.mark.parametrize(
    ("key", "words", "expected"),
    [
        ({"id": 5}, ["5"], True),
        ({"id": 5}, ["id=5"], True),
        ({"id": "5"}, ["5"], True),
        ({"id": 5}, ["6"], False),
        ({"id": 5}, ["5", "6"], False),
        ({"id": 5}, ["other=5"], False),
        ({"a": True, "b": None}, ["true", "null"], True),
        ({"a": 1, "b": "x"}, ["b=x"], True),
        ({}, ["5"], False),
    ],
)
def test_a_record_is_of_the_row_if_its_key_has_the_values(
    key: dict[str, Any], words: list[str], expected: bool
):
    assert matches(key, parse_key(words)) is expected


def test_the_topics_are_the_tables_own_and_those_of_its_routes():
    assert topics_of(CONFIG, "public.orders") == ("public.orders", ("shop.public.orders", "shop.public.big"))
    assert topics_of(CONFIG, '"public"."it.s"')[0] == 'public."it.s"'
    for wrong in ("public.*", "orders"):
        with pytest.raises(ConfigError):
            topics_of(CONFIG, wrong)


def test_a_row_has_a_line_for_each_part_of_the_pipeline():
    shown = list(
        lines(
            "public.orders",
            CONFIG,
            WELL,
            ["shop.public.orders"],
            count=7,
            found=[FOUND],
            mirrored=["it is there"],
        )
    )
    assert shown == [
        "publication  public.orders is in cdcd_shop (insert, update); its replica identity is the primary key",
        "filter       by filters.tables, public.orders",
        "route        by routes.tables, public.orders: shop.public.orders",
        "delivered    everything up to 0/1000; the server is at 0/1400",
        "records      7, the last 1:",
        RECORD,
        "mirror       it is there",
    ]


def test_a_row_without_a_record_has_the_reasons():
    shown = "\n".join(lines("public.gone", CONFIG, replace(WELL, server=DOWN), ["t"], count=0, found=[]))
    assert "public.gone is not in cdcd_shop" in shown
    assert "none with this key" in shown
    assert "No instance runs." in shown
    waiting = replace(WELL, checkpoint=progress(waiting=Oids((1,)), begun=0))
    told = list(reasons("public.orders", CONFIG, waiting))
    assert told[0] == "Rows that existed before are not all read: the snapshot of the table is waiting."
    assert "The filter may leave the row out." in told
    assert told[-1].startswith("Kafka may have deleted")


@pytest.mark.parametrize(
    ("lsn", "said"),
    [
        ("0/2000", "has the newest record: everything up to 0/2000"),
        ("0/1FFF", "does not have the newest record yet"),
        (None, "has no change yet"),
    ],
)
def test_the_mirror_has_the_newest_record_or_not(lsn: str | None, said: str):
    target = {"name": "lake.orders", "lsn": lsn, "written_at": "2026-01-01T00:00:00+00:00"}
    status = {"tables": [{"table": "public.orders", "targets": [target]}]}
    (line,) = mirror_lines(status, "public.orders", FOUND)
    assert line.startswith("lake.orders")
    assert said in line
    assert list(mirror_lines(status, "public.other", FOUND)) == ["the mirror has no table for public.other"]
    stopped = {"tables": [{"table": "public.orders", "stopped": {"message": "no\x1b"}, "targets": []}]}
    assert list(mirror_lines(stopped, "public.orders", None)) == ["the table is stopped: no\\u001b"]
