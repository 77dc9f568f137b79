"""What is said of large messages, and what a former process left."""

from pathlib import Path
from typing import Any

import pytest

from cdcd.core.engine.renewal import LARGE_BYTES
from cdcd.core.facts import Fact
from cdcd.core.facts.transactions import LargeMessageComing, LargeMessageEndedRun, LargeMessageReceived
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Insert, LogicalMessage
from cdcd.core.protocol.shortened import MessageLimits
from cdcd.core.protocol.writer import write_message
from cdcd.daemon import large_messages
from cdcd.daemon.large_messages import LargeMessages

LSN = 0x1000


def large(folder: Path, said: list[Fact], limits: MessageLimits | None = None) -> LargeMessages:
    names = {7: "public.t"}
    return LargeMessages(
        folder, "shop", limits or MessageLimits(), lambda oid: names.get(oid, ""), said.append
    )


def row(size: int, *, xid: int | None = None) -> memoryview:
    message = Insert(xid, 7, (b"a" * size,))
    return memoryview(write_frame(XLogData(LSN, LSN, 0, write_message(message))))


@pytest.mark.parametrize("xid", [None, 742])
def test_a_large_row_is_told_with_its_table_before_it_is_copied(tmp_path, xid):
    said: list[Fact] = []
    data = row(LARGE_BYTES, xid=xid)
    assert large(tmp_path, said).shorten(data) == bytes(data)
    (told,) = said
    assert isinstance(told, LargeMessageReceived)
    assert (told.table, told.lsn, told.bytes) == ("public.t", "0/1000", len(data))


def test_a_large_message_that_nobody_asked_for_is_told_and_replaced(tmp_path):
    said: list[Fact] = []
    message = LogicalMessage(None, False, LSN, "p", b"a" * LARGE_BYTES)
    data = memoryview(write_frame(XLogData(LSN, LSN, 0, write_message(message))))
    short = large(tmp_path, said, MessageLimits({}, None)).shorten(data)
    assert short is not None
    assert peek.shortened_bytes(short) == LARGE_BYTES
    (told,) = said
    assert isinstance(told, LargeMessageReceived)
    assert told.table == ""


def test_ordinary_messages_are_not_told(tmp_path):
    said: list[Fact] = []
    assert large(tmp_path, said).shorten(row(1000)) is None
    assert said == []
    assert list(tmp_path.iterdir()) == []


def ended(folder: Path) -> LargeMessageEndedRun | None:
    said: list[Fact] = []
    large(folder, said).tell_former()
    assert len(said) <= 1
    for told in said:
        assert isinstance(told, LargeMessageEndedRun)
        return told
    return None


def as_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_messages, "_PROCESS", "another")


def test_a_process_that_was_killed_at_a_large_row_is_told_at_the_next_start(tmp_path, monkeypatch):
    large(tmp_path, []).shorten(row(LARGE_BYTES))
    assert ended(tmp_path) is None, "this process is still the one that wrote the note"
    as_another_process(monkeypatch)
    told = ended(tmp_path)
    assert told is not None
    assert (told.table, told.lsn) == ("public.t", "0/1000")
    assert told.bytes > LARGE_BYTES
    assert "MiB" in told.hint
    assert "public.t" in told.hint
    assert ended(tmp_path) is None, "it is told once"


def test_a_message_that_never_came_whole_is_told_by_the_place_before_it(tmp_path, monkeypatch):
    said: list[Fact] = []
    one = large(tmp_path, said)
    one.received(0x500)
    one.coming(200_000_000)
    (told,) = said
    assert isinstance(told, LargeMessageComing)
    assert (told.lsn, told.bytes) == ("0/500", 200_000_000)
    as_another_process(monkeypatch)
    found = ended(tmp_path)
    assert found is not None
    assert (found.table, found.lsn, found.bytes) == ("", "0/500", 200_000_000)
    assert "postgres.messages" in found.hint


def test_once_it_is_confirmed_the_note_is_gone(tmp_path, monkeypatch):
    one = large(tmp_path, [])
    one.shorten(row(LARGE_BYTES))
    one.confirmed(LSN)
    assert len(list(tmp_path.iterdir())) == 1
    one.confirmed(LSN + 1)
    as_another_process(monkeypatch)
    assert ended(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"process": "x"}', b"\xff"])
def test_a_note_that_cannot_be_read_says_nothing(tmp_path, content):
    (tmp_path / "shop.large").write_bytes(content)
    assert ended(tmp_path) is None


def test_a_directory_that_cannot_be_written_stops_nothing(tmp_path):
    said: list[Any] = []
    large(tmp_path / "nowhere", said).shorten(row(LARGE_BYTES))
    assert len(said) == 1
