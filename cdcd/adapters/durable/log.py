"""Files of the durable log: one folder, with segments in the form of a recording's segments (`recording/blocks.py`).

The rule: everything before a returned `sync` is on disk, whatever happens next. The checksum of each block
continues the checksum of the block before it, so a torn or altered block is detected and ends the readable part of
its logged session (`engine/logged.py` decides if that matters).

A logged session is a sequence of segments with consecutive numbers. The kind in the head shows how a segment
begins: `s` with a logged session, whose first block names the owner of the log; `c` between two transactions; `m`
within one. The LSN in the head is the last position between two transactions before the segment. A segment is
closed and synced before the next one is created. So only the last segment of a logged session must be read to find
the end of the logged session.

After a failed write or sync, this object writes nothing more: the kernel may have dropped the pages that it could
not write, and a second sync would succeed without them (PostgreSQL's "fsyncgate"). The next logged session begins
at the slot's position, which is before anything that was not synced.

The folder has a lock, which a process holds while it uses the log. Files are readable by their owner only, because
they hold every value of the published tables.
"""

import errno
import fcntl
import json
import os
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from cdcd.adapters.recording.blocks import BlockWriter, Head, Kind, RecordingError
from cdcd.adapters.recording.segments import Segment, Tear, name_of, open_segment, parse_name
from cdcd.core.engine.logged import DurableLog, LoggedSession, LogOwner, ended_early
from cdcd.core.errors import LimitError, TransientError, out_of_files
from cdcd.core.transactions.commits import Boundaries

LOCK: Final = ".lock"

FORMAT: Final = 1
"""Version of the blocks' contents; other versions are not read."""

_OWNER: Final = b"J"
_FRAMES: Final = b"F"
_COUNT: Final = struct.Struct("<cI")


class LogStoppedError(Exception):
    """The log accepts no more writes.

    `reason` is the cause: the disk is full, or the log has reached its maximum size.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def segments_in(folder: Path) -> list[Segment]:
    """Return the segments in the folder, in their order. OSError: the folder cannot be read.

    A missing folder has no segments.
    """
    if not folder.is_dir():
        return []
    heads = [(path, parse_name(path.name)) for path in folder.iterdir()]
    found = [Segment(path, head) for path, head in heads if head is not None]
    return sorted(found, key=lambda segment: segment.head.number)


class LogFiles:
    """The durable log of one process. The caller owes `close`.

    Args:
        bytes_max: maximum bytes of all segments together.
        segment_bytes: bytes at which a segment ends.
        sync: writes a file's contents, or a folder's names, to disk; the simulator passes another function.
    """

    def __init__(
        self,
        folder: Path,
        bytes_max: int,
        segment_bytes: int,
        sync: Callable[[int], None] = os.fsync,
    ) -> None:
        """Lock the folder, which is created if it is missing.

        Raises:
            LimitError: the folder cannot be written.
            TransientError: another process uses the log.
        """
        self._folder = folder
        self._bytes_max = bytes_max
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._file = -1
        self._segment: Segment | None = None
        self._blocks: BlockWriter | None = None
        self._boundaries = Boundaries(0)
        # A cancelled task leaves its thread running, which must have finished before the file is closed.
        self._mutex = threading.RLock()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(folder, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._sizes = {segment: segment.path.stat().st_size for segment in segments_in(folder)}
            self._size = sum(self._sizes.values())
        except BlockingIOError:
            os.close(self._lock)
            raise TransientError(
                f"Another process uses the durable log {folder}.",
                hint="Trying again. Give each pipeline a folder of its own (spool.durable_directory).",
            ) from None
        except OSError as error:
            os.close(self._lock)
            raise _unusable(folder, error) from error

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._size

    @property
    def end(self) -> int:
        """Return the LSN that cdcd may confirm to PostgreSQL once everything appended is synced."""
        return self._boundaries.end

    def close(self) -> None:
        """Close the segment in good order if that works, and unlock the folder. Idempotent.

        Waits until a thread that still writes has finished.
        """
        with self._mutex:
            if self._file >= 0:
                try:
                    self._end_segment()
                except (OSError, LogStoppedError):
                    self._give_up()
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def forget(self) -> None:
        """Close the files as the end of the process would, without writing."""
        if self._file >= 0:
            os.close(self._file)
            self._file, self._blocks = -1, None
        self.close()

    # Methods for writing.

    def begin(self, owner: LogOwner, begin: int, unix_us: int) -> None:
        """Begin a logged session, which is on disk when this returns. LogStoppedError: it cannot be written."""
        with self._mutex:
            assert self._file < 0, "one logged session at a time"
            assert self._lock >= 0, "the log is closed"
            self._boundaries = Boundaries(int(begin))
            self._begin_segment("s", unix_us)
            self._append(_OWNER + json.dumps({"format": FORMAT, **asdict(owner)}).encode())
            self.sync()

    def append(self, frames: list[bytes], unix_us: int) -> None:
        """Write frames as received. They are safe only after `sync` has returned.

        Raises:
            LogStoppedError: the disk is full or broken, or the log would exceed its maximum size.
            ProtocolError: see `Boundaries.take`.
        """
        with self._mutex:
            assert self._blocks is not None, "the logged session is over"
            assert self._segment is not None
            if self._sizes[self._segment] >= self._segment_bytes:
                self._next_segment(unix_us)
            self._boundaries.take(frames)
            self._append(_packed(frames))

    def sync(self) -> int:
        """Return when everything that was appended is on disk. Returns the LSN that cdcd may confirm to PostgreSQL.

        Raises:
            LogStoppedError: the disk is broken.
        """
        with self._mutex:
            assert self._file >= 0, "the logged session is over"
            try:
                self._sync(self._file)
            except OSError as error:
                self._give_up()
                raise LogStoppedError(_reason(error)) from error
            return self._boundaries.end

    def _next_segment(self, unix_us: int) -> None:
        self._end_segment()
        self._begin_segment("m" if self._boundaries.inside else "c", unix_us)

    def _begin_segment(self, kind: Kind, unix_us: int) -> None:
        number = max([segment.head.number for segment in self._sizes], default=0) + 1
        head = Head(number, self._boundaries.end, unix_us, kind)
        path = self._folder / name_of(head)
        try:
            self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            self._segment = Segment(path, head)
            self._sizes[self._segment] = 0
            self._sync_folder()
        except OSError as error:
            self._give_up()
            raise LogStoppedError(_reason(error)) from error
        self._blocks = BlockWriter(head)
        self._write(head.encode())

    def _end_segment(self) -> None:
        assert self._blocks is not None
        self._write(self._blocks.block(b""))
        self.sync()
        os.close(self._file)
        self._file, self._blocks = -1, None

    def _append(self, data: bytes) -> None:
        assert self._blocks is not None
        self._write(self._blocks.block(data))

    def _write(self, data: bytes) -> None:
        assert self._segment is not None
        if self._size + len(data) > self._bytes_max:
            self._give_up()
            raise LogStoppedError(f"the log would be larger than spool.durable_bytes_max, {self._bytes_max}")
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            self._give_up()
            raise LogStoppedError(_reason(error)) from error
        self._sizes[self._segment] += len(data)
        self._size += len(data)

    def _give_up(self) -> None:
        """Stop writing for good. Also truncate a block that was begun, if that works; the block was never confirmed."""
        file, self._file, self._blocks = self._file, -1, None
        if file < 0:
            return
        try:
            if self._segment is not None:
                os.ftruncate(file, self._sizes[self._segment])
        except OSError:
            pass
        finally:
            os.close(file)

    def _sync_folder(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._sync(folder)
        finally:
            os.close(folder)

    # Methods for reading.

    def look(self) -> DurableLog:
        """Return the contents of the log. Reads the last segment of each logged session."""
        return _look(self._folder, self._by_session())

    def frames(self, session: LoggedSession) -> Iterator[list[bytes]]:
        """Yield the frames of a logged session up to its end, in their order and in bounded lists.

        Raises:
            PositionError: the intact part of the session ends earlier.
        """
        segments = next(each for each in self._by_session() if each[0].head.number == session.number)
        boundaries, flaw = Boundaries(session.begin), ""
        try:
            for segment in segments:
                for block in open_segment(segment):
                    if isinstance(block, Tear):
                        flaw = _torn(block)
                        break
                    if block[1][:1] == _OWNER:
                        continue
                    frames = _unpacked(block[1])
                    before = boundaries.take(frames)
                    if boundaries.end >= session.end:
                        yield frames[:before]
                        return
                    yield frames
                if flaw:
                    break
        except RecordingError as error:
            flaw = error.message
        if boundaries.end < session.end:
            raise ended_early(str(self._folder), session, boundaries.end, flaw or "A segment is missing.")

    def remove(self, numbers: tuple[int, ...]) -> None:
        """Delete logged sessions by their numbers. OSError: the folder cannot be written.

        The last segment is deleted first, so that after an interruption the rest still begins where the logged
        session began.
        """
        with self._mutex:
            assert self._lock >= 0, "the log is closed"
            gone = [each for each in self._by_session() if each[0].head.number in numbers]
            for segments in gone:
                for segment in reversed(segments):
                    segment.path.unlink(missing_ok=True)
                    self._size -= self._sizes.pop(segment)
            if gone:
                self._sync_folder()

    def _by_session(self) -> list[list[Segment]]:
        return _by_session(sorted(self._sizes, key=lambda each: each.head.number))


def look(folder: Path) -> DurableLog:
    """Return the contents of the log, which another process may be using.

    Raises:
        LimitError: the folder cannot be read.
    """
    try:
        return _look(folder, _by_session(segments_in(folder)))
    except OSError as error:
        raise _unusable(folder, error) from error


def _look(folder: Path, sessions: list[list[Segment]]) -> DurableLog:
    return DurableLog(str(folder), tuple([_seen(each) for each in sessions]))


def _by_session(segments: list[Segment]) -> list[list[Segment]]:
    """Group segments by logged session."""
    found: list[list[Segment]] = []
    for segment in segments:
        if segment.head.kind == "s" or not found:
            found.append([segment])
        else:
            found[-1].append(segment)
    return found


def _seen(segments: list[Segment]) -> LoggedSession:
    """Return the owner of a logged session, and the end of its intact part."""
    first = segments[0].head
    owner, flaw = _owner(segments[0])
    if owner is None:
        return LoggedSession(first.number, None, first.lsn, first.lsn, flaw)
    last = segments[0]
    for segment in segments[1:]:
        if segment.head.number != last.head.number + 1:
            gap = f"Segment number {last.head.number + 1} is missing in {segment.path.parent}."
            return LoggedSession(first.number, owner, first.lsn, _end(last)[0], gap)
        last = segment
    end, flaw = _end(last)
    return LoggedSession(first.number, owner, first.lsn, end, flaw)


def _owner(segment: Segment) -> tuple[LogOwner | None, str]:
    """Return the owner of the log; or None and the reason if the segment does not name one."""
    if segment.head.kind != "s":
        return None, f"The segments before {segment.path} are missing."
    try:
        for block in open_segment(segment):
            if isinstance(block, Tear):
                return None, _torn(block)
            fields: dict[str, Any] = json.loads(block[1][1:])
            if block[1][:1] != _OWNER or fields.pop("format") != FORMAT:
                return None, f"{segment.path} is of another form than this version of cdcd reads."
            return LogOwner(**fields), ""
    except RecordingError as error:
        return None, error.message
    except (ValueError, KeyError, TypeError):
        return None, f"{segment.path} does not begin as a durable log does."
    return None, f"{segment.path} is empty."


def _end(segment: Segment) -> tuple[int, str]:
    """Return the end of the segment's intact part, and the flaw there if it was not closed in good order."""
    boundaries = Boundaries(segment.head.lsn, inside=segment.head.kind == "m")
    try:
        for block in open_segment(segment):
            if isinstance(block, Tear):
                return boundaries.end, _torn(block)
            if block[1][:1] == _FRAMES:
                boundaries.take(_unpacked(block[1]))
    except RecordingError as error:
        return boundaries.end, error.message
    return boundaries.end, ""


def _torn(tear: Tear) -> str:
    return f"Segment {tear.path} is torn at offset {tear.offset}."


def _packed(frames: list[bytes]) -> bytes:
    sizes = struct.pack(f"<{len(frames)}I", *map(len, frames))
    return b"".join([_COUNT.pack(_FRAMES, len(frames)), sizes, *frames])


def _unpacked(block: bytes) -> list[bytes]:
    _, count = _COUNT.unpack_from(block)
    sizes = struct.unpack_from(f"<{count}I", block, _COUNT.size)
    at = _COUNT.size + 4 * count
    frames = []
    for size in sizes:
        frames.append(block[at : at + size])
        at += size
    return frames


def _reason(error: OSError) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "the disk is full"
    return error.strerror or "unknown error"


def _unusable(folder: Path, error: OSError) -> LimitError:
    return out_of_files(error) or LimitError(
        f"Cannot use the durable log {folder}: {error.strerror or 'unknown error'}.",
        hint=f"Create {folder} so that the user of the daemon may write to it, or change spool.durable_directory.",
    )
