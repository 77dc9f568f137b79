"""Records that are too large for the broker, by policy."""

import hashlib
import json
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from cdcd.adapters.kafka.claim_store import ClaimDirectory
from cdcd.adapters.kafka.oversized import (
    BATCH_OVERHEAD,
    CLAIM_CHECK,
    SMALLEST_BATCH,
    Alone,
    FailedRecord,
    Fitting,
    FlushFirstError,
    Oversized,
    OversizedRecord,
    SizeLimits,
)
from cdcd.adapters.kafka.producer import BATCH_SIZE, SinkSettings
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.checkpoint_record import CheckpointRecords
from cdcd.core.errors import LimitError
from cdcd.core.records.encoder import Record
from cdcd.core.retry import Delays
from cdcd.core.transactions.position import Position

VALUE = b"v" * 1000
REFUSED = {OversizedRecord.of("t", b"k", VALUE)}


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
    policy = Oversized("claim_check", "", ClaimDirectory(tmp_path), lambda *said: told.append(said))
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
    assert not policy.replace(one, {OversizedRecord.of("t", b"k", value)}), "it has no smaller form"


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
    assert not Oversized("dead_letter", "dead").replace(one, {OversizedRecord.of("t", b"k", b"w" * 999)})
    assert one == batch()


def test_a_record_that_the_next_session_encodes_again_is_known_by_its_key_and_size():
    first, again = (
        b'{"body":"' + b"x" * 1000 + b'","ts_ms":%d}' % ms for ms in (1795997992000, 1795997993117)
    )
    refused = {OversizedRecord.of("t", b"k", first)}
    one = Batch(Position(1, 1), Position(1, 1), items=[("t", b"k", again, None), ("t", b"o", again, None)])
    assert Oversized("dead_letter", "dead").replace(one, refused)
    assert [topic for topic, *_ in one.records] == ["dead", "t"]


def test_a_directory_that_can_be_written_is_left_as_it_was(tmp_path: Path):
    Oversized("claim_check", "", ClaimDirectory(tmp_path)).prove()
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_is_told_before_it_is_needed(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    for directory in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(LimitError, match="claim-check") as caught:
            Oversized("claim_check", "", ClaimDirectory(directory)).prove()
        assert str(directory) in caught.value.hint


@pytest.mark.parametrize("policy", ["fail", "dead_letter"])
def test_the_other_policies_need_no_directory(policy):
    Oversized(policy, "dead").prove()


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
        if not policy.takes(topic, value) or not policy.replace(one, {OversizedRecord.of(topic, key, value)}):
            return None
    raise AssertionError("it is replaced again and again")


@pytest.mark.parametrize("name", ["fail", "dead_letter", "claim_check"])
def test_a_message_that_is_refused_everywhere_loses_its_value(name, tmp_path: Path):
    told: list[tuple[str, int, str]] = []
    policy = Oversized(name, "dead", ClaimDirectory(tmp_path), lambda *said: told.append(said), MESSAGES)
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
    policy = Oversized(name, "dead", ClaimDirectory(tmp_path), None, MESSAGES)
    assert replaced(policy, ("t", b"k", VALUE, None)) is None


LARGE = bytes(BATCH_SIZE + 1)
TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


def settings(batch_bytes_max: int = 4_000_000) -> SinkSettings:
    return SinkSettings(
        client={},
        producer={},
        exactly_once=True,
        transactional_id="t",
        checkpoint_topic="c",
        records=CheckpointRecords("k"),
        batch_bytes_max=batch_bytes_max,
        timeout_s=60,
        retry=Delays(0.1, 1),
    )


def batch_of_batch_sizing(*values: bytes | None, topic: str = "t") -> Batch:
    return Batch(Position(1, 1), Position(1, 1), items=[(topic, b"k", value, None) for value in values])


def failed(value: bytes | None = b"x", *, local: bool = False) -> FailedRecord:
    return FailedRecord(TOO_LARGE, "t", b"k", value, local=local)


def dead_letter() -> Oversized:
    return Oversized("dead_letter", "dead")


def test_requests_get_smaller_down_to_one_record():
    limits = SizeLimits()
    fitting = Fitting(settings(), dead_letter(), limits)
    sizes = [fitting.batch_size]
    while fitting.batch_size:
        assert fitting.learn(failed(), [batch_of_batch_sizing(b"x", b"y")]) is None
        sizes.append(fitting.batch_size)
    assert sizes[:3] == [5_000_000, BATCH_SIZE, BATCH_SIZE // 4]
    assert sizes[-2] >= SMALLEST_BATCH
    assert not limits.records


def test_a_record_that_is_too_large_by_itself_is_replaced_when_all_is_sent_again():
    limits = SizeLimits()
    fitting = Fitting(settings(), dead_letter(), limits)
    assert fitting.learn(failed(), [batch_of_batch_sizing(b"x"), batch_of_batch_sizing(b"y", LARGE)]) is None
    assert limits == SizeLimits(None, {OversizedRecord.of("t", b"k", LARGE)})
    # THEN another sink of the process, for which the same bytes come again, replaces it before it is sent.
    again = batch_of_batch_sizing(b"y", LARGE)
    Fitting(settings(), dead_letter(), limits).prepare(again)
    assert [record[0] for record in again.records] == ["t", "dead"]
    fitting.committed()
    assert not limits.records


def test_one_record_in_a_request_names_the_record():
    limits = SizeLimits(batch_size=0)
    assert Fitting(settings(), dead_letter(), limits).learn(failed(b"small"), []) is None
    assert limits.records == {OversizedRecord.of("t", b"k", b"small")}


@pytest.mark.parametrize(
    ("oversized", "refused"),
    [
        (Oversized("fail"), failed(LARGE)),
        (dead_letter(), failed(None)),
        (dead_letter(), failed(LARGE, local=True)),
        (dead_letter(), FailedRecord(TOO_LARGE, "dead", b"k", LARGE, local=False)),
    ],
    ids=["by the policy", "a tombstone", "librdkafka's own, which was tried in its place", "a dead letter"],
)
def test_what_nothing_helps_is_named(oversized: Oversized, refused: FailedRecord):
    limits = SizeLimits(batch_size=0)
    assert Fitting(settings(), oversized, limits).learn(refused, []) == refused
    assert not limits.records


def test_a_record_that_was_replaced_and_is_refused_again_is_named():
    limits = SizeLimits(batch_size=0)
    fitting = Fitting(settings(), dead_letter(), limits)
    assert fitting.learn(failed(LARGE), []) is None
    assert fitting.learn(failed(LARGE), []) == failed(LARGE)


def test_what_librdkafka_refuses_is_replaced_in_its_place():
    one = batch_of_batch_sizing(b"x", LARGE, b"y")
    one.handed_over = 1
    fitting = Fitting(settings(), dead_letter(), SizeLimits())
    assert fitting.replace_here(one, TOO_LARGE)
    assert [record[0] for record in one.records] == ["t", "dead", "t"]
    assert not fitting.replace_here(one, KafkaError(KafkaError._UNKNOWN_TOPIC))


def test_an_error_names_the_place_of_a_record_and_shows_no_part_of_its_key_or_value():
    said = str(FailedRecord(TOO_LARGE, "t", b"k" * 1000, b"v", local=False))
    assert said == "A record of 1001 bytes for topic t with a key of 1000 bytes"
    assert str(FailedRecord(TOO_LARGE, "t", None, None, local=False)).endswith("with no key")
    value = b'{"after":{"note":"secret"},"source":{"db":"d","lsn":4294967297,"xmin":null},"op":"c"}'
    said = str(FailedRecord(TOO_LARGE, "t", b'{"id":1}', value, local=False))
    assert said.endswith("with a key of 8 bytes, of the change at 1/1")


def test_a_record_whose_headers_are_too_large_is_named_with_its_whole_size():
    """Columns of an outbox table are headers, and the broker's limit is for all of a record."""
    headers = [("body", LARGE)]
    sent = Batch(Position(1, 1), Position(1, 1), items=[("t", b"k", b"v", None), ("t", b"k2", b"v", headers)])
    culprit = Fitting(settings(), Oversized(), SizeLimits()).learn(failed(), [sent])
    assert culprit is not None
    assert (culprit.key, f"A record of {len(LARGE) + 7} bytes" in str(culprit)) == (b"k2", True)


def test_a_record_above_the_limit_of_its_topic_is_sent_alone():
    # GIVEN a topic with a limit, and another one without
    limits = SizeLimits()
    limits.learn_topics({"t": 1_000 + BATCH_OVERHEAD})
    sent: list[str] = []
    alone = Alone(lambda topic, *_, **_headers: sent.append(topic), limits)
    large = bytes(1_001)

    # WHEN a large record follows a small one, all earlier records must be acknowledged first
    alone("u", large, b"")
    with pytest.raises(FlushFirstError):
        alone("t", large, b"")
    alone.flushed()
    alone("t", large, b"")
    assert alone.is_unanswered

    # THEN the next record waits for the broker's answer, too
    with pytest.raises(FlushFirstError):
        alone("u", b"", b"")
    alone.flushed()
    alone("u", b"", b"", headers=[("h", large)])
    assert sent == ["u", "t", "u"]
    assert not alone.is_unanswered


def test_only_a_batch_with_a_record_above_a_limit_is_looked_at_record_by_record():
    limits = SizeLimits()
    fitting = Fitting(settings(), Oversized(), limits)

    def produce(*_: object, **_headers: object) -> None:
        """The record goes nowhere."""

    assert fitting.alone(batch_of_batch_sizing(LARGE), produce) is None, "no limit is known"
    limits.learn_topics({"t": 1_000 + BATCH_OVERHEAD})
    limits.learn_topics({"u": 5_000_000})
    assert fitting.alone(batch_of_batch_sizing(bytes(999)), produce) is None
    assert fitting.alone(batch_of_batch_sizing(bytes(1_000)), produce) is not None
    with_headers = Batch(Position(1, 1), Position(1, 1), items=[("t", None, b"", [("h", bytes(1_000))])])
    assert fitting.alone(with_headers, produce) is not None


def test_a_record_that_was_sent_alone_is_named_at_its_first_refusal():
    limits = SizeLimits()
    limits.learn_topics({"t": 1_000})
    refused = FailedRecord(TOO_LARGE, "t", b"k", bytes(2_000), local=False, size=2_001)
    assert (
        Fitting(settings(), Oversized(), limits).learn(refused, [batch_of_batch_sizing(bytes(2_000))])
        is refused
    )
    assert limits.batch_size is None
