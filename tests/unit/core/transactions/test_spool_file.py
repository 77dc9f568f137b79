"""Byte strings in one file, whose space is used again."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.core.transactions.spool_file import UNIT_BYTES, Part, SpoolFile


def written(file: SpoolFile, *sizes: int) -> Part:
    part = Part()
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
    model: dict[int, tuple[Part, list[bytes]]] = {}
    most = 0
    for number, (name, what, size) in enumerate(operations):
        if what == "append":
            part, pieces = model.setdefault(name, (Part(), []))
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
