"""Directories that cdcd writes to, judged before they are needed: by `cdcd run` at its start, and by `cdcd check`."""

import os
from pathlib import Path

from cdcd.core.errors import LimitError


def spool_problem(directory: Path, what: str = "spool", key: str = "spool.directory") -> LimitError | None:
    """Why this process cannot keep the spool there; None: it can. Nothing is created.

    A directory that is missing is created by a start, so that the nearest one above it counts.

    Args:
        what, key: what the directory is for, and the key that names it.
    """
    nearest = existing(directory)
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return None
    why = "Permission denied" if nearest.is_dir() else "Not a directory"
    where = "" if nearest == directory else f" below {nearest}"
    return spool_error(directory, f"{why}{where}", what, key)


def existing(directory: Path) -> Path:
    """The directory, or the nearest one above it that exists."""
    nearest = directory
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    return nearest


def spool_error(directory: Path, why: str, what: str = "spool", key: str = "spool.directory") -> LimitError:
    """The error of a start that cannot use the directory."""
    return LimitError(
        f"Cannot use the {what} directory {directory}: {why}.",
        hint=f"Create {directory} so that the user of the daemon may write to it, or change {key}.",
    )
