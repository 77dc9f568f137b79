"""Control groups with a memory limit, for processes that have just been started: version 2 or version 1."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")


def can_limit() -> bool:
    """Whether this process may make control groups."""
    return os.access(_mount(), os.W_OK) and os.geteuid() == 0


@contextmanager
def limited(limit_bytes: int) -> Iterator[Callable[[int], None]]:
    """A group with this limit. What it gives takes a process into the group, which must have ended behind it.

    The process that runs the test stays outside: the kernel would kill it as well as the daemon.
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
