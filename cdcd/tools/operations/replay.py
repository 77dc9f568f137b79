"""`cdcd replay`: shows the records of a recording, writes them to topics, or only processes them; and with `--redact`
writes a pseudonymous copy of the recording.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cdcd.adapters.kafka.replayed import ReplayedTopics
from cdcd.adapters.recording.blocks import Item, pack, size_of
from cdcd.adapters.recording.column_modes import ColumnMode, ColumnModes
from cdcd.adapters.recording.events import SegmentBegan, item_of
from cdcd.adapters.recording.recorded_names import RecordedNames
from cdcd.adapters.recording.redaction import Redaction
from cdcd.adapters.recording.replay import Adapt, Replay, as_recorded
from cdcd.adapters.recording.segments import (
    RecordedPlace,
    Segment,
    Tear,
    events_by_segment,
    list_segments,
    read_events,
    seek,
)
from cdcd.adapters.recording.writer import RecordingLimits, RecordingWriter
from cdcd.config.loading import Config
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.session_start import SessionStart
from cdcd.core.errors import ConfigError, LimitError, ProtocolError
from cdcd.core.pasted import cdcd
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.shaping.partitioning import without_partition
from cdcd.daemon.settings import (
    encoder_settings,
    engine_settings,
    require_no_registry,
    sink_settings,
    topic_spec,
)
from cdcd.scratch import scratch_folder
from cdcd.telemetry.terminal_text import number
from cdcd.tools.operations.change_lines import ReadRecord, as_json

Say = Callable[[str], None]

TRANSACTION_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Range:
    """The wanted part of a recording; None: from its beginning, or to its end."""

    begin: RecordedPlace | None = None
    end: RecordedPlace | None = None

    def segments(self, folder: Path) -> list[Segment]:
        """Return the segments to read. RecordingError: there is no segment, or the recording begins later."""
        found = list_segments(folder)
        begin, end = self.begin, self.end
        while (
            end is not None and len(found) > 1 and end.is_before(found[-1].head.lsn, found[-1].head.unix_us)
        ):
            found.pop()
        if begin is None:
            return found[seek(found) :]
        return found[seek(found, lsn=begin.lsn, unix_us=begin.unix_us) :]


def parse_place(text: str, option: str) -> RecordedPlace:
    """Read an LSN (`0/16B3748`) or a time in ISO 8601, which is UTC without an offset.

    ConfigError: the text is neither.
    """
    if "/" in text:
        try:
            return RecordedPlace(lsn=int(Lsn.parse(text)))
        except (ValueError, ProtocolError):
            pass
    else:
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            pass
        else:
            when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
            return RecordedPlace(unix_us=round(when.timestamp() * 1e6))
    raise ConfigError(
        f"{option}: {text!r} is neither an LSN nor a time.",
        hint=f"{option} 0/16B3748, or {option} 2026-03-01T12:00:00Z.",
    )


def replay(
    folder: Path, config: Config | None, output: str, wanted: Range, *, show: Say, notice: Say
) -> None:
    """Replay a recording.

    Args:
        config: configuration of the records; None: the recorded daemon's.
        output: `stdout`, `topics` or `nothing`.

    Raises:
        ConfigError: the configuration leaves tables out.
        RecordingError: the recording is altered, or cannot be replayed from the beginning of `wanted`.
        SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
    """
    if config is not None and not config.tables.selection.is_all:
        raise ConfigError(
            "A replay makes records of all tables that are in the recording, so it cannot follow tables.include and "
            "tables.exclude.",
            hint="Replay with a configuration without `tables`.",
        )
    adapt = as_recorded if config is None else _adapt_to(config)
    topics = None
    emit: Callable[[Batch], None] = _forget
    if output == "topics":
        assert config is not None
        if config.topic_names().has_claims:
            raise ConfigError(
                "A replay writes only to topics that begin with topics.prefix, because it claims no topics, and a "
                "pipeline may write to the others.",
                hint="Replay with a configuration without topics.name, topics.rename, topics.names and routes.",
            )
        topics = ReplayedTopics(
            sink_settings(config, TRANSACTION_S), topic_spec(config), config.topics.schemas or ""
        )
        emit = topics.emit
    elif output == "stdout":
        emit = _shower(show)
    with scratch_folder("cdcd-replay-") as spool:
        run = Replay(emit, notice, lambda _: None, spool, adapt=adapt, begin=wanted.begin, end=wanted.end)
        try:
            run.run(read_events(wanted.segments(folder)))
        finally:
            if topics is not None:
                topics.close()
    exactly = f"{run.exact_sessions:,} of {number(run.sessions, 'session')} identical to the original"
    notice(f"Replayed {number(run.records, 'record')}; {exactly}.")


def _forget(_batch: Batch) -> None:
    """Drop the records."""


def _shower(show: Say) -> Callable[[Batch], None]:
    def emit(batch: Batch) -> None:
        for record in batch.records:
            topic, key, value, headers = without_partition(record)
            show(as_json(ReadRecord(topic, key, value, tuple(headers or ()))))

    return emit


def _adapt_to(config: Config) -> Adapt:
    """Return a function that changes a session's start to the one of a daemon with this configuration.

    Settings that decide which questions are asked about tables stay as recorded, because only these questions have
    answers.
    """

    def adapt(start: SessionStart) -> SessionStart:
        recorded = start.settings
        mine = engine_settings(config, 0.0)
        settings = replace(
            recorded,
            batches=mine.batches,
            truncate=mine.truncate,
        )
        require_no_registry(
            config, "cdcd replay", "Set format.value: json and format.key: json for the replay."
        )
        digits = start.encoding.modes.money_digits if config.money.digits is None else config.money.digits
        encoding = encoder_settings(config, start.encoding.database, money_digits=digits)
        return replace(
            start,
            settings=settings,
            encoding=encoding,
            outbox=config.outbox.settings,
            filters=config.filters.settings,
            routes=config.routes.settings,
        )

    return adapt


def _names(folder: Path) -> RecordedNames:
    """Return the names of all columns of a recording. Raises RecordingError if it is altered."""
    names = RecordedNames()
    for _, event in events_by_segment(list_segments(folder)):
        if not isinstance(event, Tear):
            names.take(event)
    return names


BLOCK_BYTES: Final = 1 << 18
UNLIMITED: Final = RecordingLimits(bytes_max=1 << 62, age_s_max=None, segment_bytes=1 << 40)


def redact(
    folder: Path, target: Path, wanted: Range, *, rules: Sequence[ColumnMode], notice: Callable[[str], None]
) -> None:
    """Write the segments of the range, with replaced values, into a new folder.

    Args:
        rules: modes of single columns, whatever their names are elsewhere in the whole recording.

    Raises:
        RecordingError: the recording is altered, or begins later.
        LimitError: the new folder is not empty, or cannot be written.
        ConfigError: a mode does not fit its column.
    """
    segments = wanted.segments(folder)
    if target.exists() and any(target.iterdir()):
        raise LimitError(f"{target} is not empty.", hint="Name a folder that does not exist yet.")
    modes = ColumnModes(rules, _names(folder) if rules else None)
    redaction = Redaction(os.urandom(32), modes)
    try:
        writer = RecordingWriter(target, UNLIMITED)
    except OSError as error:
        raise LimitError(
            f"{target} cannot be written: {error.strerror}.", hint="Name another folder."
        ) from None
    items: list[Item] = []
    size = events = 0

    def flush() -> None:
        nonlocal items, size
        if items:
            writer.put(pack(items))
            writer.wait()
            items, size = [], 0

    try:
        for segment, event in events_by_segment(segments):
            if isinstance(event, Tear):
                notice(f"{event.path} is torn at offset {event.offset}. Everything before that is redacted.")
                continue
            if isinstance(event, SegmentBegan):
                flush()
                head = segment.head
                writer.begin_segment(head.kind, head.lsn, head.unix_us)
            item = item_of(redaction.event(event))
            items.append(item)
            size += size_of(item)
            events += 1
            if size >= BLOCK_BYTES:
                flush()
        flush()
    finally:
        writer.close()
    if writer.failure:
        raise LimitError(
            f"{target} cannot be written: {writer.failure}.", hint="Free disk space, or name another folder."
        )
    for table, reason in modes.not_kept.items():
        notice(f"Columns of {table} are not kept, although a --column says so, because {reason}.")
    notice(
        f"{number(events, 'input')} of the engine (frames, answers, times) with replaced values are in {target}. The "
        "copy is pseudonymous, not anonymous: it shows which values are equal, how often each occurs and how long it "
        f"is, and it has all names of tables and columns, times and LSNs. Look at it (`{cdcd('replay', target)}`) "
        "before you give it to anybody."
    )
