"""A run that could not test the deployment says so at its end, with what to install."""

import os
import subprocess
import sys

from deploy.local.cache import REPOSITORY


def test_what_was_not_tested_is_told_last_with_what_to_install():
    # WHEN nothing can be found that builds images
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/deploy/test_image.py"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, env={**os.environ, "PATH": "/nowhere"},
    )  # fmt: skip
    # THEN the words come after everything else but the counts
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    told = [line for line in lines if line.startswith("NOT TESTED tests/deploy/test_image.py, ")]
    assert len(told) == 1
    assert lines.index(told[0]) >= len(lines) - 3
    if os.geteuid() == 0:
        assert "buildah, debootstrap, unshare not installed (Debian: apt-get install " in told[0]
        assert "buildah debootstrap util-linux" in told[0]
    else:
        assert "needs root" in told[0]
    skipped = [line for line in lines if line.endswith("skipped") or " skipped in " in line]
    assert told[0].split(", ")[1].split()[0] in skipped[-1]
