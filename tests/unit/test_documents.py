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


def test_every_stage_of_the_path_opens_a_module_that_says_so() -> None:
    heads = [re.match(r'"""Stages? (\d)', file.read_text()) for file in (ROOT / "cdcd").rglob("*.py")]
    assert {int(head[1]) for head in heads if head} == set(range(1, 10))
