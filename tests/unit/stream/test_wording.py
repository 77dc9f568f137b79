"""What a program is told names its parameters, and not the daemon's configuration or commands."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdcd.adapters.postgres.refusals import REFUSALS, UNKNOWN, UNKNOWN_TRANSIENT
from cdcd.core.errors import SourceError
from cdcd.stream.wording import in_our_words, reworded

ROOT = Path(__file__).resolve().parents[3]

OURS = r"postgres\.(?!app)[a-z]+|spool\.[a-z]|`cdcd |the configuration|cdcd (connects|tries|looks)|Kafka|pipeline"


@pytest.mark.parametrize("row", [*REFUSALS, UNKNOWN, UNKNOWN_TRANSIENT], ids=lambda row: row.hint[:40])
def test_no_hint_of_a_refusal_names_what_a_program_has_not(row):
    assert re.findall(OURS, reworded(row.hint)) == []


@pytest.mark.parametrize(
    "module",
    [
        "adapters/postgres/slot.py",
        "adapters/postgres/replication.py",
        "adapters/postgres/connection.py",
        "core/transactions/spool.py",
        "core/protocol/versions.py",
    ],
)
def test_no_other_text_does(module):
    said = [text for text in texts(ROOT / "cdcd" / module) if re.search(OURS, reworded(text))]
    assert said == []


def texts(path: Path) -> Iterator[str]:
    """The strings of a module, those with fields in them too, without its docstrings."""
    tree = ast.parse(path.read_text())
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield node.value


def test_an_error_keeps_its_type_and_its_traceback():
    error = SourceError("postgres.dsn is wrong.", hint="Correct postgres.dsn.")
    assert in_our_words(error) is error
    assert str(error) == "the DSN is wrong. Hint: Correct the DSN."
    assert error.args == ("the DSN is wrong.",)
