"""Events of a recording, read from its segments, and the commits among them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cdcd.adapters.recording.errors import RecordingError, altered
from cdcd.adapters.recording.events import Event, decode_events
from cdcd.adapters.recording.segments import Segment, Tear, open_segment
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US, CommitPrepared, LogicalMessage, StreamCommit
from cdcd.core.protocol.reader import read_message


def read_events(segments: Sequence[Segment]) -> Iterator[Event | Tear]:
    """Yield the events of these segments.

    A `Tear` marks where a process was killed; after it comes a new session or the end.

    Raises:
        RecordingError: a segment is altered or unreadable, or the rest of a torn segment is missing.
    """
    return (event for _, event in events_by_segment(segments))


def events_by_segment(segments: Sequence[Segment]) -> Iterator[tuple[Segment, Event | Tear]]:
    """Yield events as `read_events` does, each with its segment."""
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
class Commit:
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

    def commit_of(self, frame: bytes) -> Commit | None:
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
            return Commit(lsn, time_us + POSTGRES_EPOCH_US)
        if tag in "cK":
            message = read_message(frame, XLOG_HEADER)
            assert isinstance(message, StreamCommit | CommitPrepared)
            return Commit(message.commit_lsn, message.commit_time + POSTGRES_EPOCH_US)
        if tag == "M" and self._between:
            message = read_message(frame, XLOG_HEADER)
            assert isinstance(message, LogicalMessage)
            return Commit(message.lsn - 1, None)
        return None


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a recording, by an LSN or by a time."""

    lsn: int | None = None
    unix_us: int | None = None

    def reaches(self, commit: Commit) -> bool:
        """Return True if the commit lies at or before this position.

        A message without a time counts as its neighbours do.
        """
        if self.lsn is not None:
            return commit.lsn <= self.lsn
        return self.unix_us is None or commit.unix_us is None or commit.unix_us <= self.unix_us

    def is_behind(self, commit: Commit) -> bool:
        """Return True if the commit lies before this position, and not at it."""
        if self.lsn is not None:
            return commit.lsn < self.lsn
        return self.unix_us is not None and (commit.unix_us is None or commit.unix_us < self.unix_us)

    def is_before(self, lsn: int, unix_us: int) -> bool:
        """Return True if this position lies before an event with that LSN and time."""
        if self.lsn is not None:
            return self.lsn < lsn
        return self.unix_us is not None and self.unix_us < unix_us
