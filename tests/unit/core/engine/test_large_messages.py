"""Messages that nobody asked for, those of which size and digest were taken, and the end of a session after one."""

import hashlib
import json
from pathlib import Path

import pytest

from cdcd.core.engine.actions import End, Wait
from cdcd.core.engine.renewal import RenewalError
from cdcd.core.facts.snapshot import SnapshotSignalRefused
from cdcd.core.facts.transactions import MessageOversized
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.protocol.shortened import MessageLimits
from cdcd.core.snapshot.signals import PREFIX
from tests.unit.core.engine.test_engine import Daemon, transaction
from tests.unit.core.transactions import wire

CONTENT = b"content"
DIGEST = hashlib.sha256(CONTENT).hexdigest().encode()


def message(lsn: int, *, prefix: str = "p", transactional: bool = False, content: bytes = CONTENT) -> bytes:
    return wire.frame(LogicalMessage(None, transactional, lsn, prefix, content), lsn)


def short(frame: bytes) -> bytes:
    """The frame that takes the place of a message that is too large."""
    found = MessageLimits({}, 1).shorten(memoryview(frame))
    assert found is not None
    return found


def records(daemon: Daemon) -> list[tuple[str, bytes | None, bytes | None, dict[str, bytes]]]:
    return [
        (topic, key, value, dict(headers or ()))
        for ship in daemon.shipped
        for topic, key, value, headers in ship.batch.records
    ]


@pytest.mark.parametrize("transactional", [False, True])
def test_a_message_that_nobody_asked_for_has_no_record_and_its_position_is_confirmed(
    tmp_path: Path, transactional: bool
):
    daemon = Daemon(tmp_path, message_prefixes=(b"q",))
    if transactional:
        frames = transaction(
            5, 200, message(150, transactional=True), message(160, prefix="q", transactional=True)
        )
    else:
        frames = [message(150), message(200, prefix="q")]
    daemon.engine.frames_received(frames, daemon.now)
    daemon.now += 1
    daemon.idle()
    ((topic, key, value, _),) = records(daemon)
    assert (topic, key) == ("p.message", b'{"prefix":"q"}')
    # The one that was dropped counts as an event.
    assert json.loads(value or b"")["source"]["event_serial_no"] == (2 if transactional else 0)
    assert daemon.ledger.flushed >= 200


@pytest.mark.parametrize("transactional", [False, True])
def test_a_message_of_which_only_size_and_digest_were_taken_has_a_record_without_value(
    tmp_path: Path, transactional: bool
):
    daemon = Daemon(tmp_path)
    frame = short(message(150, transactional=transactional))
    frames = transaction(5, 200, frame) if transactional else [frame]
    daemon.engine.frames_received(frames, daemon.now)
    daemon.now += 1
    daemon.idle()
    assert records(daemon) == [
        ("p.message", b'{"prefix":"p"}', None, {"cdcd.size": b"7", "cdcd.sha256": DIGEST})
    ]
    assert daemon.shipped[-1].batch.size == len(b'{"prefix":"p"}')
    assert daemon.facts.of(MessageOversized) == [MessageOversized(topic="p.message", record_bytes=7)]


@pytest.mark.parametrize("transactional", [False, True])
def test_a_request_that_is_too_large_is_refused_with_its_size(tmp_path: Path, transactional: bool):
    daemon = Daemon(tmp_path)
    frame = short(message(150, prefix=PREFIX, transactional=transactional))
    frames = transaction(5, 200, frame) if transactional else [frame]
    daemon.engine.frames_received(frames, daemon.now)
    daemon.now += 1
    daemon.idle()
    assert records(daemon) == []
    (told,) = daemon.facts.of(SnapshotSignalRefused)
    assert "it has 7 bytes" in told.reason


@pytest.mark.parametrize("whole", [True, False])
def test_after_a_large_message_the_session_ends_once_its_position_was_told(tmp_path: Path, whole: bool):
    daemon = Daemon(tmp_path, large_bytes=30 if whole else 5, quiet_s=5.0)
    frame = message(150)
    daemon.engine.frames_received([frame if whole else short(frame)], daemon.now)
    daemon.now += 1
    assert daemon.idle().until is not None
    assert daemon.ledger.flushed >= 150
    daemon.now = 4.9
    assert isinstance(daemon.idle(), Wait)
    daemon.now = 6.0
    end = daemon.until(End)
    assert isinstance(end.error, RenewalError)
    assert daemon.told[-1].flushed >= 150


def test_while_a_transaction_is_open_the_session_goes_on(tmp_path: Path):
    daemon = Daemon(tmp_path, large_bytes=30, quiet_s=0.0)
    daemon.engine.frames_received([message(150), wire.begin(5, 300)], daemon.now)
    daemon.now += 1
    daemon.idle()
    daemon.now = 60
    assert isinstance(daemon.idle(), Wait)
    daemon.engine.frames_received([wire.commit(300)], daemon.now)
    daemon.now += 20
    daemon.idle()
    daemon.now += 1
    assert isinstance(daemon.until(End).error, RenewalError)
