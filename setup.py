"""Compiles the pure packages with mypyc where that is possible. pyproject.toml says everything else.

The same sources run either way, and lie in the wheel either way. `CDCD_COMPILE=0` leaves them uncompiled,
`CDCD_COMPILE=1` fails where they cannot be compiled. Without it they are compiled if mypyc, a C compiler and Python's
headers are there, and a wheel without anything compiled is made if not. An editable installation runs the sources as
they are edited. `CDCD_OPT_LEVEL=0` makes slow code in a fifth of the time, for tests; what is installed has the
optimisation of level 3.

`CDCD_REPOSITORY` is the address where the sources are published, such as https://git.example.com/data/cdcd. The
metadata names it, the tracker of issues, and the documents: its README, or `CDCD_DOCUMENTATION` if that is set too.
Without it the metadata names no address.
"""

import ast
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

PACKAGES = (
    "cdcd/core/protocol", "cdcd/core/transactions", "cdcd/core/catalog", "cdcd/core/records", "cdcd/core/snapshot",
    "cdcd/core/engine",
)  # fmt: skip

INTERPRETED = {
    "cdcd/core/protocol/lsn.py": "a subclass of int has no native form",
    "cdcd/core/protocol/frames.py": "mypyc takes a dataclass's ClassVar with a value for a field with a default",
    "cdcd/core/protocol/messages.py": "likewise",
    "cdcd/core/protocol/versions.py": "runs once a start",
    "cdcd/core/protocol/writer.py": "is of the tests and the simulation",
    "cdcd/core/engine/startup.py": "runs once a session",
    "cdcd/core/engine/startup_positions.py": "likewise",
    "cdcd/core/engine/startup_rules.py": "likewise",
    "cdcd/core/engine/startup_requests.py": "a generic dataclass has no native form",
    "cdcd/core/records/markers.py": "likewise",
}
"""What is not compiled, and why. Packages' own files are empty."""


BUILDING = {"bdist_wheel", "build", "build_ext"}
"""The commands that make something to install. The others ask for metadata, archive the sources, or link to them."""


def extensions() -> list[Extension]:
    """The extension modules that mypyc makes.

    The list is empty if CDCD_COMPILE is 0, if the command builds nothing, or if mypyc or a C compiler is missing.
    SystemExit: one of these is missing, and CDCD_COMPILE is 1.
    """
    wanted = os.environ.get("CDCD_COMPILE", "")
    if wanted == "0" or not BUILDING & set(sys.argv):
        return []
    problem = why_not()
    if problem:
        if wanted == "1":
            raise SystemExit(f"CDCD_COMPILE=1, but {problem}.")
        sys.stderr.write(f"Not compiled: {problem}.\n")
        return []
    from mypyc.build import mypycify  # noqa: PLC0415  it need not be there

    found: list[Extension] = mypycify(
        # Imported modules are not compiled, so their errors are silenced: an isolated build lacks cdcd's dependencies,
        # which those modules import.
        ["--config-file=", "--strict", "--follow-imports=silent", "--python-version=3.11", *sources()],
        opt_level=os.environ.get("CDCD_OPT_LEVEL", "3"),
        debug_level="0",
        group_name="cdcd",
    )
    for extension in found:
        # A newer compiler's new warning is no reason to fail, and nobody reads those about generated code. With -w
        # alone, gcc makes the analyses that Python's own -Wall asks for: most of the time for a large file.
        options = [
            *(option for option in extension.extra_compile_args if option != "-Werror"),
            "-w",
            "-Wno-all",
        ]
        # Nobody puts functions of their own in the place of these, so that the compiler may call and inline them.
        extension.extra_compile_args = [*options, "-fno-semantic-interposition", "-fvisibility=hidden"]
    return found


def sources() -> list[str]:
    """The modules to compile."""
    paths = [path for package in PACKAGES for path in sorted(Path(package).rglob("*.py"))]
    return [str(path) for path in paths if path.name != "__init__.py" and str(path) not in INTERPRETED]


def why_not() -> str:
    """What is missing for a compilation; empty if nothing is."""
    try:
        import mypyc.build  # noqa: F401, PLC0415  it need not be there
    except ImportError:
        return "mypy is not installed"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    probe = [*compiler, "-fsyntax-only", f"-I{sysconfig.get_path('include')}", "-x", "c", "-"]
    try:
        subprocess.run(probe, input=b"#include <Python.h>\n", check=True, capture_output=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return "there is no C compiler that finds Python.h"
    return ""


def urls() -> dict[str, str]:
    """The addresses of the project in the metadata ([project.urls]). SystemExit: CDCD_REPOSITORY is no address."""
    repository = os.environ.get("CDCD_REPOSITORY", "").rstrip("/")
    if not repository:
        return {}
    if not repository.startswith("https://"):
        raise SystemExit(
            f"CDCD_REPOSITORY must be an address that begins with https://, and is {repository!r}."
        )
    return {
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Documentation": os.environ.get("CDCD_DOCUMENTATION", "") or f"{repository}#readme",
    }


def examples() -> list[Path]:
    """The files that lie in the wheel below `cdcd/examples/`; `cdcd config --examples` writes them."""
    source = Path("cdcd/cli/example_files.py")
    (assigned,) = [
        node.value
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "PATTERNS"
    ]
    assert assigned is not None
    # Since Python 3.13, a pattern without a wildcard finds its path also where no file is.
    found = {
        pattern: sorted(path for path in Path().glob(pattern) if path.is_file())
        for pattern in ast.literal_eval(assigned)
    }
    missing = [pattern for pattern, paths in found.items() if not paths]
    if missing:
        raise SystemExit(
            f"The examples are not here: {', '.join(missing)}. MANIFEST.in and {source} name them."
        )
    return [path for paths in found.values() for path in paths]


class BuildWithExamples(build_py):
    """Copies the examples beside the modules."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for path in examples():
            target = Path(self.build_lib, "cdcd", "examples", path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


setup(
    ext_modules=extensions(),
    project_urls=urls(),
    cmdclass={"build_py": BuildWithExamples},
    # Beside the one large file there is a small one for each module.
    options={"build_ext": {"parallel": os.cpu_count()}},
)
