"""The daemon as the trial starts it: `python -m tests.trial.entry run --config FILE`, from the sources.

Before the daemon is imported, its wall clock is replaced by one that the trial can move (CDCD_TRIAL_CLOCK: a file with
the seconds that are added). `planted.py` puts a mistake in, if CDCD_TRIAL_PLANTED names one. The product has no such
seam in its own code.
"""

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final

CLOCK: Final = "CDCD_TRIAL_CLOCK"
PLANTED: Final = "CDCD_TRIAL_PLANTED"

_OFFSET: Final = struct.Struct("d")


class Clock:
    """The file that says how wrong the wall clock of a process is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    def set(self, seconds: float) -> None:
        mode = "r+b" if self.path.exists() else "wb"
        with self.path.open(mode) as file:
            file.write(_OFFSET.pack(seconds))


def move_clock(path: Path) -> None:
    """From now on, `time.time` and `time.time_ns` of this process are moved by what the file says."""
    with path.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), _OFFSET.size, access=mmap.ACCESS_READ)
    real, real_ns = time.time, time.time_ns

    def moved() -> float:
        return real() + float(_OFFSET.unpack_from(shared)[0])

    def moved_ns() -> int:
        return real_ns() + int(_OFFSET.unpack_from(shared)[0] * 1e9)

    time.time, time.time_ns = moved, moved_ns


def main() -> None:
    if CLOCK in os.environ:
        move_clock(Path(os.environ[CLOCK]))
    if os.environ.get(PLANTED):
        from tests.trial.planted import PLANTED as MISTAKES

        MISTAKES[os.environ[PLANTED]].put_in()
    from cdcd.cli.__main__ import main as run

    run()


if __name__ == "__main__":
    main()
