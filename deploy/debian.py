"""A minimal Debian in a folder, for what must be seen where nothing else is installed: no compiler, no headers.

debootstrap makes it once from the archive that the machine's own apt uses by default, and it stays in the cache. A
command in a copy of it runs by chroot and reaches the machine's network. Both need root.
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
"""Debian's release by the version of the Python that is its own."""

BARE: Final = ("python3", "python3-venv", "ca-certificates")
BUILDING: Final = (*BARE, "python3-dev", "gcc", "libc6-dev")

CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_SETTINGS: Final = ("index-url", "extra-index-url", "trusted-host", "proxy")
# Newer releases than debootstrap's own have no script, and are made as the one that never ends is.
_SCRIPT: Final = Path("/usr/share/debootstrap/scripts/sid")


def why_not() -> str:
    """Why no Debian can be made on this machine; empty if it can."""
    if os.geteuid() != 0:
        return "a minimal Debian needs root"
    return (
        ""
        if shutil.which("debootstrap")
        else "debootstrap is not installed (Debian: apt-get install debootstrap)"
    )


def debian(suite: str, packages: Sequence[str] = BARE) -> Path:
    """The folder with that release of Debian. It is shared: whoever changes files copies it (Debian)."""
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
    """A file in `folder` that says how this machine's pip reaches its registry."""
    said = run([sys.executable, "-m", "pip", "config", "list"])
    pairs = re.findall(rf"^\S+\.({'|'.join(_PIP_SETTINGS)})='(.*)'$", said, re.MULTILINE)
    path = folder / "pip.conf"
    path.write_text("\n".join(["[global]", *(f"{key} = {value}" for key, value in pairs)]) + "\n")
    return path


class Debian:
    """A copy of a Debian that is gone afterwards. It trusts what the machine trusts, and has its way to a registry."""

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
        """Copy files into its /srv; their paths there."""
        for path in paths:
            shutil.copy(path, self.root / "srv")
        return [f"/srv/{path.name}" for path in paths]

    def command(self, *words: str) -> list[str | Path]:
        """The command that runs `words` in it, with an environment of its own."""
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
        """What the command printed; LocalServerError if it failed."""
        return run(self.command(*words))
