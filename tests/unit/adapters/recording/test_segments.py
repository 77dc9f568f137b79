import errno
import os
import shutil
import stat
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.adapters.recording import writer as writers
from cdcd.adapters.recording.blocks import HEAD_BYTES, BlockWriter, Head, RecordingError, compressed
from cdcd.adapters.recording.segments import (
    Segment,
    Tear,
    list_segments,
    name_of,
    open_segment,
    parse_name,
    seek,
)
from cdcd.adapters.recording.writer import RecordingLimits, RecordingWriter

LIMITS = RecordingLimits(bytes_max=1 << 40, age_s_max=None, segment_bytes=1 << 30)

BLOCKS = [b"one " * 100, b"two " * 200, b"three " * 300]


def written(
    folder: Path, *segments: list[bytes], limits: RecordingLimits = LIMITS, kind: str = "s"
) -> list[Segment]:
    """A recording of these segments, a minute each."""
    writer = RecordingWriter(folder, limits)
    for number, blocks in enumerate(segments):
        writer.begin_segment(kind, 100 * number, 60_000_000 * number)  # type: ignore[arg-type]
        for block in blocks:
            writer.put(block)
    writer.close()
    assert not writer.failure
    return list_segments(folder)


def read(segment: Segment) -> tuple[list[bytes], Tear | None]:
    blocks: list[bytes] = []
    torn: Tear | None = None
    for block in open_segment(segment):
        if isinstance(block, Tear):
            torn = block
        else:
            blocks.append(block[1])
    return blocks, torn


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=3000), max_size=8))
def test_what_was_written_is_read(tmp_path_factory, blocks):
    folder = tmp_path_factory.mktemp("recording")
    (segment,) = written(folder, blocks)
    assert read(segment) == (blocks, None)


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 131_072, 200_000])
@pytest.mark.parametrize("made", [os.urandom, lambda size: (b"a row of a table, " * size)[:size]])
def test_a_block_of_several_pieces_is_read(tmp_path, size, made):
    data = made(size)
    (segment,) = written(tmp_path, [data])
    assert read(segment) == ([data], None)


@pytest.mark.parametrize(
    ("size", "said"), [(65_536, 65_535), (65_536, 65_537), (131_071, 131_072), (131_072, 131_073)]
)
def test_a_block_whose_pieces_make_another_size_than_it_says_is_refused(tmp_path, size, said):
    head = Head(1, 0, 0, "s")
    segment = Segment(tmp_path / name_of(head), head)
    packed = compressed(bytes(size))
    segment.path.write_bytes(head.encode() + BlockWriter(head).head_of(packed, said) + packed)
    with pytest.raises(RecordingError, match=f"offset {HEAD_BYTES}: the block cannot be decompressed"):
        read(segment)


def test_a_segment_of_another_form_is_refused_as_such_and_not_as_altered(tmp_path):
    (segment,) = written(tmp_path, BLOCKS)
    segment.path.write_bytes(b"cdcdrec1" + segment.path.read_bytes()[8:])
    with pytest.raises(RecordingError, match="has the form of another version of cdcd"):
        read(segment)


def test_a_segment_that_is_cut_off_anywhere_is_read_up_to_the_cut(tmp_path):
    (segment,) = written(tmp_path, BLOCKS)
    whole = segment.path.read_bytes()
    for size in range(len(whole)):
        segment.path.write_bytes(whole[:size])
        blocks, torn = read(segment)
        assert torn is not None, size
        assert blocks == BLOCKS[: len(blocks)]
        assert torn.path == segment.path
        assert torn.offset <= size


def test_an_altered_segment_is_refused_by_name_and_offset(tmp_path):
    (segment,) = written(tmp_path, BLOCKS)
    whole = segment.path.read_bytes()
    for at in range(len(whole)):
        altered = bytearray(whole)
        altered[at] ^= 0x10
        segment.path.write_bytes(altered)
        refused = ""
        try:
            blocks, torn = read(segment)
        except RecordingError as error:
            refused = error.message
        if refused:
            assert at < HEAD_BYTES or f"{segment.path}, offset" in refused
        else:
            # A size that was altered to more than the file has looks like a cut, and nothing behind it is believed.
            assert torn is not None, at
            assert blocks == BLOCKS[: len(blocks)], at


def test_a_block_that_is_taken_out_doubled_or_moved_is_refused(tmp_path):
    one, other = written(tmp_path, BLOCKS, BLOCKS)
    whole = one.path.read_bytes()
    offsets = [offset for offset, _ in open_segment(one)]  # type: ignore[misc]
    first, second = whole[offsets[0] : offsets[1]], whole[offsets[1] : offsets[2]]
    head, rest = whole[: offsets[0]], whole[offsets[2] :]
    for forged in (head + second + rest, head + first + first + second + rest, head + second + first + rest):
        one.path.write_bytes(forged)
        with pytest.raises(RecordingError, match="checksum of the block is wrong"):
            read(one)
    one.path.write_bytes(whole)
    # AND a block of another segment
    foreign = other.path.read_bytes()
    one.path.write_bytes(head + foreign[offsets[0] :])
    with pytest.raises(RecordingError, match="checksum"):
        read(one)
    shutil.copy(other.path, one.path)
    with pytest.raises(RecordingError, match="name and its head differ"):
        read(one)


def test_what_follows_the_end_of_a_segment_is_refused(tmp_path):
    (segment,) = written(tmp_path, BLOCKS)
    with segment.path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(RecordingError, match="something follows the end"):
        read(segment)


def test_a_block_that_claims_to_be_huge_is_refused_before_memory_is_taken(tmp_path):
    (segment,) = written(tmp_path, [b"x" * 100])
    data = bytearray(segment.path.read_bytes())
    data[HEAD_BYTES + 8 : HEAD_BYTES + 12] = (0xFFFFFFFF).to_bytes(4, "little")
    segment.path.write_bytes(data)
    with pytest.raises(RecordingError, match="no block begins there"):
        read(segment)


def test_only_the_owner_may_read_a_recording(tmp_path):
    folder = tmp_path / "new"
    (segment,) = written(folder, BLOCKS)
    assert stat.S_IMODE(segment.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_oldest_segments_are_deleted_by_size_and_by_age(tmp_path):
    size = written(tmp_path / "probe", [os.urandom(10_000)])[0].path.stat().st_size
    blocks = [[os.urandom(10_000)] for _ in range(6)]
    kept = written(tmp_path / "size", *blocks, limits=RecordingLimits(4 * size + 10, None, size))
    assert [segment.head.number for segment in kept] == [4, 5, 6]
    kept = written(tmp_path / "age", *blocks, limits=RecordingLimits(1 << 30, 130.0, size))
    assert [segment.head.number for segment in kept] == [3, 4, 5, 6]


def test_a_recording_goes_on_with_the_next_number(tmp_path):
    written(tmp_path, BLOCKS)
    assert [segment.head.number for segment in written(tmp_path, BLOCKS)] == [1, 2]


def test_two_processes_do_not_write_one_recording(tmp_path):
    writer = RecordingWriter(tmp_path, LIMITS)
    with pytest.raises(BlockingIOError):
        RecordingWriter(tmp_path, LIMITS)
    writer.close()
    RecordingWriter(tmp_path, LIMITS).close()


def test_a_full_disk_ends_the_recording_and_leaves_what_was_written(tmp_path, monkeypatch):
    written_bytes = 0
    write = os.write

    def full(file: int, data: memoryview) -> int:
        nonlocal written_bytes
        if written_bytes + len(data) > 400:
            if written_bytes < 400:
                # As a disk does: what still has its place is written.
                taken = write(file, data[: 400 - written_bytes])
                written_bytes += taken
                return taken
            raise OSError(errno.ENOSPC, "No space left on device")
        written_bytes += len(data)
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    writer = RecordingWriter(tmp_path, LIMITS)
    writer.begin_segment("s", 0, 0)
    blocks = [os.urandom(100) for _ in range(10)]
    for block in blocks:
        writer.put(block)
    writer.close()
    assert writer.failure == "the disk is full"
    monkeypatch.undo()
    (segment,) = list_segments(tmp_path)
    found, torn = read(segment)
    assert found == blocks[: len(found)]
    assert found
    assert torn is not None


def test_a_disk_that_is_too_slow_ends_the_recording(tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "WAITING_BYTES_MAX", 1000)
    write = os.write

    def slow(file: int, data: memoryview) -> int:
        time.sleep(0.2)
        return write(file, data)

    monkeypatch.setattr(os, "write", slow)
    writer = RecordingWriter(tmp_path, LIMITS)
    writer.begin_segment("s", 0, 0)
    for _ in range(4):
        writer.put(os.urandom(400))
    writer.close()
    assert "slower than the stream" in writer.failure


def test_a_gap_between_segments_is_refused(tmp_path):
    _, second, _ = written(tmp_path, BLOCKS, BLOCKS, BLOCKS)
    second.path.unlink()
    with pytest.raises(RecordingError, match="number 3 follows number 1"):
        list_segments(tmp_path)


def test_a_folder_without_a_recording_is_told(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RecordingError):
            list_segments(folder)


def test_names_are_the_index_and_say_what_the_head_says():
    head = Head(7, 0x16B3748, 1_700_000_000_000_000, "c")
    assert parse_name(name_of(head)) == head
    assert parse_name("cdcd.yaml") is None


def segments(*heads: tuple[str, int, int]) -> list[Segment]:
    return [
        Segment(Path(), Head(number, lsn, time_us, kind))  # type: ignore[arg-type]
        for number, (kind, lsn, time_us) in enumerate(heads)
    ]


def test_a_replay_begins_with_the_last_segment_that_has_everything():
    found = segments(
        ("m", 50, 5), ("s", 100, 10), ("m", 150, 15), ("c", 200, 20), ("s", 180, 30), ("m", 300, 40)
    )
    assert seek(found) == 1
    assert seek(found, lsn=100) == 1
    assert seek(found, lsn=160) == 1
    # The second session begins before the end of the first one.
    assert seek(found, lsn=190) == 4
    assert seek(found, lsn=1000) == 4
    assert seek(found, unix_us=29) == 3
    with pytest.raises(RecordingError, match="can be replayed from 0/64 on"):
        seek(found, lsn=99)
    with pytest.raises(RecordingError, match="No segment"):
        seek(found[:1])
