"""The examples that come with cdcd: configurations, SQL, alerts, dashboard, systemd's unit, Spark's manifests.

They lie in the repository, where documents and tests name them. `setup.py` reads `PATTERNS` and puts the files into the
wheel below `cdcd/examples/`, with the same paths.
"""

from pathlib import Path
from typing import Final

from cdcd.core.errors import ConfigError

RUNBOOK: Final = "deploy/runbook.md"

PATTERNS: Final = (
    "config/*.yaml",
    "config/mirror/*.yaml",
    "deploy/grafana/dashboard.json",
    "deploy/prometheus/alerts.yaml",
    "deploy/runbook.md",
    "deploy/spark/*.yaml",
    "deploy/sql/*.sql",
    "deploy/systemd/*.service",
)

_PACKAGE: Final = Path(__file__).parents[1]
_INSTALLED: Final = _PACKAGE / "examples"


def example_files() -> dict[str, bytes]:
    """Each file by its path. From the source tree, the repository has them."""
    root = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent
    found = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for pattern in PATTERNS
        for path in sorted(root.glob(pattern))
    }
    assert found, f"the wheel was built without its examples: there are none in {root}"
    return found


def write_examples(folder: Path) -> list[Path]:
    """Write the files below `folder`, which is created. A file that is there already as it should be counts as written.

    Raises ConfigError: a file is there with other content, and then nothing is written; or it cannot be written.
    """
    files = {folder / name: content for name, content in example_files().items()}
    try:
        for path, content in files.items():
            if path.exists() and path.read_bytes() != content:
                raise ConfigError(
                    f"{path} exists already and differs from the example; nothing was written.",
                    hint="Name another folder, or move the file away.",
                )
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        raise ConfigError(
            f"cannot write the examples to {folder}: {error.strerror}",
            hint="Name a folder that you may write to.",
        ) from error
    return list(files)
