"""Each sentence that a document quotes from the output of a command stands in the code."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.documents import ROOT

QUOTING = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = {"cli.md"}
"""Documents whose blocks `tests.documents` writes."""
VALUES = {"cdcd", "shop", "role", "topics", "it"}
"""Plain words that stand for a value in the examples."""


@cache
def said() -> str:
    """All texts of the code, a line each, with 0 for each value."""
    texts = []
    for path in (ROOT / "cdcd").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else " 0 " for part in node.values]
                texts.append("".join(map(str, parts)))
    return "\n".join(f" {' '.join(map(bare, re.sub(r'{[^}]*}', ' 0 ', text).split()))} " for text in texts)


def bare(token: str) -> str:
    return token.strip("()`'\".,;:")


def sentences(line: str) -> Iterator[str]:
    """Parts of at least three words that have neither values nor words that depend on a number."""
    for column in re.split(r"\s{2,}|[(;,]| (?=`)", line.strip()):
        words: list[str] = []
        after_number = False
        for token in [*column.split(), "0"]:
            plain = re.fullmatch(r"[A-Za-z]?[a-z']+[.:)]*", token) and bare(token) not in VALUES
            # A word after a number depends on the number, such as `1 table` and `2 tables`.
            if plain and not after_number:
                words.append(bare(token))
            if not plain or not token[-1].isalpha() or after_number:
                if len(words) > 2:
                    yield " ".join(words)
                words = []
            after_number = bool(re.fullmatch(r"[\d,.]+", token))


def is_known(part: str) -> bool:
    """Return True if a text of the code has these words. Behind two or more of them, up to three may be a value."""
    words = part.split()
    cuts = [(start, start + taken) for start in range(2, len(words)) for taken in (1, 2, 3)]
    kept = [(words[:start], words[end:]) for start, end in cuts if len(words) > 4 and len(words) - end != 1]
    return any(
        all(f" {' '.join(piece)} " in said() for piece in pieces if piece) for pieces in [(words,), *kept]
    )


@pytest.mark.parametrize(
    "path", [path for path in QUOTING if path.name not in GENERATED], ids=lambda path: path.name
)
def test_the_sentences_of_quoted_output_are_in_the_code(path: Path) -> None:
    blocks = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for kind, block in blocks if kind in {"", "text", "console"} for line in block.splitlines()]
    quoted = [(part, line) for line in lines if not line.startswith("$") for part in sentences(line)]
    assert [(part, line) for part, line in quoted if not is_known(part)] == []
