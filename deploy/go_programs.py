"""The tools that check and package deployments. Each is built once from a pinned Go module and kept in the cache."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy.local.cache import LocalServerError, cached, run

PROGRAMS: Final[Mapping[str, tuple[str, str, str]]] = {
    "actionlint": ("github.com/rhysd/actionlint/cmd/actionlint", "v1.7.12", ""),
    "helm": ("helm.sh/helm/v3/cmd/helm", "v3.22.0", ""),
    "compose-spec": ("github.com/compose-spec/compose-go/v2/cmd", "v2.16.2", ""),
    # The tag leaves out service discovery, which would add the SDK of every cloud.
    "promtool": ("github.com/prometheus/prometheus/cmd/promtool", "v0.309.1", "remove_all_sd"),
}
"""Package, version and build tags. compose-spec is the loader of `docker compose config`."""


def why_not(name: str) -> str:
    """Why the program cannot be built on this machine; empty if it can."""
    if shutil.which("go") is not None:
        return ""
    return f"{name} is built from its Go module, and go is not installed (Debian: apt-get install golang-go, or https://go.dev)"


def program(name: str) -> Path:
    """Build the program on first use, and return its path.

    LocalServerError: go is not installed, or the build failed.
    """
    package, version, tags = PROGRAMS[name]

    def build(folder: Path) -> None:
        if reason := why_not(name):
            raise LocalServerError(reason)
        # As a dependency, not by `go install PACKAGE@VERSION`, which refuses a module with a replace directive.
        for command in (
            ["go", "mod", "init", "local/tools"],
            ["go", "get", f"{package}@{version}"],
            ["go", "build", "-trimpath", "-ldflags=-s -w", f"-tags={tags}", "-o", name, package],
        ):
            run(["env", "GOFLAGS=-mod=mod", *command], cwd=folder)

    return cached(f"go/{name}-{version}", build) / name
