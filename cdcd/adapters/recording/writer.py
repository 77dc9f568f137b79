"""Writer of a recording, in segments of a fixed size. If there are too many segments, the oldest are deleted.

The rule: a recording never delays or ends the daemon. A separate thread waits for the disk. Data to be written
waits in memory up to a limit. A disk that is full, slow or broken ends the recording; `failure` has the reason,
which the caller reports. The part before can be replayed.

The folder has a lock, so that two processes never write the same recording. Files are readable by their owner only,
because they hold every value of the tables.
"""

import errno
import fcntl
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from cdcd.adapters.recording.blocks import BlockWriter, Head, Kind
from cdcd.adapters.recording.segments import Segment, name_of, parse_name

WAITING_BYTES_MAX: Final = 64 << 20
"""Maximum compressed bytes that wait in memory for the disk. With more bytes, the disk is slower than the stream."""

PENDING_BYTES: Final = 1 << 20
"""Compressed bytes that are passed to the thread at a time. Each transfer costs about a tenth of a millisecond of
CPU, because the two threads take turns."""

CLOSE_S: Final = 2.0
"""Seconds that the end of a session waits for the disk."""

ALIVE_S: Final = 0.05
"""Seconds between two checks by a waiting caller that the writer has not failed."""

LOCK: Final = ".lock"


@dataclass(frozen=True, slots=True)
class RecordingLimits:
    """Size limits of a recording.

    Attributes:
        bytes_max: maximum bytes of all segments together. cdcd deletes the oldest segments above this size.
        age_s_max: maximum age in seconds of a segment's newest event, after which the segment is deleted; None: no
            limit. A segment spans at most half of this time, so that an idle pipeline's values are deleted too.
        segment_bytes: bytes at which a segment ends, at the next position where a replay can begin; at twice the
            size, anywhere.
    """

    bytes_max: int
    age_s_max: float | None
    segment_bytes: int


_Block = tuple[bytes, bytes]
"""Head and pieces of a block."""


class RecordingWriter:
    """Writer in its own thread; call `begin_segment`, then `put` for each block, then `close`.

    Attributes:
        failure: reason why nothing is written any more; "" while the writer works.
        written_bytes: bytes of all segments that this writer wrote.
    """

    def __init__(self, folder: Path, limits: RecordingLimits) -> None:
        """Lock the folder. OSError: the folder cannot be written, or another process records into it (EWOULDBLOCK)."""
        self.failure = ""
        self.written_bytes = 0
        self._folder = folder
        self.limits = limits
        self._given = 0
        self._done = 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._sizes = _sizes(folder)
        except OSError:
            os.close(self._lock)
            raise
        self._number = max([segment.head.number for segment in self._sizes], default=0)
        self._blocks: BlockWriter | None = None
        self._pending: list[_Block] = []
        self._pending_bytes = 0
        self._work: SimpleQueue[Head | list[_Block] | threading.Event | None] = SimpleQueue()
        # Attributes that the thread uses.
        self._segment: Segment | None = None
        self._segment_bytes = 0
        self._file = -1
        # A disk that does not answer must not prevent the end of the process.
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    @property
    def segment_bytes(self) -> int:
        """Bytes on disk of the newest segment."""
        segment = self._segment
        return 0 if segment is None or segment.head.number != self._number else self._segment_bytes

    def begin_segment(self, kind: Kind, lsn: int, unix_us: int) -> None:
        """End the current segment, and begin another one."""
        self._end_segment()
        self._number += 1
        head = Head(self._number, lsn, unix_us, kind)
        self._blocks = BlockWriter(head)
        self._work.put(head)

    def put(self, data: bytes) -> None:
        """Write `data` as one block of the segment, at the next `flush` at the latest.

        The calling thread compresses the data and computes the checksum, because another core would have to load
        the data first.
        """
        if self.failure:
            return
        assert self._blocks is not None, "a segment begins first"
        block = self._blocks.parts(data)
        self._pending.append(block)
        self._pending_bytes += len(block[1])
        if self._pending_bytes >= PENDING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Pass the blocks to the thread."""
        if not self._pending or self.failure:
            return
        self._given += self._pending_bytes
        if self._given - self._done > WAITING_BYTES_MAX:
            self.failure = f"the disk is slower than the stream: {WAITING_BYTES_MAX >> 20} MiB wait for it"
            return
        self._work.put(self._pending)
        self._pending, self._pending_bytes = [], 0

    def wait(self) -> None:
        """Wait until everything so far is on disk. For a caller that has nothing else to do."""
        self.flush()
        reached = threading.Event()
        self._work.put(reached)
        while not reached.wait(ALIVE_S) and self._thread.is_alive():
            pass

    def close(self) -> None:
        """End the recording in good order, or leave it unfinished if the disk takes longer than `CLOSE_S`."""
        self._end_segment()
        self._work.put(None)
        if not self.failure:
            self._thread.join(CLOSE_S)

    def _end_segment(self) -> None:
        if self._blocks is not None and not self.failure:
            self._pending.append(self._blocks.parts(b""))
        self._blocks = None
        self.flush()

    # Methods that the thread runs.

    def _run(self) -> None:
        try:
            while (work := self._work.get()) is not None:
                if isinstance(work, list):
                    self._write(work)
                elif isinstance(work, Head):
                    self._close_file()
                    self._open_file(work)
                else:
                    work.set()
            self._close_file()
        except OSError as error:
            self.failure = self.failure or _reason(error)
            self._cut_off()
        except Exception as error:
            self.failure = f"a bug in cdcd: {error!r}"
            raise
        finally:
            os.close(self._lock)

    def _open_file(self, head: Head) -> None:
        self._delete_old(head.unix_us)
        self._segment_bytes = 0
        path = self._folder / name_of(head)
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self._segment = Segment(path, head)
        self._append(head.encode())

    def _write(self, blocks: list[_Block]) -> None:
        for head, packed in blocks:
            self._append(head, packed)
            self._done += len(packed)

    def _close_file(self) -> None:
        if self._file < 0:
            return
        os.close(self._file)
        self._file = -1
        assert self._segment is not None
        self._sizes[self._segment] = self._segment_bytes

    def _append(self, *parts: bytes) -> None:
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        # A block counts once it is written completely. If the disk is full, `_cut_off` removes the incomplete block.
        size = sum(map(len, parts))
        self._segment_bytes += size
        self.written_bytes += size

    def _cut_off(self) -> None:
        """Remove an incomplete block, so that the segment ends after a complete one."""
        if self._file < 0:
            return
        try:
            os.ftruncate(self._file, self._segment_bytes)
            os.close(self._file)
        except OSError:
            return
        finally:
            self._file = -1

    def _delete_old(self, unix_us: int) -> None:
        """Delete the oldest segments to make room for another one."""
        kept = sorted(self._sizes, key=lambda segment: segment.head.number)
        # A segment that begins within a transaction has up to twice its size.
        total = sum(self._sizes.values()) + 2 * self.limits.segment_bytes
        age_us = None if self.limits.age_s_max is None else self.limits.age_s_max * 1e6
        for number, segment in enumerate(kept):
            ended_us = kept[number + 1].head.unix_us if number + 1 < len(kept) else unix_us
            if total <= self.limits.bytes_max and (age_us is None or unix_us - ended_us <= age_us):
                return
            segment.path.unlink(missing_ok=True)
            total -= self._sizes.pop(segment)


def _sizes(folder: Path) -> dict[Segment, int]:
    """Return the existing segments with their sizes in bytes."""
    found = {}
    for entry in os.scandir(folder):
        head = parse_name(entry.name)
        if head is not None:
            found[Segment(Path(entry.path), head)] = entry.stat().st_size
    return found


def _reason(error: OSError) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "the disk is full"
    return error.strerror or "unknown error"
