"""`cdcd replay`: shows the records of a recording, writes them to topics, or only processes the recording."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cdcd.adapters.kafka.replayed import ReplayedTopics
from cdcd.adapters.recording.playback import Place, read_events
from cdcd.adapters.recording.replay import Adapt, Replay, as_recorded
from cdcd.adapters.recording.segments import Segment, list_segments, seek
from cdcd.config.loading import Config
from cdcd.core.engine.building import SessionStart
from cdcd.core.engine.queue import Batch
from cdcd.core.errors import ConfigError, ProtocolError
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
from cdcd.tools.operations.change_lines import Seen, as_json

Say = Callable[[str], None]

TRANSACTION_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Range:
    """The wanted part of a recording; None: from its beginning, or to its end."""

    begin: Place | None = None
    end: Place | None = None

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


def parse_place(text: str, option: str) -> Place:
    """Read an LSN (`0/16B3748`) or a time in ISO 8601, which is UTC without an offset.

    ConfigError: the text is neither.
    """
    if "/" in text:
        try:
            return Place(lsn=int(Lsn.parse(text)))
        except (ValueError, ProtocolError):
            pass
    else:
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            pass
        else:
            when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
            return Place(unix_us=round(when.timestamp() * 1e6))
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
            show(as_json(Seen(topic, key, value, tuple(headers or ()))))

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
            bytes_max=mine.bytes_max,
            records_max=mine.records_max,
            queue_bytes_max=mine.queue_bytes_max,
            whole_bytes_max=mine.whole_bytes_max,
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
