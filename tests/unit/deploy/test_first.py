"""The downloads of a clean clone run at the same time, and lines show their progress."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.first import PACKAGES, Step, fetch, packages_step, size_of


def step(script: str, *watched: tuple[Path, str], megabytes: int = 3) -> Step:
    return Step("Kafka", megabytes, [sys.executable, "-c", script], watched)


def test_a_line_says_how_much_of_a_download_has_come(tmp_path: Path):
    (tmp_path / "partial-kafka-1").mkdir()
    (tmp_path / "partial-kafka-1" / "there before").write_bytes(bytes(5_000_000))
    waiting = step("import time; time.sleep(60)", (tmp_path, "partial-kafka-*"))
    waiting.start()
    try:
        assert waiting.line() == "Kafka 0 of 3 MB"
        (tmp_path / "partial-kafka-2").mkdir()
        jar = tmp_path / "partial-kafka-2" / "a.jar"
        jar.write_bytes(bytes(2_000_000))
        assert waiting.line() == "Kafka 2 of 3 MB"
        # A finished file is moved away. The size that is shown does not become smaller.
        jar.unlink()
        assert waiting.line() == "Kafka 2 of 3 MB"
        jar.write_bytes(bytes(4_000_000))
        assert waiting.line() == "Kafka 3 MB, installing"
    finally:
        waiting.end()


def test_steps_run_side_by_side_and_say_when_all_are_there(capsys: pytest.CaptureFixture[str]):
    fetch([step("pass"), step("import time; time.sleep(1.2)")], time.monotonic())
    assert capsys.readouterr().out.splitlines()[-1].endswith("Kafka ready  |  Kafka ready")


def test_what_is_there_already_costs_no_line(capsys: pytest.CaptureFixture[str]):
    fetch([step("pass")], time.monotonic())
    assert capsys.readouterr().out == ""


def test_a_download_that_fails_is_told_in_its_own_words_and_the_others_end():
    other = step("import time; time.sleep(600)")
    with pytest.raises(
        SystemExit, match=r"Kafka could not be fetched \(exit code 3\):\nno route to the registry"
    ):
        fetch([other, step("print('no route to the registry'); raise SystemExit(3)")], time.monotonic())
    assert other.process is not None
    assert other.process.poll() is not None


def test_the_packages_are_locked_and_setuptools_is_among_them(tmp_path: Path):
    made = packages_step(tmp_path)
    lines = (tmp_path / "partial-packages" / "tools.txt").read_text()
    assert lines.startswith("setuptools==")
    assert "--hash=sha256:" in lines
    assert "--require-hashes" in str(made.command[-1])
    assert str(PACKAGES) in str(made.command[-1])


def test_a_python_without_venv_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    made = packages_step(tmp_path)
    done = subprocess.run(list(map(str, made.command)), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "apt install python3-venv" in done.stdout


def test_sizes_of_a_folder_that_is_not_there_are_nothing(tmp_path: Path):
    assert size_of(tmp_path / "gone") == 0
