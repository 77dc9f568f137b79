"""Control groups with a memory limit, for processes that are started within them: version 2 or version 1."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")


def can_limit() -> bool:
    """Whether this process may make control groups."""
    return os.access(_mount(), os.W_OK) and os.geteuid() == 0


@contextmanager
def within(limit_bytes: int) -> Iterator[None]:
    """Processes that are started meanwhile belong to a group with this limit, and must have ended behind it."""
    mount = _mount()
    group = mount / f"cdcd-{os.getpid()}"
    group.mkdir()
    try:
        is_first = mount.name == "memory"
        (group / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(limit_bytes))
        _join(group)
        try:
            yield
        finally:
            _join(mount)
    finally:
        group.rmdir()


def _mount() -> Path:
    first = ROOT / "memory"
    return first if first.is_dir() else ROOT


def _join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
