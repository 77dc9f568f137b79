"""What Kafka lacks, refuses or loses: said with what mends it, and nothing confirmed that it does not hold."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from deploy.local import KafkaBroker
from tests.integration import created_topics
from tests.integration.conftest import Database
from tests.integration.faults.trial import Trial

newest = pytest.mark.postgres(only=18)

pytestmark = newest


@pytest.fixture
def one(trial: Callable[..., Trial], database: Database, broker: KafkaBroker) -> Trial:
    """A pipeline on the shared broker that never ran."""
    return trial(database.dsn(), broker.bootstrap_servers)


def admin(one: Trial) -> AdminClient:
    return AdminClient({"bootstrap.servers": one.reader_servers})


def create_topic(one: Trial, name: str, **config: Any) -> None:
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    created_topics.create_topics(one.reader_servers, name, config=settings)


def set_topic(one: Trial, name: str, **config: Any) -> None:
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    created_topics.set_topic(one.reader_servers, name, settings)


# Topics.


def test_a_topic_that_may_not_be_created_is_named(one: Trial):
    one.configure(topics={"create": {"enabled": False}}, postgres={"messages": True})
    said = one.fail()
    assert said.code == 4
    assert (
        f"Topic {one.name}.checkpoint, {one.name}.schemas, {one.name}.message does not exist" in said.message
    )
    assert (
        f"--create --topic {one.name}.checkpoint --partitions 1 --config cleanup.policy=compact" in said.hint
    )
    assert one.check().error("missing", f"{one.name}.checkpoint")
    assert not one.has_slot()

    create_topic(one, f"{one.name}.checkpoint", cleanup_policy="compact")
    create_topic(one, f"{one.name}.message")
    create_topic(one, f"{one.name}.schemas", cleanup_policy="compact")
    one.start()
    before = one.insert(1)
    said = one.fail()
    assert said.code == 4
    assert f"Topic {one.topic} does not exist" in said.message
    assert f"--create --topic {one.topic};" in said.hint
    assert one.topic not in one.topics()
    one.assert_unconfirmed(before)
    create_topic(one, one.topic)
    one.deliver(1)


def test_a_checkpoint_topic_that_would_forget_is_refused(one: Trial):
    create_topic(one, f"{one.name}.checkpoint")
    said = one.fail()
    assert said.code == 4
    assert f"{one.name}.checkpoint has cleanup.policy=delete" in said.message
    assert "--add-config cleanup.policy=compact" in said.hint
    assert one.check().error("cleanup.policy=delete")
    assert not one.has_slot()
    set_topic(one, f"{one.name}.checkpoint", cleanup_policy="compact")
    one.start()
    one.insert(1)
    one.deliver(1)


# Sizes.

LARGE = random.Random(3).randbytes(50_000).hex()
"""Compression does not make it small."""


def test_a_record_too_large_stops_the_pipeline_and_is_named(one: Trial):
    create_topic(one, one.topic, max_message_bytes=20_000)
    one.start()
    before = one.insert(1, note=LARGE)
    one.insert(2)
    said = one.fail()
    assert said.code == 4
    assert f"for topic {one.topic} with a key of " in said.message
    assert "of the change at 0/" in said.message
    assert '"id":1' not in said.message
    assert "A record of 100" in said.message
    assert "Raise max.message.bytes of the topic" in said.hint
    one.assert_unconfirmed(before)
    set_topic(one, one.topic, max_message_bytes=200_000)
    one.deliver(1, 2)


def test_a_record_that_the_client_itself_refuses_is_named_too(one: Trial):
    one.configure(kafka={"properties": {"message.max.bytes": 20_000}})
    one.start()
    before = one.insert(1, note=LARGE)
    said = one.fail()
    assert said.code == 4
    # cdcd refuses the record by its length, before it makes the record, so the place stands for the key.
    assert f"for topic {one.topic}, of the transaction that commits at " in said.message
    assert "kafka.properties" in said.hint
    one.assert_unconfirmed(before)
    one.configure(kafka={"properties": None})
    one.deliver(1)


def test_a_record_too_large_goes_to_the_dead_letters_when_told_so(one: Trial):
    create_topic(one, one.topic, max_message_bytes=20_000)
    one.configure(kafka={"oversized": "dead_letter"})
    one.start()
    one.insert(1)
    one.insert(2, note=LARGE)
    one.insert(3)
    one.expect(1, 3)
    told = one.daemon.await_event("record.oversized")
    assert (told["topic"], told["went_to"]) == (one.topic, f"{one.name}.dead_letter")
    one.stop()
    ((key, value, headers),) = one.records(f"{one.name}.dead_letter")
    assert json.loads(key) == {"id": 2}
    assert json.loads(value or b"")["after"] == {"id": 2, "note": LARGE}
    assert headers["cdcd.topic"] == one.topic.encode()


def test_a_record_too_large_leaves_a_claim_check_when_told_so(one: Trial, tmp_path: Path):
    claims = tmp_path / "claims"
    claims.mkdir()
    create_topic(one, one.topic, max_message_bytes=20_000)
    one.configure(kafka={"oversized": "claim_check", "claim_check_directory": str(claims)})
    one.start()
    one.insert(1)
    one.insert(2, note=LARGE)
    one.insert(3)
    one.deliver(1, 2, 3)
    _, value, headers = one.records(one.topic)[1]
    claim = json.loads(value or b"")["claim_check"]
    (file,) = claims.iterdir()
    assert (claim["file"], headers["cdcd.claim_check"]) == (str(file), str(file).encode())
    assert json.loads(file.read_bytes())["after"] == {"id": 2, "note": LARGE}
    assert claim["size"] == file.stat().st_size


@pytest.mark.parametrize("oversized", ["fail", "dead_letter"])
def test_a_message_too_large_stops_nothing_whoever_sends_it(oversized: str, one: Trial):
    # Whoever may connect to the database may send one.
    messages = f"{one.name}.message"
    for topic in (messages, f"{one.name}.dead_letter"):
        create_topic(one, topic, max_message_bytes=20_000)
    one.configure(kafka={"oversized": oversized}, postgres={"messages": True})
    one.start()
    one.insert(1)
    noise = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 3000) i)"
    one.execute(f"SELECT pg_logical_emit_message(true, 'large', {noise})")
    one.execute(f"SELECT pg_logical_emit_message(false, {noise}, 'content')")
    one.insert(2)
    one.deliver(1, 2)
    large, prefixed = one.records(messages)
    assert [large[:2], prefixed[:2]] == [(b'{"prefix":"large"}', None), (b"", None)]
    assert [set(headers) for _, _, headers in (large, prefixed)] == [{"cdcd.size", "cdcd.sha256"}] * 2
    assert int(large[2]["cdcd.size"]) > 96_000 * 4 / 3, "the content is base64"
    told = [each for each in one.daemon.events if each["event"] == "message.oversized"]
    assert [(each["level"], each["topic"]) for each in told] == [("error", messages)] * 2
    assert "kafka.oversized" in told[0]["hint"]


@pytest.mark.parametrize("oversized", ["dead_letter", "claim_check"])
def test_a_stand_in_that_is_refused_too_stops_the_pipeline(oversized: str, one: Trial, tmp_path: Path):
    refusing = {"dead_letter": f"{one.name}.dead_letter", "claim_check": one.topic}[oversized]
    for topic in {one.topic, refusing}:
        create_topic(one, topic, max_message_bytes=200)
    one.configure(kafka={"oversized": oversized, "claim_check_directory": str(tmp_path)})
    one.start()
    before = one.insert(1, note=LARGE)
    said = one.fail()
    assert said.code == 4
    assert f"for topic {refusing} with a key of " in said.message
    one.assert_unconfirmed(before)
    for topic in {one.topic, refusing}:
        set_topic(one, topic, max_message_bytes=1_000_000)
    one.deliver(1)


def test_a_claim_check_that_cannot_be_written_stops_the_pipeline(one: Trial, tmp_path: Path):
    create_topic(one, one.topic, max_message_bytes=20_000)
    one.configure(kafka={"oversized": "claim_check", "claim_check_directory": str(tmp_path / "nowhere")})
    # GIVEN a directory that is not there at the start
    said = one.fail()
    assert said.code == 8
    assert str(tmp_path / "nowhere") in said.message
    assert "kafka.claim_check_directory" in said.hint
    # or that goes away later
    (tmp_path / "nowhere").mkdir()
    one.start()
    (tmp_path / "nowhere").rmdir()
    before = one.insert(1, note=LARGE)
    said = one.fail()
    assert said.code == 8
    assert "Cannot write a claim-check file of 100" in said.message
    assert str(tmp_path / "nowhere") in said.message
    assert "kafka.claim_check_directory" in said.hint
    one.assert_unconfirmed(before)
    (tmp_path / "nowhere").mkdir()
    one.deliver(1)


def test_of_a_transaction_that_a_topic_refuses_only_the_record_too_large_goes_elsewhere(one: Trial):
    create_topic(one, one.topic)
    create_topic(one, f"{one.name}.dead_letter", max_message_bytes=4_000_000)
    one.configure(kafka={"oversized": "dead_letter"})
    one.start()
    huge = random.Random(4).randbytes(750_000).hex()
    one.execute(
        "INSERT INTO t SELECT i, CASE i WHEN 7 THEN %s ELSE"
        "  (SELECT string_agg(md5(i || '.' || j), '') FROM generate_series(1, 1200) j) END"
        "  FROM generate_series(1, 50) i".replace("%s", f"'{huge}'")
    )
    one.expect(*(n for n in range(1, 51) if n != 7))
    one.stop()
    ((key, value, _),) = one.records(f"{one.name}.dead_letter")
    assert json.loads(key) == {"id": 7}
    assert json.loads(value or b"")["after"]["note"] == huge


def test_many_small_records_fit_a_topic_that_takes_only_small_batches(one: Trial):
    # Smaller than one produce request of librdkafka's batch.size, though each record is small.
    create_topic(one, one.topic, max_message_bytes=10_000)
    one.start()
    one.execute(
        "INSERT INTO t SELECT i, (SELECT string_agg(md5(i || '.' || j), '') FROM generate_series(1, 16) j)"
        "  FROM generate_series(1, 2000) i"
    )
    one.expect(*range(1, 2001))
    one.stop()
