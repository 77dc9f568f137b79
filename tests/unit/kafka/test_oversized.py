"""Records that are too large for the broker, by policy."""

import json
from pathlib import Path

import pytest

from cdcd.engine.queue import Batch
from cdcd.errors import LimitError
from cdcd.kafka.oversized import CLAIM_CHECK, Oversized, TooLarge
from cdcd.transactions.position import Position

VALUE = b"v" * 1000
REFUSED = {TooLarge.of("t", b"k", VALUE)}


def batch() -> Batch:
    return Batch(
        Position(1, 1),
        Position(1, 1),
        records=[
            ("t", b"k", b"small", None),
            ("t", b"k", VALUE, [("h", b"1")]),
            ("t", b"other", VALUE, None),
            ("t", b"k", None, None),
        ],
    )


def test_a_claim_check_stands_in_for_the_record_in_its_place(tmp_path: Path):
    told: list[tuple[str, int, str]] = []
    policy = Oversized("claim_check", "", str(tmp_path), lambda *said: told.append(said))
    one = batch()
    assert policy.replace(one, REFUSED)
    topic, key, value, headers = one.records[1]
    assert (topic, key) == ("t", b"k")
    assert value is not None
    claim = json.loads(value)["claim_check"]
    assert Path(claim["file"]).read_bytes() == VALUE
    assert headers == [("h", b"1"), (CLAIM_CHECK, claim["file"].encode())]
    assert told == [("t", 1000, claim["file"])]
    assert one.records[0] == batch().records[0]
    assert one.records[2:] == batch().records[2:]
    assert not policy.replace(one, {TooLarge.of("t", b"k", value)}), "it has no smaller form"


def test_a_dead_letter_is_the_record_elsewhere():
    one = batch()
    assert Oversized("dead_letter", "dead").replace(one, REFUSED)
    assert one.records[1] == (
        "dead",
        b"k",
        VALUE,
        [("h", b"1"), ("cdcd.topic", b"t"), ("cdcd.size", b"1000")],
    )


def test_nothing_is_replaced_under_the_policy_fail_or_without_a_match():
    one = batch()
    assert not Oversized("fail").replace(one, REFUSED)
    assert not Oversized("dead_letter", "dead").replace(one, {TooLarge.of("t", b"k", b"w" * 1000)})
    assert one == batch()


def test_a_directory_that_can_be_written_is_left_as_it_was(tmp_path: Path):
    Oversized("claim_check", "", str(tmp_path)).prove()
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_is_told_before_it_is_needed(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    for directory in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(LimitError, match="claim-check") as caught:
            Oversized("claim_check", "", str(directory)).prove()
        assert str(directory) in caught.value.hint


@pytest.mark.parametrize("policy", ["fail", "dead_letter"])
def test_the_other_policies_need_no_directory(policy):
    Oversized(policy, "dead", "/none").prove()
