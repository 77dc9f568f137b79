"""The documents that are made from the code are as the code is."""

import re
from pathlib import Path

import pytest

from tests.documents import ROOT, documents


@pytest.mark.parametrize("path", list(documents()), ids=lambda path: path.name)
def test_a_generated_document_is_up_to_date(path: Path) -> None:
    assert path.read_text() == documents()[path], (
        f"stale: run python -m tests.documents to write {path.name} again"
    )


def test_few_and_short_decisions_are_kept() -> None:
    """What no longer shapes the code is git's."""
    records = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    assert 0 < len(records) <= 40
    assert [path.name for path in records if len(path.read_text().splitlines()) > 25] == []
    assert [path.name for path in records if not path.read_text().startswith(f"# {path.name[:4]}: ")] == []


def test_the_architecture_is_read_in_one_sitting() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    assert len(lines) <= 200
    assert [line for line in lines if len(line) > 160] == []


def test_every_stage_of_the_path_opens_a_module_that_says_so() -> None:
    heads = [re.match(r'"""Stages? (\d)', file.read_text()) for file in (ROOT / "cdcd").rglob("*.py")]
    assert {int(head[1]) for head in heads if head} == set(range(1, 10))
