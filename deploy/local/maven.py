"""Jars from Maven's central repository, exactly those that a lock file names: the broker's, and others beside it.

Maven fetches them if it is installed. Otherwise Ivy fetches them: one jar of 1.4 MB that needs only a Java runtime.
Debian has the package `ivy`, and pyspark contains the jar.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Final
from urllib.request import urlopen
from xml.sax.saxutils import escape

from deploy.local.cache import REPOSITORY, LocalServerError, cached, digest, run
from deploy.local.programs import java

_KAFKA: Final = Path(__file__).with_name("kafka.lock")

_IVY_JAR: Final = "https://repo1.maven.org/maven2/org/apache/ivy/ivy/2.5.3/ivy-2.5.3.jar"
_IVY_SHA256: Final = "9502aa5aabf0b1484924a13ef4b5d24f121f7f91aab6768f11cc9d0906c0803b"

_POM: Final = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>cdcd</groupId><artifactId>local-broker</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_POM_DEPENDENCY: Final = (
    "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
)
_IVY: Final = """<ivy-module version="2.0">
  <info organisation="cdcd" module="local-broker"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""
_IVY_DEPENDENCY: Final = (
    '<dependency org="{group}" name="{artifact}" rev="{version}" conf="default->master" transitive="false"/>'
)


def _locked(lock: Path) -> dict[str, str]:
    """SHA-256 by group:artifact:version."""
    return dict(line.split() for line in lock.read_text().splitlines() if not line.startswith("#"))


KAFKA_VERSION: Final = next(name for name in _locked(_KAFKA) if ":kafka_2.13:" in name).rpartition(":")[2]


def kafka_jars() -> Path:
    """The folder with the broker's jars, fetched on first use."""
    return jars(f"kafka/{KAFKA_VERSION}", _KAFKA)


def jars(name: str, lock: Path) -> Path:
    """The folder `name` of the cache with the jars in `lock`, fetched on first use.

    Raises:
        LocalServerError: one cannot be had, or is not what it was when it was pinned.
    """
    return cached(name, lambda folder: _fetch(_locked(lock), folder))


def _fetch(locked: dict[str, str], folder: Path) -> None:
    fetch = _fetch_with_maven if shutil.which("mvn") else _fetch_with_ivy
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as work:
        fetch(locked, Path(work), folder)
    for name, sha256 in locked.items():
        _, artifact, version = name.split(":")
        jar = folder / f"{artifact}-{version}.jar"
        if not jar.exists() or digest(jar, "sha256").hex() != sha256:
            raise LocalServerError(f"{name} is missing, or is not what it was when it was pinned.")


def _fetch_with_maven(locked: dict[str, str], work: Path, folder: Path) -> None:
    (work / "pom.xml").write_text(_fill(_POM, _POM_DEPENDENCY, locked))
    plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
    run(
        ["mvn", "--quiet", "--batch-mode", f"{plugin}:copy-dependencies", f"-DoutputDirectory={folder}"],
        cwd=work,
    )


def _fetch_with_ivy(locked: dict[str, str], work: Path, folder: Path) -> None:
    (work / "ivy.xml").write_text(_fill(_IVY, _IVY_DEPENDENCY, locked))
    pattern = f"{folder}/[artifact]-[revision].[ext]"
    run(
        [java(), "-jar", _ivy(), "-ivy", work / "ivy.xml", "-cache", work / "cache", "-retrieve", pattern],
        cwd=work,
    )


def _ivy() -> Path:
    """Return Ivy's jar: from pyspark or Debian if installed, else downloaded once from Maven's central repository."""
    places = [*REPOSITORY.glob(".venv/lib/python*/site-packages/pyspark/jars/ivy-*.jar")]
    places += [jar for jar in [Path("/usr/share/java/ivy.jar")] if jar.exists()]
    return places[0] if places else cached("ivy", _download_ivy) / "ivy.jar"


def _download_ivy(folder: Path) -> None:
    jar = folder / "ivy.jar"
    try:
        with urlopen(_IVY_JAR, timeout=60) as answer:
            jar.write_bytes(answer.read())
    except OSError as error:
        raise LocalServerError(
            f"{_IVY_JAR} cannot be downloaded: {error}. Install Maven (Debian: apt install maven), or check that "
            "repo1.maven.org can be reached; HTTPS_PROXY names a proxy."
        ) from error
    if digest(jar, "sha256").hex() != _IVY_SHA256:
        raise LocalServerError(f"{_IVY_JAR} does not have the pinned SHA-256 {_IVY_SHA256}.")


def _fill(document: str, dependency: str, locked: dict[str, str]) -> str:
    lines = []
    for name in locked:
        group, artifact, version = map(escape, name.split(":"))
        lines.append(dependency.format(group=group, artifact=artifact, version=version))
    return document.format(dependencies="\n".join(lines))
