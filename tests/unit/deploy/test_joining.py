"""The mirror joins a running demo: the state until then, and a demo that ends earlier."""

import importlib.metadata
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.demo import joining
from deploy.demo.joining import JoiningMirror, spark_is_installed


def wait_for(mirror: JoiningMirror, beginning: str) -> str:
    deadline = time.monotonic() + 30
    while not (said := mirror.look()).startswith(beginning):
        assert time.monotonic() < deadline, said
        time.sleep(0.05)
    return said


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JoiningMirror]:
    """A mirror whose `pip` and `cdcd mirror` are a program of the test: `program` in its folder."""
    monkeypatch.setattr(joining, "spark_is_installed", lambda: False)
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\nimport time; time.sleep(600)\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    made = JoiningMirror(tmp_path, "shop", "127.0.0.1:1", "iceberg")
    yield made
    made.kill()


def test_the_size_of_the_download_is_shown_until_it_is_there(mirror: JoiningMirror, tmp_path: Path):
    assert mirror.look() == "downloading Spark meanwhile, 0 of 500 MB; then the mirror joins"
    with (tmp_path / "spark-packages" / "pyspark.tar.gz").open("wb") as file:
        file.truncate(123_000_000)
    assert mirror.look() == "downloading Spark meanwhile, 123 of 500 MB; then the mirror joins"
    with (tmp_path / "spark-packages" / "pyspark.tar.gz").open("wb") as file:
        file.truncate(600_000_000)
    assert mirror.look() == "installing Spark; then the mirror joins"


def test_a_demo_that_ends_before_says_so_and_ends_the_download(mirror: JoiningMirror):
    said: list[str] = []
    mirror.look()
    assert not mirror.finish(said.append)
    assert said == [
        "The mirror is not compared. Its state: downloading Spark meanwhile, 0 of 500 MB.",
    ]
    assert mirror.look().startswith("cannot join")


def test_packages_that_cannot_be_had_are_told_in_pips_last_words(mirror: JoiningMirror, tmp_path: Path):
    (tmp_path / "program").write_text("#!/bin/sh\necho ERROR: no route to the registry\nexit 1\n")
    said = wait_for(mirror, "cannot join")
    assert said == "cannot join: Spark's packages could not be installed (ERROR: no route to the registry)"
    assert mirror.look() == said


def test_the_mirror_starts_when_spark_is_there_and_its_batches_are_shown(
    mirror: JoiningMirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(joining, "spark_is_installed", lambda: True)
    monkeypatch.setattr("deploy.demo.mirrored.environment", dict)
    go = tmp_path / "go"
    os.mkfifo(go)
    batch = '{"event": "mirror.batch", "changes": 12, "seconds": 1.25}'
    (tmp_path / "program").write_text(f"#!/bin/sh\necho not JSON\necho '{batch}'\nread _ < {go}\nexit 3\n")
    assert wait_for(mirror, "12 changes") == "12 changes in the last batch, which took 1.2 s"
    # WHEN the mirror ends by itself
    go.write_text("\n")
    wait_for(mirror, "ended")
    with pytest.raises(ValueError, match="cdcd mirror failed"):
        mirror.finish(lambda _: None)


def test_an_installation_that_was_killed_is_not_taken_for_spark(monkeypatch: pytest.MonkeyPatch):
    def version(name: str) -> str:
        if name == "pyarrow":
            raise importlib.metadata.PackageNotFoundError(name)
        return "4.1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert not spark_is_installed()
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1")
    assert spark_is_installed()
