"""The forms of the daemon that are measured: from the source tree as it is, and compiled as in the wheel.

A form is also the folder of another working tree, whose compiled daemon is meant.
"""

import compileall
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Final

from deploy.local.cache import REPOSITORY

FORMS: Final = ("compiled", "uncompiled")

_TREE: Final = Path("build", "compiled")
"""Where `make build/compiled/stamp` puts the compiled one."""


def start_daemon(form: str, config: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """`cdcd run` in that form, its log in `log`."""
    command = [sys.executable, "-m", "cdcd.cli", "run", "--config", str(config)]
    return subprocess.Popen(command, stderr=log, env=environment(form))


def environment(form: str) -> dict[str, str]:
    """The variables with which Python finds that form. SystemExit: there is no compiled one."""
    trees = _trees(form)
    if not all(tree.is_dir() for tree in trees):
        raise SystemExit("There is no compiled tree: make build/compiled/stamp, or --form uncompiled")
    # Without the current folder in the path, which would be the sources.
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(map(str, trees))}


def prepare(form: str) -> None:
    """Leave bytecode beside the sources, as pip does: where Python may not, it would compile them at each start."""
    for tree in _trees(form):
        compileall.compile_dir(tree / "cdcd", quiet=1)


def _trees(form: str) -> list[Path]:
    root = REPOSITORY if form in FORMS else Path(form)
    return [root] if form == "uncompiled" else [root / _TREE, root]
