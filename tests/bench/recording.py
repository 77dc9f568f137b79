"""What a recording costs, as a share of the daemon's CPU: `python -m tests.bench.recording [ROWS]`.

Both halves of a pair are this process: the engine works off the same frames, in transactions of ten rows, once by
itself and once behind a tap, which compresses, and whose thread writes. CPU time of the whole process counts, and the
median of the pairs, which take turns. Kafka's and libpq's share is not in it, so the daemon's own share is smaller
still (`python -m tests.bench --recording`). With `make optimised` and `PYTHONPATH=build/compiled` the engine is the
compiled one.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cdcd.adapters.recording.tap import Tap
from cdcd.adapters.recording.writer import RecordingLimits, RecordingWriter
from cdcd.build import is_compiled
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.engine.actions import Describe, EnsureTopics, Ship, Wait
from cdcd.core.engine.building import build_engine
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.engine import Engine
from cdcd.core.engine.session_start import SessionStart
from cdcd.core.engine.settings import BatchSettings, EngineSettings, SnapshotSettings
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Begin, Column, Commit, Insert, Message, Relation
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.position import Position
from cdcd.core.transactions.spool import Spool
from cdcd.daemon import process
from tests.bench.encode import PLAIN, TRANSACTION_ROWS

ROWS: Final = 200_000
PAIRS: Final = 7
RECEIVED: Final = 1000
"""Frames that are received at a time: about 256 kB, as in the daemon."""

LIMITS: Final = RecordingLimits(bytes_max=4 << 30, age_s_max=None, segment_bytes=64 << 20)
START: Final = SessionStart(
    settings=EngineSettings(
        "bench", BatchSettings(1 << 20, 10_000, 64 << 20, 1 << 30), 10.0, SnapshotSettings(mode="never")
    ),
    checkpoint=Checkpoint("1", 1, "s", Position(end_lsn=1), 1),
    encoding=EncoderSettings("0.1.0", "shop", "shop"),
    published={16384: "public.plain"},
)


class NoTimer:
    """The engine is busy all the time, so blocks end by their size."""

    def __init__(self, _seconds: float, _function: Callable[[], None]) -> None:
        pass

    def cancel(self) -> None:
        pass


def make_frames(rows: int) -> list[list[bytes]]:
    """Transactions of ten rows, in lists as they are received."""
    columns = tuple(Column(int(not at), each[0], each[1], -1) for at, each in enumerate(PLAIN))
    messages: list[Message] = []
    lsn = 1 << 32
    for first in range(0, rows, TRANSACTION_ROWS):
        lsn += 2000
        messages.append(Begin(lsn, 7 * 10**14 + first, 700 + first))
        if not first:
            messages.append(Relation(None, 16384, "public", "plain", "d", columns))
        messages += [
            Insert(None, 16384, tuple(each[2](row).encode() for each in PLAIN))
            for row in range(first, first + TRANSACTION_ROWS)
        ]
        messages.append(Commit(lsn, lsn + 50, 7 * 10**14 + first))
    frames = [write_frame(XLogData(lsn, lsn, 7 * 10**14, write_message(each))) for each in messages]
    return [frames[at : at + RECEIVED] for at in range(0, len(frames), RECEIVED)]


def work_off(engine: Engine, verbs: Engine | Tap, received: list[list[bytes]]) -> None:
    """What the pipeline does, without Kafka."""
    now = 0.0
    verbs.stream_begun(now)
    for frames in received:
        while not engine.wants_frames:
            work_off_step(verbs, now)
        verbs.frames_received(list(frames), now)
        now += 0.002
    while work_off_step(verbs, now):
        pass


def work_off_step(verbs: Engine | Tap, now: float, unix_us: int = 1_700_000_000_000_000) -> bool:
    """Do what the engine wants next; whether it wants more."""
    action = verbs.next_action(now, unix_us)
    if isinstance(action, Ship):
        verbs.delivered(action.batch, now)
    elif isinstance(action, Describe):
        verbs.described(action.relation, TableDescription(("id",)), BUILTIN_TYPES, now)
    elif isinstance(action, EnsureTopics):
        verbs.topics_ready(action.topics, now)
    return not isinstance(action, Wait)


def measure(received: list[list[bytes]], folder: Path | None, spool: str) -> tuple[float, int]:
    """Seconds of CPU of the whole process, and bytes of the recording."""
    engine = build_engine(START, Spool(spool, START.spool_bytes), Ledger(1), lambda _: None, 0.0)
    began = time.process_time()
    if folder is None:
        work_off(engine, engine, received)
        return time.process_time() - began, 0
    writer = RecordingWriter(folder, LIMITS)
    tap = Tap(engine, START, 1, writer, later=NoTimer, wrote=lambda _: None, failed=sys.exit)
    tap.begin(0.0, 1_700_000_000_000_000)
    work_off(engine, tap, received)
    tap.close()
    return time.process_time() - began, writer.written_bytes


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    received = make_frames(rows)
    raw = sum(len(frame) for frames in received for frame in frames)
    # As in the daemon: otherwise each block is written to memory that the kernel has to clear first.
    process.settle()
    alone: list[float] = []
    more: list[float] = []
    size = 0
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(PAIRS):
            cost, _ = measure(received, None, folder)
            taped, size = measure(received, Path(folder, f"recording{pair}"), folder)
            alone.append(cost)
            more.append(taped - cost)
    engine, recording = (statistics.median(each) * 1e6 / rows for each in (alone, more))
    print(f"{'compiled' if is_compiled() else 'uncompiled'}, {rows} rows, {PAIRS} pairs")
    print(f"engine {engine:.2f} µs CPU a row, recording {recording:.2f} µs more ({recording / engine:.1%})")
    print(f"{raw / size:.1f} times smaller than the frames, {size / rows:.0f} bytes a row")


if __name__ == "__main__":
    main()
