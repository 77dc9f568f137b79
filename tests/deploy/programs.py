"""The tools that judge what is deployed; a test that needs one is skipped where there is no Go to build it with."""

import shutil
from pathlib import Path

import pytest

from deploy import go_programs


def program(name: str) -> Path:
    """The program, built on first use (deploy/go_programs.py)."""
    if shutil.which("go") is None:
        pytest.skip(
            f"{name} is built from its Go module, and there is no go (Debian: apt-get install golang-go)"
        )
    return go_programs.program(name)
