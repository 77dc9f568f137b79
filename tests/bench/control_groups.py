"""Control groups (version 1 or 2) that limit the memory of processes which have just been started."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")


def can_limit() -> bool:
    """Return whether this process may create control groups."""
    return os.access(_mount(), os.W_OK) and os.geteuid() == 0


@contextmanager
def limited(limit_bytes: int) -> Iterator[Callable[[int], None]]:
    """Create a control group with this memory limit, and yield a function that moves a process into it by its pid.

    The process must have ended before the context ends. The process of the tests stays outside of the group, because
    the kernel may kill any process in the group.
    """
    mount = _mount()
    group = mount / f"cdcd-{os.getpid()}"
    group.mkdir()
    try:
        name = "memory.limit_in_bytes" if mount.name == "memory" else "memory.max"
        (group / name).write_text(str(limit_bytes))
        yield lambda pid: _join(group, pid)
    finally:
        group.rmdir()


def _mount() -> Path:
    first = ROOT / "memory"
    return first if first.is_dir() else ROOT


def _join(group: Path, pid: int) -> None:
    (group / "cgroup.procs").write_text(str(pid))
