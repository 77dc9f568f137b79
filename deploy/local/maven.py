"""Jars from Maven's central repository, exactly those that a lock file names: the broker's, and others beside it.

Maven fetches them where it is installed. Else Ivy does, which needs no more than a Java runtime; Debian has it as
`ivy`, and every pyspark brings it along.
"""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from deploy.local.cache import REPOSITORY, LocalServerError, cached, digest, run
from deploy.local.programs import java, pypi_archive

_KAFKA: Final = Path(__file__).with_name("kafka.lock")

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
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="partial-") as work:
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
    """Ivy's jar: of an installed pyspark, of Debian, or out of pyspark's archive from PyPI (450 MB, once)."""
    places = [*REPOSITORY.glob(".venv/lib/python*/site-packages/pyspark/jars/ivy-*.jar")]
    places += [jar for jar in [Path("/usr/share/java/ivy.jar")] if jar.exists()]
    if places:
        return places[0]
    (jar,) = cached("ivy", _extract_ivy).glob("ivy-*.jar")
    return jar


def _extract_ivy(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="partial-") as work:
        archive = pypi_archive("pyspark", REPOSITORY / "requirements-spark.lock", Path(work))
        member = next(
            name for name in run(["tar", "-tzf", archive]).split() if re.search(r"/jars/ivy-[^/]*jar$", name)
        )
        run(["tar", "-xzf", archive, "--no-same-owner", "-C", work, member])
        shutil.move(Path(work, member), folder)


def _fill(document: str, dependency: str, locked: dict[str, str]) -> str:
    lines = []
    for name in locked:
        group, artifact, version = map(escape, name.split(":"))
        lines.append(dependency.format(group=group, artifact=artifact, version=version))
    return document.format(dependencies="\n".join(lines))
