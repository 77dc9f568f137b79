import errno
import os
from pathlib import Path

import pytest

from cdcd.adapters.durable.log import LogFiles, LogStoppedError, look, segments_in
from cdcd.core.engine.logged import LogOwner
from cdcd.core.errors import LimitError, PositionError, TransientError
from cdcd.core.protocol.frames import Keepalive, write_frame
from tests.unit.core.transactions.wire import begin, commit, insert

OWNER = LogOwner("shop", "cdcd_shop", "7001", 1, "publication=shop")


def transaction(lsn: int, text: str = "a row") -> list[bytes]:
    return [begin(lsn, lsn), insert(text), commit(lsn)]


def opened(folder: Path, bytes_max: int = 1 << 30, segment_bytes: int = 1 << 20, **more) -> LogFiles:
    return LogFiles(folder, bytes_max, segment_bytes, **more)


def written(folder: Path, *frames: list[bytes], start: int = 50, segment_bytes: int = 1 << 20) -> None:
    """A logged session whose process is killed at the end."""
    files = opened(folder, segment_bytes=segment_bytes)
    files.begin(OWNER, start, 0)
    for each in frames:
        files.append(each, 0)
        files.sync()
    files.forget()


def read(folder: Path, at: int = 0) -> list[bytes]:
    files = opened(folder)
    try:
        session = files.look().sessions[at]
        return [frame for frames in files.frames(session) for frame in frames]
    finally:
        files.close()


def test_what_was_written_is_read_up_to_the_last_place_between_two_transactions(tmp_path):
    whole, unfinished = transaction(100), transaction(200)[:2]
    written(tmp_path, whole, [write_frame(Keepalive(150, 0, False)), *unfinished])
    (session,) = look(tmp_path).sessions
    assert (session.owner, session.begin, session.end) == (OWNER, 50, 150)
    assert "torn" in session.flaw
    assert read(tmp_path) == [*whole, write_frame(Keepalive(150, 0, False))]


def test_a_logged_session_that_is_closed_has_no_flaw(tmp_path):
    files = opened(tmp_path)
    files.begin(OWNER, 50, 0)
    files.append(transaction(100), 0)
    assert files.sync() == files.end == 110
    files.close()
    (session,) = look(tmp_path).sessions
    assert (session.end, session.flaw) == (110, "")


def test_a_log_that_is_cut_anywhere_is_read_up_to_a_whole_transaction(tmp_path):
    written(tmp_path, *[transaction(lsn) for lsn in (100, 200, 300)])
    (segment,) = segments_in(tmp_path)
    data = segment.path.read_bytes()
    ends = set()
    for size in range(len(data) + 1):
        segment.path.write_bytes(data[:size])
        (session,) = look(tmp_path).sessions
        ends.add(session.end)
        assert session.flaw
        if session.owner is not None:
            assert len(read(tmp_path)) == {50: 0, 110: 3, 210: 6, 310: 9}[session.end]
    assert ends == {50, 110, 210, 310}


def test_an_altered_byte_ends_the_log_before_it_and_is_told(tmp_path):
    written(tmp_path, *[transaction(lsn) for lsn in (100, 200, 300)])
    (segment,) = segments_in(tmp_path)
    data = segment.path.read_bytes()
    for at in range(len(data)):
        segment.path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        (session,) = look(tmp_path).sessions
        assert session.end < 310
        assert str(segment.path) in session.flaw


def test_segments_follow_each_other_also_within_a_transaction(tmp_path):
    large = [begin(7, 500), *[insert(f"row {number}" * 20) for number in range(50)], commit(500)]
    written(
        tmp_path,
        transaction(100),
        large[:20],
        large[20:40],
        large[40:],
        transaction(600),
        segment_bytes=64,
    )
    kinds = "".join(segment.head.kind for segment in segments_in(tmp_path))
    assert kinds == "sccmmc"
    (session,) = look(tmp_path).sessions
    assert session.end == 610
    assert read(tmp_path) == [*transaction(100), *large, *transaction(600)]


def test_a_segment_that_is_missing_in_the_middle_ends_the_logged_session(tmp_path):
    written(tmp_path, *[transaction(lsn) for lsn in (100, 200, 300, 400)], segment_bytes=64)
    segments = segments_in(tmp_path)
    assert len(segments) > 2
    segments[1].path.unlink()
    (session,) = look(tmp_path).sessions
    assert session.end < 410
    assert "number 2 is missing" in session.flaw


def test_damage_that_only_the_delivery_meets_is_refused_there(tmp_path):
    written(tmp_path, *[transaction(lsn) for lsn in (100, 200, 300)], segment_bytes=64)
    middle = segments_in(tmp_path)[1]
    data = bytearray(middle.path.read_bytes())
    data[-40] ^= 1
    middle.path.write_bytes(data)
    assert look(tmp_path).sessions[0].end == 310
    with pytest.raises(PositionError, match=r"is damaged.*checksum"):
        read(tmp_path)


def test_logged_sessions_are_removed_from_their_ends(tmp_path):
    written(tmp_path, transaction(100), transaction(200), segment_bytes=64)
    written(tmp_path, transaction(300), start=210)
    files = opened(tmp_path)
    first, second = files.look().sessions
    assert first.end >= second.begin
    files.remove((first.number,))
    assert [each.number for each in files.look().sessions] == [second.number]
    files.remove((second.number,))
    assert (files.size, segments_in(tmp_path)) == (0, [])
    files.close()


def test_a_log_that_is_full_says_so_and_keeps_what_was_synced(tmp_path):
    files = opened(tmp_path, bytes_max=700)
    files.begin(OWNER, 50, 0)
    files.append(transaction(100), 0)
    assert files.sync() == 110
    with pytest.raises(LogStoppedError, match=r"spool\.durable_bytes_max"):
        files.append([begin(8, 200), insert(os.urandom(900).hex()), commit(200)], 0)
    files.close()
    assert look(tmp_path).sessions[0].end == 110


def test_a_sync_that_fails_is_not_tried_again(tmp_path):
    failing = [False]

    def sync(_file: int) -> None:
        if failing[0]:
            raise OSError(errno.EIO, "Input/output error")

    files = opened(tmp_path, sync=sync)
    files.begin(OWNER, 50, 0)
    files.append(transaction(100), 0)
    failing[0] = True
    with pytest.raises(LogStoppedError, match="Input/output error"):
        files.sync()
    failing[0] = False
    with pytest.raises(AssertionError):
        files.append(transaction(200), 0)
    files.close()


def test_a_full_disk_is_told_in_words(tmp_path):
    def sync(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(LogStoppedError, match="the disk is full"):
        opened(tmp_path, sync=sync).begin(OWNER, 50, 0)


def test_one_process_has_the_log(tmp_path):
    files = opened(tmp_path)
    with pytest.raises(TransientError, match="Another process uses the durable log"):
        opened(tmp_path)
    files.close()
    opened(tmp_path).close()


def test_a_folder_that_cannot_be_written_is_a_limit(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LimitError, match="Cannot use the durable log"):
        opened(tmp_path / "file" / "log")
    assert look(tmp_path / "nothing").sessions == ()


def test_files_are_readable_by_their_owner_only(tmp_path):
    written(tmp_path / "log", transaction(100))
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "log").iterdir()} == {0o600}
