"""CPU per row of stages 4 to 6: `python -m tests.bench.encode [ROWS]`, on synthetic Insert frames of ten columns.

Two tables: `plain`, a mix of integers, short texts, a numeric, a float and a date; and `rich`, with both timestamps,
uuid, jsonb and bytea. Key and value are made, ten rows a transaction. For figures that can be compared, nothing else
must run: this is bound by the interpreter, which suffers from neighbours.
"""

import gc
import sys
import time
from collections.abc import Callable
from typing import Final

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Column, Insert, Relation
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.stream import RecordStream

ROWS: Final = 300_000
TRANSACTION_ROWS: Final = 10
BURST: Final = 500
REPEATS: Final = 3

PLAIN: Final[tuple[tuple[str, int, Callable[[int], str]], ...]] = (
    ("id", 20, str),
    ("customer_id", 23, lambda i: str(i * 7919 % 100_000)),
    ("status", 25, lambda i: ("new", "paid", "shipped", "returned")[i % 4]),
    ("amount", 1700, lambda i: f"{i * 31 % 100_000}.{i % 100:02}"),
    ("quantity", 21, lambda i: str(i % 100)),
    ("note", 25, lambda i: f"order {i} of a customer"),
    ("paid", 16, lambda i: "tf"[i % 2]),
    ("ordered_on", 1082, lambda i: f"2024-{i % 12 + 1:02}-{i % 28 + 1:02}"),
    ("weight", 701, lambda i: f"{i % 1000}.25"),
    ("country", 1043, lambda i: ("Österreich", "Deutschland", "France", "Italia")[i % 4]),
)

RICH: Final[tuple[tuple[str, int, Callable[[int], str]], ...]] = (
    ("id", 20, str),
    ("customer_id", 23, lambda i: str(i * 7919 % 100_000)),
    ("status", 25, lambda i: ("new", "paid", "shipped", "returned")[i % 4]),
    ("amount", 1700, lambda i: f"{i * 31 % 100_000}.{i % 100:02}"),
    ("note", 25, lambda i: f"order {i} of a customer"),
    ("created", 1184, lambda i: f"2024-02-{i % 28 + 1:02} 12:{i % 60:02}:56.{i % 900_000 + 100_001}+00"),
    ("updated", 1114, lambda i: f"2024-03-{i % 28 + 1:02} 08:{i % 60:02}:01.{i % 900_000 + 100_001}"),
    ("reference", 2950, lambda i: f"a0eebc99-9c0b-4ef8-bb6d-6bb9{i:08}"),
    ("document", 3802, lambda i: f'{{"a": {i}, "b": [1, 2, "x"]}}'),
    ("digest", 17, lambda i: f"\\x{i:032x}"),
)


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    for name, columns in (("plain", PLAIN), ("rich", RICH)):
        encoder = record_stream(EncoderSettings("0.1.0", "shop", "shop"))
        described = tuple(
            [Column(int(not index), column[0], column[1], -1) for index, column in enumerate(columns)]
        )
        encoder.define(Relation(None, 16384, "public", name, "d", described), TableDescription(("id",)), {})
        frames = []
        for row in range(rows):
            values = tuple([column[2](row).encode() for column in columns])
            message = write_message(Insert(None, 16384, values))
            frames.append(write_frame(XLogData(2**32 + row * 100, 2**32 + row * 100, 7 * 10**14, message)))
        # A million small objects that live on would be looked through again and again.
        gc.freeze()
        best = min(_measure(encoder, frames) for _ in range(REPEATS))
        out: list[Record] = []
        size = encoder.encode(frames[-1], False, 1_700_000_000_000_000, out)
        print(f"{name}: {best * 1e6 / rows:.2f} µs CPU a row, {size} bytes of key and value")


def _measure(encoder: RecordStream, frames: list[bytes]) -> float:
    started = time.process_time()
    now_us = 1_700_000_000_000_000
    for burst in range(0, len(frames), BURST):
        out: list[Record] = []
        now_us += 1000
        for first in range(burst, min(burst + BURST, len(frames)), TRANSACTION_ROWS):
            encoder.begin(700 + first, 2**32 + first, 7 * 10**14 + first, 2**32 + first - 1)
            for frame in frames[first : first + TRANSACTION_ROWS]:
                encoder.encode(frame, False, now_us, out)
    return time.process_time() - started


if __name__ == "__main__":
    main()
