"""Writes the lock files: every version that an installation may have, with the hashes of its archives.

    python -m deploy.locks UV [--keep]

`UV` is the program uv, which resolves all extras and all dependency groups of pyproject.toml together. With `--keep`,
the versions that are locked now stay; otherwise each is the newest that pyproject.toml allows. pip reads the files:

    pip install --require-hashes -r requirements.lock

No file names a registry, and a file lists only what the files that it includes by `-r` do not have.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent

SYSTEMS: Final = ("linux", "darwin")
"""The values of sys_platform for which hashes are locked. Their wheels are half of those that registries have."""

PYTHONS: Final = ">=3.11,<3.15"
"""The versions of Python for which versions are locked."""

LOCKS: Final[Mapping[str, tuple[Sequence[str], Sequence[str]]]] = {
    "requirements.lock": ((), ()),
    "requirements-msk.lock": (("--extra", "msk"), ("requirements.lock",)),
    "requirements-azure.lock": (("--extra", "azure"), ("requirements.lock",)),
    "requirements-spark.lock": (("--extra", "spark"), ("requirements.lock",)),
    "requirements-build.lock": (("--only-group", "build"), ()),
    "requirements-dev.lock": (("--group", "dev"), ("requirements.lock", "requirements-build.lock")),
    "requirements-long.lock": (
        ("--extra", "spark", "--group", "spark-test", "--group", "deploy", "--group", "release"),
        ("requirements-dev.lock", "requirements-spark.lock"),
    ),
}
"""By file: what of pyproject.toml is in it beside the dependencies of the package, and the files it adds to.

requirements-long.lock does not include requirements-spark.lock, which only the tests of the mirror need.
"""

NOT_INCLUDED: Final = "requirements-spark.lock"

_HEADER: Final = "# Written by `make lock`; install it by `pip install --require-hashes -r {name}`.\n"
_ALWAYS: Final = " ; sys_platform == 'darwin' or sys_platform == 'linux'"
_ENTRY: Final = re.compile(r"^(?P<name>[\w.-]+)(?:\[[\w,-]+\])?==.*\n(?:[ ].*\n)*", re.MULTILINE)


def entries(text: str) -> dict[str, str]:
    """The entries of a lock file, each with its hashes, by the pinned requirement with its marker."""
    return {found[0].partition(" \\")[0].strip(): found[0] for found in _ENTRY.finditer(text)}


def additions(exported: str, included: Sequence[str]) -> str:
    """The entries of `exported` that none of the texts `included` has, in the order of their names."""
    known = {pin for text in included for pin in entries(text)}
    kept = [entry for pin, entry in entries(exported.replace(_ALWAYS, "")).items() if pin not in known]
    return "".join(kept)


def main(arguments: Sequence[str]) -> None:
    uv = Path(arguments[0]).absolute()
    pins = sorted({pin for name in LOCKS for pin in _locked(name)}) if "--keep" in arguments else []
    with tempfile.TemporaryDirectory() as work:
        _resolve(uv, Path(work), pins)
        texts: dict[str, str] = {}
        for name, (options, bases) in LOCKS.items():
            exported = _run(
                uv,
                ["export", "--frozen", "--no-default-groups", "--no-emit-project", "--no-header", *options],
                work,
            )
            chain = [
                text for base in bases for text in [texts[base], *(texts[each] for each in LOCKS[base][1])]
            ]
            includes = "".join(f"-r {base}\n" for base in bases if base != NOT_INCLUDED)
            texts[name] = _HEADER.format(name=name) + includes + additions(exported, chain)
    for name, text in texts.items():
        (REPOSITORY / name).write_text(text)


def _locked(name: str) -> list[str]:
    """The pins of a lock file, without the markers that would ask for PyPy's wheels."""
    path = REPOSITORY / name
    pins = list(entries(path.read_text())) if path.exists() else []
    return [pin.partition(" ;")[0] if "implementation" in pin else pin for pin in pins]


def _resolve(uv: Path, work: Path, pins: Sequence[str]) -> None:
    """Write uv.lock into `work`, for the package's metadata without its code."""
    text = (REPOSITORY / "pyproject.toml").read_text()
    told = tomllib.loads(text)["project"]
    # What setup.py would have to be run for is of no matter here.
    text = re.sub(r"^dynamic = .*$", 'version = "0"', text, count=1, flags=re.MULTILINE)
    # Some of what the tests use has no wheel yet for a Python that cdcd is not tested with.
    text = re.sub(r"^requires-python = .*$", f'requires-python = "{PYTHONS}"', text, flags=re.MULTILINE)
    text = re.sub(r"^(readme|license-files) = .*$", "", text, flags=re.MULTILINE)
    environments = [f"sys_platform == '{system}'" for system in SYSTEMS]
    text += f"\n[tool.uv]\npackage = false\nenvironments = {environments}\nconstraint-dependencies = {list(pins)}\n"
    (work / "pyproject.toml").write_text(text)
    print(f"Resolving what {told['name']} needs", file=sys.stderr)
    _run(uv, ["lock", "--quiet"], work)


def _run(uv: Path, arguments: Sequence[str], folder: Path | str) -> str:
    done = subprocess.run([uv, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"uv {arguments[0]}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
