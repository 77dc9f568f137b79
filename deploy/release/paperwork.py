"""Documents of a release: bills of materials, notices of third parties, checksums."""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from email.parser import HeaderParser
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Final

from deploy.local.cache import REPOSITORY, digest, run

SUMS: Final = "SHA256SUMS"

_BROUGHT: Final = ("pip", "setuptools")
"""Packages that a new virtual environment has."""

_NOTICES: Final = """\
# Notices of third parties

cdcd {version} is under the Apache License 2.0. It imports the packages below; pip installs each from its own archive
and under its own licence, and the image has them in /opt/cdcd. The text of each licence is in the folder
`*.dist-info` of its package. Only psycopg has a copyleft licence:

- psycopg and psycopg-binary are under the GNU LGPL 3.0. cdcd imports them unchanged, so that each can be replaced by
  another version: `pip install psycopg==VERSION`. Their sources are on the registry that pip uses, and
  `psycopg[c]` builds the same code with a libpq of your own.
- psycopg-binary and confluent-kafka bring compiled libraries, which are listed with them.

| package | version | licence | compiled libraries in it |
|---|---|---|---|
"""


def wheel_bill(environment: Path, version: str, target: Path) -> None:
    """Write the CycloneDX bill of cdcd and its dependencies, from an environment in which cdcd is installed."""
    python = environment / "bin" / "python"
    options: list[str | Path] = [
        "--pyproject",
        REPOSITORY / "pyproject.toml",
        "--mc-type",
        "application",
        "--output-reproducible",
    ]
    run([sys.executable, "-m", "cyclonedx_py", "environment", *options, "--output-file", target, python])
    target.write_text(json.dumps(_of_cdcd(json.loads(target.read_text()), version), indent=2) + "\n")


def _of_cdcd(bill: dict[str, Any], version: str) -> dict[str, Any]:
    """Bill with cdcd's version, and without the packages that every new virtual environment has."""
    brought = {one["bom-ref"] for one in bill["components"] if one["name"] in _BROUGHT}
    bill["metadata"]["component"]["version"] = version
    bill["components"] = [one for one in bill["components"] if one["bom-ref"] not in brought]
    bill["dependencies"] = [one for one in bill.get("dependencies", ()) if one["ref"] not in brought]
    return bill


def image_bill(root: Path, name: str, version: str, target: Path) -> None:
    """Write the CycloneDX bill of an image whose files are below `root`.

    It has the Debian packages and the Python packages in /opt/cdcd.
    """
    debian = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', (root / "etc/os-release").read_text(), re.MULTILINE))
    system = f"{debian['ID']}-{debian.get('VERSION_ID', debian.get('VERSION_CODENAME', ''))}"
    found = [
        _component(
            one["Package"],
            one["Version"],
            f"deb/{debian['ID']}",
            f"?arch={one['Architecture']}&distro={system}",
        )
        for one in _debian_packages(root)
    ]
    found += [
        _component(one.metadata["Name"], one.version, "pypi", "", _licence(one))
        for one in installed(root / "opt/cdcd")
    ]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "container", "bom-ref": "image", "name": name, "version": version}
        },
        "components": found,
    }
    target.write_text(json.dumps(bill, indent=2) + "\n")


def _debian_packages(root: Path) -> list[Mapping[str, str]]:
    blocks = (root / "var/lib/dpkg/status").read_text().strip().split("\n\n")
    told = [HeaderParser().parsestr(block, headersonly=True) for block in blocks]
    return [dict(one) for one in told if "installed" in one["Status"].split()]


def _component(name: str, version: str, kind: str, tail: str, licence: str = "") -> dict[str, Any]:
    purl = f"pkg:{kind}/{name.lower() if kind == 'pypi' else name}@{version.replace('+', '%2B')}{tail}"
    found = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return {**found, "licenses": [{"license": {"name": licence}}]} if licence else found


def installed(environment: Path) -> list[Distribution]:
    """Packages in an environment, sorted by name, without pip and setuptools."""
    paths = [str(path) for path in environment.glob("lib/python3*/site-packages")]
    found = {one.metadata["Name"].lower(): one for one in distributions(path=paths)}
    return [one for name, one in sorted(found.items()) if name not in _BROUGHT]


def notices(environment: Path, version: str) -> str:
    """Text of THIRD-PARTY-NOTICES.md, for an environment in which cdcd is installed."""
    lines = []
    for one in installed(environment):
        if one.metadata["Name"] == "cdcd":
            continue
        files = [Path(str(path)) for path in one.files or ()]
        libraries = sorted({_library(path.name) for path in files if path.parent.name.endswith(".libs")})
        cells = (one.metadata["Name"], one.version, _licence(one), ", ".join(libraries))
        lines.append(f"| {' | '.join(cells)} |\n")
    return _NOTICES.format(version=version) + "".join(lines)


def _library(name: str) -> str:
    """Name of a library from its file name: `libpq` from `libpq-1a2b3c.so.5.17`."""
    return re.sub(r"(-[0-9a-f]{6,})?\.so.*$", "", name)


def _licence(one: Distribution) -> str:
    """Licence in the package's metadata: License-Expression, else a short License field, else the classifiers."""
    told = one.metadata.json
    classified = [
        line.rpartition(" :: ")[2] for line in told.get("classifier", ()) if line.startswith("License ::")
    ]
    field = str(told.get("license", "")).strip()
    named = field if 0 < len(field) < 60 else "; ".join(classified)
    return str(told.get("license_expression", "")) or named or "unknown"


def checksums(dist: Path) -> str:
    """Write SHA256SUMS for the files in `dist`, check it by `sha256sum --check`, and return its text."""
    text = "".join(f"{digest(path, 'sha256').hex()}  {path.name}\n" for path in _files(dist))
    (dist / SUMS).write_text(text)
    run(["sha256sum", "--check", "--quiet", SUMS], cwd=dist)
    return text


def _files(dist: Path) -> Iterable[Path]:
    return sorted(path for path in dist.iterdir() if path.is_file() and path.name != SUMS)
