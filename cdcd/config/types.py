"""The kinds of values in the configuration, each with the error that a person reads when the value is not
one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    SecretStr,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from cdcd.config.masking import MASK, is_secret_name, mask_text
from cdcd.core.catalog.patterns import parse_column_pattern, parse_pattern
from cdcd.core.catalog.routing import check_template, parse_table
from cdcd.core.errors import ConfigError

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB

NAME_LENGTH_MAX: Final = 58
"""A slot's name has at most 63 bytes (NAMEDATALEN - 1), and `cdcd_` is 5 of them."""

OWN_PROPERTIES: Final[Mapping[str, str]] = {
    "bootstrap.servers": "set kafka.bootstrap_servers instead",
    "metadata.broker.list": "set kafka.bootstrap_servers instead",
    "transactional.id": "set kafka.transactional_id instead",
    "transaction.timeout.ms": "set kafka.transaction.timeout_s instead",
    "queue.buffering.max.kbytes": "set kafka.queue_bytes_max instead",
    "enable.idempotence": "cdcd's producer is always idempotent: retries would repeat and reorder records",
    "acks": "cdcd always uses all: a record counts as delivered when every in-sync replica has it",
    "request.required.acks": "cdcd always uses all: a record counts as delivered when every in-sync replica has it",
    "isolation.level": "cdcd always uses read_committed, to read its checkpoint as consumers see it",
    "group.id": "cdcd reads its checkpoint without a consumer group",
    "enable.auto.commit": "cdcd reads its checkpoint without a consumer group",
    "auto.offset.reset": "cdcd reads its checkpoint from the positions it looks up",
    "enable.partition.eof": "cdcd sets it to know when the checkpoint is read",
    "allow.auto.create.topics": "set topics.create instead, because cdcd creates or checks each topic itself",
}
"""librdkafka's properties that the guarantees rest on or that have a key of their own, and what to do
instead.
"""


def check_address(name: str, url: str, instead: str, *, may_have_query: bool = False) -> None:
    """Raise ValueError if the value of key `name` is no address for HTTP, or has a secret in it.

    Args:
        instead: where secrets belong.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{name} must begin with http:// or https:// and a host")
    if parts.username is not None or (parts.query and not may_have_query):
        refused = "user and password" if may_have_query else "user, password and query"
        raise ValueError(f"{name} must have no {refused}; {instead}")


class Section(BaseModel):
    """A mapping of the configuration file."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, allow_inf_nan=False
    )


@dataclass(frozen=True, slots=True)
class TextForm:
    """Text of a form: `pattern` decides and is in the schema, `meaning` is the error that a person reads."""

    pattern: str
    meaning: str

    def __get_pydantic_core_schema__(self, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^{self.pattern}$"}

    def _check(self, value: str) -> str:
        if re.fullmatch(self.pattern, value, re.ASCII) is None:
            raise ValueError(self.meaning)
        return value


Name = Annotated[
    str,
    TextForm(
        rf"[a-z0-9][a-z0-9_]{{0,{NAME_LENGTH_MAX - 1}}}",
        f"may hold only lower-case letters, digits and underscores, must not start with an underscore, and "
        f"has at most {NAME_LENGTH_MAX} characters, because a replication slot is named after it",
    ),
]
SlotName = Annotated[
    str,
    TextForm(
        r"[a-z0-9_]{1,63}",
        "may hold only lower-case letters, digits and underscores, and at most 63 of them, as PostgreSQL "
        "demands of slots",
    ),
]
PublicationName = Annotated[str, TextForm(r"[^\x00-\x1f]{1,63}", "must be 1 to 63 characters")]
TopicName = Annotated[
    str,
    TextForm(
        r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}",
        "may hold only ASCII letters, digits, '.', '_' and '-', and at most 249 of them, as Kafka demands "
        "of topics",
    ),
]

TopicKey = Annotated[
    str,
    TextForm(
        r"[A-Za-z0-9._-]{1,249}",
        "may hold only ASCII letters, digits, '.', '_' and '-', and at most 249 of them, as Kafka demands of topics",
    ),
]
"""A topic as a key. Helm's schemas have no lookahead for patterns of keys."""

FieldName = Annotated[
    str,
    TextForm(
        r"[A-Za-z_][A-Za-z0-9_]{0,248}",
        "may hold only ASCII letters, digits and '_', and must not begin with a digit, as Avro demands of fields",
    ),
]


def _check_template(template: str) -> str:
    check_template(template)
    return template


TopicTemplate = Annotated[str, AfterValidator(_check_template)]
"""How topics of tables are called, as `routing.py` has it."""
TransactionalId = Annotated[
    str, TextForm(r"[!-~]{1,200}", "must be 1 to 200 printable ASCII characters without blanks")
]


def _check_pattern(pattern: str) -> str:
    try:
        parse_pattern(pattern)
    except ConfigError as error:
        raise ValueError(f"must be <schema>.<table>: {error.hint}") from error
    return pattern


def _check_column_pattern(pattern: str) -> str:
    try:
        parse_column_pattern(pattern, "columns")
    except ConfigError as error:
        raise ValueError(f"must be <schema>.<table>.<column>: {error.hint}") from error
    return pattern


ColumnPatternText = Annotated[str, AfterValidator(_check_column_pattern)]
ColumnPatternTexts = Annotated[tuple[ColumnPatternText, ...], Field(strict=False)]
TablePattern = Annotated[
    str,
    TextForm(
        r"[^\x00]*[^\x00.]\.[^\x00.][^\x00]*",
        "must be <schema>.<table>, where * stands for any characters, such as public.*",
    ),
    AfterValidator(_check_pattern),
]


def _check_servers(value: object) -> object:
    """Say the form of brokers' addresses to whoever writes them in the form of other programs."""
    if isinstance(value, list):
        written = ",".join(map(str, value))
        raise ValueError(f"must be one text, not a list: {written!r}")  # noqa: TRY004  pydantic takes ValueErrors
    if isinstance(value, str) and "://" in value:
        written = re.sub(r"[A-Za-z0-9+_]+://", "", value)
        raise ValueError(
            f"must be host:port without a protocol: {written!r}. The protocol is security.protocol in kafka.properties"
        )
    return value


Servers = Annotated[
    str,
    TextForm(
        r"[^\s,]+:[0-9]{1,5}(\s*,\s*[^\s,]+:[0-9]{1,5})*",
        "must be host:port, or several of them separated by commas",
    ),
    BeforeValidator(_check_servers),
]
Text = Annotated[str, TextForm(r"[^\x00]+", "must not be empty")]
HostPattern = Annotated[
    str,
    TextForm(r"[A-Za-z0-9*._-]{1,253}", "must be the name of a host, in which * stands for any characters"),
]
FilePath = Annotated[Path, Field(strict=False)]


def _check_table(text: str) -> str:
    parse_table(text)
    return text


TableName = Annotated[str, AfterValidator(_check_table)]
"""A table by its name, as `parse_table` takes it."""


def _check_dsn(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value().strip()
    if "\x00" in text:
        raise ValueError("must not hold a NUL character")
    if re.match(r"postgres(ql)?://", text) is None and re.match(r"[a-z_]+\s*=", text) is None:
        raise ValueError(
            "must be a libpq URI (postgresql://user@host:5432/database) or key=value string (host=... "
            "dbname=...)"
        )
    if re.search(r"(?<![a-z_])replication\s*=", text):
        raise ValueError(
            "must not set replication: cdcd opens replication connections and ordinary ones with it"
        )
    return SecretStr(text)


_TOKEN: Final = re.compile(r"[!-~]{16,1000}")


def _check_token(secret: SecretStr) -> SecretStr:
    if _TOKEN.fullmatch(secret.get_secret_value()) is None:
        raise ValueError(
            "must be 16 to 1000 printable ASCII characters without blanks (openssl rand -hex 32)"
        )
    return secret


def _not_empty(patterns: tuple[str, ...]) -> tuple[str, ...]:
    if not patterns:
        raise ValueError("must not be empty; leave it out for all tables")
    return patterns


def _has_program(command: tuple[str, ...]) -> tuple[str, ...]:
    if not command or not command[0]:
        raise ValueError("must be a list that begins with a program, because cdcd runs it without a shell")
    if any("\x00" in part for part in command):
        raise ValueError("must not hold a NUL character")
    return command


def _show_command(command: tuple[str, ...]) -> list[str]:
    """The command with `***` for arguments that name themselves secret."""
    shown, is_secret = [], False
    for part in command:
        name, equals, _ = part.partition("=")
        if is_secret and not part.startswith("-"):
            shown.append(MASK)
        else:
            shown.append(f"{name}={MASK}" if equals and is_secret_name(name) else mask_text(part))
        is_secret = part.startswith("-") and not equals and is_secret_name(part)
    return shown


CommandLine = Annotated[
    tuple[str, ...],
    Field(strict=False),
    AfterValidator(_has_program),
    PlainSerializer(_show_command, return_type=list[str]),
]
"""A program and its arguments, for no shell."""
TablePatterns = Annotated[tuple[TablePattern, ...], Field(strict=False), AfterValidator(_not_empty)]
Dsn = Annotated[SecretStr, AfterValidator(_check_dsn)]
Token = Annotated[SecretStr, AfterValidator(_check_token)]


_TOKEN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")


def named_tokens(text: str) -> list[tuple[str, str]]:
    """Read lines of a name, a space and a token. ValueError names the line that is wrong, without its token."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, token = line.strip().partition(" ")
        token = token.strip()
        if _TOKEN_NAME.fullmatch(name) is None or _TOKEN.fullmatch(token) is None:
            raise ValueError(
                f"line {number} is not a name (at most 63 letters, digits, '.', '_', '@' and '-'), a space and a token "
                "of 16 to 1000 printable ASCII characters without blanks"
            )
        if name in found:
            raise ValueError(f"line {number} has the name of an earlier line")
        if token in found.values():
            raise ValueError(f"line {number} has the token of an earlier line")
        found[name] = token
    if not found:
        raise ValueError("the file has no line with a name and a token")
    return list(found.items())


def _check_tokens(tokens: SecretStr) -> SecretStr:
    named_tokens(tokens.get_secret_value())
    return tokens


NamedTokens = Annotated[SecretStr, AfterValidator(_check_tokens)]
"""Text with lines of a name, a space and a token (`named_tokens`)."""


def _refuse_own(name: str) -> str:
    if reason := OWN_PROPERTIES.get(name):
        raise ValueError(f"is not for properties: {reason}")
    if name.endswith("_cb") or name in {"on_delivery", "logger"}:
        raise ValueError("is not for properties: it is a callback of the Python client")
    return name


def _scalar(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str | SecretStr):
        raise ValueError("must be text, a number or a boolean")  # noqa: TRY004  pydantic reports ValueError only
    return value


def _secrets_are_text(properties: object) -> object:
    # YAML reads 0123 as the number 83.
    for name, value in properties.items() if isinstance(properties, dict) else ():
        if isinstance(name, str) and is_secret_name(name) and isinstance(value, int | float):
            raise ValueError(f"{name} must be text; quote it")
    return properties


def _hide_secrets(properties: dict[str, str | SecretStr]) -> dict[str, str | SecretStr]:
    return {
        name: SecretStr(value) if isinstance(value, str) and is_secret_name(name) else value
        for name, value in properties.items()
    }


def _streaming(value: object) -> object:
    # YAML 1.1 reads a bare on and off as booleans.
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _none(value: object) -> object:
    return "" if value is False else value


TopicOrNone = Annotated[
    str,
    BeforeValidator(_none),
    TextForm(
        r"(?!\.{1,2}$)[A-Za-z0-9._-]{0,249}",
        "may hold only ASCII letters, digits, '.', '_' and '-', and at most 249 of them, as Kafka demands "
        "of topics; or be false",
    ),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": "^[A-Za-z0-9._-]{0,249}$"}, {"const": False}]}),
]
"""The name of a topic; empty for `false`, where there is to be none."""
PropertyName = Annotated[str, AfterValidator(_refuse_own)]
PropertyValue = Annotated[
    Any, BeforeValidator(_scalar), WithJsonSchema({"type": ["string", "number", "boolean"]})
]
Properties = Annotated[
    dict[PropertyName, PropertyValue], BeforeValidator(_secrets_are_text), AfterValidator(_hide_secrets)
]
Streaming = Annotated[
    Literal["auto", "off", "on", "parallel"],
    BeforeValidator(_streaming),
    WithJsonSchema({"enum": ["auto", "off", "on", "parallel", True, False]}),
]
