"""Images built by buildah on a base of debootstrap's, without an engine and without a registry of images.

The base is a minimal Debian (deploy/debian.py). A release publishes images that the Dockerfile builds on its own base;
`make release` and the tests build the same Dockerfile on this one.
"""

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from deploy.debian import debian, pip_conf
from deploy.local.cache import REPOSITORY, cache_folder, run

SUITE: Final = "trixie"
"""Debian's release with the Python of the Dockerfile's own base."""

BASE: Final = "localhost/base"

_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")


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
        options += ["--secret", f"id=pip,src={pip_conf(self._folder)}"]
        if _CERTIFICATES.exists():
            # What this machine trusts, which may be more than the base does: a proxy between it and PyPI.
            options += ["--secret", f"id=ca,src={_CERTIFICATES}"]
        tag = f"localhost/{target}"
        self.buildah("build", "--quiet", *options, "--tag", tag, REPOSITORY)
        return tag

    def save(self, image: str, archive: Path) -> None:
        """Write the image as an OCI archive, which engines load and `skopeo copy oci-archive:…` pushes."""
        self.buildah("push", "--quiet", "--format", "oci", image, f"oci-archive:{archive}")

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
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, debian(SUITE), "/")
        self.buildah("commit", "--quiet", "--rm", container, BASE)
