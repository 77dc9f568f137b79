"""What a process used, from /proc: CPU by thread, peak resident memory."""

import os
from pathlib import Path
from typing import Final

TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system time of all threads so far, in seconds."""
    return _cpu(Path(f"/proc/{pid}/stat"))


def user_s(pid: int) -> float:
    """User time of all threads so far, in seconds: of the two what depends less on what else the machine does."""
    return _fields(Path(f"/proc/{pid}/stat"))[0] * TICK_S


def cpu_by_thread(pid: int) -> dict[str, float]:
    """The same by the name of the thread; threads of one name are added up."""
    found: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        found[name] = found.get(name, 0.0) + _cpu(task / "stat")
    return found


def peak_rss_bytes(pid: int) -> int:
    """VmHWM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no VmHWM")


def _cpu(stat: Path) -> float:
    return sum(_fields(stat)) * TICK_S


def _fields(stat: Path) -> tuple[int, int]:
    # After the command's name in parentheses, which may hold blanks: utime and stime are fields 14 and 15.
    fields = stat.read_text().rpartition(")")[2].split()
    return int(fields[11]), int(fields[12])
