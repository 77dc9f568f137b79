"""Checks of directories that cdcd writes to, before they are needed: by `cdcd run` at its start,
and by `cdcd check`.
"""

import os
from pathlib import Path

from cdcd.core.errors import LimitError


def spool_problem(directory: Path, what: str = "spool", key: str = "spool.directory") -> LimitError | None:
    """Return the error if this process cannot keep the spool in the directory; None if it can. Nothing is created.

    A start creates a missing directory, so the nearest existing parent is checked.

    Args:
        what, key: purpose of the directory, and the configuration key that names it.
    """
    nearest = existing(directory)
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return None
    why = "Permission denied" if nearest.is_dir() else "Not a directory"
    where = "" if nearest == directory else f" below {nearest}"
    return spool_error(directory, f"{why}{where}", what, key)


def existing(directory: Path) -> Path:
    """Return the directory, or its nearest existing parent."""
    nearest = directory
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    return nearest


def spool_error(directory: Path, why: str, what: str = "spool", key: str = "spool.directory") -> LimitError:
    """Return the error of a start that cannot use the directory."""
    return LimitError(
        f"Cannot use the {what} directory {directory}: {why}.",
        hint=f"Create {directory} so that the user of the daemon may write to it, or change {key}.",
    )
