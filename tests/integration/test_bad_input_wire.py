"""Bytes that are not what they should be: never delivered, never confirmed, and received again.

A proxy stands between the daemon and PostgreSQL, or Kafka, and spoils single messages.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdcd.core.protocol.frames import XLOG_HEADER
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.faults.proxy import CUT, Proxy, kafka_frame, postgres_frame
from tests.integration.faults.trial import SECRET, Trial

pytestmark = pytest.mark.postgres(only=18)

COPY_HEAD = 5
"""A CopyData message's own tag and length."""


def copy_data(payload: bytes) -> bytes:
    return b"d" + (len(payload) + 4).to_bytes(4, "big") + payload


def payload(message: bytes) -> bytes:
    """What stands in a CopyData message: a frame of the stream."""
    return message[COPY_HEAD:] if message[:1] == b"d" else b""


def is_insert(message: bytes) -> bool:
    return payload(message)[:1] == b"w" and payload(message)[XLOG_HEADER : XLOG_HEADER + 1] == b"I"


def with_tag(tag: bytes) -> Callable[[bytes], bytes]:
    """The pgoutput message's tag replaced."""
    return lambda frame: frame[:XLOG_HEADER] + tag + frame[XLOG_HEADER + 1 :]


SPOILT: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "unknown-message": (with_tag(b"?"), "'?'"),
    "message-out-of-place": (with_tag(b"E"), "out of place"),
    "unknown-frame": (lambda frame: b"?" + frame[1:], "unknown frame '?'"),
    "truncated": (lambda frame: frame[:-1], "4 bytes expected, 3 left"),
    "left-over-bytes": (lambda frame: frame + b"\0", "left over"),
    "truncated-head": (lambda frame: frame[: XLOG_HEADER + 3], "4 bytes expected, 2 left"),
    "empty": (lambda frame: frame[:XLOG_HEADER], "without a message"),
    "column-kind": (lambda frame: frame.replace(b"t\0\0\0\x01", b"x\0\0\0\x01", 1), "'x'"),
    "column-count": (lambda frame: frame.replace(b"N\0\x02", b"N\0\x03", 1), "1 bytes expected, 0 left"),
    "relation": (lambda frame: frame[: XLOG_HEADER + 1] + b"\0\0\0\x07" + frame[XLOG_HEADER + 5 :], "oid 7"),
}


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    with Proxy(database.server.port, postgres_frame) as made:
        yield made


@pytest.fixture
def one(trial: Callable[..., Trial], database: Database, broker: KafkaBroker, proxy: Proxy) -> Trial:
    """A pipeline whose connections to PostgreSQL go through the proxy; it delivered row 1 and runs."""
    made = trial(database.dsn(), broker.bootstrap_servers)
    dsn = f"postgresql://postgres:{SECRET}@127.0.0.1:{proxy.port}/{database.name}?sslmode=disable&gssencmode=disable"
    made.configure(postgres={"dsn": dsn})
    made.start()
    made.insert(1)
    made.expect(1)
    return made


@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_message_stops_the_pipeline_where_it_stands(kind: str, one: Trial, proxy: Proxy):
    spoil, words = SPOILT[kind]
    proxy.spoil(lambda message: copy_data(spoil(payload(message))) if is_insert(message) else None)
    before = one.insert(2, 3)
    said = one.fail()
    assert proxy.spoilt == 1
    assert said.code == 5
    assert words in said.message
    assert "Nothing past it was confirmed" in said.hint
    one.assert_unconfirmed(before)
    one.deliver(2, 3)


def test_a_spoilt_message_in_a_streamed_transaction_leaves_nothing_of_it(one: Trial, proxy: Proxy):
    seen = 0

    def spoil(message: bytes) -> bytes | None:
        nonlocal seen
        seen += is_insert(message)
        return copy_data(payload(message)[:-1]) if is_insert(message) and seen == 300 else None

    proxy.spoil(spoil)
    before = one.wal_end()
    # More than logical_decoding_work_mem: it comes in blocks, before its commit.
    one.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(2, 601) i")
    said = one.fail()
    assert proxy.spoilt == 1
    assert said.code == 5
    assert "Insert: field new[1]" in said.message
    one.assert_unconfirmed(before)
    one.deliver(*range(2, 602))


@pytest.mark.parametrize(
    "spoil",
    [lambda message: CUT, lambda message: message[:-3] + CUT, lambda message: b"\xff" + message[1:]],
    ids=["before", "within", "lost-synchronization"],
)
def test_a_connection_that_breaks_at_a_message_is_made_again(
    spoil: Callable[[bytes], bytes], one: Trial, proxy: Proxy
):
    mark = one.daemon.mark()
    proxy.spoil(lambda message: spoil(message) if is_insert(message) else None)
    one.insert(2, 3)
    one.daemon.await_event("reconnect.scheduled", after=mark, side="postgres")
    one.expect(2, 3)
    assert proxy.spoilt == 1
    one.stop()


# Kafka.

PRODUCE, INIT_PRODUCER_ID, END_TXN = 0, 22, 26
"""Kinds of requests (https://kafka.apache.org/protocol.html#protocol_api_keys)."""


def is_request(message: bytes, kind: int) -> bool:
    return int.from_bytes(message[4:6], "big") == kind


def flipped(message: bytes) -> bytes:
    """The last byte of the last record changed: the batch's checksum does not fit any more."""
    return message[:-1] + bytes([message[-1] ^ 0xFF])


@pytest.fixture(scope="module")
def behind(scratch: Path) -> Iterator[tuple[KafkaBroker, Proxy]]:
    """A broker whose clients come by a proxy, as it tells them itself; its admin listener is open to everybody."""
    server = KafkaBroker(scratch / "kafka-behind")
    with Proxy(server.port, kafka_frame, requests=True) as proxy:
        server.settings["advertised.listeners"] = (
            f"CLIENT://127.0.0.1:{proxy.port},ADMIN://{server.admin_bootstrap_servers}"
        )
        server.start()
        yield server, proxy
    server.destroy()


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        (END_TXN, lambda message: CUT),
        (END_TXN, lambda message: message + CUT),
        (PRODUCE, lambda message: CUT),
        (PRODUCE, lambda message: message + CUT),
        (PRODUCE, flipped),
        (PRODUCE, lambda message: message[:-20] + CUT),
    ],
    ids=["no-commit", "no-answer-to-commit", "no-records", "no-answer-to-records", "damaged", "truncated"],
)
def test_what_is_spoilt_on_the_way_to_kafka_is_there_once_all_the_same(
    kind: int,
    spoil: Callable[[bytes], bytes],
    trial: Callable[..., Trial],
    database: Database,
    behind: tuple[KafkaBroker, Proxy],
):
    server, proxy = behind
    one = trial(database.dsn(), f"127.0.0.1:{proxy.port}", reader_servers=server.admin_bootstrap_servers)
    one.start()
    one.insert(1)
    one.expect(1)
    before = proxy.spoilt
    proxy.spoil(lambda message: spoil(message) if is_request(message, kind) else None)
    one.insert(2)
    one.expect(2)
    assert proxy.spoilt == before + 1
    assert not one.daemon.saw("reconnect.scheduled")
    one.insert(3)
    one.expect(3)
    one.stop()
