"""The keys of `context`: who did a change and why, as headers of the records of a transaction."""

from typing import Self

from pydantic import Field, SecretStr, field_serializer, model_validator

from cdcd.config.masking import MASK
from cdcd.config.sections.snapshot import SharedToken
from cdcd.config.types import KIB, FilePath, Section
from cdcd.core.engine.settings import ContextSettings
from cdcd.core.snapshot.signals import token_digest


class ContextConfig(Section):
    """Context of transactions (docs/context.md)."""

    enabled: bool = Field(
        False,
        description="Whether a transactional logical message with the prefix cdcd.context becomes headers of the "
        "records of its transaction (PostgreSQL 14 and up). The message itself then has no record.",
    )
    token: SharedToken | None = Field(
        None,
        description="Secret text of at least 16 characters that a context must have in its field token. Without it, "
        "every role that may connect to the database can choose the headers of its transactions, and `cdcd check` "
        "says so. Roles with REPLICATION can read the token in the WAL.",
    )
    token_file: FilePath | None = Field(None, description="File that holds token, instead of token.")
    bytes_max: int = Field(
        4096,
        ge=64,
        le=64 * KIB,
        description="Largest content of the message, in bytes. A larger context is refused (context.refused), because "
        "each record of the transaction carries its headers.",
    )

    @model_validator(mode="after")
    def _token_is_used(self) -> Self:
        if self.token is not None and not self.enabled:
            raise ValueError("token has no effect without enabled: true; set it, or remove token")
        return self

    @property
    def settings(self) -> ContextSettings | None:
        """What the engine is given; None if contexts are messages like any other."""
        if not self.enabled:
            return None
        tokens = None if self.token is None else (token_digest(self.token.get_secret_value()),)
        return ContextSettings(tokens, self.bytes_max)

    @field_serializer("token")
    def _show_token(self, token: SecretStr | None) -> str | None:
        return None if token is None else MASK
