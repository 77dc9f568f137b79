"""Protocol version and options that a server supports.

pgoutput refuses an unknown option, so each option is sent only to servers that support it. An explicit setting that
the server does not support is a `ConfigError`; a mere preference ("auto", or logical messages, which are on by
default) is dropped silently.

Leaving out `two_phase` does not switch it off: a slot with the flag (from its creation, or from an earlier start)
sends Begin Prepare and related messages with any options and version (logical.c).

Sources: parse_output_parameters in pgoutput.c and logicalproto.h of PostgreSQL 13 to 18.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from cdcd.core.errors import ConfigError

SERVER_VERSION_MIN: Final = 130000

PROTOCOL_SINCE: Final = {1: 100000, 2: 140000, 3: 150000, 4: 160000}
"""First `server_version_num` with each protocol version."""


class StreamingMode(StrEnum):
    """When transactions larger than `logical_decoding_work_mem` are sent.

    OFF: after their commit, like all other transactions. ON: in blocks while they are open. PARALLEL: as ON, and
    Stream Abort has LSN and time; the stream is otherwise the same.
    """

    OFF = "off"
    ON = "on"
    PARALLEL = "parallel"


STREAMING_PROTOCOL: Final = {StreamingMode.OFF: 1, StreamingMode.ON: 2, StreamingMode.PARALLEL: 4}
"""Protocol version that each mode needs."""

OPTION_SINCE: Final = {
    "proto_version": 100000,
    "publication_names": 100000,
    "binary": 140000,
    "messages": 140000,
    "streaming": 140000,
    "two_phase": 150000,
    "origin": 160000,
}
"""First `server_version_num` with each option of pgoutput."""

TWO_PHASE_PROTOCOL: Final = 3

ALTER_TWO_PHASE_SINCE: Final = 180000
"""First `server_version_num` that can remove two_phase from a slot. On an older server, a slot keeps the flag."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of START_REPLICATION, and their consequences for the reader.

    `options` are pgoutput's names and values in the order of sending; the values are not yet quoted as SQL
    literals. `abort_info` is the argument of `read_message`. `messages` is False if the server is too old for
    logical messages.
    """

    protocol: int
    streaming: StreamingMode
    messages: bool
    options: tuple[tuple[str, str], ...]
    abort_info: bool


def protocol_version(server_version_num: int) -> int:
    """Return the newest protocol version that both the server and cdcd support."""
    if server_version_num < SERVER_VERSION_MIN:
        raise ConfigError(
            f"The server is {_release(server_version_num)}, too old for cdcd.",
            hint="Use PostgreSQL 13 or newer.",
        )
    return max(version for version, since in PROTOCOL_SINCE.items() if since <= server_version_num)


def start_options(
    server_version_num: int,
    protocol: int | Literal["auto"],
    publications: Sequence[str],
    *,
    streaming: StreamingMode | Literal["auto", "off", "on", "parallel"] = "auto",
    two_phase: bool = False,
    messages: bool = True,
    origin: Literal["any", "none"] = "any",
    binary: bool = False,
) -> Options:
    """Return version and options for a server; raise ConfigError for a setting that they do not support."""
    version = _choose_protocol(server_version_num, protocol)
    mode = _choose_streaming(version, streaming)
    if two_phase and version < TWO_PHASE_PROTOCOL:
        raise _lacking("two_phase: true", TWO_PHASE_PROTOCOL, version)
    if binary and server_version_num < OPTION_SINCE["binary"]:
        raise _too_old("binary transfer", OPTION_SINCE["binary"], server_version_num)
    if origin != "any" and server_version_num < OPTION_SINCE["origin"]:
        raise _too_old(f"origin: {origin}", OPTION_SINCE["origin"], server_version_num)
    wanted = {
        "proto_version": str(version),
        "publication_names": ",".join(_quoted(name) for name in publications),
        "binary": "true" if binary else "",
        "messages": "true" if messages else "",
        "streaming": "" if mode is StreamingMode.OFF else mode.value,
        "two_phase": "true" if two_phase else "",
        "origin": origin,
    }
    options = tuple(
        (name, value) for name, value in wanted.items() if value and OPTION_SINCE[name] <= server_version_num
    )
    return Options(
        protocol=version,
        streaming=mode,
        messages=messages and OPTION_SINCE["messages"] <= server_version_num,
        options=options,
        abort_info=mode is StreamingMode.PARALLEL,
    )


def _choose_protocol(server_version_num: int, protocol: int | Literal["auto"]) -> int:
    newest = protocol_version(server_version_num)
    if protocol == "auto":
        return newest
    if protocol not in PROTOCOL_SINCE:
        raise ConfigError(
            f"There is no protocol version {protocol}.",
            hint=f"Use auto, or one of {', '.join(map(str, PROTOCOL_SINCE))}.",
        )
    if protocol > newest:
        raise _too_old(f"protocol: {protocol}", PROTOCOL_SINCE[protocol], server_version_num)
    return protocol


def _choose_streaming(version: int, streaming: str) -> StreamingMode:
    """Return the requested mode, or with "auto" the last mode that the protocol version supports."""
    if streaming == "auto":
        return [mode for mode, needed in STREAMING_PROTOCOL.items() if needed <= version][-1]
    mode = StreamingMode(streaming)
    if STREAMING_PROTOCOL[mode] > version:
        raise _lacking(f"streaming: {mode}", STREAMING_PROTOCOL[mode], version)
    return mode


def _quoted(name: str) -> str:
    """Return a publication's name in a form that SplitIdentifierString (varlena.c) reads with its case."""
    return '"' + name.replace('"', '""') + '"'


def _release(server_version_num: int) -> str:
    return f"PostgreSQL {server_version_num // 10000}"


def _lacking(what: str, needed: int, version: int) -> ConfigError:
    return ConfigError(
        f"{what} needs protocol version {needed}, but version {version} is in use.",
        hint=f"It takes {_release(PROTOCOL_SINCE[needed])} or newer and protocol: auto.",
    )


def _too_old(what: str, needed: int, server_version_num: int) -> ConfigError:
    return ConfigError(
        f"{what} needs {_release(needed)}, but the server is {_release(server_version_num)}.",
        hint=f"Take postgres.{what.partition(':')[0]} out of the configuration, or upgrade the server.",
    )
