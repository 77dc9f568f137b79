"""What the tests of deployment share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A folder that also the unprivileged user of a server may walk through, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="cdcd-deploy-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
