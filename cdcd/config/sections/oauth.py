"""The keys of `kafka.oauth`: where tokens for SASL/OAUTHBEARER come from."""

from typing import Literal

from pydantic import Field, model_validator

from cdcd.config.types import CommandLine, Section, Text


class OAuthConfig(Section):
    """Tokens for Kafka's SASL/OAUTHBEARER, renewed before they expire."""

    provider: Literal["none", "command", "msk", "azure"] = Field(
        "none",
        description="Where tokens come from. none: librdkafka needs none of cdcd, for example with "
        "sasl.oauthbearer.method: oidc in properties. command: a program prints them. msk: IAM of Amazon MSK "
        "(extra cdcd[msk]). azure: Entra ID, for Event Hubs (extra cdcd[azure]). All but none need "
        "sasl.mechanism: OAUTHBEARER in properties.",
    )
    command: CommandLine | None = Field(
        None,
        description="For provider command: the program and its arguments; there is no shell. It prints a JSON object: "
        "access_token with expires_in (seconds), or accessToken with expires_on (seconds since 1970).",
    )
    region: Text | None = Field(
        None, description="For provider msk: the region of the cluster, such as eu-central-1."
    )
    scope: Text | None = Field(
        None,
        description="For provider azure: the scope, such as https://NAMESPACE.servicebus.windows.net/.default.",
    )
    timeout_s: float = Field(
        10, ge=1, le=300, description="Longest wait for a token. A command is killed after it."
    )

    @model_validator(mode="after")
    def _is_complete(self) -> "OAuthConfig":
        needs = {"command": "command", "msk": "region", "azure": "scope"}.get(self.provider)
        if needs is not None and getattr(self, needs) is None:
            raise ValueError(f"provider: {self.provider} needs {needs}")
        return self
