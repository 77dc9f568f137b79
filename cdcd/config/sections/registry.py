"""The keys of `registry`: the schema registry that formats with registered schemas need."""

import re
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_serializer, model_validator

from cdcd.config.masking import MASK
from cdcd.config.types import CommandLine, FilePath, Section, Text, check_address

REGISTERED: Final = ("avro", "protobuf", "json_registry")
"""Formats whose schemas are in a registry."""


class RegistryOAuthConfig(Section):
    """A login by OAuth's client credentials: cdcd fetches a bearer token, and renews it before it expires."""

    token_url: Text | None = Field(
        None,
        description="The token endpoint, such as https://idp.example.com/oauth2/token. null: no login by OAuth.",
    )
    client_id: Text | None = Field(None, description="The client's id at the OAuth server.")
    client_secret: SecretStr | None = Field(None, description="The client's secret.")
    client_secret_file: FilePath | None = Field(
        None, description="File that holds client_secret, instead of client_secret."
    )
    scope: Text | None = Field(None, description="The scope that is asked for. null: the server's default.")
    logical_cluster: Text | None = Field(
        None,
        description="Confluent Cloud's id of the registry (lsrc-…), sent as the header target-sr-cluster.",
    )
    identity_pool: Text | None = Field(
        None, description="Confluent Cloud's identity pool (pool-…), sent as Confluent-Identity-Pool-Id."
    )

    @model_validator(mode="after")
    def _is_address(self) -> "RegistryOAuthConfig":
        login = (self.token_url, self.client_id, self.client_secret)
        if any(each is None for each in login) and any(each is not None for each in login):
            raise ValueError("token_url, client_id and client_secret_file belong together")
        if self.token_url is not None:
            instead = "set client_id and client_secret_file"
            check_address("token_url", self.token_url, instead, may_have_query=True)
        return self

    @field_serializer("client_secret")
    def _show_secret(self, secret: SecretStr | None) -> str | None:
        return None if secret is None else MASK


CONFLUENT: Final = "confluent"
GLUE: Final = "glue"
DEFAULT_REGISTRY: Final = "default-registry"
_GLUE_HOST: Final = re.compile(r"glue(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")


class RegistryGlueConfig(Section):
    """AWS Glue's schema registry, with `registry.kind: glue`."""

    name: Text = Field(
        DEFAULT_REGISTRY,
        description="Name of the registry in Glue. Glue makes default-registry itself; any other one must be there.",
    )
    region: Text | None = Field(
        None,
        description="Region of AWS, such as eu-central-1. null: the one in the host of url.",
    )


class RegistryConfig(Section):
    """A schema registry, which `format: avro`, `protobuf` and `json_registry` need."""

    kind: Literal["confluent", "glue"] = Field(
        CONFLUENT,
        description="The API of the registry. confluent: Confluent's, which Apicurio, Karapace and Redpanda have too. "
        "glue: AWS Glue's, for avro and json_registry, with AWS's header before each record; not tested against AWS "
        "itself. It needs botocore (the extra cdcd[msk]), and the credentials that botocore finds.",
    )
    url: Text | None = Field(
        None,
        description="URL of the registry, such as http://registry:8081, without user and password. For Apicurio, end "
        "the URL with /apis/ccompat/v7, which is Confluent's API. For Glue, https://glue.<region>.amazonaws.com. If "
        "url changes, cdcd registers all schemas with the new registry.",
    )
    glue: RegistryGlueConfig = Field(description="AWS Glue's schema registry.")
    subjects: Literal["topic", "record", "topic_record"] = Field(
        "topic",
        description="Names of the subjects of schemas, as Confluent's strategies make them. topic: TOPIC-key and "
        "TOPIC-value. record: the full name of the record or message, in JSON Schema its title. topic_record: TOPIC- "
        "and the full name.",
    )
    register_schemas: bool = Field(
        True,
        description="false: cdcd registers nothing, and a table with a schema that the registry does not have is set "
        "aside (tables.on_error).",
    )
    compatibility: (
        Literal[
            "NONE",
            "BACKWARD",
            "BACKWARD_TRANSITIVE",
            "FORWARD",
            "FORWARD_TRANSITIVE",
            "FULL",
            "FULL_TRANSITIVE",
        ]
        | None
    ) = Field(
        None,
        description="The compatibility that cdcd sets for each subject before it registers a schema there. null: that "
        "of the registry. Under every compatibility except NONE, the registry may refuse a changed table, such as a "
        "column's new type. cdcd then sets the table aside (tables.on_error) and names the subject. With kind: glue, "
        "the compatibility of schemas that cdcd creates; null: BACKWARD.",
    )
    user: Text | None = Field(None, description="User of HTTP's basic authentication. It needs a password.")
    password: SecretStr | None = Field(None, description="Password of the user.")
    password_file: FilePath | None = Field(
        None, description="File that holds the password, instead of password. Read again at each request."
    )
    password_command: CommandLine | None = Field(
        None, description="Program and arguments that print the password, instead of password."
    )
    token: SecretStr | None = Field(None, description="Bearer token, instead of user and password.")
    token_file: FilePath | None = Field(
        None, description="File that holds the token, instead of token. Read again at each request."
    )
    token_command: CommandLine | None = Field(
        None, description="Program and arguments that print the token, instead of token."
    )
    oauth: RegistryOAuthConfig = Field(
        description="Login by OAuth's client credentials, instead of a password or a token."
    )
    ca_file: FilePath | None = Field(
        None,
        description="PEM file of the certificate authorities that cdcd trusts for the registry's https. null: those "
        "that the machine trusts.",
    )
    certificate_file: FilePath | None = Field(
        None,
        description="PEM file of cdcd's own certificate, for a registry that asks for one. Needs key_file.",
    )
    key_file: FilePath | None = Field(
        None, description="PEM file of the key of certificate_file, without a passphrase."
    )
    timeout_s: float = Field(
        10,
        ge=1,
        le=120,
        description="Longest time to wait for an answer of the registry or for a command, in seconds.",
    )

    @model_validator(mode="after")
    def _is_complete(self) -> "RegistryConfig":
        if self.url is not None:
            check_address("url", self.url, "set user and password_file", may_have_query=True)
        passwords = [name for name in ("password", "password_command") if getattr(self, name) is not None]
        tokens = [name for name in ("token", "token_command") if getattr(self, name) is not None]
        if (self.user is not None) != bool(passwords):
            raise ValueError("user and one of password, password_file and password_command belong together")
        for given in (passwords, tokens):
            if len(given) > 1:
                raise ValueError(
                    f"{given[0]} (or {given[0]}_file) and {given[1]} are both given; give one of them"
                )
        if passwords and tokens:
            raise ValueError("a password and a token are both given; give one of them")
        if self.oauth.token_url is not None and (passwords or tokens):
            raise ValueError("oauth and a password or a token are both given; give one of them")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together")
        if self.kind == GLUE:
            self._check_glue([*passwords, *tokens])
        elif self.glue != RegistryGlueConfig.model_construct():
            raise ValueError("the keys of glue need kind: glue")
        return self

    def _check_glue(self, secrets: list[str]) -> None:
        logins = [*secrets, *(["oauth"] if self.oauth.token_url else [])]
        logins += ["certificate_file"] if self.certificate_file else []
        if logins:
            raise ValueError(
                f"{logins[0]}: kind: glue takes the credentials of AWS that botocore finds; remove it"
            )
        if self.url is not None and self.region is None:
            raise ValueError("glue.region: give the region of AWS, because the host of url does not name it")

    @property
    def region(self) -> str | None:
        """The region of AWS: the configured one, or the one in the host of the URL; None: neither is there."""
        found = _GLUE_HOST.fullmatch(urlsplit(self.url or "").hostname or "")
        return self.glue.region or (None if found is None else found[1])

    @property
    def address(self) -> str:
        """The registry's name in the topic of descriptions: ids of another one are not taken."""
        url = (self.url or "").rstrip("/")
        return f"{url}/{self.glue.name}" if self.kind == GLUE else url

    def require(self, chosen: str) -> None:
        """Check that the chosen format can have its schemas in this registry. ValueError: it cannot."""
        if self.url is None:
            raise ValueError(f"{chosen} needs registry.url")
        if self.kind == GLUE and chosen not in {"format.value: avro", "format.value: json_registry"}:
            raise ValueError(
                f"{chosen} needs registry.kind: confluent; with Glue, choose format.value: avro or json_registry"
            )

    @field_serializer("password", "token")
    def _show_secret(self, secret: SecretStr | None) -> str | None:
        return None if secret is None else MASK
