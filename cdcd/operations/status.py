"""Looks at a pipeline for `cdcd status`: the server, Kafka's checkpoint and the daemon's HTTP, at the same time.

Nothing is changed, and no instance is disturbed. What cannot be asked is part of the answer.
"""

import asyncio
import json
import time
import urllib.error
import urllib.request
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Final

from cdcd.config.loading import Config
from cdcd.errors import CdcdError, SinkUnavailableError, TransientError
from cdcd.kafka import client
from cdcd.kafka.checkpoint import peek_checkpoint
from cdcd.operations.pipeline_status import Named, Numbers, PipelineStatus
from cdcd.postgres.connection import connect, parse_dsn
from cdcd.postgres.pipeline_state import PipelineState, read_state
from cdcd.postgres.replication import ReplicationStream
from cdcd.postgres.source import read_source
from cdcd.transactions.position import Checkpoint, resume

CHECKPOINT_S: Final = 10.0
"""Seconds that the broker may take for the checkpoint."""

AWAY_HINT: Final = (
    "Check: 1. the broker runs; 2. kafka.bootstrap_servers is reachable from this machine; 3. security.protocol in "
    "kafka.properties matches the broker's listener."
)

HTTP_S: Final = 3.0
"""Seconds that the daemon may take for a page."""

_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}  # noqa: S104  where others listen


def url_of(config: Config) -> str:
    """Where a daemon of this configuration on this machine has its HTTP; "" if it has none, or at any port."""
    http = config.http
    if not http.enabled or not http.port:
        return ""
    host = _EVERYWHERE.get(http.host, f"[{http.host}]" if ":" in http.host else http.host)
    return f"http://{host}:{http.port}"


def look(config: Config, file: str, url: str = "") -> PipelineStatus:
    """Ask all that can be asked. Raises nothing that the world can cause: that is reported.

    Args:
        file: the configuration's name, for commands in hints.
        url: where the daemon's HTTP is; "": as the configuration says.
    """
    return asyncio.run(_look(config, file, url or url_of(config)))


async def _look(config: Config, file: str, url: str) -> PipelineStatus:
    named = Named(
        config.name,
        file,
        config.postgres.slot,
        config.postgres.publication,
        config.topics.checkpoint,
        url,
        config.postgres.prepared_warning_age_s,
    )
    server, checkpoint, (numbers, stranger) = await asyncio.gather(
        _server(config), _checkpoint(config), asyncio.to_thread(ask_daemon, url, config.name)
    )
    position = None
    if isinstance(server, PipelineState) and server.active is None and isinstance(checkpoint, Checkpoint):
        slot = server.slot
        # What makes a slot useless is said of the slot. An instance that is active has compared the two.
        if slot is None or not (slot.active or slot.invalidation_reason or slot.confirmed_flush_lsn is None):
            position = await _position(config, checkpoint, None if slot is None else slot.confirmed_flush_lsn)
    return PipelineStatus(named, datetime.now(UTC), server, checkpoint, position, numbers, stranger)


async def _server(config: Config) -> PipelineState | CdcdError:
    postgres = config.postgres
    try:
        sql = await connect(
            parse_dsn(postgres.libpq()),
            application_name=f"{config.name} status",
            connect_timeout_s=postgres.connect_timeout_s,
        )
        try:
            return await read_state(sql, config.name, postgres.slot, postgres.publication)
        finally:
            await sql.close()
    except CdcdError as error:
        return error


async def _checkpoint(config: Config) -> Checkpoint | CdcdError | None:
    connection, _ = client.split(config.kafka.librdkafka())
    try:
        return await asyncio.to_thread(
            peek_checkpoint, connection, config.topics.checkpoint, config.name, CHECKPOINT_S
        )
    except TransientError as error:
        return SinkUnavailableError(error.message, hint=error.hint or AWAY_HINT)
    except CdcdError as error:
        return error


async def _position(config: Config, found: Checkpoint, confirmed: int | None) -> CdcdError | None:
    """Why a start would refuse to go on; None: it would not, or PostgreSQL does not let us ask."""
    postgres = config.postgres
    async with AsyncExitStack() as stack:
        try:
            stream = await ReplicationStream.open(
                parse_dsn(postgres.libpq()),
                application_name=f"{config.name} status",
                connect_timeout_s=postgres.connect_timeout_s,
            )
            stack.callback(stream.close)
            source = await read_source(
                stream,
                await stream.identify(),
                confirmed,
                found,
                slot_name=postgres.slot,
                options=postgres.stream_options,
            )
            resume(found, source, accept_gap=False)
        except CdcdError as error:
            return error
    return None


def ask_daemon(url: str, pipeline: str) -> tuple[Numbers | None, str]:
    """The daemon's numbers, and the name of the pipeline that answered if it is another one."""
    if not url:
        return None, ""
    try:
        text = _page(f"{url}/metrics")
        ready = json.loads(_page(f"{url}/readyz"))
    except (OSError, ValueError, urllib.error.URLError):
        return None, ""
    return read_numbers(text, tuple(map(str, ready.get("reasons", ()))), pipeline)


def _page(url: str) -> str:
    request = urllib.request.Request(url, headers={"Accept": "text/plain"})  # noqa: S310  http, by url_of or the operator
    try:
        with urllib.request.urlopen(request, timeout=HTTP_S) as answer:  # noqa: S310
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        # /readyz says with 503 why it is not ready.
        with error:
            return error.read().decode()


def read_numbers(text: str, reasons: tuple[str, ...], pipeline: str) -> tuple[Numbers | None, str]:
    """The numbers in a page of metrics. ValueError: it is not such a page."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415  few need it

    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def value(name: str) -> float | None:
        found = samples.get(name)
        return found[0][1] if found else None

    def count(name: str) -> int:
        return int(value(name) or 0)

    named = samples.get("cdcd_pipeline_info", [({}, 1.0)])[0][0].get("pipeline", "")
    if named != pipeline:
        return None, named or "a program that is not cdcd"
    changes: dict[str, int] = {}
    for labels, amount in samples.get("cdcd_events_total", ()):
        changes[labels["table"]] = changes.get(labels["table"], 0) + int(amount)
    lag_bytes, started = value("cdcd_lag_bytes"), value("process_start_time_seconds")
    return Numbers(
        version=samples["cdcd_build_info"][0][0]["version"],
        role=next((labels["role"] for labels, is_it in samples["cdcd_role"] if is_it), "starting"),
        streaming=bool(value("cdcd_streaming")),
        started_at=None if started is None else datetime.fromtimestamp(min(started, time.time()), UTC),
        lag_bytes=None if lag_bytes is None else int(lag_bytes),
        lag_s=value("cdcd_lag_seconds"),
        queue_bytes=count("cdcd_queue_bytes"),
        queue_bytes_max=count("cdcd_queue_limit_bytes"),
        spool_memory_bytes=count("cdcd_spool_memory_bytes"),
        spool_disk_bytes=count("cdcd_spool_disk_bytes"),
        streamed_open=count("cdcd_streamed_open"),
        prepared_open=count("cdcd_prepared_open"),
        changes=changes,
        reasons=reasons,
    ), ""
