"""The keys of `kafka`: where the records go, and where tokens for SASL/OAUTHBEARER come from."""

import re
from typing import Annotated, Final, Literal

from pydantic import Field, SecretStr, field_serializer, model_validator

from cdcd.config.masking import MASK, mask_text
from cdcd.config.sections.process import RetryConfig
from cdcd.config.types import (
    GIB,
    KIB,
    MIB,
    TIB,
    CommandLine,
    FilePath,
    Properties,
    PropertyName,
    Section,
    Servers,
    Text,
    TopicName,
    TransactionalId,
    check_address,
)
from cdcd.core.engine.settings import BatchSettings

_BUCKET_URL: Final = re.compile(
    r"s3://[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9](/(?![.]{1,2}(/|$))[A-Za-z0-9_.=-]+)*/?"
)


class OAuthConfig(Section):
    """Tokens for Kafka's SASL/OAUTHBEARER, renewed before they expire."""

    provider: Literal["none", "command", "msk", "azure"] = Field(
        "none",
        description="Source of tokens. none: librdkafka gets its tokens itself, for example with "
        "sasl.oauthbearer.method: oidc in properties. command: a program prints them. msk: IAM of Amazon MSK "
        "(extra cdcd[msk]). azure: Entra ID, for Event Hubs (extra cdcd[azure]). Every provider except none needs "
        "sasl.mechanism: OAUTHBEARER in properties.",
    )
    command: CommandLine | None = Field(
        None,
        description="For provider command: the program and its arguments; there is no shell. The command prints a "
        "JSON object: access_token with expires_in (seconds), or accessToken with expires_on (seconds since 1970).",
    )
    region: Text | None = Field(
        None, description="For provider msk: the region of the cluster, such as eu-central-1."
    )
    scope: Text | None = Field(
        None,
        description="For provider azure: the scope, such as https://NAMESPACE.servicebus.windows.net/.default.",
    )
    timeout_s: float = Field(
        10,
        ge=1,
        le=300,
        description="Longest time to wait for a token, in seconds. cdcd kills a command that takes longer.",
    )

    @model_validator(mode="after")
    def _is_complete(self) -> "OAuthConfig":
        needs = {"command": "command", "msk": "region", "azure": "scope"}.get(self.provider)
        if needs is not None and getattr(self, needs) is None:
            raise ValueError(f"provider: {self.provider} needs {needs}")
        return self


class KafkaTransactionConfig(Section):
    """How much goes into one Kafka transaction."""

    bytes_max: int = Field(
        4 * MIB,
        ge=KIB,
        le=GIB,
        description="Source transactions share a Kafka transaction until their records have this size. A larger "
        "transaction costs less per record, but readers with read_committed wait longer for its first record. A "
        "source transaction that exceeds this size alone is sent in parts. A part has three times this size, or half "
        "of queue_bytes_max if that is less.",
    )
    records_max: int = Field(
        100_000,
        ge=1,
        le=10_000_000,
        description="Source transactions share a Kafka transaction until they have this number of records. A part of "
        "a large source transaction has about this number at most.",
    )
    whole_bytes_max: int = Field(
        GIB,
        ge=0,
        le=TIB,
        description="A source transaction whose records have at most this size is one Kafka transaction: a reader with "
        "read_committed sees all of it or nothing. A larger source transaction is cut into parts of three times "
        "bytes_max. 0: every source transaction that is larger than a part is cut. Readers wait for the end of a "
        "Kafka transaction, also for records of other tables in the same partitions.",
    )
    timeout_s: Annotated[int, Field(ge=1, le=86_400)] | None = Field(
        None,
        description="After this time the broker aborts an open Kafka transaction, and readers stuck behind it go "
        "on. A large source transaction must be sent within this time. After a crash, cdcd's next start or a standby "
        "ends the open transaction at once, so this time matters only if neither comes. null: the maximum of the "
        "brokers (transaction.max.timeout.ms, 15 minutes by default), or 60 s if this principal may not read their "
        "settings.",
    )


class ClaimCheckStoreConfig(Section):
    """Objects of S3-compatible storage for claim checks (docs/claim-checks.md); needs cdcd[s3]."""

    url: Text | None = Field(
        None,
        description="Bucket and prefix for oversized: claim_check, such as s3://claims/shop. null: "
        "claim_check_directory. Never cleaned by cdcd. Credentials come from the environment (AWS_ACCESS_KEY_ID and "
        "others) or from the instance.",
    )
    endpoint: Text | None = Field(
        None,
        description="Address of a store that is not Amazon's, such as https://minio:9000. http:// sends rows without "
        "encryption. null: AWS_ENDPOINT_URL of the environment, or Amazon's address.",
    )
    region: Text | None = Field(
        None, description="Region of the bucket. null: AWS_REGION of the environment, or us-east-1."
    )

    @model_validator(mode="after")
    def _is_a_place(self) -> "ClaimCheckStoreConfig":
        if self.url is not None and not _BUCKET_URL.fullmatch(self.url):
            raise ValueError(
                "url must be s3://BUCKET or s3://BUCKET/PREFIX, with letters, digits and _.=- in the prefix"
            )
        if self.endpoint is not None:
            check_address("endpoint", self.endpoint, "credentials are in the environment (AWS_…)")
        return self


class KafkaConfig(Section):
    """Where the records go."""

    bootstrap_servers: Servers = Field(
        description="Addresses of some brokers (host:port), separated by commas. cdcd learns the other brokers from "
        "them.",
        json_schema_extra={"example": "localhost:9092"},
    )
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        "exactly_once",
        description="at_least_once: cdcd uses no Kafka transactions. Latency is lower, and after a crash some records "
        "come twice.",
    )
    transactional_id: TransactionalId = Field(
        description="Transactional id of the producer: a newer instance with the same id fences an older one. "
        "Instances with different ids do not fence each other, so stop all instances before you change this key.",
        json_schema_extra={"default_from": "cdcd-{name}"},
    )
    properties: Properties = Field(
        default_factory=dict,
        description="librdkafka's own names, passed through: security.protocol, sasl.*, ssl.*, "
        "compression.type, linger.ms, message.max.bytes, partitioner and so on. cdcd refuses properties that would "
        "break its guarantees.",
    )
    properties_files: dict[PropertyName, FilePath] = Field(
        default_factory=dict,
        description="Property name to file that holds its value, for secrets such as sasl.password.",
    )
    oauth: OAuthConfig = Field(
        description="Tokens for SASL/OAUTHBEARER. cdcd renews them before they expire."
    )
    transaction: KafkaTransactionConfig = Field(
        description="Small source transactions share a Kafka transaction; a large one is a Kafka transaction by itself "
        "up to whole_bytes_max.",
    )
    queue_bytes_max: int = Field(
        20 * MIB,
        ge=64 * KIB,
        le=2 * GIB,
        description="Maximum size of the records that wait for the broker, in bytes. Above this size, cdcd stops "
        "reading PostgreSQL's stream.",
    )
    oversized: Literal["fail", "dead_letter", "claim_check"] = Field(
        "fail",
        description="Treatment of a record that is larger than the broker accepts. fail: the daemon stops "
        "and names topic, size and LSN; dead_letter: the record goes to dead_letter_topic instead, which must take it; "
        "claim_check: the value goes to a file in claim_check_directory or to an object of claim_check_store, and a "
        "record with its address to the topic. A logical message "
        "never stops the daemon: with fail, its record has no value, and an event says so.",
    )
    dead_letters: list[Literal["values", "schemas"]] = Field(
        default_factory=list,
        description="Further records that go to dead_letter_topic, with the reason in headers, so that the table goes "
        "on (docs/dead-letters.md). values: records with a value that the format cannot represent; otherwise they go "
        "to the table's topic with null. schemas: records whose schema the registry refuses, in JSON, until it accepts "
        "one; otherwise the table is set aside. The table's topic lacks these records, so `cdcd mirror` stops at the "
        "tables, and `cdcd verify` reports the differences.",
    )
    dead_letter_topic: TopicName = Field(
        description="Topic for oversized: dead_letter and for dead_letters.",
        json_schema_extra={"default_from": "{prefix}.dead_letter"},
    )
    claim_check_directory: FilePath | None = Field(
        None,
        description="Directory for oversized: claim_check, where the consumers can read it. Never cleaned "
        "by cdcd.",
    )
    claim_check_store: ClaimCheckStoreConfig = Field(
        description="S3-compatible storage for oversized: claim_check, in place of claim_check_directory."
    )
    retry: RetryConfig = Field(description="Waiting times after a failure of Kafka.")

    @property
    def has_dead_letters(self) -> bool:
        """Whether records may go to `dead_letter_topic`."""
        return self.oversized == "dead_letter" or bool(self.dead_letters)

    @property
    def batches(self) -> BatchSettings:
        """Limits of batches and of the queue."""
        transaction = self.transaction
        return BatchSettings(
            bytes_max=transaction.bytes_max,
            records_max=transaction.records_max,
            queue_bytes_max=self.queue_bytes_max,
            whole_bytes_max=transaction.whole_bytes_max if self.delivery == "exactly_once" else None,
        )

    @field_serializer("properties")
    def _show_properties(self, properties: dict[str, str | SecretStr]) -> dict[str, str]:
        return {
            name: MASK if isinstance(value, SecretStr) else mask_text(value)
            for name, value in properties.items()
        }

    @model_validator(mode="after")
    def _claim_check_has_a_place(self) -> "KafkaConfig":
        places = [one for one in (self.claim_check_directory, self.claim_check_store.url) if one is not None]
        if self.oversized == "claim_check" and len(places) != 1:
            raise ValueError(
                "oversized: claim_check needs claim_check_directory or claim_check_store.url, not both"
            )
        return self

    @model_validator(mode="after")
    def _tokens_are_asked_for(self) -> "KafkaConfig":
        if self.oauth.provider == "none":
            return self
        named = {"sasl.mechanism", "sasl.mechanisms"} & self.properties.keys()
        if not named or any(str(self.properties[name]).upper() != "OAUTHBEARER" for name in named):
            raise ValueError("oauth.provider needs sasl.mechanism: OAUTHBEARER in kafka.properties")
        if str(self.properties.get("security.protocol")).upper() not in {"SASL_SSL", "SASL_PLAINTEXT"}:
            raise ValueError("oauth.provider needs security.protocol: SASL_SSL in kafka.properties")
        if "sasl.oauthbearer.method" in self.properties:
            raise ValueError("oauth.provider and sasl.oauthbearer.method are both given; give one of them")
        return self

    def librdkafka(self) -> dict[str, str]:
        """The properties for librdkafka with bootstrap.servers. Holds secrets: never to be printed."""
        revealed = {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value
            for name, value in self.properties.items()
        }
        return {"bootstrap.servers": self.bootstrap_servers, **revealed}
