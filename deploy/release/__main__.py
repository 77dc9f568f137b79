"""`python -m deploy.release [--tag] [--parts PARTS]`: build everything that a release publishes into dist/.

The build downloads from package registries only. At the end it prints the parts that this machine cannot build, with
the reason. Without --tag it only prints what it would tag.
"""

import argparse
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cdcd import __version__
from deploy import images
from deploy.local.cache import REPOSITORY, LocalServerError, run
from deploy.pages.__main__ import build as build_pages
from deploy.release import charts, paperwork, wheels
from deploy.release.tag import tag

DIST: Final = REPOSITORY / "dist"

_SDIST: Final = (
    "import sys; to = sys.argv.pop(); from setuptools import build_meta; build_meta.build_sdist(to)"
)


class Release:
    """Builds the parts of a release. Each part is a method that writes into `dist`.

    Attributes:
        notes: lines about the build for the end of the output.
        not_built: parts that this machine cannot build, each with the reason.
    """

    def __init__(self, dist: Path) -> None:
        self._dist = dist
        self.notes: list[str] = []
        self.not_built: list[str] = []

    @property
    def parts(self) -> dict[str, Callable[[], None]]:
        return {
            "source": self.source, "wheels": self.wheels, "pure": self.pure, "chart": self.chart,
            "image": self.image, "site": self.site,
        }  # fmt: skip

    def source(self) -> None:
        """The source archive."""
        run(["env", "CDCD_COMPILE=0", sys.executable, "-c", _SDIST, self._dist], cwd=REPOSITORY)

    def wheels(self) -> None:
        """The compiled wheels."""
        made = set()
        for built in wheels.compiled_wheels(self._archive(), self._dist):
            self.notes.append(f"{built.path.name}: built by {built.python}, ran in {built.tried}")
            made.add(built.path.name.split("-")[2].removeprefix("cp3"))
        for version in wheels.VERSIONS:
            if version.removeprefix("3.") not in made:
                self.not_built.append(
                    f"the wheel for {version}: this machine has no such Python with its headers"
                )

    def pure(self) -> None:
        """The pure wheel, the bill of materials of its dependencies, and the notices of third parties."""
        with tempfile.TemporaryDirectory() as work:
            environment = Path(work, "environment")
            run([sys.executable, "-m", "venv", environment])
            pip: list[str | Path] = [environment / "bin" / "pip"]
            lock = REPOSITORY / "requirements-build.lock"
            run([*pip, "install", "--quiet", "--require-hashes", "-r", lock])
            command = [*pip, "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
            run(["env", "CDCD_COMPILE=0", *command, "--wheel-dir", self._dist, self._archive()])
            shutil.rmtree(environment)
            run([sys.executable, "-m", "venv", environment])
            lock = REPOSITORY / "requirements.lock"
            run([*pip, "install", "--quiet", "--only-binary", ":all:", "--require-hashes", "-r", lock])
            run([*pip, "install", "--quiet", "--no-index", "--no-deps", *self._dist.glob("*-none-any.whl")])
            paperwork.wheel_bill(environment, __version__, self._dist / f"cdcd-{__version__}.cdx.json")
            text = paperwork.notices(environment, __version__)
            (self._dist / "THIRD-PARTY-NOTICES.md").write_text(text)

    def chart(self) -> None:
        """The chart."""
        charts.package(self._dist)

    def image(self) -> None:
        """The daemon's image for this machine's processor, and its bill of materials."""
        reason = images.why_not()
        if reason:
            self.not_built.append(f"the image: {reason}")
            return
        machine = os.uname().machine
        with images.Images() as made:
            revision = run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY).strip()
            address = os.environ.get("CDCD_REPOSITORY", "unknown")
            image = made.build("daemon", VERSION=__version__, REVISION=revision, REPOSITORY=address)
            made.save(image, self._dist / f"cdcd-{__version__}-image-{machine}.oci.tar")
            _, root = made.mounted(image)
            bill = self._dist / f"cdcd-{__version__}-image-{machine}.cdx.json"
            paperwork.image_bill(root, "cdcd", __version__, bill)
        self.notes.append(
            "for more processors, on the Dockerfile's own base: "
            "docker buildx build --platform linux/amd64,linux/arm64 --sbom=true --provenance=mode=max ."
        )

    def site(self) -> None:
        """The site of the documents."""
        folder = REPOSITORY / "build" / "pages"
        if build_pages(folder) != 0:
            raise LocalServerError("The site of the documents is not built: see MkDocs' warnings above.")
        with tarfile.open(self._dist / f"cdcd-{__version__}-site.tar.gz", "w:gz") as archive:
            archive.add(folder / "site", arcname="site")

    def _archive(self) -> Path:
        return self._dist / f"cdcd-{__version__}.tar.gz"


@contextmanager
def _timed(title: str) -> Iterator[None]:
    started = time.monotonic()
    print(f"{title} …", flush=True)
    yield
    print(f"    {time.monotonic() - started:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    parser.add_argument(
        "--tag", action="store_true", help="write the CHANGELOG's section, commit and tag first"
    )
    parser.add_argument("--parts", help="parts to build, separated by commas; the other files in dist/ stay")
    options = parser.parse_args()
    print(tag(write=options.tag))
    wanted = options.parts.split(",") if options.parts else None
    if wanted is None:
        shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir(exist_ok=True)
    release = Release(DIST)
    for name, build in release.parts.items():
        if wanted is None or name in wanted:
            with _timed(str(build.__doc__).splitlines()[0].rstrip(".")):
                build()
    paperwork.checksums(DIST)
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path.name}")
    print("\n".join([*release.notes, *(f"NOT BUILT {line}" for line in release.not_built)]))


if __name__ == "__main__":
    try:
        main()
    except LocalServerError as error:
        sys.exit(str(error))
