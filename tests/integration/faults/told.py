"""Keeps what processes of tests say, for the tables of `python -m tests.chaos.told`."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

KEPT_IN: Final = "CDCD_TOLD"
"""The environment variable that names the file. Without it nothing is kept."""

HEARD_IN: Final = "CDCD_HEARD"
"""The environment variable that names the file of `hear`. Without the variable, nothing is kept."""

NAME: Final = "shop"
"""How the table calls a pipeline, which has a name of its own in each test."""


@dataclass(frozen=True)
class Told:
    """How `cdcd check` or `cdcd run` ended beside a fault.

    Attributes:
        fault: the test that made it, and its case.
        command: "check" or "run".
        code: the exit code.
        seconds: from the start of the command to its end; of a daemon that had run before the fault, from the moment
            on at which the test waited for its end.
        lines: on standard error.
        message: what was found; of `check`, each error with its code.
        hint: what to do.
    """

    fault: str
    command: str
    code: int
    seconds: float
    lines: int
    message: str
    hint: str


def keep(
    command: str, pipeline: str, *, code: int, seconds: float, lines: int, message: str, hint: str
) -> None:
    """Append it to the file, if there is one. The name of the pipeline becomes `NAME`."""
    if file := os.environ.get(KEPT_IN):
        fault = os.environ["PYTEST_CURRENT_TEST"].rpartition("::")[2].removesuffix(" (call)")
        message, hint = (text.replace(pipeline, NAME) for text in (message, hint))
        told = Told(fault, command, code, round(seconds, 1), lines, message, hint)
        with Path(file).open("a", encoding="utf-8") as kept:
            kept.write(json.dumps(asdict(told)) + "\n")


def kept(file: Path) -> list[Told]:
    """What the file holds, in the order of the tests."""
    return [Told(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True)
class Heard:
    """Output of one process of a test.

    Attributes:
        test: node id of the test.
        command: `cdcd run`, or a command with its arguments.
        code: exit code. None: the process was killed.
        output: standard output and standard error.
    """

    test: str
    command: str
    code: int | None
    output: str


def hear(command: str, code: int | None, output: str) -> None:
    """Append the output of a process to the file, if there is one, during a test."""
    file, test = os.environ.get(HEARD_IN), os.environ.get("PYTEST_CURRENT_TEST")
    if file and test:
        with Path(file).open("a", encoding="utf-8") as heard:
            heard.write(json.dumps(asdict(Heard(test.rpartition(" ")[0], command, code, output))) + "\n")


def heard(file: Path) -> list[Heard]:
    """Return what the file holds, in the order in which the processes ended."""
    return [Heard(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
