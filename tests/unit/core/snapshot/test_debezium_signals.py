"""Debezium's signals as requests."""

import json
from typing import Any

import pytest

from cdcd.core.bounded_json import BYTES_MAX
from cdcd.core.snapshot.debezium_signals import read_signals
from cdcd.core.snapshot.signals import Signal


def content(kind: str, **data: Any) -> bytes:
    named = {name.replace("_", "-"): value for name, value in data.items()}
    return json.dumps({"id": "d1", "type": kind, "data": named}).encode()


def test_a_snapshot_is_a_request_for_its_tables():
    given = content("execute-snapshot", data_collections=["public.a", "public.b"], type="INCREMENTAL")
    assert read_signals(given, "shop") == (
        Signal("start", ("public.a", "public.b"), request="d1", pipeline="shop"),
    )
    # The type is incremental if it is not given, and blocking does the same.
    assert read_signals(content("execute-snapshot", data_collections=["public.a"]), "shop")
    assert read_signals(content("execute-snapshot", data_collections=["public.a"], type="blocking"), "shop")


def test_a_table_with_a_condition_is_a_request_of_its_own():
    given = content(
        "execute-snapshot",
        data_collections=["public.a", "public.b"],
        additional_conditions=[{"data-collection": "public.b", "filter": "color = 'blue'"}],
    )
    assert read_signals(given, "shop") == (
        Signal("start", ("public.a",), request="d1", pipeline="shop"),
        Signal("start", ("public.b",), where="color = 'blue'", request="d1", pipeline="shop"),
    )


def test_snapshots_are_stopped_paused_and_resumed():
    assert read_signals(content("stop-snapshot", data_collections=["public.a"]), "shop") == (
        Signal("cancel", ("public.a",), pipeline="shop"),
    )
    assert read_signals(b'{"type": "stop-snapshot"}', "shop") == (Signal("cancel", pipeline="shop"),)
    assert read_signals(content("pause-snapshot"), "shop") == (Signal("pause", pipeline="shop"),)
    assert read_signals(content("resume-snapshot"), "shop") == (Signal("resume", pipeline="shop"),)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 10_000, "not JSON"),
        (b" " * (BYTES_MAX + 1), "bytes"),
        (b"[]", "not a JSON object"),
        (b"{}", "type must be"),
        (b'{"type": ["execute-snapshot"]}', "type must be"),
        (content("log", message="x"), "type must be"),
        (b'{"type": "execute-snapshot", "data": []}', "data must be"),
        (content("execute-snapshot"), "needs data.data-collections"),
        (content("execute-snapshot", data_collections="public.a"), "must be a list"),
        (content("execute-snapshot", data_collections=[1]), "must be a text"),
        (content("execute-snapshot", data_collections=["x" * 300]), "must be a text"),
        (content("execute-snapshot", data_collections=["a.b\0"]), "must be a text"),
        (content("execute-snapshot", data_collections=["a.b"] * 2000), "at most 1000"),
        (content("execute-snapshot", data_collections=["a.b"], type="initial"), "data.type"),
        (content("execute-snapshot", data_collections=["a.b"], additional_condition="x"), "not supported"),
        (content("execute-snapshot", data_collections=["a.b"], additional_conditions={}), "must be a list"),
        (content("execute-snapshot", data_collections=["a.b"], additional_conditions=[1]), "list of objects"),
    ],
)
def test_what_is_refused_and_why(given: bytes, reason: str):
    with pytest.raises(ValueError, match=reason):
        read_signals(given, "shop")
