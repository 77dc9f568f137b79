"""Write the lock files, which pin every dependency to one version with the hashes of its archives.

    python -m deploy.locks UV [--keep]

`UV` is the path of uv, which resolves all extras and all dependency groups of pyproject.toml together. With `--keep`,
the locked versions stay. Without it, uv chooses the newest versions that pyproject.toml allows. pip reads the files:

    pip install --require-hashes -r requirements.lock

The files contain no address of a registry. A file does not repeat the packages of the files that it includes by `-r`.
"""

import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from deploy.local.cache import REPOSITORY, LocalServerError, run

SYSTEMS: Final = ("linux", "darwin")
"""The values of sys_platform for which hashes are locked. Other systems would double the number of hashes."""

PYTHONS: Final = ">=3.11,<3.15"
"""The versions of Python for which versions are locked."""

LOCKS: Final[Mapping[str, tuple[Sequence[str], Sequence[str]]]] = {
    "requirements.lock": ((), ()),
    "requirements-msk.lock": (("--extra", "msk"), ("requirements.lock",)),
    "requirements-azure.lock": (("--extra", "azure"), ("requirements.lock",)),
    "requirements-otel.lock": (("--extra", "otel"), ("requirements.lock",)),
    "requirements-s3.lock": (("--extra", "s3"), ("requirements.lock",)),
    "requirements-spark.lock": (("--extra", "spark"), ("requirements.lock",)),
    "requirements-build.lock": (("--only-group", "build"), ()),
    "requirements-dev.lock": (("--group", "dev"), ("requirements.lock", "requirements-build.lock")),
    "requirements-long.lock": (
        ("--extra", "spark", "--group", "spark-test", "--group", "deploy", "--group", "release"),
        ("requirements-dev.lock", "requirements-spark.lock"),
    ),
}
"""By lock file: the extras and groups of pyproject.toml that it has (uv's options), and the lock files that it extends.

The dependencies of the package itself are always resolved, except with `--only-group`.
"""

NOT_INCLUDED: Final = "requirements-spark.lock"
"""Lock file that requirements-long.lock does not include by `-r`, because only the tests of the mirror need it."""

_HEADER: Final = "# Written by `make lock`; install it by `pip install --require-hashes -r {name}`.\n"
_ALWAYS: Final = " ; sys_platform == 'darwin' or sys_platform == 'linux'"
_ENTRY: Final = re.compile(r"^(?P<name>[\w.-]+)(?:\[[\w,-]+\])?==.*\n(?:[ ].*\n)*", re.MULTILINE)


def entries(text: str) -> dict[str, str]:
    """Entries of a lock file, with their hashes, by requirement, such as `numpy==2.5.5 ; python_version >= '3.12'`."""
    return {found[0].partition(" \\")[0].strip(): found[0] for found in _ENTRY.finditer(text)}


def additions(exported: str, included: Sequence[str]) -> str:
    """Entries of `exported` that are in none of the texts `included`, in the order of their names."""
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
            export = ["export", "--frozen", "--no-default-groups", "--no-emit-project", "--no-header"]
            exported = run([uv, *export, *options], cwd=Path(work))
            chain = [
                text for base in bases for text in [texts[base], *(texts[each] for each in LOCKS[base][1])]
            ]
            includes = "".join(f"-r {base}\n" for base in bases if base != NOT_INCLUDED)
            texts[name] = _HEADER.format(name=name) + includes + additions(exported, chain)
    for name, text in texts.items():
        (REPOSITORY / name).write_text(text)


def _locked(name: str) -> list[str]:
    """Pins of a lock file, without markers of a Python implementation, because those ask for PyPy's wheels."""
    path = REPOSITORY / name
    pins = list(entries(path.read_text())) if path.exists() else []
    return [pin.partition(" ;")[0] if "implementation" in pin else pin for pin in pins]


def _resolve(uv: Path, work: Path, pins: Sequence[str]) -> None:
    """Write uv.lock into `work`, from the metadata of the package without its code."""
    text = (REPOSITORY / "pyproject.toml").read_text()
    told = tomllib.loads(text)["project"]
    # The version is dynamic, and uv would have to run setup.py for it. Any version will do.
    text = re.sub(r"^dynamic = .*$", 'version = "0"', text, count=1, flags=re.MULTILINE)
    # Some packages of the tests have no wheels yet for Python versions that cdcd is not tested with.
    text = re.sub(r"^requires-python = .*$", f'requires-python = "{PYTHONS}"', text, flags=re.MULTILINE)
    text = re.sub(r"^(readme|license-files) = .*$", "", text, flags=re.MULTILINE)
    environments = [f"sys_platform == '{system}'" for system in SYSTEMS]
    text += f"\n[tool.uv]\npackage = false\nenvironments = {environments}\nconstraint-dependencies = {list(pins)}\n"
    (work / "pyproject.toml").write_text(text)
    print(f"Resolving what {told['name']} needs", file=sys.stderr)
    run([uv, "lock", "--quiet"], cwd=work)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except LocalServerError as error:
        sys.exit(str(error))
