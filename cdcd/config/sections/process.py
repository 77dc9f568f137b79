"""The keys of the process (`spool`, `record`, `http`, `ready`, `log`, `otlp`, `security`), and of every `retry`."""

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_serializer, model_validator

from cdcd.config.masking import MASK
from cdcd.config.types import (
    GIB,
    KIB,
    MIB,
    TIB,
    FilePath,
    HostPattern,
    NamedTokens,
    Section,
    Text,
    Token,
    check_address,
    named_tokens,
)
from cdcd.core.retry import Delays


class SpoolConfig(Section):
    """Storage for changes of transactions that are not committed yet."""

    directory: FilePath = Field(
        description="Directory for data that does not fit into memory, created if missing. Use a directory on a disk. "
        "If "
        "the system's temporary directory is in memory, name another one. The files are unlinked when "
        "they are created, so that nothing is left when the process ends.",
        json_schema_extra={"default_from": "{tmp}/cdcd-{name}"},
    )
    memory_bytes_max: int = Field(
        64 * MIB,
        ge=64 * KIB,
        le=TIB,
        description="Maximum size of the changes of undecided transactions that cdcd keeps in memory, in bytes.",
    )
    disk_bytes_max: Annotated[int, Field(ge=MIB, le=1024 * TIB)] | None = Field(
        None,
        description="The daemon stops when the files would be larger than this, in bytes. null: the only limit is the "
        "disk.",
    )
    durable: bool = Field(
        False,
        description="While Kafka is away, cdcd writes the stream to a log on the local disk and confirms what is "
        "synced there, so that PostgreSQL need not keep WAL for the outage. If the disk with the log is lost during "
        "an outage, its changes are lost too, and the next start refuses to skip them. "
        "Needs durable_directory and kafka.delivery: exactly_once; not together with postgres.two_phase, "
        "postgres.binary or columns.",
    )
    durable_directory: FilePath | None = Field(
        None,
        description="Directory for the durable log, created if missing, on a disk that survives a restart of the "
        "machine. The directory belongs to one pipeline. The next start with Kafka delivers the log, also if durable "
        "is off by "
        "then. null: there is no log.",
    )
    durable_bytes_max: int = Field(
        64 * GIB,
        ge=MIB,
        le=1024 * TIB,
        description="Largest size of the durable log, in bytes. If the log has this size or the disk is full, cdcd "
        "confirms no further position, and PostgreSQL keeps the WAL.",
    )
    durable_after_s: float = Field(
        10,
        ge=0,
        le=86_400,
        description="Time without Kafka after which cdcd begins to write the durable log, in seconds. A daemon that "
        "starts during the outage continues an existing log at once.",
    )

    @model_validator(mode="after")
    def _has_a_place(self) -> Self:
        if self.durable and self.durable_directory is None:
            raise ValueError(
                "durable needs durable_directory: a directory on a disk that outlives the process and its machine's "
                "restart"
            )
        return self


class RecordConfig(Section):
    """A recording of the stream, for `cdcd replay`. It holds every value of the published tables."""

    directory: FilePath | None = Field(
        None,
        description="Directory for the recording, created if missing. Only one daemon may record into this directory. "
        "Only the owner can read the files. null: nothing is recorded.",
    )
    bytes_max: int = Field(
        10 * GIB,
        ge=4 * MIB,
        le=1024 * TIB,
        description="Largest size of the recording, in bytes. cdcd deletes the oldest segments above this size.",
    )
    age_s_max: Annotated[float, Field(ge=60, le=315_360_000)] | None = Field(
        604_800,
        description="Age of a segment's newest event from which cdcd deletes the segment, in seconds. null: "
        "only bytes_max counts.",
    )
    segment_bytes: int = Field(
        64 * MIB,
        ge=MIB,
        le=GIB,
        description="Size of a segment. A replay begins with a segment, and the oldest segments are deleted as a "
        "whole.",
    )

    @model_validator(mode="after")
    def _several_segments(self) -> Self:
        if self.bytes_max < 4 * self.segment_bytes:
            raise ValueError("bytes_max must be at least four times segment_bytes")
        return self


class ListenConfig(Section):
    """An HTTP server for probes and scrapes."""

    enabled: bool = Field(True, description="Whether the HTTP server runs.")
    host: Text = Field(
        "127.0.0.1",
        description="Address to listen on; 0.0.0.0 for all. Everybody who reaches the address may read, unless "
        "reading needs a token.",
    )
    port: int = Field(
        9464, ge=0, le=65535, description="Port to listen on. 0: any free one, which is logged."
    )
    hosts: Annotated[tuple[HostPattern, ...], Field(strict=False)] = Field(
        default=(),
        description="Host names that requests may use, such as cdcd.example.com or *.example.com. localhost, `host` "
        "and all addresses are always allowed. The server refuses a request for another host name, because the web "
        "page of an attacker could make a browser send requests under the attacker's name. /healthz and /readyz "
        "answer under every name, without reasons under other names.",
    )
    certificate_file: FilePath | None = Field(
        None,
        description="PEM file with the certificate of the HTTP server and its chain. With it and key_file, the server "
        "speaks HTTPS only. A renewed file is used within seconds, without a restart.",
    )
    key_file: FilePath | None = Field(
        None, description="PEM file with the key of certificate_file, without a passphrase."
    )
    read_token: Token | None = Field(
        None,
        description="Reading /metrics, and the daemon's page and /v1/status, needs this text as a bearer token, or as "
        "the password of Basic authentication. At least 16 characters. /healthz and /readyz need none, and give their "
        "reasons only with it. null: everybody who reaches the port may read.",
    )
    read_token_file: FilePath | None = Field(
        None,
        description="File that holds the token for reading, instead of read_token. After SIGHUP, the daemon reads it "
        "again.",
    )

    @property
    def scheme(self) -> str:
        """Return the scheme of the server's URLs."""
        return "http" if self.certificate_file is None else "https"

    def action_tokens(self) -> list[tuple[str, bytes]]:
        """Return the name and the token of everyone who may ask for actions."""
        return []

    @field_serializer("read_token")
    def _show_read_token(self, token: SecretStr | None) -> str | None:
        return None if token is None else MASK

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together: set both or none")
        return self


class HttpConfig(ListenConfig):
    """The page, the status, /metrics, /healthz and /readyz; actions where there is a token."""

    stall_s_max: float = Field(
        30,
        ge=1,
        le=3600,
        description="/healthz fails when the event loop has been stuck for this time, in seconds, so that a "
        "supervisor restarts the process.",
    )
    token: Token | None = Field(
        None,
        description="Allows actions by HTTP (POST /v1/snapshots, /v1/pause, /v1/resume, /v1/tables/stop, "
        "/v1/tables/resume) for requests with this text as a bearer token. At least 16 characters. null: actions are "
        "off.",
    )
    token_file: FilePath | None = Field(
        None,
        description="File that holds the token, instead of token. SIGHUP reads it again.",
    )
    tokens: NamedTokens | None = Field(
        None,
        description="Further tokens for actions, a token for each person or program. Each line has a name, a space and "
        "a token of at least 16 characters. The event http.action has the name of the token. Lines that begin with # "
        "are ignored.",
    )
    tokens_file: FilePath | None = Field(
        None,
        description="File with the lines of tokens, instead of tokens. SIGHUP reads it again.",
    )

    def action_tokens(self) -> list[tuple[str, bytes]]:
        """The name and the token of everyone who may ask for actions. The name of `token` is ""."""
        named = [] if self.tokens is None else named_tokens(self.tokens.get_secret_value())
        own = [] if self.token is None else [("", self.token.get_secret_value())]
        return [(name, token.encode()) for name, token in (*own, *named)]

    @field_serializer("token", "tokens")
    def _show_token(self, token: SecretStr | None) -> str | None:
        return None if token is None else MASK


class LogConfig(Section):
    """The log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level that is logged."
    )
    format: Literal["auto", "json", "console"] = Field(
        "auto",
        description="json: one object per line, for machines; console: for people. auto: console if standard error is "
        "a terminal, else json.",
    )


class OtlpConfig(Section):
    """Spans, metrics and log lines for a collector of OpenTelemetry (docs/opentelemetry.md); needs cdcd[otel]."""

    endpoint: Text | None = Field(
        None,
        description="Address of the collector for OTLP over HTTP, such as http://collector:4318. cdcd adds /v1/traces, "
        "/v1/metrics and /v1/logs. null: nothing is sent. Headers for the collector, also secret ones, are in the "
        "environment variable OTEL_EXPORTER_OTLP_HEADERS.",
    )
    traces: bool = Field(
        True,
        description="Whether a transaction whose context names a traceparent (context.enabled) has a span, from its "
        "commit to Kafka's acknowledgement.",
    )
    metrics: bool = Field(True, description="Whether the metrics of /metrics are sent, with the same names.")
    logs: bool = Field(True, description="Whether the lines of the log are sent.")
    interval_s: float = Field(
        15.0, ge=1, le=3600, description="Seconds between two transmissions of the metrics."
    )

    @model_validator(mode="after")
    def _is_address(self) -> Self:
        if self.endpoint is not None:
            check_address("endpoint", self.endpoint, "put secrets into OTEL_EXPORTER_OTLP_HEADERS")
        return self


class ReadyConfig(Section):
    """Limits for /readyz."""

    lag_bytes_max: Annotated[int, Field(ge=0, le=1024 * TIB)] | None = Field(
        GIB,
        description="The instance is not ready if the delivered position is more than this number of bytes "
        "behind the server's WAL. null: no limit.",
    )
    during_snapshot: bool = Field(
        False,
        description="Whether the active instance is ready while it reads the rows of the first snapshot, which come "
        "before the stream. During this time, the lag limits do not apply. true lets a rollout continue that waits "
        "until all instances are ready; the Helm chart sets it.",
    )
    lag_s_max: Annotated[float, Field(ge=0, le=2_592_000)] | None = Field(
        300,
        description="The instance is not ready if changes wait for delivery and the last delivered commit is "
        "older than this, in seconds. null: no limit.",
    )


class RetryConfig(Section):
    """How long to wait before the next attempt: doubled each time, with jitter."""

    initial_s: float = Field(
        0.5,
        ge=0.01,
        le=60,
        description="Wait before the second attempt, in seconds; the first attempt follows at once.",
    )
    max_s: float = Field(30, ge=0.01, le=3600, description="Longest wait between two attempts, in seconds.")

    @model_validator(mode="after")
    def _ordered(self) -> "RetryConfig":
        if self.max_s < self.initial_s:
            raise ValueError("max_s must not be below initial_s")
        return self

    @property
    def delays(self) -> Delays:
        return Delays(self.initial_s, self.max_s)


class SecurityConfig(Section):
    """Whether a weakness in the pipeline's protection is a warning or ends the start."""

    strict: bool = Field(
        False,
        description="Whether `cdcd run` refuses to start where `cdcd check` finds a weakness: a file with a secret "
        "that other users can read or replace, a key or token that can be guessed, a reader with rights that it does "
        "not need, a table of an owner who is not trusted and that no reader reads. Such a table ends the first start "
        "only; a table that is published later is not read, and fails by its name. false: each weakness is a warning "
        "of `cdcd check`.",
    )
