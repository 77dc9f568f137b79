import hmac
import json
import re
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag

from cdcd.adapters.credentials.columns import protections
from cdcd.config.sections.columns import ColumnsConfig
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.protocol.messages import Column, Relation

KEY = b64encode(b"k" * 32).decode()
OTHER = b64encode(b"o" * 32).decode()
TEXT = 25


def relation(table: str) -> Relation:
    columns = tuple([Column(0, name, TEXT, -1) for name in ("a", "b")])
    return Relation(None, 7, "public", table, "d", columns)


def sealed(table: str, column: int, value: bytes, **options: Any) -> str:
    """What stands for a value in a column of a table."""
    config = ColumnsConfig.model_validate(
        {"encrypt": ["*.*.*"], "encryption_key": KEY, "per_column": True, **options}
    )
    rule = protections(config).of_columns(relation(table), (), BUILTIN_TYPES)[column]
    assert rule is not None
    assert rule.seal is not None
    return rule.seal(value).decode()


def documented() -> Any:
    """The function that docs/columns.md gives to consumers."""
    page = Path("docs/columns.md").read_text()
    (code,) = [
        each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def decrypted_of" in each
    ]
    names: dict[str, Any] = {}
    exec(code, names)
    return names["decrypted_of"]


@pytest.mark.parametrize("padding", [0, 16, 256])
@pytest.mark.parametrize("value", ["", "x", "ann@example.org", "ends with \x80", "ä" * 300])
def test_the_documented_reader_decrypts_a_ciphertext_of_a_column(value: str, padding: int):
    text = sealed("t", 0, value.encode(), encryption_padding_bytes=padding)
    assert documented()(text, [OTHER, KEY], "public", "t", "a") == value
    if padding:
        assert (len(b64decode(text)) - 1 - 4 - 12 - 16) % padding == 0


@pytest.mark.parametrize(("table", "column"), [("u", "a"), ("t", "b")])
def test_a_ciphertext_decrypts_in_no_other_column(table: str, column: str):
    with pytest.raises(InvalidTag):
        documented()(sealed("t", 0, b"x"), [KEY], "public", table, column)


def test_a_ciphertext_names_its_key():
    assert (
        b64decode(sealed("t", 0, b"x"))[:5]
        == b"\x02" + hmac.digest(b"k" * 32, b"cdcd: id of a key", "sha256")[:4]
    )
    assert b64decode(sealed("t", 0, b"x"))[:5] != b64decode(sealed("t", 0, b"x", encryption_key=OTHER))[:5]


@pytest.mark.parametrize(
    "rules", [{}, {"encrypt": [], "hash": ["*.*.*"], "hash_key": "a key of 16 characters"}]
)
def test_equal_values_are_equal_in_one_column_only(rules: dict[str, Any]):
    assert sealed("t", 0, b"x", **rules) == sealed("t", 0, b"x", **rules)
    texts = {sealed(table, column, b"x", **rules) for table in ("t", "u") for column in (0, 1)}
    assert len(texts) == 4
    same = {
        sealed(table, column, b"x", per_column=False, **rules) for table in ("t", "u") for column in (0, 1)
    }
    assert len(same) == 1


def test_padding_needs_ciphertexts_that_say_so():
    with pytest.raises(ValueError, match="encryption_padding_bytes needs per_column: true"):
        ColumnsConfig.model_validate({"encryption_padding_bytes": 16})


def test_former_keys_are_shown_by_nobody():
    config = ColumnsConfig.model_validate({"former_keys": ["a former key of ours"]})
    shown = json.dumps(config.model_dump(mode="json"))
    assert "a former key" not in shown
