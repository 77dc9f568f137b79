"""The unit, judged by systemd's own tools where the machine has them."""

import re
import shutil
from pathlib import Path

import pytest

from deploy.local.cache import REPOSITORY, run

UNIT = REPOSITORY / "deploy" / "systemd" / "cdcd@.service"

EXPOSURE_MAX = 1.5
"""systemd calls 0 to 2 OK, and most services are above 9."""

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="there is no systemd-analyze (Debian: apt-get install systemd)",
)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """An instance whose program is one that exists here."""
    path = tmp_path / "cdcd@shop.service"
    path.write_text(UNIT.read_text().replace("/opt/cdcd/bin/cdcd", "/bin/true"))
    return path


def test_systemd_accepts_the_unit(unit: Path) -> None:
    run(["systemd-analyze", "verify", unit])


def test_systemd_accepts_the_unit_that_tells_of_a_failure(unit: Path, tmp_path: Path) -> None:
    name = re.search(r"OnFailure=(cdcd-failed@)%i(\.service)", unit.read_text())
    assert name is not None
    told = UNIT.with_name("".join(name.groups()))
    path = tmp_path / "cdcd-failed@shop.service"
    path.write_text(told.read_text())
    run(["systemd-analyze", "verify", path])


def test_the_unit_leaves_the_daemon_little_to_do_harm_with(unit: Path) -> None:
    said = run(["systemd-analyze", "security", "--offline=true", "--no-pager", unit])
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", said)
    assert exposure is not None, said
    assert float(exposure[1]) <= EXPOSURE_MAX
