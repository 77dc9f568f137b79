"""Where temporary files go, also while no file can be written there.

`tempfile.gettempdir` writes a file to find the directory. On a full disk it raises, or finds another directory, so that
the same configuration means something else.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdcd.core.errors import LimitError, out_of_files


def temporary_directory() -> str:
    """The directory for temporary files: what TMPDIR names (POSIX, "Environment Variables"), else /tmp."""
    return os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  as every program does; names in it are drawn


@contextmanager
def scratch_folder(prefix: str, directory: Path | None = None) -> Iterator[str]:
    """A new folder that is deleted in the end. LimitError: it cannot be made.

    Args:
        prefix: of its name.
        directory: where it is made; None: `temporary_directory`.
    """
    parent = temporary_directory() if directory is None else str(directory)
    try:
        folder = tempfile.TemporaryDirectory(prefix=prefix, dir=parent)
    except OSError as error:
        raise out_of_files(error) or LimitError(
            f"No folder for temporary files can be made in {parent}: {error.strerror}.",
            hint="Free space there, or set TMPDIR to a directory that can be written to.",
        ) from None
    with folder as path:
        yield path
