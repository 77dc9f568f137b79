"""Archives of the chart: Helm's archive, and an OCI layout that can be pushed to a registry without Helm."""

import gzip
import hashlib
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.go_programs import program
from deploy.local.cache import REPOSITORY, run

CHART: Final = REPOSITORY / "helm" / "cdcd"

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG: Final = "application/vnd.cncf.helm.config.v1+json"
_CONTENT: Final = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"


def semantic(version: str) -> str:
    """Python version as SemVer, which Helm requires. 1.0.0rc1 becomes 1.0.0-rc.1."""
    return re.sub(r"^(\d+\.\d+\.\d+)(a|b|rc)(\d+)$", r"\1-\2.\3", version)


def package(dist: Path) -> list[Path]:
    """Lint the chart and package it into `dist`. Return the archive and the OCI layout, which is a tar file."""
    helm = program("helm")
    run([helm, "lint", "--strict", CHART, "--values", CHART / "ci" / "minimal-values.yaml"])
    said = run([helm, "package", CHART, "--destination", dist])
    archive = Path(said.strip().rpartition(": ")[2])
    layout = archive.with_name(f"{archive.stem}.oci.tar")
    write_layout(archive, layout)
    return [archive, layout]


def write_layout(archive: Path, target: Path) -> None:
    """Write an OCI layout with one artefact, the chart in `archive`. `helm push` sends the same blobs and manifest."""
    content = archive.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content))) as files:
        member = files.extractfile("cdcd/Chart.yaml")
        assert member is not None
        chart = yaml.safe_load(member.read())
    blobs: dict[str, bytes] = {}

    def descriptor(media_type: str, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": descriptor(_CONFIG, json.dumps(chart).encode()),
        "layers": [descriptor(_CONTENT, content)],
        "annotations": {
            "org.opencontainers.image.title": chart["name"],
            "org.opencontainers.image.version": chart["version"],
        },
    }
    named = descriptor(_MANIFEST, json.dumps(manifest).encode())
    named["annotations"] = {"org.opencontainers.image.ref.name": chart["version"].replace("+", "_")}
    index = {"schemaVersion": 2, "manifests": [named]}
    entries = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode()}
    entries |= {f"blobs/sha256/{digest}": data for digest, data in blobs.items()}
    with tarfile.open(target, "w") as tar:
        for name, data in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
