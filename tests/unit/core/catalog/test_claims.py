"""Which pipeline has a topic, by any order of claims, releases, kills and records of strangers."""

import itertools
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.claims import (
    CLAIMS_MAX,
    IS_CLAIMED,
    RECORD_BYTES_MAX,
    Claimant,
    Claims,
    claimed,
    foreign_prefix,
    under_prefix,
)

A = Claimant("shop", "shop.checkpoint")
B = Claimant("stock", "stock.checkpoint")
VALUE = A.value("cdcd-shop", 1)


class Log:
    """The topic: records in one order, which each pipeline reads from where it is."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes, bytes | None]] = []

    def write(self, key: bytes, value: bytes | None) -> None:
        self.records.append((len(self.records), key, value))

    def compact(self) -> None:
        last = {key: offset for offset, key, _ in self.records}
        self.records = [each for each in self.records if last[each[1]] == each[0]]

    def read(self, claims: Claims) -> Claims:
        for offset, key, value in self.records:
            if offset >= claims.next_offset:
                claims.take(offset, key, value)
        return claims


def test_the_first_claim_counts_for_every_reader() -> None:
    log = Log()
    log.write(A.key("orders"), VALUE)
    log.write(B.key("orders"), VALUE)
    found = log.read(Claims())
    assert found.holder("orders") == A
    assert found.of(A) == found.of(B) == ["orders"]
    assert found.refused(A, ["orders"], "c") == {}
    assert IS_CLAIMED in found.refused(B, ["orders", "other"], "c")["orders"].message
    assert found.unclaimed(["orders", "other"]) == ["other"]


def test_a_tombstone_releases_one_pipelines_claim() -> None:
    log = Log()
    log.write(A.key("orders"), VALUE)
    log.write(B.key("orders"), VALUE)
    log.write(B.key("orders"), None)
    assert log.read(Claims()).holder("orders") == A
    log.write(A.key("orders"), None)
    found = log.read(Claims())
    assert found.holder("orders") is None
    assert found.unclaimed(["orders"]) == ["orders"]


def test_a_claim_that_was_written_twice_keeps_its_place() -> None:
    log = Log()
    log.write(A.key("orders"), VALUE)
    log.write(B.key("orders"), VALUE)
    log.write(A.key("orders"), VALUE)
    assert log.read(Claims()).holder("orders") == A


class Pipeline:
    """One that claims a topic in the steps of `daemon/claiming.py`, and may be killed between two of them."""

    def __init__(self, me: Claimant, log: Log) -> None:
        self.me, self.log, self.claims = me, log, Claims()
        self.has_topic = False

    def steps(self) -> Iterator[None]:
        self.log.read(self.claims)
        yield
        wrote = self.claims.unclaimed(["orders"])
        if wrote:
            self.log.write(self.me.key("orders"), VALUE)
        yield
        self.log.read(self.claims)
        if not self.claims.refused(self.me, ["orders"], "c"):
            self.has_topic = True
        elif wrote:
            self.log.write(self.me.key("orders"), None)
        yield


ORDERS = sorted(set(itertools.permutations("aaabbb")))


@pytest.mark.parametrize("order", ORDERS, ids="".join)
@pytest.mark.parametrize("killed", [None, "a", "b"])
@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("compacts", [False, True])
def test_one_of_two_pipelines_has_the_topic_in_every_order_with_a_kill_at_every_step(
    order: tuple[str, ...], killed: str | None, after: int, compacts: bool
) -> None:
    log = Log()
    pipelines = {"a": Pipeline(A, log), "b": Pipeline(B, log)}
    running = {name: each.steps() for name, each in pipelines.items()}
    done = {"a": 0, "b": 0}
    for name in order:
        if name == killed and done[name] >= after:
            continue
        next(running[name])
        done[name] += 1
        if compacts:
            log.compact()
    # Whoever was killed starts again, and so does the other one, in both orders.
    for first in ("a", "b"):
        other = "b" if first == "a" else "a"
        again = {name: Pipeline(pipelines[name].me, log) for name in (first, other)}
        for each in again.values():
            for _ in each.steps():
                if compacts:
                    log.compact()
        assert [each.has_topic for each in again.values()].count(True) == 1
        for name, each in again.items():
            # A pipeline that has had the topic keeps it.
            assert each.has_topic or not pipelines[name].has_topic
    assert not (pipelines["a"].has_topic and pipelines["b"].has_topic)


GARBAGE = {
    "no key": (None, VALUE),
    "no JSON": (b"{", VALUE),
    "a list": (b"[]", VALUE),
    "no pipeline": (b'{"topic":"orders"}', VALUE),
    "another field": (b'{"topic":"orders","pipeline":"a","checkpoint":"b","x":1}', VALUE),
    "a number": (b'{"topic":1,"pipeline":"a","checkpoint":"b"}', VALUE),
    "another spelling": (b'{"topic": "orders", "pipeline": "shop", "checkpoint": "shop.checkpoint"}', None),
    "half a character": (b'{"topic":"\\ud800","pipeline":"a","checkpoint":"b"}', VALUE),
    "another format": (B.key("orders"), b'{"format":2}'),
    "a value that is no object": (B.key("orders"), b"1"),
    "an empty value": (B.key("orders"), b""),
    "too large": (B.key("x" * RECORD_BYTES_MAX), VALUE),
    "deep": (B.key("orders"), b"[" * 3000),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_a_record_that_is_no_claim_changes_nothing_and_is_counted(name: str) -> None:
    claims = Claims()
    claims.take(0, A.key("orders"), VALUE)
    claims.take(1, *GARBAGE[name])
    assert claims.ignored == 1
    assert claims.reason
    assert claims.holder("orders") == A
    assert claims.next_offset == 2


@given(
    st.lists(st.tuples(st.binary(max_size=80) | st.none(), st.binary(max_size=40) | st.none()), max_size=10)
)
def test_no_bytes_end_the_reading(records: list[tuple[bytes | None, bytes | None]]) -> None:
    claims = Claims()
    for offset, (key, value) in enumerate(records):
        claims.take(offset, key, value)
    assert claims.next_offset == len(records)


def test_the_number_of_claims_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CLAIMS_MAX >= 100_000
    claims = Claims()
    for offset in range(3):
        claims.take(offset, A.key(f"t{offset}"), VALUE)
    claims._count = CLAIMS_MAX
    claims.take(3, B.key("t9"), VALUE)
    assert claims.ignored == 1
    assert claims.holder("t9") is None
    claims.start_over()
    assert (claims.holder("t0"), claims.next_offset) == (None, 0)


@pytest.mark.parametrize(
    ("topic", "found"),
    [
        ("shop.public.orders", "shop.checkpoint"),
        ("eu.shop.orders", "eu.shop.checkpoint"),
        ("mine.public.orders", ""),
        ("shopping.orders", ""),
        ("orders", ""),
    ],
)
def test_a_topic_below_another_pipelines_prefix_is_found(topic: str, found: str) -> None:
    existing = {"shop.checkpoint", "eu.shop.checkpoint", "mine.checkpoint"}
    assert foreign_prefix(topic, existing, {"mine.checkpoint"}) == found


def test_errors_name_the_other_pipeline_and_the_way_out() -> None:
    for error in (claimed("orders", A, "cdcd.claims"), under_prefix("shop.a.b", "shop.checkpoint")):
        assert IS_CLAIMED in error.message
        assert "shop" in error.message
        assert "topics.rename" in error.hint
    assert json.loads(A.key("orders")) == {
        "topic": "orders",
        "pipeline": "shop",
        "checkpoint": "shop.checkpoint",
    }
