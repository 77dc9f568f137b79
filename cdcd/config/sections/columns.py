"""The keys of `columns`: which columns' values readers of the topics must not see."""

from base64 import b64decode
from binascii import Error as Base64Error
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, SecretStr, field_serializer, model_validator

from cdcd.config.masking import MASK
from cdcd.config.types import ColumnPatternText, ColumnPatternTexts, FilePath, Section, Text
from cdcd.core.catalog.protection import ENCRYPT, EXCLUDE, HASH, INCLUDE, TRUNCATE
from cdcd.core.catalog.protection import MASK as MASKED

HASH_KEY_LENGTH_MIN: Final = 16
"""Characters: fewer can be guessed, and with them the values of a column that has few."""

ENCRYPTION_KEY_BYTES: Final = 32
"""Of AES-256."""


def _check_hash_key(key: SecretStr) -> SecretStr:
    if len(key.get_secret_value()) < HASH_KEY_LENGTH_MIN:
        raise ValueError(
            f"must have at least {HASH_KEY_LENGTH_MIN} characters, because a shorter key can be guessed"
        )
    return key


def encryption_key_bytes(key: SecretStr) -> bytes:
    """The key itself. ValueError: it is not base64 of 32 bytes."""
    try:
        raw = b64decode(key.get_secret_value(), validate=True)
    except Base64Error:
        raw = b""
    if len(raw) != ENCRYPTION_KEY_BYTES:
        raise ValueError(
            f"must be base64 of {ENCRYPTION_KEY_BYTES} bytes, as `openssl rand -base64 {ENCRYPTION_KEY_BYTES}` "
            "prints them"
        )
    return raw


def _check_encryption_key(key: SecretStr) -> SecretStr:
    encryption_key_bytes(key)
    return key


class ColumnsConfig(Section):
    """Columns whose values readers of the topics must not see."""

    include: ColumnPatternTexts = Field(
        default=(),
        description="The only columns that records have of the tables that these patterns <schema>.<table>.<column> "
        "match. Which columns these are is decided when cdcd first sees a table: a column that is added or renamed to "
        "such a name later is left out until this setting is changed. The columns of a table's key must be among them.",
    )
    exclude: ColumnPatternTexts = Field(
        default=(),
        description="Columns that no record has, as patterns <schema>.<table>.<column>. A column of a table's key "
        "cannot be excluded.",
    )
    mask: dict[ColumnPatternText, Text] = Field(
        default_factory=dict,
        description="Columns whose values are replaced by a constant text: pattern to text, such as "
        "public.users.name: '***'. "
        "NULL stays null under mask, truncate, hash and encrypt.",
    )
    truncate: dict[ColumnPatternText, Annotated[int, Field(ge=0, le=1_000_000)]] = Field(
        default_factory=dict,
        description="Text columns that are cut after some characters: pattern to number of characters.",
    )
    hash: ColumnPatternTexts = Field(
        default=(),
        description="Columns whose values are replaced by their HMAC-SHA-256 under hash_key, in hexadecimal. The same "
        "text has the same hash in every table, so that hashed columns can be joined.",
    )
    hash_key: Annotated[SecretStr, AfterValidator(_check_hash_key)] | None = Field(
        None, description="Secret text for hash, at least 16 characters."
    )
    hash_key_file: FilePath | None = Field(None, description="File that holds hash_key, instead of hash_key.")
    encrypt: ColumnPatternTexts = Field(
        default=(),
        description="Columns whose values are encrypted with AES-256-GCM under encryption_key: base64 of the nonce (12 "
        "bytes), the ciphertext and the tag (16 bytes). The nonce is made from the value, so that the same value is "
        "encrypted to the same text; docs/columns.md shows how to decrypt it.",
    )
    encryption_key: Annotated[SecretStr, AfterValidator(_check_encryption_key)] | None = Field(
        None, description="Key for encrypt: base64 of 32 bytes."
    )
    encryption_key_file: FilePath | None = Field(
        None, description="File that holds encryption_key, instead of encryption_key."
    )

    former_keys: tuple[Annotated[SecretStr, AfterValidator(_check_hash_key)], ...] = Field(
        default=(),
        strict=False,
        description="Former values of hash_key and encryption_key. cdcd does not hash or encrypt with them. Former "
        "keys authenticate the last checkpoint that was written before a key was replaced. You can remove them after "
        "the next start.",
    )
    per_column: bool = Field(
        False,
        description="Equal values in different columns have different hashes and ciphertexts, which depend on the "
        "names of table and column. A ciphertext begins with the number of its form and an id of its key, and decrypts "
        "only with these names. With this option, hashed columns cannot be joined (docs/columns.md, Decrypt a value).",
    )
    encryption_padding_bytes: Annotated[int, Field(ge=0, le=65_536)] = Field(
        0,
        description="With per_column: values are padded to a multiple of this many bytes before they are encrypted, so "
        "that the ciphertext does not tell their lengths. 0: no padding.",
    )

    @field_serializer("former_keys")
    def _show_former_keys(self, keys: tuple[SecretStr, ...]) -> list[str]:
        return [MASK for _ in keys]

    @field_serializer("hash_key", "encryption_key")
    def _show_key(self, key: SecretStr | None) -> str | None:
        return None if key is None else MASK

    @model_validator(mode="after")
    def _keys_given(self) -> Self:
        for patterns, key, name in (
            (self.hash, self.hash_key, "hash_key"),
            (self.encrypt, self.encryption_key, "encryption_key"),
        ):
            if patterns and key is None:
                raise ValueError(
                    f"{name} or {name}_file is missing: columns like {patterns[0]} need this key"
                )
        if self.encryption_padding_bytes and not self.per_column:
            raise ValueError(
                "encryption_padding_bytes needs per_column: true, whose ciphertexts say that they are padded"
            )
        return self

    @property
    def patterns(self) -> list[tuple[str, str]]:
        """Action and pattern of every rule."""
        by_action = {
            INCLUDE: self.include,
            EXCLUDE: self.exclude,
            MASKED: self.mask,
            TRUNCATE: self.truncate,
            HASH: self.hash,
            ENCRYPT: self.encrypt,
        }
        return [(action, pattern) for action, patterns in by_action.items() for pattern in patterns]
