"""Claim checks in S3-compatible storage: stored before the record, also if it is killed or the store is away."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deploy.local import KafkaBroker
from tests.integration import created_topics
from tests.integration.conftest import Database
from tests.integration.faults.trial import Trial
from tests.s3_store import CREDENTIALS, S3Store

pytest.importorskip("moto", reason="moto and the extra s3 are in requirements-dev.lock")
pytest.importorskip("obstore", reason="moto and the extra s3 are in requirements-dev.lock")

pytestmark = pytest.mark.postgres(only=18)

PART_BYTES = 8 << 20


@pytest.fixture(scope="module")
def store() -> Iterator[S3Store]:
    with S3Store() as server:
        yield server


@pytest.fixture
def one(
    trial: Callable[..., Trial],
    database: Database,
    broker: KafkaBroker,
    store: S3Store,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Trial]:
    """A pipeline with claim checks in a bucket that does not exist yet, and a topic for small records."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    one = trial(database.dsn(), broker.bootstrap_servers)
    one.secrets.append(CREDENTIALS["AWS_SECRET_ACCESS_KEY"])
    created_topics.create_topics(one.reader_servers, one.topic, config={"max.message.bytes": "20000"})
    place = {"url": f"s3://{bucket_of(one)}/shop", "endpoint": store.url}
    one.configure(kafka={"oversized": "claim_check", "claim_check_store": place})
    yield one
    store.mend()


def bucket_of(one: Trial) -> str:
    return one.name.replace("_", "-").lower()


def read_claim(one: Trial, store: S3Store, number: int) -> dict[str, Any]:
    """The value of the record with this number in the topic, which is an object of the store."""
    _, value, headers = one.records(one.topic)[number]
    claim = json.loads(value or b"")["claim_check"]
    assert headers["cdcd.claim_check"].decode() == claim["url"]
    stored = store.objects(bucket_of(one))[claim["url"].removeprefix(f"s3://{bucket_of(one)}/")]
    assert (claim["size"], claim["sha256"]) == (len(stored), hashlib.sha256(stored).hexdigest())
    found: dict[str, Any] = json.loads(stored)
    return found


def incompressible(size: int) -> str:
    """Text that no compression brings below the topic's limit."""
    digests = (hashlib.sha256(str(number).encode()).hexdigest() for number in range(size // 64 + 1))
    return "".join(digests)[:size]


def test_a_large_record_is_an_object_that_its_record_names(one: Trial, store: S3Store):
    # GIVEN no bucket, THEN the check and the daemon say so, with what helps
    one.create_table()
    found = one.check().error("kafka.claim_check_store")
    assert (found["code"], "NoSuchBucket" in found["found"]) == ("claim_check.store", True)
    said = one.fail()
    assert said.code == 8
    assert f"s3://{bucket_of(one)}/shop" in said.message
    assert "Create the bucket" in said.hint
    # GIVEN the bucket, WHEN a small record, a large one and one of several parts come
    store.create_bucket(bucket_of(one))
    assert not [finding for finding in one.check().errors() if finding["code"] == "claim_check.store"]
    one.start()
    large, parts = incompressible(100_000), incompressible(PART_BYTES + 1_000_000)
    one.insert(1)
    one.insert(2, note=large)
    one.insert(3, note=parts)
    one.insert(4)
    one.expect(1, 2, 3, 4)
    # THEN each large one has an object with all of its value, and a record in its place
    assert one.daemon.await_event("record.oversized")["went_to"].startswith(f"s3://{bucket_of(one)}/shop/")
    one.stop()
    assert len(store.objects(bucket_of(one))) == 2, "the probe is removed"
    assert [read_claim(one, store, number)["after"]["note"] for number in (1, 2)] == [large, parts]


def test_a_daemon_killed_between_object_and_record_loses_nothing(one: Trial, store: S3Store):
    store.create_bucket(bucket_of(one))
    one.create_table()
    one.start()
    one.insert(1)
    one.expect(1)
    # WHEN the daemon is killed after the store has put the object together, before it hears of that
    killed = threading.Event()

    def kill() -> None:
        one.daemon.kill()
        killed.set()

    store.cut_at(b"CompleteMultipartUploadResult", kill)
    before = one.insert(2, note=incompressible(PART_BYTES + 1_000_000))
    assert killed.wait(60)
    # THEN there is the object, and no record
    key, value = store.claim(bucket_of(one))
    assert value["after"]["id"] == 2
    one.assert_unconfirmed(before)
    # AND the next run writes a record whose object has its value; the first object stays as it was
    one.deliver(2)
    objects = store.objects(bucket_of(one))
    assert json.loads(objects[key])["after"] == read_claim(one, store, 1)["after"] == value["after"]


def test_a_store_that_goes_away_is_waited_for_and_nothing_is_confirmed(one: Trial, store: S3Store):
    store.create_bucket(bucket_of(one))
    one.create_table()
    one.start()
    one.insert(1)
    one.expect(1)
    # WHEN the store is away, and a large record comes
    store.cut()
    before = one.insert(2, note=incompressible(100_000))
    said = one.daemon.await_event("reconnect.scheduled")
    assert f"s3://{bucket_of(one)}/shop: the store does not answer" in said["message"]
    assert "claim_check_store.endpoint" in said["hint"]
    one.assert_unconfirmed(before)
    found = one.check().error("claim_check.store")
    assert "does not answer" in found["found"]
    # THEN the pipeline goes on when it is back
    store.mend()
    one.insert(3)
    one.deliver(2, 3)
    assert read_claim(one, store, 1)["after"]["id"] == 2
