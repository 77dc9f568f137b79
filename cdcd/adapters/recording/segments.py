"""Files of a recording: one folder with one file for each segment, whose names are the index; and the events and
commits that are read from them.

A name is `<number>-<LSN>-<Unix time in µs>-<kind>.cdcdrec` with fixed widths, so the sorted list of names is sorted
by number, by LSN within a session, and by time. A list of names cannot be torn and cannot contradict the files,
because the head of each file has the same fields and is compared when the file is read. Finding a position in 10 GB
needs a list of 160 names.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cdcd.adapters.recording.blocks import HEAD_BYTES, BlockReader, Head, RecordingError, altered, read_head
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US, CommitPrepared, LogicalMessage, StreamCommit
from cdcd.core.protocol.reader import read_message

if TYPE_CHECKING:
    from cdcd.adapters.recording.events import Event

SUFFIX: Final = ".cdcdrec"
_NAME: Final = re.compile(r"(\d{12})-([0-9A-F]{16})-(\d{16})-([scm])\.cdcdrec")


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of a recording."""

    path: Path
    head: Head


@dataclass(frozen=True, slots=True)
class Tear:
    """A segment without an end block, because the process was killed. Everything before `offset` is read."""

    path: Path
    offset: int


def name_of(head: Head) -> str:
    """Return the name of a segment's file."""
    return f"{head.number:012d}-{head.lsn:016X}-{head.unix_us:016d}-{head.kind}{SUFFIX}"


def parse_name(name: str) -> Head | None:
    """Return the head that the name of a file describes; None if the file is no segment."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    kind: Any = found[4]
    return Head(int(found[1]), int(found[2], 16), int(found[3]), kind)


def list_segments(folder: Path) -> list[Segment]:
    """Return the segments of a recording, in their order.

    Raises:
        RecordingError: the folder cannot be read, contains no segment, or lacks segments in the middle.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise RecordingError(
            f"The recording {folder} cannot be read: {error.strerror}.",
            hint="Give the folder that `record.directory` or `cdcd record --directory` named.",
        ) from None
    heads = [(name, head) for name in names if (head := parse_name(name)) is not None]
    segments = [Segment(folder / name, head) for name, head in heads]
    if not segments:
        raise RecordingError(
            f"{folder} has no recording: it has no file *{SUFFIX}.",
            hint="Give the folder that `record.directory` or `cdcd record --directory` named.",
        )
    for before, after in pairwise(segments):
        if after.head.number != before.head.number + 1:
            raise RecordingError(
                f"Segments are missing in the recording {folder}: number {after.head.number} follows number "
                f"{before.head.number}.",
                hint="Copy the whole folder, or move the segments before the gap elsewhere.",
            )
    return segments


def open_segment(segment: Segment) -> Iterator[tuple[int, bytes] | Tear]:
    """Yield the offset and the data of each block, and a final `Tear` if the segment is torn.

    Raises:
        RecordingError: the segment cannot be read, or is altered.
    """
    try:
        with segment.path.open("rb") as file:
            head = read_head(file.read(HEAD_BYTES), segment.path)
            if head is None:
                yield Tear(segment.path, 0)
                return
            if head != segment.head:
                raise altered(segment.path, 0, "its name and its head differ")
            reader = BlockReader(file, segment.path, head)
            for data in reader.blocks():
                yield reader.offset, data
            if reader.torn_at is not None:
                yield Tear(segment.path, reader.torn_at)
    except OSError as error:
        raise RecordingError(f"{segment.path} cannot be read: {error.strerror}.") from None


def seek(segments: list[Segment], *, lsn: int | None = None, unix_us: int | None = None) -> int:
    """Return the index of the segment to begin with, to get every commit from a position on.

    Args:
        lsn, unix_us: the position; neither: as early as possible. A commit is recorded after its time, so it is in
            the last segment that begins before this time, or in a later one.

    Raises:
        RecordingError: the recording begins later.
    """
    beginnings = [number for number, each in enumerate(segments) if each.head.can_begin]
    if not beginnings:
        raise RecordingError(
            "No segment of the recording is a place to begin with: each begins within an open transaction.",
            hint="Raise record.bytes_max, so that the recording goes back to before the longest transaction.",
        )
    if lsn is None and unix_us is None:
        return beginnings[0]
    keys = [
        segments[number].head.lsn if unix_us is None else segments[number].head.unix_us
        for number in beginnings
    ]
    # Sessions overlap, because after a reconnect the LSN returns to the checkpoint. The newest segment wins.
    wanted = unix_us if lsn is None else lsn
    assert wanted is not None
    place = bisect_right(_never_falling(keys), wanted) - 1
    if place < 0:
        first = segments[beginnings[0]].head
        raise RecordingError(
            f"The recording can be replayed from {Lsn(first.lsn)} on, and --from is before that.",
            hint="Leave out --from, or name a later place.",
        )
    return beginnings[place]


def _never_falling(keys: list[int]) -> list[int]:
    """Return each key, or the least key after it if that is less, so that a search finds no segment that begins too
    late.
    """
    found = keys.copy()
    for number in range(len(found) - 2, -1, -1):
        found[number] = min(found[number], found[number + 1])
    return found


def read_events(segments: Sequence[Segment]) -> "Iterator[Event | Tear]":
    """Yield the events of these segments.

    A `Tear` marks where a process was killed; after it comes a new session or the end.

    Raises:
        RecordingError: a segment is altered or unreadable, or the rest of a torn segment is missing.
    """
    return (event for _, event in events_by_segment(segments))


def events_by_segment(segments: Sequence[Segment]) -> "Iterator[tuple[Segment, Event | Tear]]":
    """Yield events as `read_events` does, each with its segment."""
    from cdcd.adapters.recording.events import decode_events  # noqa: PLC0415  the durable log has no events

    torn: Tear | None = None
    for segment in segments:
        if torn is not None and segment.head.kind != "s":
            raise altered(
                torn.path, torn.offset, "it is cut off, and the next segment goes on behind the cut"
            )
        torn = None
        for block in open_segment(segment):
            if isinstance(block, Tear):
                torn = block
                yield segment, block
                continue
            offset, data = block
            try:
                for event in decode_events(data):
                    yield segment, event
            except RecordingError as error:
                if error.hint:
                    raise
                raise altered(segment.path, offset, error.message.rstrip(".")) from error


@dataclass(frozen=True, slots=True)
class RecordedCommit:
    """The LSN at which data becomes visible: a transaction's commit LSN, or the LSN of a non-transactional message.

    Attributes:
        unix_us: time of the commit; None for a message, which has no time.
    """

    lsn: int
    unix_us: int | None


class CommitFinder:
    """Finder of commits among frames, which must be passed in their order."""

    def __init__(self) -> None:
        self._between = True

    def commit_of(self, frame: bytes) -> RecordedCommit | None:
        """Return the commit whose changes follow this frame or which it sends; None for other frames."""
        if len(frame) <= XLOG_HEADER or frame[peek.FRAME_KIND_AT] != peek.XLOG_DATA:
            return None
        tag = chr(peek.tag_of(frame))
        if tag in "BbS":
            self._between = False
        elif tag in "CPE":
            self._between = True
        if tag == "B" and len(frame) == peek.BEGIN.size:
            lsn, time_us, _ = peek.BEGIN.unpack(frame)
            return RecordedCommit(lsn, time_us + POSTGRES_EPOCH_US)
        if tag in "cK":
            message = read_message(frame, XLOG_HEADER)
            assert isinstance(message, StreamCommit | CommitPrepared)
            return RecordedCommit(message.commit_lsn, message.commit_time + POSTGRES_EPOCH_US)
        if tag == "M" and self._between:
            message = read_message(frame, XLOG_HEADER)
            assert isinstance(message, LogicalMessage)
            return RecordedCommit(message.lsn - 1, None)
        return None


@dataclass(frozen=True, slots=True)
class RecordedPlace:
    """A position in a recording, by an LSN or by a time."""

    lsn: int | None = None
    unix_us: int | None = None

    def reaches(self, commit: RecordedCommit) -> bool:
        """Return True if the commit lies at or before this position.

        A message without a time counts as its neighbours do.
        """
        if self.lsn is not None:
            return commit.lsn <= self.lsn
        return self.unix_us is None or commit.unix_us is None or commit.unix_us <= self.unix_us

    def is_behind(self, commit: RecordedCommit) -> bool:
        """Return True if the commit lies before this position, and not at it."""
        if self.lsn is not None:
            return commit.lsn < self.lsn
        return self.unix_us is not None and (commit.unix_us is None or commit.unix_us < self.unix_us)

    def is_before(self, lsn: int, unix_us: int) -> bool:
        """Return True if this position lies before an event with that LSN and time."""
        if self.lsn is not None:
            return self.lsn < lsn
        return self.unix_us is not None and self.unix_us < unix_us
