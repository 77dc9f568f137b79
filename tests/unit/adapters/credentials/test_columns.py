"""The rules of `columns` with real keys: what is encrypted can be decrypted as docs/columns.md says."""

import hmac
import re
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag

from cdcd.adapters.credentials.columns import SpoolCipher, encrypting, hashing, protections
from cdcd.config.sections.columns import ColumnsConfig
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.protocol.messages import Column, Relation

KEY = bytes(range(32))
PAGE = Path(__file__).parents[4] / "docs" / "columns.md"


def test_what_is_encrypted_is_decrypted_by_the_code_of_the_page():
    sealed = encrypting(KEY)("hä".encode()).decode()
    block, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    scope: dict[str, object] = {}
    exec(block, scope)
    assert scope["decrypted"](sealed, b64encode(KEY).decode()) == "hä"  # type: ignore[operator]


@pytest.mark.parametrize("key", [b"a key of a test", bytes(64), b"k" * 65])
def test_a_hash_is_the_hmac_that_anybody_with_the_key_can_make(key):
    seal = hashing(key)
    for value in (b"", b"ann@example.org", "hä".encode() * 100, b"ann@example.org"):
        assert seal(value) == hmac.digest(key, value, "sha256").hex().encode()


def test_a_value_stays_encrypted_to_the_same_text_from_one_version_of_cdcd_to_the_next():
    # Keys of records are such texts.
    assert (
        encrypting(KEY)(b"ann@example.org") == b"EeWIZ7LptDy0vQJrIZAdIgARdKK1oRLPAiStqEMbl7VlAZNZlLEyM89J0w=="
    )


def test_the_same_value_is_encrypted_to_the_same_text_and_another_value_to_another():
    seal, other = encrypting(KEY), encrypting(KEY[::-1])
    assert seal(b"a") == encrypting(KEY)(b"a")
    assert len({seal(b"a"), seal(b"b"), other(b"a")}) == 3
    nonces = {b64decode(seal(b"%d" % number))[:12] for number in range(1000)}
    assert len(nonces) == 1000


def test_blocks_of_the_spool_are_opened_only_whole_and_by_the_process_that_wrote_them():
    cipher = SpoolCipher()
    sealed = cipher.seal(b"a block")
    assert b"block" not in sealed
    assert cipher.open(sealed) == b"a block"
    with pytest.raises(InvalidTag):
        SpoolCipher().open(sealed)
    with pytest.raises(InvalidTag):
        cipher.open(sealed[:-1] + bytes([sealed[-1] ^ 1]))


def test_the_rules_have_what_the_configuration_says():
    columns = ColumnsConfig.model_validate(
        {
            "exclude": ["*.*.secret"],
            "mask": {"public.users.name": "***"},
            "truncate": {"public.users.city": 3},
            "hash": ["public.users.email"],
            "hash_key": "0123456789abcdef",
            "encrypt": ["public.users.iban"],
            "encryption_key": b64encode(KEY).decode(),
        }
    )
    names = ("secret", "name", "city", "email", "iban", "id")
    relation = Relation(None, 1, "public", "users", "d", tuple([Column(0, name, 25, -1) for name in names]))
    rules = protections(columns).of_columns(relation, ("id",), BUILTIN_TYPES)
    assert [rule and rule.action for rule in rules] == [
        "exclude",
        "mask",
        "truncate",
        "hash",
        "encrypt",
        None,
    ]
    assert rules[1] is not None
    assert rules[1].mask == "***"
    assert rules[2] is not None
    assert rules[2].length == 3
    assert all(rule is not None and rule.seal is not None for rule in rules[3:5])


def test_without_rules_nothing_is_protected():
    assert not protections(ColumnsConfig.model_validate({})).rules
