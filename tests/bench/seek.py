"""How long a seek in a large recording takes: `python -m tests.bench.seek [--gib 10] [--places 200]`.

The recording is made by an engine behind a tap, as the daemon makes it, from transactions of large random values, which
do not compress, so it has its full size on the disk. Then places are drawn, half of them by LSN and half by time.

- A seek is what finds the place: the list of segments, the choice of one, and its first block from the disk.
- The first record is what `cdcd replay --from` shows first. Before it, the commits of the segment that lie before the
  place are replayed, so that depends on `record.segment_bytes`.

With `PYTHONPATH=build/compiled` the engine is the compiled one.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cdcd.adapters.recording.replay import Replay
from cdcd.adapters.recording.segments import RecordedPlace, open_segment, read_events
from cdcd.adapters.recording.tap import Tap
from cdcd.adapters.recording.writer import RecordingLimits, RecordingWriter
from cdcd.build import is_compiled
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.building import build_engine
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US, Begin, Column, Commit, Insert, Message, Relation
from cdcd.core.protocol.writer import write_message
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.spool import Spool
from cdcd.tools.operations.replay import Range
from tests.bench.recording import START, NoTimer, work_off_step

SEGMENT_BYTES: Final = 64 << 20
"""The default of `record.segment_bytes`."""

SEEK_S_MAX: Final = 0.1
VALUE_BYTES: Final = 8192
VALUES: Final = 64
"""Different values, more than LZ4 looks back on (64 kB)."""

TRANSACTION_ROWS: Final = 10
TRANSACTION_US: Final = 1000
FIRST_LSN: Final = 1 << 32
FIRST_US: Final = 800_000_000_000_000
FIRST_RECORDS: Final = 10
"""Places of which the first record is waited for."""

COLUMNS: Final = (Column(1, "id", 20, -1), Column(0, "note", 25, -1))


class _FoundError(Exception):
    """The first record is there."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction of the recording."""

    commit_lsn: int
    unix_us: int


def transactions(dice: random.Random) -> Iterator[tuple[Transaction, list[bytes]]]:
    """Transactions without end, and their frames."""
    values = [b64encode(dice.randbytes(VALUE_BYTES * 3 // 4)) for _ in range(VALUES)]
    lsn, number = FIRST_LSN, 0
    while True:
        lsn += TRANSACTION_ROWS * VALUE_BYTES
        time_us = FIRST_US + number * TRANSACTION_US
        messages: list[Message] = [Begin(lsn, time_us, 700 + number)]
        if not number:
            messages.append(Relation(None, 16384, "public", "plain", "d", COLUMNS))
        first = number * TRANSACTION_ROWS
        messages += [
            Insert(None, 16384, (str(row).encode(), values[row % VALUES]))
            for row in range(first, first + TRANSACTION_ROWS)
        ]
        messages.append(Commit(lsn, lsn + 50, time_us))
        yield (
            Transaction(lsn, time_us + POSTGRES_EPOCH_US),
            [write_frame(XLogData(lsn, lsn, time_us, write_message(each))) for each in messages],
        )
        number += 1


def record(folder: Path, spool: str, size: int, dice: random.Random) -> list[Transaction]:
    """A recording of so many bytes, and its transactions."""
    limits = RecordingLimits(bytes_max=2 * size + (1 << 30), age_s_max=None, segment_bytes=SEGMENT_BYTES)
    engine = build_engine(START, Spool(spool, START.spool_bytes), Ledger(1), lambda _: None, 0.0)
    writer = RecordingWriter(folder, limits)
    tap = Tap(engine, START, 1, writer, later=NoTimer, wrote=lambda _: None, failed=sys.exit)
    tap.begin(0.0, FIRST_US + POSTGRES_EPOCH_US)
    now = 0.0
    tap.stream_begun(now)
    made: list[Transaction] = []
    for transaction, frames in transactions(dice):
        while not engine.wants_frames:
            work_off_step(tap, now, transaction.unix_us)
        tap.frames_received(frames, now)
        made.append(transaction)
        now += TRANSACTION_US / 1e6
        if not len(made) % 100:
            # A disk that is slower than this loop would end the recording.
            writer.wait()
            if writer.written_bytes >= size:
                break
    while work_off_step(tap, now, made[-1].unix_us):
        pass
    tap.close()
    return made


def seek(folder: Path, place: RecordedPlace) -> float:
    """Seconds until the segment of the place is found, and its first block is read."""
    began = time.perf_counter()
    segments = Range(place).segments(folder)
    next(iter(open_segment(segments[0])))
    return time.perf_counter() - began


def first_record(folder: Path, spool: str, place: RecordedPlace) -> float:
    """Seconds until the first record from the place on is there."""

    def found(_batch: Batch) -> None:
        raise _FoundError

    began = time.perf_counter()
    replay = Replay(found, lambda _: None, lambda _: None, spool, begin=place)
    try:
        replay.run(read_events(Range(place).segments(folder)))
    except _FoundError:
        return time.perf_counter() - began
    raise AssertionError(f"no record behind {place}")


def main() -> int:
    """0 if every seek was fast enough."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.seek")
    parser.add_argument("--gib", type=float, default=10.0)
    parser.add_argument("--places", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="where the recording is kept meanwhile")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        folder = Path(scratch, "recording")
        began = time.perf_counter()
        made = record(folder, scratch, int(options.gib * (1 << 30)), dice)
        took = time.perf_counter() - began
        files = sorted(folder.glob("*.cdcdrec"))
        size = sum(file.stat().st_size for file in files)
        print(
            f"{'compiled' if is_compiled() else 'uncompiled'}: {size / (1 << 30):.2f} GiB in {len(files)} segments, "
            f"{len(made):,} transactions, written in {took:.0f} s",
            flush=True,
        )
        places = [
            RecordedPlace(lsn=each.commit_lsn) if number % 2 else RecordedPlace(unix_us=each.unix_us)
            for number, each in enumerate(dice.choices(made, k=options.places))
        ]
        seeks = [seek(folder, place) * 1000 for place in places]
        print(
            f"seek: {statistics.median(seeks):.1f} ms in the median, {max(seeks):.1f} ms at most", flush=True
        )
        firsts = [first_record(folder, scratch, place) for place in places[:FIRST_RECORDS]]
        print(f"first record: {statistics.median(firsts):.2f} s in the median, {max(firsts):.2f} s at most")
    return 0 if max(seeks) < SEEK_S_MAX * 1000 else 1


if __name__ == "__main__":
    sys.exit(main())
