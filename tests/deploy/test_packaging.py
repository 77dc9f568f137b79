"""Wheel and source archive: what is in them, and that they are installed and run where nothing else is."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from cdcd import __version__
from cdcd.cli.example_files import example_files
from deploy.local.cache import REPOSITORY, LocalServerError, run

MODULES: Final = {
    str(path.relative_to(REPOSITORY))
    for path in (REPOSITORY / "cdcd").rglob("*")
    if path.suffix in {".py", ".yaml"} or path.name == "py.typed"
}

EXAMPLES: Final = set(example_files())

NO_COMPILER: Final = {"CC": "/nowhere/cc"}

ADDRESS: Final = "https://git.example.com/data/cdcd"
ADDRESSES: Final = {"CDCD_REPOSITORY", "CDCD_DOCUMENTATION"}

_BUILD: Final = """
import sys
from setuptools import build_meta
_, dist = sys.argv  # the first hook leaves arguments of its own there
build_meta.build_sdist(dist)
build_meta.build_wheel(dist)
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both archives, built without a C compiler, from a copy: setuptools leaves its traces beside the sources."""
    source, dist = (tmp_path_factory.mktemp(name) for name in ("source", "dist"))
    for name in ("cdcd", "deploy", "tests", "config", "docs"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source / name)
    # What the hooks say of their work is for a person.
    command = [sys.executable, "-c", _BUILD, str(dist)]
    settings = {**NO_COMPILER, "CDCD_REPOSITORY": f"{ADDRESS}/", "CDCD_DOCUMENTATION": ""}
    subprocess.run(command, cwd=source, check=True, capture_output=True, env={**os.environ, **settings})
    return dist


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


def test_without_a_compiler_the_wheel_is_for_every_machine(wheel: Path) -> None:
    assert wheel.name == f"cdcd-{__version__}-py3-none-any.whl"


def test_the_wheel_has_every_module_the_marker_of_types_the_examples_and_the_licence_and_nothing_else(
    wheel: Path,
) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"cdcd-{__version__}.dist-info"
    packed = {name for name in names if not name.startswith(info)}
    assert packed == MODULES | {f"cdcd/examples/{name}" for name in EXAMPLES}
    assert {f"{info}/licenses/LICENSE", f"{info}/entry_points.txt", f"{info}/METADATA"} <= names


def test_the_metadata_says_what_a_reader_and_an_installer_need(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"cdcd-{__version__}.dist-info/METADATA").decode()
    for line in (
        f"Version: {__version__}",
        "Requires-Python: >=3.11",
        "License-Expression: Apache-2.0",
        "Description-Content-Type: text/markdown",
        "Provides-Extra: spark",
        "Provides-Extra: msk",
        "Provides-Extra: azure",
        "Classifier: Topic :: Database",
        f"Project-URL: Source, {ADDRESS}",
        f"Project-URL: Issues, {ADDRESS}/issues",
        f"Project-URL: Documentation, {ADDRESS}#readme",
    ):
        assert line in metadata.splitlines()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, []),
        (
            {"CDCD_REPOSITORY": ADDRESS, "CDCD_DOCUMENTATION": "https://docs.example.com/cdcd/"},
            [
                f"Source, {ADDRESS}",
                f"Issues, {ADDRESS}/issues",
                "Documentation, https://docs.example.com/cdcd/",
            ],
        ),
    ],
)
def test_the_metadata_names_addresses_only_where_a_release_says_them(
    tmp_path: Path, settings: Mapping[str, str], told: list[str]
) -> None:
    found = _egg_info(tmp_path, settings)
    assert found.returncode == 0, found.stderr
    metadata = (tmp_path / "cdcd.egg-info" / "PKG-INFO").read_text().splitlines()
    assert [line.removeprefix("Project-URL: ") for line in metadata if line.startswith("Project-URL")] == told


def test_an_address_that_nobody_can_open_is_refused(tmp_path: Path) -> None:
    found = _egg_info(tmp_path, {"CDCD_REPOSITORY": "git@example.com:data/cdcd"})
    assert found.returncode == 1
    assert "CDCD_REPOSITORY must be an address that begins with https://" in found.stderr


def _egg_info(folder: Path, settings: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `setup.py egg_info`, which writes the metadata into `folder`.

    The environment has the addresses of `settings`. Addresses that the caller's environment has are left out.
    """
    others = {name: value for name, value in os.environ.items() if name not in ADDRESSES}
    return subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(folder)],
        cwd=REPOSITORY,
        env={**others, **settings},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_source_archive_has_what_the_wheel_is_built_from(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    root = f"cdcd-{__version__}/"
    with tarfile.open(path) as archive:
        names = {member.name.removeprefix(root) for member in archive if member.isfile()}
    assert {*MODULES, "pyproject.toml", "setup.py", "README.md", "LICENSE"} <= names
    assert {name for name in names if name.startswith(("deploy/", "config/"))} == EXAMPLES


@pytest.fixture(scope="module")
def compiled(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel compiled from the source archive: that of `make compiled` if it has our sources, else a new one.

    To compile takes a minute without the compiler's optimisation, and `make test` does so right before.
    """
    folder = REPOSITORY / "build" / "wheel" / "tested"
    made = list(folder.glob("*.whl"))
    if len(made) != 1 or not _is_ours(made[0]):
        folder = tmp_path_factory.mktemp("compiled")
        (archive,) = dist.glob("*.tar.gz")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--no-build-isolation",
        ]
        try:
            run(["env", "CDCD_COMPILE=1", "CDCD_OPT_LEVEL=0", *pip, "--wheel-dir", folder, archive])
        except LocalServerError as error:
            if "there is no C compiler" not in str(error):
                raise
            pytest.skip("there is no C compiler, or no Python.h (Debian: gcc python3-dev)")
    (path,) = folder.glob("*.whl")
    return path


def _is_ours(wheel: Path) -> bool:
    recipe = max(
        (REPOSITORY / name).stat().st_mtime for name in ("setup.py", "pyproject.toml", "MANIFEST.in")
    )
    with zipfile.ZipFile(wheel) as archive:
        return (
            wheel.stat().st_mtime > recipe
            and set(archive.namelist()) >= MODULES
            and all(archive.read(name) == (REPOSITORY / name).read_bytes() for name in MODULES)
        )


@pytest.mark.timeout(1800)
def test_the_wheel_for_this_machine_has_every_module_too(compiled: Path) -> None:
    assert compiled.name.startswith(f"cdcd-{__version__}-cp")
    assert set(zipfile.ZipFile(compiled).namelist()) >= MODULES | {
        f"cdcd/examples/{name}" for name in EXAMPLES
    }


def test_the_wheel_runs_in_an_empty_environment(wheel: Path, dependencies: Path, tmp_path: Path) -> None:
    install_and_run(wheel, {}, "pure Python", dependencies, tmp_path)


@pytest.mark.timeout(1800)
def test_the_compiled_wheel_runs_in_an_empty_environment(
    compiled: Path, dependencies: Path, tmp_path: Path
) -> None:
    install_and_run(compiled, {}, "compiled", dependencies, tmp_path)


@pytest.mark.deploy
def test_the_source_archive_runs_in_an_empty_environment_without_a_c_compiler(
    dist: Path, dependencies: Path, tmp_path: Path
) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        assert {name.split("/")[1] for name in archive.getnames() if "/" in name} == {
            "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "cdcd", "cdcd.egg-info", "config", "deploy",
            "pyproject.toml", "setup.cfg", "setup.py",
        }  # fmt: skip
    said = install_and_run(path, NO_COMPILER, "pure Python", dependencies, tmp_path)
    # mypy was there, because the archive says itself what it is built with, and pip brings that along.
    assert "Not compiled: there is no C compiler that finds Python.h." in said


@pytest.mark.timeout(1800)
@pytest.mark.deploy
def test_the_source_archive_compiles_itself_in_an_empty_environment(
    dist: Path, dependencies: Path, tmp_path: Path
) -> None:
    (path,) = dist.glob("*.tar.gz")
    install_and_run(path, {}, "compiled", dependencies, tmp_path)


def pip_of(environment: Path) -> list[str]:
    return [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]


@pytest.fixture(scope="module")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with what cdcd needs, and without cdcd: each test has a copy."""
    made = tmp_path_factory.mktemp("dependencies")
    run([sys.executable, "-m", "venv", "--without-pip", made])
    lock = REPOSITORY / "requirements.lock"
    run([
        *pip_of(made), "install", "--quiet", "--only-binary", ":all:", "--require-hashes", "--requirement", lock,
    ])  # fmt: skip
    return made


def install_and_run(
    path: Path, settings: Mapping[str, str], form: str, dependencies: Path, tmp_path: Path
) -> str:
    """What pip said of the installation."""
    shutil.copytree(dependencies, tmp_path, symlinks=True, dirs_exist_ok=True)
    pip = pip_of(tmp_path)
    variables = [f"{name}={value}" for name, value in settings.items()]
    log = tmp_path / "pip.log"
    run(["env", *variables, *pip, "install", "--quiet", "--log", log, "--no-deps", path])
    run([*pip, "check"])
    said = run([tmp_path / "bin" / "cdcd", "version"], cwd=tmp_path)
    assert said.startswith(f"cdcd       {__version__} ({form})")
    assert "psycopg    " in said
    assert "(binary)" in said
    # AND it has its examples, without the repository.
    run([tmp_path / "bin" / "cdcd", "config", "--examples", "examples"], cwd=tmp_path)
    written = {
        path.relative_to(tmp_path / "examples").as_posix(): path.read_bytes()
        for path in (tmp_path / "examples").rglob("*")
        if path.is_file()
    }
    assert written == example_files()
    return log.read_text()
