"""The keys of `spool`, `http`, `ready` and `log`: the process itself."""

from typing import Annotated, Literal

from pydantic import Field

from cdcd.config.types import GIB, KIB, MIB, TIB, FilePath, Section, Text


class SpoolConfig(Section):
    """Where changes of undecided transactions wait."""

    directory: FilePath = Field(
        description="Directory for what does not fit into memory, created if missing. Should be on a disk: "
        "where the system's temporary directory is in memory, name another. The files have no names; "
        "nothing stays behind.",
        json_schema_extra={"default_from": "{tmp}/cdcd-{name}"},
    )
    memory_bytes_max: int = Field(
        64 * MIB,
        ge=64 * KIB,
        le=TIB,
        description="Changes of undecided transactions that are kept in memory.",
    )
    disk_bytes_max: Annotated[int, Field(ge=MIB, le=1024 * TIB)] | None = Field(
        None,
        description="The daemon stops when the files would be larger than this. null: what the disk has.",
    )


class ListenConfig(Section):
    """An HTTP server for probes and scrapes."""

    enabled: bool = Field(True, description="Whether the HTTP server runs.")
    host: Text = Field(
        "127.0.0.1", description="Address to listen on; 0.0.0.0 for all. There is no authentication."
    )
    port: int = Field(
        9464, ge=0, le=65535, description="Port to listen on. 0: any free one, which is logged."
    )


class HttpConfig(ListenConfig):
    """/metrics, /healthz and /readyz."""

    stall_s_max: float = Field(
        30,
        ge=1,
        le=3600,
        description="/healthz fails when the event loop has been stuck for so long, so that a supervisor "
        "restarts it.",
    )


class LogConfig(Section):
    """What is logged, to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level that is shown."
    )
    format: Literal["auto", "json", "console"] = Field(
        "auto",
        description="json: one object per line, for machines; console: for people. auto: console if standard error is "
        "a terminal, else json.",
    )


class ReadyConfig(Section):
    """When /readyz says that the pipeline keeps up."""

    lag_bytes_max: Annotated[int, Field(ge=0, le=1024 * TIB)] | None = Field(
        GIB, description="Largest distance between the server's WAL and what is delivered. null: any."
    )
    lag_s_max: Annotated[float, Field(ge=0, le=2_592_000)] | None = Field(
        300, description="Largest age of the last delivered commit while there is more to deliver. null: any."
    )
