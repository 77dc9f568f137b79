"""A program that reads a stream, to be killed or measured: `python -m tests.integration.stream_reader MODE DSN SLOT`.

`acknowledge` prints the first column of each row, and `acknowledged` after each transaction is acknowledged. It goes on
when it is given a line, so that it is never ahead of whoever reads what it prints. `measure` reads one transaction and
prints the number of its rows, their sum, and by how many bytes the process has grown.
"""

import asyncio
import re
import sys
from pathlib import Path

import cdcd

PUBLICATION = "p"


async def acknowledge(dsn: str, slot: str) -> None:
    async with cdcd.connect(dsn, publication=PUBLICATION, slot=slot) as stream:
        async for transaction in stream:
            async for change in transaction:
                assert isinstance(change, cdcd.Insert)
                await in_step("row", change.new["id"])
            await transaction.acknowledge()
            await in_step("acknowledged", stream.confirmed_lsn)


async def measure(dsn: str, _slot: str) -> None:
    async with cdcd.connect(dsn, publication=PUBLICATION, spool_memory_bytes=1_000_000) as stream:
        say("ready")
        before = peak_bytes()
        count = total = 0
        async for change in await anext(stream):
            if not count:
                say("begins")
            assert isinstance(change, cdcd.Insert)
            number = change.new["id"]
            assert isinstance(number, int)
            count += 1
            total += number
        say("done", count, total, peak_bytes() - before)


async def in_step(*words: object) -> None:
    """Print them, and wait for a line."""
    say(*words)
    await asyncio.to_thread(sys.stdin.readline)


def peak_bytes() -> int:
    """The most memory that the process had. `ru_maxrss` would have that of the process that forked it."""
    status = Path("/proc/self/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak
    return int(peak[1]) * 1024


def say(*words: object) -> None:
    print(*words, flush=True)


if __name__ == "__main__":
    asyncio.run({"acknowledge": acknowledge, "measure": measure}[sys.argv[1]](sys.argv[2], sys.argv[3]))
