"""The folder where fetched programs stay between runs, and how something gets into it.

The rule: a finished folder in the cache is complete and verified, for it appears there by one rename. Several
processes may ask at once; a file lock lets one of them fetch while the others wait.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.local.process import UNPRIVILEGED, can_reach

REPOSITORY: Final = Path(__file__).resolve().parents[2]

PARTIAL: Final = "partial-"
"""Prefix of the names of unfinished folders. The name of the finished folder follows."""


class LocalServerError(Exception):
    """A local server or a program for it cannot be had, or does not start; the message says what to do."""


def cache_folder() -> Path:
    """`$CDCD_CACHE`, else `.cache` in the repository, created.

    Run as root, PostgreSQL is another user and must be able to read what lies here. In a clone below a folder
    that is closed to others (`/root`), the cache is therefore in /var/tmp.
    """
    named = os.environ.get("CDCD_CACHE")
    folder = Path(named).resolve() if named else REPOSITORY / ".cache"
    if not can_reach(folder, UNPRIVILEGED):
        if named:
            raise LocalServerError(
                f"CDCD_CACHE={named} lies where user {UNPRIVILEGED.name} may not look, "
                "but PostgreSQL must not run as root. Name another folder, or chmod o+x the ones above it."
            )
        folder = Path("/var/tmp") / f"cdcd-cache-{os.getuid()}"  # noqa: S108 - its owner is checked below
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise LocalServerError(
            f"The cache {folder} belongs to another user; set CDCD_CACHE to a folder of yours."
        )
    return folder


def cached(name: str, fetch: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache; where it is missing, `fetch` fills an empty folder that then becomes it."""
    folder = cache_folder() / name
    if folder.exists():
        return folder
    with _locked(cache_folder() / f"{name.replace('/', '-')}.lock"):
        if folder.exists():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{PARTIAL}{name.replace('/', '-')}-", dir=cache_folder()))
        partial.chmod(0o755)
        try:
            fetch(partial)
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return folder


def run(command: Sequence[str | Path], *, cwd: Path | None = None) -> str:
    """What `command` printed; LocalServerError with its last words when it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = (done.stderr + done.stdout).strip()[-2000:]
        raise LocalServerError(f"{' '.join(map(str, command))} failed with {done.returncode}:\n{words}")
    return done.stdout


def digest(path: Path, algorithm: str) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).digest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
