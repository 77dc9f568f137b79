"""Where temporary files go while no file can be written."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from cdcd.config.loading import parse_config
from cdcd.core.errors import LimitError
from cdcd.scratch import scratch_folder, temporary_directory


def full_disk() -> NoReturn:
    raise FileNotFoundError(2, "No usable temporary directory found")


def test_a_configuration_means_the_same_while_the_disk_is_full(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "gettempdir", full_disk)
    monkeypatch.setenv("TMPDIR", "/var/scratch")
    config = parse_config("name: shop\npostgres: {dsn: host=h}\nkafka: {bootstrap_servers: h:1}\n", {})
    assert config.spool.directory == Path("/var/scratch/cdcd-shop")


@pytest.mark.parametrize("value", [None, ""])
def test_without_tmpdir_it_is_tmp(monkeypatch: pytest.MonkeyPatch, value: str | None):
    monkeypatch.delenv("TMPDIR", raising=False)
    if value is not None:
        monkeypatch.setenv("TMPDIR", value)
    assert temporary_directory() == "/tmp"


def test_a_folder_that_cannot_be_made_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    with pytest.raises(LimitError, match=r"No folder for temporary files can be made in .*gone: ") as refused:
        scratch_folder("cdcd-test-").__enter__()
    assert "TMPDIR" in refused.value.hint


def test_a_folder_is_gone_in_the_end(tmp_path: Path):
    with scratch_folder("cdcd-test-", tmp_path) as folder:
        (Path(folder) / "file").write_text("text")
        assert Path(folder).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_tool_that_is_stopped_leaves_no_folder(tmp_path: Path):
    code = (
        "import time\nfrom tests.scratch import scratch_folder\n"
        "with scratch_folder() as folder:\n    print(folder, flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.is_dir()
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
