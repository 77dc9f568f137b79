"""What the image is built from is in its build context, and is copied."""

from pathlib import Path

import pytest

from cdcd.cli.example_files import PATTERNS

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))


def lies_in(path: Path, places: list[str]) -> bool:
    """Whether the path is one of these places, or below one."""
    return any(path.is_relative_to(place) for place in places)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_example_of_the_wheel_is_copied_into_the_build_and_so_is_what_a_link_leads_to(path: Path):
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    builder = (ROOT / "Dockerfile").read_text().partition("AS runtime")[0]
    copied = [
        source for line in builder.splitlines() if line.startswith("COPY ") for source in line.split()[1:-1]
    ]
    for each in (path.relative_to(ROOT), path.resolve().relative_to(ROOT)):
        assert lies_in(each, kept), f"{each} is not in the build context"
        assert lies_in(each, copied), f"{each} is not copied"
