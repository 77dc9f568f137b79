"""What a broker starts from: formatted storage and the JVM's archive of loaded classes, made once and cached.

A broker needs about 9 seconds of CPU time to format its storage and to start. Copied storage and an archive of the
classes (JEP 350, dynamic application class-data sharing) leave about 3 of them, and the tests start some fifty brokers.
"""

import base64
import hashlib
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deploy.local.cache import cached
from deploy.local.maven import KAFKA_VERSION, kafka_jars
from deploy.local.programs import java

_STORAGE: Final = "storage"
_ARCHIVE: Final = "classes.jsa"
STORAGE_SETTINGS: Final = ("process.roles", "log.dirs", "metadata.log.dir")
"""Settings of server.properties that the formatted storage depends on."""


def cluster_id() -> str:
    """A new id of a cluster, as `kafka-storage random-uuid` gives it."""
    # A leading dash would be read as an option.
    return "c" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")[1:]


def prepared(fill: Callable[[Path], None]) -> Path:
    """The folder with storage and archive for this Kafka and this Java; `fill` makes them where they are missing.

    The JVM takes an archive only if the program and the class path are those that it was made with.
    """
    program = Path(java()).resolve()
    status = program.stat()
    made_with = f"{program} {status.st_size} {status.st_mtime_ns} {kafka_jars()}"
    key = hashlib.sha256(made_with.encode()).hexdigest()[:12]
    return cached(f"kafka/prepared-{KAFKA_VERSION}-{key}", fill)


def dumping(folder: Path) -> list[str]:
    """Options of a JVM that writes the archive when it ends by itself."""
    return [f"-XX:ArchiveClassesAtExit={folder / _ARCHIVE}"]


def sharing(folder: Path) -> list[str]:
    """Options of a JVM that uses the archive; none where a JVM without an archive of its own could not make one."""
    archive = folder / _ARCHIVE
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


def keep_storage(storage: Path, folder: Path) -> None:
    """Put formatted `storage` that no broker has used into the prepared folder."""
    shutil.copytree(storage, folder / _STORAGE)


def copy_storage(folder: Path, storage: Path, *, node_id: str, cluster: str) -> None:
    """Give a broker its storage, which nobody has used, as of this node of this cluster."""
    shutil.copytree(folder / _STORAGE, storage, dirs_exist_ok=True)
    properties = storage / "meta.properties"
    own = {
        "node.id": node_id,
        "cluster.id": cluster,
        # The brokers of a cluster refuse a folder that another one has too.
        "directory.id": base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("="),
    }
    lines = properties.read_text().splitlines()
    kept = [line for line in lines if line.partition("=")[0] not in own]
    assert len(kept) == len(lines) - len(own), lines
    properties.write_text("".join(f"{line}\n" for line in [*kept, *map("=".join, own.items())]))
