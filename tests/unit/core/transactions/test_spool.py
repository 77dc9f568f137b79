"""Byte strings in one file, whose space is used again."""

import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.core.errors import LimitError
from cdcd.core.transactions.drafts import make_draft
from cdcd.core.transactions.spool import (
    FRAME_BYTES,
    REPLAY_BYTES,
    UNIT_BYTES,
    WRITE_BYTES,
    Spool,
    SpoolFile,
    SpoolPart,
)


def written(file: SpoolFile, *sizes: int) -> SpoolPart:
    part = SpoolPart()
    for number, size in enumerate(sizes):
        file.append(part, bytes([(number + 1) % 256]) * size)
    return part


def open_files(directory: Path) -> list[Path]:
    entries = Path("/proc/self/fd").iterdir()
    return [one for one in entries if one.is_symlink() and str(one.readlink()).startswith(str(directory))]


def test_what_was_appended_is_read_from_anywhere(tmp_path):
    file = SpoolFile(str(tmp_path))
    part = written(file, 5000, 1, 4000)
    other = written(file, 100)
    file.append(part, b"end")
    whole = b"\x01" * 5000 + b"\x02" + b"\x03" * 4000 + b"end"
    assert part.size == len(whole)
    for at, size in ((0, len(whole)), (4999, 3), (9001, 3), (4096, 4096), (0, 0)):
        assert file.read(part, at, size) == whole[at : at + size]
    assert file.read(other, 0, 100) == b"\x01" * 100
    file.free(part)
    file.free(other)


def test_a_part_grows_in_its_last_unit(tmp_path):
    file = SpoolFile(str(tmp_path))
    part = written(file, *[1] * UNIT_BYTES)
    assert file.allocated_bytes == UNIT_BYTES
    file.free(part)


def test_space_between_others_is_used_again_also_in_pieces(tmp_path):
    file = SpoolFile(str(tmp_path))
    parts = [written(file, UNIT_BYTES) for _ in range(6)]
    for index in (0, 2, 4):
        file.free(parts[index])
    scattered = written(file, 2 * UNIT_BYTES, UNIT_BYTES + 1)
    assert len(scattered.extents) == 4
    assert file.allocated_bytes == 7 * UNIT_BYTES
    assert file.read(scattered, 0, scattered.size) == b"\x01" * 2 * UNIT_BYTES + b"\x02" * (UNIT_BYTES + 1)
    for part in (parts[1], parts[3], parts[5], scattered):
        file.free(part)
    assert file.allocated_bytes == 0


def test_the_file_becomes_shorter_at_its_end_and_is_closed_when_it_is_empty(tmp_path):
    file = SpoolFile(str(tmp_path))
    first, last = written(file, UNIT_BYTES), written(file, 10 * UNIT_BYTES)
    (descriptor,) = open_files(tmp_path)
    assert descriptor.stat().st_size == 11 * UNIT_BYTES
    file.free(last)
    assert descriptor.stat().st_size == UNIT_BYTES
    file.free(first)
    assert not open_files(tmp_path)
    again = written(file, 5)
    assert file.read(again, 0, 5) == b"\x01" * 5
    file.free(again)


sizes = st.one_of(
    st.integers(0, 300), st.integers(UNIT_BYTES - 2, UNIT_BYTES + 2), st.integers(0, 5 * UNIT_BYTES)
)


@settings(deadline=None)
@given(
    operations=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["append", "append", "free"]), sizes), max_size=60
    )
)
def test_whatever_happens_every_part_has_its_bytes_and_no_unit_is_lost(operations, tmp_path_factory):
    file = SpoolFile(str(tmp_path_factory.getbasetemp()))
    model: dict[int, tuple[SpoolPart, list[bytes]]] = {}
    most = 0
    for number, (name, what, size) in enumerate(operations):
        if what == "append":
            part, pieces = model.setdefault(name, (SpoolPart(), []))
            pieces.append(bytes([number]) * size)
            file.append(part, pieces[-1])
        elif name in model:
            file.free(model.pop(name)[0])
        for part, pieces in model.values():
            assert not part.size or file.read(part, 0, part.size) == b"".join(pieces)
        used = sum(-(-part.size // UNIT_BYTES) for part, _ in model.values())
        most = max(most, used)
        assert used * UNIT_BYTES <= file.allocated_bytes <= most * UNIT_BYTES
    for part, _ in model.values():
        file.free(part)
    assert file.allocated_bytes == 0


MIB = 1 << 20


def replayed(spool: Spool, xid: int) -> list[bytes]:
    return [one for kept in spool.replay(xid) for one in kept if isinstance(one, bytes)]


def fill(spool: Spool, xid: int, *frames: bytes) -> None:
    if xid not in spool:
        spool.open(xid)
    for frame in frames:
        spool.append(xid, frame)


@pytest.fixture
def roomy(tmp_path):
    return Spool(str(tmp_path), 10 * MIB)


def test_frames_come_back_in_their_order(roomy):
    fill(roomy, 7, b"one", b"", b"two")
    fill(roomy, 8, b"other")
    fill(roomy, 7, b"three")
    assert replayed(roomy, 7) == [b"one", b"", b"two", b"three"]
    assert replayed(roomy, 8) == [b"other"]


class Reversing:
    """What is on disk is backwards."""

    def seal(self, block: bytes) -> bytes:
        return block[::-1]

    def open(self, sealed: bytes) -> bytes:
        return sealed[::-1]


def open_files_of_spool(directory: Path) -> Iterator[bytes]:
    """What is in the open files of a directory, also in those without a name."""
    for link in Path("/proc/self/fd").iterdir():
        # The descriptor by which they are listed is gone by then.
        with suppress(FileNotFoundError):
            if str(link.readlink()).startswith(str(directory)):
                yield link.read_bytes()


def test_what_goes_to_disk_is_encrypted_and_comes_back_in_clear(tmp_path):
    frames = [b"a value in clear %d" % number for number in range(100)]
    with closing(Spool(str(tmp_path), 1000, cipher=Reversing())) as spool:
        fill(spool, 7, *frames)
        assert replayed(spool, 7) == frames
        on_disk = b"".join(open_files_of_spool(tmp_path))
    assert b"a value in clear"[::-1] in on_disk
    assert b"a value in clear" not in on_disk


def test_a_transaction_without_frames_replays_nothing(roomy):
    roomy.open(7)
    assert list(roomy.replay(7)) == []


def test_replay_hands_on_lists_of_a_bounded_size(roomy):
    frames = [bytes([number]) * 1000 for number in range(200)] * 5
    fill(roomy, 7, *frames)
    lists = list(roomy.replay(7))
    assert [frame for one in lists for frame in one] == frames
    assert len(lists) > 1
    assert all(sum(map(len, one)) <= REPLAY_BYTES + 1000 for one in lists)


def test_a_frame_larger_than_a_list_comes_back_whole(tmp_path):
    for memory_bytes_max in (10 * MIB, 0):
        spool = Spool(str(tmp_path), memory_bytes_max)
        large = os.urandom(3 * REPLAY_BYTES + 17)
        fill(spool, 7, b"before", large, b"after")
        assert replayed(spool, 7) == [b"before", large, b"after"]
        spool.close()


def test_nothing_goes_to_disk_below_the_limit(tmp_path):
    spool = Spool(str(tmp_path), 100)
    fill(spool, 7, bytes(100 - FRAME_BYTES))
    assert (spool.memory_bytes, spool.disk_bytes) == (100, 0)
    fill(spool, 7, b"")
    assert spool.memory_bytes == 0
    assert 100 - FRAME_BYTES < spool.disk_bytes < 100
    spool.close()


def test_the_largest_goes_to_disk_whoever_passes_the_limit(tmp_path):
    spool = Spool(str(tmp_path), 1000)
    fill(spool, 7, bytes(100))
    fill(spool, 8, bytes(700))
    fill(spool, 9, bytes(300))
    assert 700 < spool.disk_bytes < 700 + FRAME_BYTES
    assert spool.memory_bytes == 400 + 2 * FRAME_BYTES
    spool.close()


def test_memory_is_bounded_whatever_the_number_of_transactions_on_disk(tmp_path):
    # Each of them writes in large pieces, but only as long as there is memory for that.
    spool = Spool(str(tmp_path), 50_000)
    for _ in range(20):
        for xid in range(40):
            fill(spool, xid, bytes(1000))
            assert spool.memory_bytes <= 50_000
    assert all(replayed(spool, xid) == [bytes(1000)] * 20 for xid in range(40))
    spool.close()


def test_a_transaction_on_disk_is_written_in_large_pieces(tmp_path):
    spool = Spool(str(tmp_path), 3 * MIB)
    fill(spool, 7, bytes(3 * MIB))
    written = spool.disk_bytes
    fill(spool, 7, *[bytes(1000)] * 1000)
    assert spool.disk_bytes == written
    fill(spool, 7, *[bytes(1000)])
    assert spool.memory_bytes == 0
    assert written + 1_001_000 < spool.disk_bytes < written + WRITE_BYTES
    spool.close()


def test_replay_goes_from_the_file_to_memory(tmp_path):
    spool = Spool(str(tmp_path), 2000)
    frames = [b"%d" % number * 50 for number in range(100)]
    fill(spool, 7, *frames)
    assert spool.disk_bytes
    assert spool.memory_bytes
    assert replayed(spool, 7) == frames
    fill(spool, 7, b"more")
    assert replayed(spool, 7) == [*frames, b"more"], "replaying changes nothing"
    spool.close()


def test_dropping_gives_memory_and_disk_back(tmp_path):
    spool = Spool(str(tmp_path), 100)
    fill(spool, 7, bytes(200), bytes(50))
    fill(spool, 8, bytes(10))
    spool.drop(7)
    assert (spool.memory_bytes, spool.disk_bytes) == (10 + FRAME_BYTES, 0)
    assert 7 not in spool
    assert len(spool) == 1
    spool.close()
    assert (len(spool), spool.memory_bytes, spool.disk_bytes) == (0, 0, 0)


def test_an_xid_may_come_again_after_it_was_dropped(roomy):
    fill(roomy, 7, b"old")
    roomy.drop(7)
    fill(roomy, 7, b"new")
    assert replayed(roomy, 7) == [b"new"]


def test_opening_what_is_open_is_a_bug(roomy):
    roomy.open(7)
    with pytest.raises(AssertionError, match="open already"):
        roomy.open(7)


def test_the_directory_stays_empty(tmp_path):
    spool = Spool(str(tmp_path), 0)
    fill(spool, 7, bytes(1000))
    assert spool.disk_bytes
    assert not list(tmp_path.iterdir())
    spool.close()
    assert not list(tmp_path.iterdir())


@settings(deadline=None)
@given(
    operations=st.lists(
        st.tuples(
            st.sampled_from(["append", "append", "append", "drop", "replay"]),
            st.integers(1, 4),
            st.integers(0, 400),
        ),
        max_size=80,
    ),
    memory_bytes_max=st.integers(0, 1500),
)
def test_whatever_happens_the_accounts_are_exact(operations, memory_bytes_max, tmp_path_factory):
    spool = Spool(str(tmp_path_factory.getbasetemp()), memory_bytes_max)
    model: dict[int, list[bytes]] = {}
    most = 0
    for number, (what, xid, size) in enumerate(operations):
        if what == "append":
            frame = bytes([number % 256]) * size
            fill(spool, xid, frame)
            model.setdefault(xid, []).append(frame)
        elif xid in model and what == "drop":
            spool.drop(xid)
            del model[xid]
        elif xid in model:
            assert replayed(spool, xid) == model[xid]
        kept = spool._transactions.values()
        in_memory = [frame for one in kept for frames in one.lists for frame in frames]
        assert spool.memory_bytes == sum(FRAME_BYTES + len(frame) for frame in in_memory)
        assert spool.memory_bytes == sum(one.memory_bytes for one in kept)
        assert spool.memory_bytes <= memory_bytes_max
        assert spool.disk_bytes == sum(one.on_disk.size for one in kept)
        most = max(most, sum(-(-one.on_disk.size // UNIT_BYTES) for one in kept))
        assert spool._file.allocated_bytes <= most * UNIT_BYTES
    for xid, frames in model.items():
        assert replayed(spool, xid) == frames
    spool.close()
    assert (spool.memory_bytes, spool.disk_bytes) == (0, 0)


def test_one_descriptor_is_enough_for_thousands_of_transactions(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The limit is of the process, which may have the descriptors of other tests.
    opened = max([int(each.name) for each in Path("/proc/self/fd").iterdir()])
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 64, before[1]))
    try:
        spool = Spool(str(tmp_path), 0)
        for round_number in range(2):
            for xid in range(3000):
                fill(spool, xid, b"%d %d" % (xid, round_number) * 20)
        for xid in range(3000):
            assert replayed(spool, xid) == [b"%d 0" % xid * 20, b"%d 1" % xid * 20]
        spool.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# Limits.


def test_the_disk_limit_stops_with_what_to_do(tmp_path):
    spool = Spool(str(tmp_path), 100, 1000)
    fill(spool, 7, bytes(600))
    with pytest.raises(LimitError, match="disk_bytes_max is 1000; the largest is transaction 8") as caught:
        fill(spool, 8, bytes(600))
    assert "spool.disk_bytes_max" in caught.value.hint
    spool.close()


def test_the_disk_limit_counts_what_is_there_not_what_was(tmp_path):
    spool = Spool(str(tmp_path), 100, 1000)
    for xid in range(20):
        fill(spool, xid, bytes(600))
        spool.drop(xid)
    assert spool.disk_bytes == 0


def test_a_directory_that_is_gone_is_a_limit_error(tmp_path):
    spool = Spool(str(tmp_path / "gone"), 0)
    with pytest.raises(LimitError, match=f"{os.strerror(errno.ENOENT)}.") as caught:
        fill(spool, 7, b"frame")
    assert "spool.directory" in caught.value.hint
    spool.close()


@pytest.fixture
def tiny_disk(tmp_path) -> Iterator[Path]:
    """A file system of 64 kB; a limit on the size of files where we may not mount one."""
    directory = tmp_path / "tiny"
    directory.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(directory)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, before[1]))
        yield directory
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    else:
        yield directory
        subprocess.run(["umount", str(directory)], check=True)


def test_a_full_disk_is_a_limit_error_and_leaves_nothing(tiny_disk):
    spool = Spool(str(tiny_disk), 0)
    with pytest.raises(LimitError, match="Cannot write the spool of transaction 7") as caught:
        fill(spool, 7, *[bytes(1000)] * 100)
    assert any(os.strerror(code) in caught.value.message for code in (errno.ENOSPC, errno.EFBIG))
    spool.close()
    assert not list(tiny_disk.iterdir())
    assert (spool.memory_bytes, spool.disk_bytes) == (0, 0)
    other = Spool(str(tiny_disk), 0)
    fill(other, 8, bytes(1000))
    assert replayed(other, 8) == [bytes(1000)]
    other.close()


def test_a_file_that_somebody_truncates_is_noticed(tmp_path):
    spool = Spool(str(tmp_path), 0)
    fill(spool, 7, bytes(1000))
    file = spool._file._file
    assert file is not None
    file.truncate(500)
    with pytest.raises(LimitError, match=r"is 5\d\d bytes short"):
        replayed(spool, 7)
    spool.close()


def test_drafts_come_back_from_disk_in_their_place_among_frames(tmp_path):
    draft = make_draft(9, 16384, 1, 500, (1, 2, [b"key", b"value", b"12"]))
    with closing(Spool(str(tmp_path), memory_bytes_max=600)) as spool:
        spool.open(7)
        spool.extend(7, [b"before", draft])
        assert spool.memory_bytes == FRAME_BYTES + len(b"before") + 500
        spool.extend(7, [draft, b"after"])
        assert spool.disk_bytes > 0
        assert [one for kept in spool.replay(7) for one in kept] == [b"before", draft, draft, b"after"]
