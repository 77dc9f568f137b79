"""What `cdcd check` says of this machine: the port of the pages, and the directories that cdcd writes to."""

import http.client
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from cdcd.checks.directories import spool_problem
from cdcd.checks.finding import Finding, of_error
from cdcd.config.loading import Config
from cdcd.errors import ConfigError, LimitError
from cdcd.kafka.oversized import Oversized
from cdcd.telemetry.http import HttpServer

ANSWER_S: Final = 2.0
"""Seconds that whoever listens on the port may take to say which pipeline it is."""


def examine(config: Config) -> Iterator[Finding]:
    """All findings. It blocks for at most `ANSWER_S`."""
    yield from _port(config)
    yield from _spool(config)
    yield from _claim_checks(config)


def _port(config: Config) -> Iterator[Finding]:
    listen = config.http
    if not listen.enabled:
        return
    subject = f"{listen.host} port {listen.port}"
    try:
        HttpServer(listen, lambda _environ, _start_response: ()).close()
    except ConfigError as error:
        if _listens(config):
            yield Finding("ok", "http.port", subject, "this pipeline's daemon listens there")
        else:
            yield of_error("http.port", subject, error)
    else:
        yield Finding("ok", "http.port", subject, "free")


def _listens(config: Config) -> bool:
    """Whether a daemon of this pipeline answers there."""
    host = config.http.host
    address = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104  asked, not bound
    try:
        with closing(http.client.HTTPConnection(address, config.http.port, timeout=ANSWER_S)) as connection:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return False
    return f'cdcd_pipeline_info{{pipeline="{config.name}"' in text


def _spool(config: Config) -> Iterator[Finding]:
    directory = Path(config.spool.directory)
    subject = "spool.directory"
    error = spool_problem(directory)
    if error is not None:
        yield of_error("spool.directory", subject, error)
    else:
        yield Finding("ok", "spool.directory", subject, str(directory))


def _claim_checks(config: Config) -> Iterator[Finding]:
    kafka = config.kafka
    if kafka.oversized != "claim_check":
        return
    subject = "kafka.claim_check_directory"
    try:
        Oversized(kafka.oversized, directory=str(kafka.claim_check_directory)).prove()
    except LimitError as error:
        yield of_error("claim_check.directory", subject, error)
    else:
        yield Finding("ok", "claim_check.directory", subject, str(kafka.claim_check_directory))
