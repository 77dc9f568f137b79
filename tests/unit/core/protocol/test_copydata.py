"""The loop over libpq's buffer: whole payloads, up to a limit, and the last answer."""

from cdcd.core.protocol.copydata import take_frames


class Buffer:
    """Stands for a PGconn that holds these payloads and then answers `last`."""

    def __init__(self, payloads: list[bytes], last: int = 0) -> None:
        self._payloads = payloads
        self._last = last

    def get_copy_data(self, async_: int) -> tuple[int, memoryview]:
        assert async_ == 1
        if not self._payloads:
            return self._last, memoryview(b"")
        payload = self._payloads.pop(0)
        return len(payload), memoryview(payload)


def test_all_that_is_there_is_taken_in_its_order():
    frames = [b"before"]
    buffer = Buffer([b"one", b"two"])
    assert take_frames(buffer.get_copy_data, frames, 100) == (0, 94)
    assert frames == [b"before", b"one", b"two"]
    assert all(type(frame) is bytes for frame in frames)


def test_the_end_of_the_copy_is_told_after_what_came_before_it():
    frames: list[bytes] = []
    assert take_frames(Buffer([b"one"], last=-1).get_copy_data, frames, 100) == (-1, 97)
    assert frames == [b"one"]


def test_it_stops_when_there_is_no_room_left_and_leaves_the_rest():
    frames: list[bytes] = []
    buffer = Buffer([b"one", b"three", b"four"])
    assert take_frames(buffer.get_copy_data, frames, 4) == (5, -4)
    assert frames == [b"one", b"three"]
    assert take_frames(buffer.get_copy_data, frames, 4) == (4, 0)
    assert take_frames(buffer.get_copy_data, frames, 0) == (0, 0)
    assert frames == [b"one", b"three", b"four"]
