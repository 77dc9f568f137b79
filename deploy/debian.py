"""A minimal Debian in a folder, for tests that need a system without a compiler and headers.

debootstrap creates the folder once, from the archive that apt of this machine uses, and keeps it in the cache. Commands
run in a copy of the folder by chroot and reach the network of this machine. debootstrap and chroot need root.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from deploy.local.cache import cache_folder, cached, run

SUITES: Final[Mapping[str, str]] = {"3.11": "bookworm", "3.13": "trixie", "3.14": "forky"}
"""Debian release by the version of its own Python."""

BARE: Final = ("python3", "python3-venv", "ca-certificates")
BUILDING: Final = (*BARE, "python3-dev", "gcc", "libc6-dev")

CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_SETTINGS: Final = ("index-url", "extra-index-url", "trusted-host", "proxy")
# Every release is made by the script of sid, because debootstrap has no scripts for releases newer than itself.
_SCRIPT: Final = Path("/usr/share/debootstrap/scripts/sid")


def why_not() -> str:
    """Return why this machine cannot make a Debian; empty if it can."""
    if os.geteuid() != 0:
        return "a minimal Debian needs root"
    return (
        ""
        if shutil.which("debootstrap")
        else "debootstrap is not installed (Debian: apt-get install debootstrap)"
    )


def debian(suite: str, packages: Sequence[str] = BARE) -> Path:
    """Folder with that release of Debian. It is shared, so do not change it: class Debian makes a copy."""
    name = f"image-base-{suite}" if packages == BARE else f"image-building-{suite}"

    def make(folder: Path) -> None:
        run(
            [
                "debootstrap",
                "--variant=minbase",
                f"--include={','.join(packages)}",
                suite,
                folder,
                "",
                _SCRIPT,
            ]
        )

    return cached(name, make)


def pip_conf(folder: Path) -> Path:
    """Write pip.conf into `folder`, with the registry and proxy of this machine's pip, and return its path."""
    said = run([sys.executable, "-m", "pip", "config", "list"])
    pairs = re.findall(rf"^\S+\.({'|'.join(_PIP_SETTINGS)})='(.*)'$", said, re.MULTILINE)
    path = folder / "pip.conf"
    path.write_text("\n".join(["[global]", *(f"{key} = {value}" for key, value in pairs)]) + "\n")
    return path


class Debian:
    """Copy of a Debian, removed on exit.

    It has the CA certificates, name resolution and pip settings of this machine.
    """

    def __init__(self, suite: str, packages: Sequence[str] = BARE) -> None:
        self._base = debian(suite, packages)

    def __enter__(self) -> Self:
        self.root = Path(tempfile.mkdtemp(prefix="debian-", dir=cache_folder()))
        self.root.chmod(0o755)
        run(["cp", "--archive", "--reflink=auto", f"{self._base}/.", self.root])
        for name in ("/etc/hosts", "/etc/resolv.conf", str(CERTIFICATES)):
            if Path(name).exists():
                shutil.copyfile(name, f"{self.root}{name}")
        shutil.copyfile(pip_conf(self.root), self.root / "etc" / "pip.conf")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def add(self, *paths: Path) -> list[str]:
        """Copy files into /srv of the copy. Return their paths there."""
        for path in paths:
            shutil.copy(path, self.root / "srv")
        return [f"/srv/{path.name}" for path in paths]

    def command(self, *words: str) -> list[str | Path]:
        """Command that runs `words` in the copy, without the environment variables of this process."""
        variables = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PIP_CERT": str(CERTIFICATES),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        pairs = [f"{name}={value}" for name, value in variables.items()]
        return ["chroot", self.root, "/usr/bin/env", "-i", *pairs, *words]

    def run(self, *words: str) -> str:
        """Run a command in the copy, and return its standard output. LocalServerError: the command failed."""
        return run(self.command(*words))
