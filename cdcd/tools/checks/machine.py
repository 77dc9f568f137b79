"""Findings of `cdcd check` about this machine: port of the pages, secrets, writable directories."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cdcd import __version__
from cdcd.adapters.credentials.weaknesses import weaknesses
from cdcd.build import is_compiled
from cdcd.config.loading import Config
from cdcd.core.errors import FILES_HINT, CdcdError, ConfigError
from cdcd.daemon.process import (
    BASE_BYTES,
    DEFAULT_BOUNDS,
    FILES_MIN,
    MIB,
    existing,
    file_limit,
    files_needed,
    memory_limit,
    message_bytes_max,
    spool_problem,
)
from cdcd.daemon.settings import claim_store
from cdcd.telemetry.findings import Finding, Level, of_error
from cdcd.telemetry.http import Tls, listening_socket
from cdcd.telemetry.http_client import status_of
from cdcd.telemetry.otlp import require_library

SPOOL_ROOM: Final = 1 << 30
"""Bytes that should be free for the spool if `spool.disk_bytes_max` sets no limit."""


def examine(config: Config) -> Iterator[Finding]:
    """Return all findings. If the port is in use, its owner is asked for its name."""
    yield from _memory(config)
    yield from check_files(config)
    yield from _port(config)
    yield from _certificate(config)
    yield from _secrets(config)
    yield from _spool(config)
    yield from _durable(config)
    yield from _claim_checks(config)
    yield from _telemetry_library(config)


def _telemetry_library(config: Config) -> Iterator[Finding]:
    """Check that the extra of `otlp.endpoint` is installed."""
    if config.otlp.endpoint is None:
        return
    try:
        require_library()
    except ConfigError as error:
        yield of_error("otlp.library", "otlp.endpoint", error)
    else:
        yield Finding("ok", "otlp.library", "otlp.endpoint", "OpenTelemetry's SDK is installed")


def check_code() -> Finding:
    """A finding about compiled or pure Python code. It is shown last, because no pipeline fails because of it."""
    subject = f"cdcd {__version__}"
    if is_compiled():
        return Finding("ok", "machine.compiled", subject, "compiled")
    found = "pure Python: half as many rows a second (docs/installing.md)"
    return Finding("warning", "machine.compiled", subject, found)


def _memory(config: Config) -> Iterator[Finding]:
    subject = "memory"
    bounds = max(0, config.kafka.queue_bytes_max + config.spool.memory_bytes_max - DEFAULT_BOUNDS)
    base = (BASE_BYTES + bounds) // MIB
    rule = f"{base} MiB, 3 times the largest message and twice its record"
    limit = memory_limit()
    if limit is None:
        yield Finding("ok", "machine.memory", subject, f"no limit; cdcd needs {rule}")
        return
    largest = message_bytes_max(limit, bounds)
    said = f"limit {limit // MIB} MiB; cdcd needs {rule}: enough for messages of {largest // MIB} MiB"
    if largest >= MIB:
        yield Finding("ok", "machine.memory", subject, said)
    else:
        hint = (
            "Raise the limit of the control group, or lower kafka.queue_bytes_max and spool.memory_bytes_max."
        )
        yield Finding("warning", "machine.memory", subject, said, hint)


def check_files(config: Config) -> Iterator[Finding]:
    """Compare the number of files that this process may open with the number that cdcd needs."""
    subject, limit = "open files", file_limit()
    brokers = str(config.kafka.bootstrap_servers).count(",") + 1
    needed = files_needed(config, brokers)
    if limit is None or limit >= needed:
        said = "no limit" if limit is None else f"limit {limit}"
        yield Finding("ok", "machine.files", subject, f"{said}; cdcd needs {needed} files and connections")
    else:
        level: Level = "error" if limit < FILES_MIN else "warning"
        said = f"limit {limit}; cdcd needs {needed} files and connections, and {FILES_MIN} to start"
        yield Finding(level, "machine.files", subject, said, FILES_HINT)


def _port(config: Config) -> Iterator[Finding]:
    listen = config.http
    if not listen.enabled:
        return
    subject = f"{listen.host} port {listen.port}"
    try:
        listening_socket(listen).close()
    except ConfigError as error:
        if _listens(config):
            yield Finding("ok", "http.port", subject, "this pipeline's daemon listens there")
        else:
            yield of_error("http.port", subject, error)
    else:
        yield Finding("ok", "http.port", subject, "free")


def _certificate(config: Config) -> Iterator[Finding]:
    http = config.http
    if not http.enabled or http.certificate_file is None:
        return
    subject = str(http.certificate_file)
    try:
        Tls.of(http)
    except ConfigError as error:
        yield of_error("http.certificate", subject, error)
    else:
        yield Finding("ok", "http.certificate", subject, "a certificate with its key")


def _secrets(config: Config) -> Iterator[Finding]:
    level: Level = "error" if config.security.strict else "warning"
    for each in weaknesses(config):
        yield Finding(level, "secret.file" if each.of_file else "secret.weak", each.key, each.found, each.fix)


def _listens(config: Config) -> bool:
    """Return True if a daemon of this pipeline answers at the port."""
    found = status_of(config)
    return found is not None and found["pipeline"] == config.name


def _spool(config: Config) -> Iterator[Finding]:
    directory = Path(config.spool.directory)
    subject = "spool.directory"
    error = spool_problem(directory)
    if error is not None:
        yield of_error("spool.directory", subject, error)
        return
    limit = config.spool.disk_bytes_max
    room, wanted = shutil.disk_usage(existing(directory)).free, SPOOL_ROOM if limit is None else limit
    if room < wanted:
        larger = (
            f"less than spool.disk_bytes_max of {wanted >> 20} MiB" if limit else "and a full disk ends cdcd"
        )
        yield Finding(
            "warning",
            "spool.directory",
            subject,
            f"{directory}: {room >> 20} MiB are free, {larger}",
            "Free disk space, or name a directory on another disk in spool.directory. Changes of large open "
            "transactions "
            "wait there until the transaction ends.",
        )
    else:
        yield Finding("ok", "spool.directory", subject, str(directory))


def _durable(config: Config) -> Iterator[Finding]:
    spool = config.spool
    if not spool.durable or spool.durable_directory is None:
        return
    directory, subject = Path(spool.durable_directory), "spool.durable_directory"
    error = spool_problem(directory, "durable log", subject)
    if error is not None:
        yield of_error("spool.durable", subject, error)
        return
    room = shutil.disk_usage(existing(directory)).free
    found = f"{directory}; an instance that has no such directory cannot take over while it holds changes"
    if room < spool.durable_bytes_max:
        yield Finding(
            "warning",
            "spool.durable",
            subject,
            f"{found}; {room >> 20} MiB are free, spool.durable_bytes_max is {spool.durable_bytes_max >> 20} MiB",
            "Free disk space, or lower spool.durable_bytes_max. On a full disk, PostgreSQL keeps the WAL as without "
            "the log.",
        )
    else:
        yield Finding("ok", "spool.durable", subject, found)


def _claim_checks(config: Config) -> Iterator[Finding]:
    kafka = config.kafka
    in_store = kafka.claim_check_store.url is not None
    subject = "kafka.claim_check_store" if in_store else "kafka.claim_check_directory"
    code = "claim_check.store" if in_store else "claim_check.directory"
    try:
        store = claim_store(kafka)
        if store is None:
            return
        store.prove()
    except CdcdError as error:
        yield of_error(code, subject, error)
    else:
        yield Finding("ok", code, subject, kafka.claim_check_store.url or str(kafka.claim_check_directory))
