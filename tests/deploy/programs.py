"""The tools that judge what is deployed, built from their Go modules at pinned versions, once (in the cache)."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from deploy.local.cache import cached

PROGRAMS: Final[Mapping[str, tuple[str, str, str]]] = {
    "helm": ("helm.sh/helm/v3/cmd/helm", "v3.22.0", ""),
    "compose-spec": ("github.com/compose-spec/compose-go/v2/cmd", "v2.16.2", ""),
    # Its service discoveries are the SDKs of every cloud.
    "promtool": ("github.com/prometheus/prometheus/cmd/promtool", "v0.309.1", "remove_all_sd"),
}
"""Package, version and build tags. compose-spec is the loader of `docker compose config`."""


def program(name: str) -> Path:
    """The program; the test is skipped where there is no Go to build it with."""
    package, version, tags = PROGRAMS[name]

    def build(folder: Path) -> None:
        if shutil.which("go") is None:
            pytest.skip(
                f"{name} is built from its Go module, and there is no go (Debian: apt-get install golang-go, or https://go.dev)"
            )
        # As a dependency, not by `go install PACKAGE@VERSION`, which refuses a module with a replace directive.
        environment = {**os.environ, "GOFLAGS": "-mod=mod"}
        for command in (
            ["go", "mod", "init", "local/tools"],
            ["go", "get", f"{package}@{version}"],
            ["go", "build", "-trimpath", "-ldflags=-s -w", f"-tags={tags}", "-o", name, package],
        ):
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr[-2000:]

    return cached(f"go/{name}-{version}", build) / name
