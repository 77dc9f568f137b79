import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def complete(words: str, position: int) -> list[str]:
    code = "from cdcd.cli.__main__ import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={
            **os.environ,
            "_CDCD_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(position),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return [line.split(",")[1] for line in result.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell):
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("no bash here")
    result = subprocess.run(
        [sys.executable, "-m", "cdcd.cli", "completion", shell],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert f"_CDCD_COMPLETE={shell}_complete" in result.stdout
    assert "cdcd" in result.stdout


def test_another_shell_is_refused():
    result = subprocess.run(
        [sys.executable, "-m", "cdcd.cli", "completion", "tcsh"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert "'bash', 'zsh', 'fish'" in result.stderr


def test_commands_complete():
    assert complete("cdcd c", 1) == ["check", "config", "completion"]


def test_options_complete():
    assert complete("cdcd config --", 2) == [
        "--config",
        "--changed",
        "--schema",
        "--reference",
        "--examples",
        "--help",
    ]
