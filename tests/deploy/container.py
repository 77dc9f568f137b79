"""Images built by buildah on a base of debootstrap's, and run as Kubernetes would: read-only, without privileges.

No registry is asked: the base is a minimal Debian from the machine's own archive, once for all runs (in the cache).
A container here is the image's root file system mounted read-only in namespaces of its own, where the process is
pid 1 under the image's user. It shares the machine's network, to reach servers on the loopback.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from deploy.local.cache import REPOSITORY, cache_folder, cached, run

SUITE: Final = "trixie"
"""Debian's release with the Python of the Dockerfile's own base."""

BASE: Final = "localhost/base"

_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")

_PIP_SETTINGS: Final = ("index-url", "extra-index-url", "trusted-host", "proxy")

_ENTER: Final = """
set -e
mkdir -p "$ROOT/etc/cdcd"
cp /etc/hosts "$ROOT/etc/hosts"
mount --bind "$ROOT" "$ROOT"
mount --bind "$CONFIG" "$ROOT/etc/cdcd"
mount -o remount,bind,ro "$ROOT"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
mount -t tmpfs -o size=512m,mode=1777 spool "$ROOT/var/spool/cdcd"
exec chroot "$ROOT" setpriv --reuid "${OWNER%:*}" --regid "${OWNER#*:}" --clear-groups --no-new-privs \
    --bounding-set=-all --inh-caps=-all -- "$@"
"""
"""$OWNER is the image's user; $@ its entry point. Every step is an exec: the entry point becomes pid 1."""


def why_not() -> str:
    """Why images cannot be built on this machine; empty if they can."""
    if os.geteuid() != 0:
        return "building images without an engine needs root (sudo make deploy-test)"
    lacking = [program for program in ("buildah", "debootstrap", "unshare") if shutil.which(program) is None]
    packages = [{"unshare": "util-linux"}.get(program, program) for program in lacking]
    return (
        f"{', '.join(lacking)} not installed (Debian: apt-get install {' '.join(packages)})"
        if lacking
        else ""
    )


class Images:
    """A store of images that is gone afterwards, with the base in it."""

    def __init__(self) -> None:
        # On the cache's disk: what is mounted at /tmp may be small, or no place for an overlay.
        self._folder = Path(tempfile.mkdtemp(prefix="images-", dir=cache_folder()))
        self._store: list[str | Path] = ["--root", self._folder / "store", "--runroot", self._folder / "run"]
        self._store += ["--storage-driver", "overlay" if self._has_overlay() else "vfs"]

    def __enter__(self) -> Self:
        self._make_base()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for command in (["umount", "--all"], ["rm", "--all"], ["rmi", "--all", "--force"]):
            with suppress(Exception):
                self.buildah(*command)
        shutil.rmtree(self._folder, ignore_errors=True)

    def buildah(self, *arguments: str | Path) -> str:
        """What that command of buildah's printed."""
        return run(["buildah", *self._store, *arguments]).strip()

    def build(self, target: str, **build_arguments: str) -> str:
        """The image of a stage of the Dockerfile."""
        options: list[str | Path] = ["--isolation", "chroot", "--format", "docker", "--target", target]
        # The stages that another target has built already are not built again.
        options += ["--layers"]
        for name, value in {"BASE_IMAGE": BASE, **build_arguments}.items():
            options += ["--build-arg", f"{name}={value}"]
        options += ["--secret", f"id=pip,src={self._pip_conf()}"]
        if _CERTIFICATES.exists():
            # What this machine trusts, which may be more than the base does: a proxy between it and PyPI.
            options += ["--secret", f"id=ca,src={_CERTIFICATES}"]
        tag = f"localhost/{target}"
        self.buildah("build", "--quiet", *options, "--tag", tag, REPOSITORY)
        return tag

    def settings(self, image: str) -> dict[str, Any]:
        """The image's configuration, in Docker's words."""
        found: dict[str, Any] = json.loads(self.buildah("inspect", "--type", "image", image))["Docker"][
            "config"
        ]
        return found

    def mounted(self, image: str) -> tuple[str, Path]:
        """A container's name and where its root file system is."""
        container = self.buildah("from", image)
        return container, Path(self.buildah("mount", container))

    def size_bytes(self, image: str) -> int:
        """What the image's files need on a disk."""
        _, root = self.mounted(image)
        return int(run(["du", "--summarize", "--block-size=1", "--one-file-system", root]).split()[0])

    def _has_overlay(self) -> bool:
        probe: list[str | Path] = ["buildah", *self._store, "--storage-driver", "overlay", "info"]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0

    def _make_base(self) -> None:
        packages = "python3,python3-venv,ca-certificates"
        debian = cached(
            f"image-base-{SUITE}",
            lambda folder: _ran(["debootstrap", "--variant=minbase", f"--include={packages}", SUITE, folder]),
        )
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, debian, "/")
        self.buildah("commit", "--quiet", "--rm", container, BASE)

    def _pip_conf(self) -> Path:
        """How this machine's pip reaches PyPI."""
        said = run([sys.executable, "-m", "pip", "config", "list"])
        pairs = re.findall(rf"^\S+\.({'|'.join(_PIP_SETTINGS)})='(.*)'$", said, re.MULTILINE)
        path = self._folder / "pip.conf"
        path.write_text("\n".join(["[global]", *(f"{key} = {value}" for key, value in pairs)]) + "\n")
        return path


class Container:
    """The image's entry point as pid 1 in a root file system that it cannot write to."""

    def __init__(
        self,
        images: Images,
        image: str,
        config_folder: Path,
        log: Path,
        environment: Mapping[str, str],
        *,
        entrypoint: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> None:
        """`config_folder` is mounted at /etc/cdcd; `environment` is over the image's own.

        `entrypoint` and `arguments` are in place of the image's, as an engine's options are.
        """
        settings = images.settings(image)
        self._images = images
        self.name, root = images.mounted(image)
        self.environment = {**dict(one.split("=", 1) for one in settings["Env"]), **environment}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "--"),
                    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"),
                    *("sh", "-c", _ENTER, "sh", *(entrypoint or settings["Entrypoint"])),
                    *(arguments or (() if entrypoint else settings["Cmd"])),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **self.environment,
                    "ROOT": str(root),
                    "CONFIG": str(config_folder),
                    "OWNER": settings["User"],
                },
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_running():
            # By its own number: a process that changed its user does not hear of its parent's death.
            with suppress(IndexError, ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """Of the container's pid 1, as the machine counts."""
        outer = self._process.pid
        return int(Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0])

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> int:
        """The exit code, when it has ended by itself."""
        return self._process.wait(timeout_s)

    def terminate(self, timeout_s: float) -> int:
        """SIGTERM to pid 1, as every engine does; the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self._process.wait(timeout_s)

    def execute(self, command: Sequence[str]) -> str:
        """Run a command beside it, in the same image and network; LocalServerError when it fails."""
        variables = [part for pair in self.environment.items() for part in ("--env", "=".join(pair))]
        return self._images.buildah("run", "--isolation", "chroot", *variables, self.name, "--", *command)


def _ran(command: Sequence[str | Path]) -> None:
    run(command)
