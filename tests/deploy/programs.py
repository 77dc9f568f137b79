"""The tools that check deployments (deploy/go_programs.py). Without go, the tests that need a tool are skipped."""

from pathlib import Path

import pytest

from deploy import go_programs


def program(name: str) -> Path:
    """Build the program on first use, and return its path. Skip the test if go is not installed."""
    if reason := go_programs.why_not(name):
        pytest.skip(reason)
    return go_programs.program(name)
