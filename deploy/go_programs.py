"""The tools that judge and package what is deployed, built from pinned Go modules, once (in the cache)."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy.local.cache import LocalServerError, cached, run

PROGRAMS: Final[Mapping[str, tuple[str, str, str]]] = {
    "actionlint": ("github.com/rhysd/actionlint/cmd/actionlint", "v1.7.12", ""),
    "helm": ("helm.sh/helm/v3/cmd/helm", "v3.22.0", ""),
    "compose-spec": ("github.com/compose-spec/compose-go/v2/cmd", "v2.16.2", ""),
    # Its service discoveries are the SDKs of every cloud.
    "promtool": ("github.com/prometheus/prometheus/cmd/promtool", "v0.309.1", "remove_all_sd"),
}
"""Package, version and build tags. compose-spec is the loader of `docker compose config`."""


def program(name: str) -> Path:
    """The program, built on first use; LocalServerError where there is no Go to build it with."""
    package, version, tags = PROGRAMS[name]

    def build(folder: Path) -> None:
        if shutil.which("go") is None:
            raise LocalServerError(
                f"{name} is built from its Go module, and there is no go (Debian: apt-get install golang-go, or https://go.dev)"
            )
        # As a dependency, not by `go install PACKAGE@VERSION`, which refuses a module with a replace directive.
        for command in (
            ["go", "mod", "init", "local/tools"],
            ["go", "get", f"{package}@{version}"],
            ["go", "build", "-trimpath", "-ldflags=-s -w", f"-tags={tags}", "-o", name, package],
        ):
            run(["env", "GOFLAGS=-mod=mod", *command], cwd=folder)

    return cached(f"go/{name}-{version}", build) / name
