"""Records that are too large for the broker, by policy."""

import hashlib
import json
from pathlib import Path

import pytest

from cdcd.adapters.kafka.oversized import CLAIM_CHECK, Oversized, TooLarge
from cdcd.core.engine.queue import Batch
from cdcd.core.errors import LimitError
from cdcd.core.records.encoder import Record
from cdcd.core.transactions.position import Position

VALUE = b"v" * 1000
REFUSED = {TooLarge.of("t", b"k", VALUE)}


def batch() -> Batch:
    return Batch(
        Position(1, 1),
        Position(1, 1),
        items=[
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


MESSAGES = "m"


def message(key: bytes | None = b"k", headers: list[tuple[str, bytes]] | None = None) -> Record:
    return (MESSAGES, key, VALUE, headers)


def replaced(policy: Oversized, record: Record) -> Record | None:
    """What stands for a record in the end, when each that is tried is refused; None: it is refused for good."""
    one = Batch(Position(1, 1), Position(1, 1), items=[record])
    for _ in range(4):
        topic, key, value, _ = one.records[0]
        if value is None:
            return one.records[0]
        if not policy.takes(topic, value) or not policy.replace(one, {TooLarge.of(topic, key, value)}):
            return None
    raise AssertionError("it is replaced again and again")


@pytest.mark.parametrize("name", ["fail", "dead_letter", "claim_check"])
def test_a_message_that_is_refused_everywhere_loses_its_value(name, tmp_path: Path):
    told: list[tuple[str, int, str]] = []
    policy = Oversized(name, "dead", str(tmp_path), lambda *said: told.append(said), MESSAGES)
    topic, key, value, headers = replaced(policy, message(headers=[("h", b"1")])) or pytest.fail("it stops")
    assert (topic, key, value) == (MESSAGES, b"k", None)
    named = dict(headers or ())
    assert set(named) == {"h", "cdcd.size", "cdcd.sha256"}
    if name != "claim_check":
        assert named["cdcd.size"] == b"1000"
        assert named["cdcd.sha256"] == hashlib.sha256(VALUE).hexdigest().encode()
    assert told[-1][::2] == (MESSAGES, "")


def test_a_message_whose_key_is_what_is_too_large_loses_it():
    policy = Oversized(messages_topic=MESSAGES)
    kept = replaced(policy, message(b"k" * 1_001))
    assert kept is not None
    assert kept[1] is None


@pytest.mark.parametrize("name", ["fail", "dead_letter", "claim_check"])
def test_a_row_that_is_refused_everywhere_is_refused_for_good(name, tmp_path: Path):
    policy = Oversized(name, "dead", str(tmp_path), None, MESSAGES)
    assert replaced(policy, ("t", b"k", VALUE, None)) is None
