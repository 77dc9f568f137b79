import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from cdcd.core.errors import ConfigError, TransientError
from cdcd.mirror import jars as under_test
from cdcd.mirror.jars import AVRO, DELTA, ICEBERG, KAFKA, coordinates, jars
from deploy.local.cache import REPOSITORY

ONE = {ICEBERG: {"org.example:one:1": hashlib.sha256(b"one").hexdigest()}}


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("CDCD_CACHE", str(tmp_path))
    monkeypatch.setattr(under_test, "_JARS", ONE)
    return tmp_path / "spark-jars"


def fetching(monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> list[str]:
    asked: list[str] = []

    def fetch(names: list[str], work: Path) -> None:
        asked.extend(names)
        if content is not None:
            (work / "one-1.jar").write_bytes(content)

    monkeypatch.setattr(under_test, "_fetch", fetch)
    return asked


def test_every_jar_has_a_name_of_three_parts_and_a_digest():
    named = coordinates([KAFKA, ICEBERG, DELTA])
    assert all(name.count(":") == 2 for name in named)
    pinned = [part for line in under_test._PINNED.values() for part in line.values()]
    assert all(len(sha256) == 64 for part in pinned for sha256 in part.values())
    assert all(name.count(":") == 2 for part in pinned for name in part)


def test_a_version_of_spark_without_pinned_jars_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(under_test, "_JARS", {})
    with pytest.raises(ConfigError, match="No jars are pinned for Spark") as told:
        jars([ICEBERG])
    assert "3.5.*" in told.value.hint


def test_a_jar_is_fetched_once(monkeypatch: pytest.MonkeyPatch, cache: Path):
    asked = fetching(monkeypatch, b"one")
    assert jars([ICEBERG]) == jars([ICEBERG]) == [cache / "one-1.jar"]
    assert asked == ["org.example:one:1"]
    assert [path.name for path in cache.iterdir()] == ["one-1.jar"]


def test_a_jar_that_is_not_what_was_pinned_is_refused(monkeypatch: pytest.MonkeyPatch, cache: Path):
    fetching(monkeypatch, b"another")
    with pytest.raises(ConfigError, match="SHA-256"):
        jars([ICEBERG])
    assert list(cache.iterdir()) == []


def test_a_jar_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch, cache: Path):
    fetching(monkeypatch, None)
    with pytest.raises(TransientError, match=r"one-1\.jar"):
        jars([ICEBERG])


def test_without_java_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, cache: Path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="Install a Java runtime"):
        jars([ICEBERG])


def test_ivy_is_told_of_a_proxy_and_of_a_mirror_of_mavens_repository(
    monkeypatch: pytest.MonkeyPatch, cache: Path
):
    java = cache.parent / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\necho "$@" >&2\nexit 1\n')
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(cache.parent))
    monkeypatch.setenv("CDCD_IVY_SETTINGS", "/etc/ivysettings.xml")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    monkeypatch.setenv("NO_PROXY", "localhost,.example.com")
    with pytest.raises(TransientError, match=r"-settings /etc/ivysettings\.xml -ivy") as told:
        jars([ICEBERG])
    assert "CDCD_IVY_SETTINGS" in told.value.hint
    for option in (
        "-Dhttps.proxyHost=proxy.example.com",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|*.example.com",
    ):
        assert option in told.value.message.split()


def test_as_a_program_it_names_every_jar_and_fetches_none_that_is_there(tmp_path: Path):
    folder = tmp_path / "spark-jars"
    folder.mkdir()
    files = [folder / under_test._file(name) for name in coordinates([KAFKA, AVRO, ICEBERG, DELTA])]
    for file in files:
        file.touch()
    said = subprocess.run(
        [sys.executable, "-m", "cdcd.spark.jars"],
        env={"CDCD_CACHE": str(tmp_path), "PATH": ""},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines() == [str(file) for file in files]
    assert said.stderr == ""
