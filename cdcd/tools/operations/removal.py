"""Examines a pipeline that is to be dropped or reset, and carries out the plan of `removal_plan.py`.

Nothing is removed unless PostgreSQL and Kafka answer and this process holds the pipeline's advisory lock, so that
an instance that starts meanwhile waits as a standby. Each step may be repeated, so a failed command is run again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final, TypeVar

from cdcd.adapters.durable.log import segments_in
from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.checkpoint import peek_checkpoint
from cdcd.adapters.kafka.descriptions import SchemasTopic
from cdcd.adapters.kafka.errors import unavailable
from cdcd.adapters.postgres.connection import Connection, parse_dsn
from cdcd.adapters.postgres.lock import AdvisoryLock
from cdcd.adapters.postgres.pipeline_state import read_state
from cdcd.adapters.postgres.publication import drop_publication
from cdcd.adapters.postgres.slot import drop_slot
from cdcd.config.loading import Config
from cdcd.core.catalog.claims import Claims
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import CdcdError, FencedError, LimitError, PositionError, SinkError, TransientError
from cdcd.daemon.claiming import claimant, claims_topic
from cdcd.daemon.settings import checkpoint_topic, checkpoint_writer
from cdcd.tools.operations.removal_plan import (
    Command,
    Kind,
    PipelineRemains,
    RemovalPlan,
    RemovalStep,
    RemovedPipeline,
    decide,
)
from cdcd.tools.operations.sides import connect_to, system_identifier

ANSWER_S: Final = 15.0
"""Seconds that the broker may take for each answer."""

WRITER_S: Final = 60.0
"""Seconds that the broker may take to end an open transaction of a killed daemon."""

T = TypeVar("T")


def pipeline_of(config: Config, file: str, checkpoint_of: str) -> RemovedPipeline:
    """Return the pipeline from the configuration and the option `checkpoint_of`."""
    topics = config.topics
    others = {topics.checkpoint}
    heartbeat = config.heartbeat_topic
    if heartbeat is not None and topics.prefix not in heartbeat:
        # Several pipelines may write their heartbeats to such a topic.
        others.add(heartbeat)
    return RemovedPipeline(
        name=config.name,
        file=file,
        slot=config.postgres.slot,
        publication=config.postgres.publication,
        transactional_id=_transactional_id(config),
        prefix=topics.prefix,
        checkpoint_topic=topics.checkpoint,
        own_topics=tuple(topic for topic, _ in config.topic_names().own() if topic not in others),
        creates_topics=topics.create.enabled,
        reads_tables=config.snapshot.mode != "never",
        checkpoint_of=checkpoint_of,
    )


def _transactional_id(config: Config) -> str | None:
    """Return the id of the pipeline's Kafka transactions. None: the pipeline does not use Kafka transactions."""
    return config.kafka.transactional_id if config.kafka.delivery == "exactly_once" else None


def run(
    command: Command,
    config: Config,
    file: str,
    *,
    with_topics: bool,
    checkpoint_of: str,
    show: Callable[[RemovalPlan], None],
    done: Callable[[RemovalStep], None] | None,
) -> RemovalPlan:
    """Show what the command removes and, if `done` is given, remove it.

    Args:
        checkpoint_of: as in `RemovedPipeline`.
        show: called with the plan before anything is done.
        done: called after each step; None: nothing is removed.

    Raises:
        FencedError: an instance is active, or another pipeline uses the transactional id.
        PositionError: a handover is under way, or the pipeline to reset reads another server.
        TransientError, FatalError: PostgreSQL or Kafka does not answer, or refuses. Earlier steps are not undone.
    """
    return asyncio.run(
        _run(command, config, pipeline_of(config, file, checkpoint_of), show, done, with_topics=with_topics)
    )


async def _run(
    command: Command,
    config: Config,
    pipeline: RemovedPipeline,
    show: Callable[[RemovalPlan], None],
    done: Callable[[RemovalStep], None] | None,
    *,
    with_topics: bool,
) -> RemovalPlan:
    async with AsyncExitStack() as stack:
        sql = await connect_to(config, command)
        stack.push_async_callback(sql.close)
        found = await _find(config, pipeline, sql)
        plan = decide(command, pipeline, found, with_topics=with_topics)
        show(plan)
        if plan.refusal is not None:
            raise plan.refusal
        if any(step.kind == "checkpoint" for step in plan.steps):
            await _in_thread(checkpoint_writer(config, WRITER_S).refuse_shared_id)
        if done is None or not plan.steps:
            return plan
        await _lock(config, stack)
        for step in plan.steps:
            await _STEPS[step.kind](config, sql, step)
            done(step)
        return plan


async def _find(config: Config, pipeline: RemovedPipeline, sql: Connection) -> PipelineRemains:
    server = await read_state(sql, config.name, pipeline.slot, pipeline.publication)
    system = await system_identifier(config, "removal")
    try:
        published = server.publication.tables if server.publication is not None else ()
        names = config.topic_names()
        tables = {topic for table in published for topic in names.all_of(table.schema, table.name)}
        checkpoint, topics, described, others, kept, claims = await asyncio.to_thread(
            _ask_kafka, config, pipeline, tables
        )
    except TransientError as error:
        raise unavailable(
            error,
            f"{error.hint} Nothing was removed. If this Kafka is gone for good, free the WAL by hand: "
            f"SELECT pg_drop_replication_slot('{pipeline.slot}');".strip(),
        ) from error
    me = claimant(config)
    mine = set(claims.of(me))
    holders = {topic: claims.holder(topic) for topic in tables | described | mine}
    claimed_by = {
        topic: holder.pipeline
        for topic, holder in holders.items()
        if holder is not None and holder != me and topic in topics
    }
    written = {
        topic
        for topic in holders
        if (names.is_under_prefix(topic) or holders[topic] == me) and topic not in claimed_by
    }
    return PipelineRemains(
        server,
        system,
        checkpoint,
        topics,
        frozenset(written - {*pipeline.own_topics, pipeline.checkpoint_topic}),
        *_log(config),
        others=others,
        kept=kept,
        claims=tuple(sorted(mine)),
        claimed_by=claimed_by,
    )


def _log(config: Config) -> tuple[str, int]:
    """Return the folder of the durable log on this machine, and its size in bytes."""
    folder = config.spool.durable_directory
    if folder is None:
        return "", 0
    try:
        return str(folder), sum(segment.path.stat().st_size for segment in segments_in(Path(folder)))
    except OSError as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: object, error: OSError) -> LimitError:
    return LimitError(
        f"Cannot use the durable log {folder}: {error.strerror}.",
        hint=f"Run the command as the user of the daemon, or move {folder} away.",
    )


async def _remove_log(config: Config, _sql: Connection, _step: RemovalStep) -> None:
    """Delete every segment of the durable log. The pipeline's lock is held, so that no daemon writes there."""
    folder = _log(config)[0]
    try:
        for segment in segments_in(Path(folder)):
            segment.path.unlink(missing_ok=True)
    except OSError as error:
        raise _unreadable(folder, error) from error


def _ask_kafka(
    config: Config, pipeline: RemovedPipeline, tables: Collection[str]
) -> tuple[
    Checkpoint | PositionError | None,
    dict[str, int],
    set[str],
    dict[str, frozenset[str]],
    frozenset[str],
    Claims,
]:
    """Read what Kafka has of the pipeline. `tables`: topics of the published tables."""
    connection, _ = client.configured(config.kafka)
    checkpoint: Checkpoint | PositionError | None
    try:
        checkpoint = peek_checkpoint(checkpoint_topic(config, ANSWER_S))
    except PositionError as error:
        checkpoint = error
    admin = Admin(connection, ANSWER_S)
    existing = admin.names()
    claims = Claims()
    if config.topics.claims in existing:
        # Without the right to read it, no topic counts as claimed, and topics without the prefix stay.
        with suppress(SinkError):
            claims_topic(config, ANSWER_S).read(claims)
    described: set[str] = set()
    others: dict[str, frozenset[str]] = {}
    if config.topics.schemas in existing:
        schemas = SchemasTopic(str(config.topics.schemas), connection, config.name, ANSWER_S)
        described = set(schemas.described_topics())
        others = schemas.others()
    if isinstance(checkpoint, Checkpoint):
        described.update(checkpoint.topics)
    own = {pipeline.checkpoint_topic, *pipeline.own_topics, *tables, *described, *claims.of(claimant(config))}
    names = [name for name in existing if name in own or name.startswith(f"{pipeline.prefix}.")]
    infos = admin.topics(names)
    topics = admin.offsets({name: info.partitions for name, info in infos.items() if info is not None})
    kept = frozenset(name for name, info in infos.items() if info is not None and info.may_delete is False)
    return checkpoint, topics, described, others, kept, claims


async def _lock(config: Config, stack: AsyncExitStack) -> None:
    """Hold the pipeline's lock until `stack` ends. FencedError: an instance holds it."""
    lock = await AdvisoryLock.open(
        parse_dsn(*config.postgres.access()),
        config.postgres.slot,
        application_name=f"{config.name} removal",
        connect_timeout_s=config.postgres.connect_timeout_s,
        lease_s=config.postgres.lease_s,
    )
    stack.callback(lock.close)
    held = await lock.acquire_at_once()
    if held is not None:
        raise FencedError(
            f"An instance of the pipeline became active ({held.application_name}, server process {held.pid}).",
            hint="Stop all instances of the pipeline first, then run the command again.",
        )
    keep = asyncio.create_task(lock.keep(), name="keep the lock")

    async def end() -> None:
        keep.cancel()
        with suppress(asyncio.CancelledError):
            await keep

    stack.push_async_callback(end)


async def _drop_slot(config: Config, sql: Connection, _step: RemovalStep) -> None:
    await drop_slot(sql, config.postgres.slot)


async def _forget_checkpoint(config: Config, _sql: Connection, _step: RemovalStep) -> None:
    await _in_thread(checkpoint_writer(config, WRITER_S).forget)


async def _delete_topics(config: Config, _sql: Connection, step: RemovalStep) -> None:
    connection, _ = client.configured(config.kafka)
    outcomes = await _in_thread(lambda: Admin(connection, ANSWER_S).delete(step.topics))
    for outcome in outcomes.values():
        if isinstance(outcome, CdcdError):
            raise outcome


async def _release_claims(config: Config, _sql: Connection, step: RemovalStep) -> None:
    await _in_thread(lambda: claims_topic(config, ANSWER_S).release(step.topics))


async def _drop_publication(config: Config, sql: Connection, _step: RemovalStep) -> None:
    await drop_publication(sql, config.postgres.publication)


_STEPS: Final[dict[Kind, Callable[[Config, Connection, RemovalStep], Awaitable[None]]]] = {
    "slot": _drop_slot,
    "checkpoint": _forget_checkpoint,
    "log": _remove_log,
    "topics": _delete_topics,
    "claims": _release_claims,
    "publication": _drop_publication,
}
"""Functions of the steps."""


async def _in_thread(call: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(call)
    except TransientError as error:
        raise unavailable(error, f"{error.hint} Run the command again.".strip()) from error
