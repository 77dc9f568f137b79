"""The documents that `make release` writes, and its changes in the repository."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cdcd import __version__
from deploy.local.cache import REPOSITORY, LocalServerError
from deploy.release import charts, paperwork
from deploy.release.tag import changes

PLACES: Final = ("CHANGELOG.md", "helm/cdcd/Chart.yaml", "CITATION.cff", "SECURITY.md")
TEXTS: Final = {name: (REPOSITORY / name).read_text() for name in PLACES}
ADDRESS: Final = "https://git.example.com/data/cdcd"


@pytest.mark.parametrize(
    ("version", "semantic"),
    [("1.0.0", "1.0.0"), ("1.0.0rc1", "1.0.0-rc.1"), ("1.2.3b10", "1.2.3-b.10")],
)
def test_a_version_is_written_as_helm_wants_it(version: str, semantic: str) -> None:
    assert charts.semantic(version) == semantic


def test_a_release_changes_the_changelog_and_the_places_of_the_address_and_the_contact() -> None:
    changed = changes(TEXTS, __version__, "2026-12-01", ADDRESS, "security@example.com")
    assert set(changed) == set(PLACES)
    assert f"## [Unreleased]\n\n## [{__version__}] - 2026-12-01\n\n### " in changed["CHANGELOG.md"]
    assert yaml.safe_load(changed["helm/cdcd/Chart.yaml"])["home"] == ADDRESS
    assert yaml.safe_load(changed["helm/cdcd/Chart.yaml"])["sources"] == [ADDRESS]
    assert yaml.safe_load(changed["CITATION.cff"])["repository-code"] == ADDRESS
    assert "**security@example.com**" in changed["SECURITY.md"]
    assert "SECURITY_CONTACT" not in changed["SECURITY.md"]
    # AND a second run changes nothing.
    after = {**TEXTS, **changed}
    assert changes(after, __version__, "2026-12-02", ADDRESS, "security@example.com") == {}


def test_a_release_without_address_and_contact_changes_the_changelog_only() -> None:
    assert set(changes(TEXTS, __version__, "2026-12-01", "", "")) == {"CHANGELOG.md"}


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-01-01\n", "nothing under"),
        ("CITATION.cff", "version: 0.0.1\n", "CITATION.cff is not of version"),
        ("helm/cdcd/Chart.yaml", "version: 0.0.1\n", "Chart.yaml is not of version"),
    ],
)
def test_what_is_not_ready_to_be_released_is_refused(name: str, text: str, told: str) -> None:
    with pytest.raises(LocalServerError, match=told):
        changes({**TEXTS, name: text}, __version__, "2026-12-01", "", "")


def test_the_layout_of_the_chart_is_what_helm_pushes(tmp_path: Path) -> None:
    # GIVEN an archive as `helm package` writes it
    files = io.BytesIO()
    with tarfile.open(fileobj=files, mode="w") as tar:
        data = b"name: cdcd\nversion: 1.0.0-rc.1\n"
        member = tarfile.TarInfo("cdcd/Chart.yaml")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    archive, layout = tmp_path / "cdcd-1.0.0-rc.1.tgz", tmp_path / "layout.tar"
    archive.write_bytes(gzip.compress(files.getvalue()))

    # WHEN the layout is written
    charts.write_layout(archive, layout)

    # THEN every blob has the name of its digest, and the manifest leads to the archive
    with tarfile.open(layout) as tar:
        found = {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]
    for name, data in found.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"

    def blob(descriptor: dict[str, Any]) -> bytes:
        data = found["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
        assert len(data) == descriptor["size"]
        return data

    (named,) = json.loads(found["index.json"])["manifests"]
    assert named["annotations"]["org.opencontainers.image.ref.name"] == "1.0.0-rc.1"
    manifest = json.loads(blob(named))
    assert json.loads(blob(manifest["config"]))["name"] == "cdcd"
    assert [blob(layer) for layer in manifest["layers"]] == [archive.read_bytes()]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment with one package that brings a compiled library."""
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    info = site / "psycopg_binary-3.3.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: psycopg-binary\nVersion: 3.3.9\nLicense-Expression: LGPL-3.0-only\n"
    )
    (info / "RECORD").write_text("psycopg_binary.libs/libpq-9b38f5e3.so.5.17,,\npsycopg_binary/pq.so,,\n")
    return tmp_path


def test_the_notices_name_licences_and_the_libraries_inside_a_package(environment: Path) -> None:
    text = paperwork.notices(environment, "1.0.0")
    assert "| psycopg-binary | 3.3.9 | LGPL-3.0-only | libpq |" in text
    assert "can be replaced" in " ".join(text.split())


def test_the_bill_of_the_wheel_is_of_cdcd_and_what_it_needs() -> None:
    named = [{"bom-ref": name, "name": name} for name in ("pip", "click", "setuptools")]
    bill = {
        "metadata": {"component": {"name": "cdcd"}},
        "components": named,
        "dependencies": [{"ref": "cdcd", "dependsOn": ["click"]}, {"ref": "pip"}],
    }
    made = paperwork._of_cdcd(bill, "1.0.0")
    assert made["metadata"]["component"]["version"] == "1.0.0"
    assert [one["name"] for one in made["components"]] == ["click"]
    assert [one["ref"] for one in made["dependencies"]] == ["cdcd"]


def test_the_bill_of_an_image_has_debians_packages_and_pythons(environment: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name, text in {
        "etc/os-release": 'ID=debian\nVERSION_ID="13"\n',
        "var/lib/dpkg/status": (
            "Package: libssl3\nStatus: install ok installed\nArchitecture: amd64\nVersion: 3.5.1-1+b2\n\n"
            "Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n"
        ),
    }.items():
        path = root / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (root / "opt").mkdir()
    (root / "opt" / "cdcd").symlink_to(environment)
    bill = tmp_path / "bill.json"
    paperwork.image_bill(root, "cdcd", "1.0.0", bill)
    found = [one["purl"] for one in json.loads(bill.read_text())["components"]]
    assert found == [
        "pkg:deb/debian/libssl3@3.5.1-1%2Bb2?arch=amd64&distro=debian-13",
        "pkg:pypi/psycopg-binary@3.3.9",
    ]


def test_the_checksums_are_of_every_other_file(tmp_path: Path) -> None:
    (tmp_path / "b.whl").write_bytes(b"b")
    (tmp_path / "a.tgz").write_bytes(b"a")
    paperwork.checksums(tmp_path)
    lines = (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert lines == [
        f"{hashlib.sha256(name[:1].encode()).hexdigest()}  {name}" for name in ("a.tgz", "b.whl")
    ]
