"""Container images built by buildah, without a container engine and without a registry of images.

The base image is a minimal Debian (deploy/debian.py). A release publishes images with the base image that the
Dockerfile names; `make release` and the tests build the same Dockerfile with the minimal Debian.
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

from deploy.debian import CERTIFICATES, debian, pip_conf
from deploy.local.cache import REPOSITORY, cache_folder, run

SUITE: Final = "trixie"
"""Debian release with the same Python version as the base image that the Dockerfile names."""

BASE: Final = "localhost/base"


def why_not() -> str:
    """Return why this machine cannot build images; empty if it can."""
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
    """Store of images that has the base image. It is removed on exit."""

    def __init__(self) -> None:
        # The store is in the cache, because /tmp may be too small, or a file system without support for overlays.
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
        """Run buildah with these arguments, and return its standard output."""
        return run(["buildah", *self._store, *arguments]).strip()

    def build(self, target: str, **build_arguments: str) -> str:
        """Build a stage of the Dockerfile, and return the name of the image."""
        options: list[str | Path] = ["--isolation", "chroot", "--format", "docker", "--target", target]
        # Reuse stages that were already built for another target.
        options += ["--layers"]
        for name, value in {"BASE_IMAGE": BASE, **build_arguments}.items():
            options += ["--build-arg", f"{name}={value}"]
        options += ["--secret", f"id=pip,src={pip_conf(self._folder)}"]
        if CERTIFICATES.exists():
            # This machine may trust a proxy to PyPI that the base image does not trust.
            options += ["--secret", f"id=ca,src={CERTIFICATES}"]
        tag = f"localhost/{target}"
        self.buildah("build", "--quiet", *options, "--tag", tag, REPOSITORY)
        return tag

    def save(self, image: str, archive: Path) -> None:
        """Write the image as an OCI archive, which engines load and `skopeo copy oci-archive:…` pushes."""
        self.buildah("push", "--quiet", "--format", "oci", image, f"oci-archive:{archive}")

    def settings(self, image: str) -> dict[str, Any]:
        """Configuration of the image, with the keys of Docker's format."""
        found: dict[str, Any] = json.loads(self.buildah("inspect", "--type", "image", image))["Docker"][
            "config"
        ]
        return found

    def mounted(self, image: str) -> tuple[str, Path]:
        """Create a container from the image. Return its name and the path of its root file system."""
        container = self.buildah("from", image)
        return container, Path(self.buildah("mount", container))

    def size_bytes(self, image: str) -> int:
        """Disk space that the files of the image need, in bytes."""
        _, root = self.mounted(image)
        return int(run(["du", "--summarize", "--block-size=1", "--one-file-system", root]).split()[0])

    def _has_overlay(self) -> bool:
        probe: list[str | Path] = ["buildah", *self._store, "--storage-driver", "overlay", "info"]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0

    def _make_base(self) -> None:
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, debian(SUITE), "/")
        self.buildah("commit", "--quiet", "--rm", container, BASE)
