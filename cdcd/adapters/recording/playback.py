"""The events of a recording, read from its segments; and where in them commits lie."""

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
    """The events of these segments. A `Tear` stands where a process was killed; a session follows, or nothing.

    Raises:
        RecordingError: a segment is altered or cannot be read, or something is missing behind a tear.
    """
    return (event for _, event in events_by_segment(segments))


def events_by_segment(segments: Sequence[Segment]) -> Iterator[tuple[Segment, Event | Tear]]:
    """As `read_events`, each with its segment."""
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
    """Where something becomes visible: the commit LSN of a transaction, or the LSN of a message outside of any.

    Attributes:
        unix_us: the time of the commit; None: a message has none.
    """

    lsn: int
    unix_us: int | None


class CommitFinder:
    """Finds commits among frames, which must come in their order."""

    def __init__(self) -> None:
        self._between = True

    def commit_of(self, frame: bytes) -> Commit | None:
        """The commit whose changes follow this frame or are sent by it; None: the frame is something else."""
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
    """A place in a recording, by an LSN or by a time."""

    lsn: int | None = None
    unix_us: int | None = None

    def reaches(self, commit: Commit) -> bool:
        """Whether the commit lies at this place or before. A message without a time lies where its neighbours do."""
        if self.lsn is not None:
            return commit.lsn <= self.lsn
        return self.unix_us is None or commit.unix_us is None or commit.unix_us <= self.unix_us

    def is_behind(self, commit: Commit) -> bool:
        """Whether the commit lies before this place, and not at it."""
        if self.lsn is not None:
            return commit.lsn < self.lsn
        return self.unix_us is not None and (commit.unix_us is None or commit.unix_us < self.unix_us)

    def is_before(self, lsn: int, unix_us: int) -> bool:
        """Whether this place lies before what begins at that LSN and that time."""
        if self.lsn is not None:
            return self.lsn < lsn
        return self.unix_us is not None and self.unix_us < unix_us
