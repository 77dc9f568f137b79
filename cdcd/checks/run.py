"""What `cdcd check` finds: both sides looked at, and whether they go together; nothing is changed.

A side that cannot be asked is a finding too, and its error's exit code is the command's: it says more than that
something was found. The other side is asked all the same.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from cdcd.checks import kafka, postgres
from cdcd.checks.finding import Finding
from cdcd.config.loading import Config
from cdcd.errors import CdcdError, PositionError, SinkError, SinkUnavailableError, SourceError, TransientError
from cdcd.kafka import client
from cdcd.kafka.checkpoint import peek_checkpoint
from cdcd.kafka.topics import TopicSpec
from cdcd.postgres.connection import connect, parse_dsn
from cdcd.postgres.inspection import Wanted
from cdcd.postgres.replication import ReplicationStream
from cdcd.postgres.slot import read_slot
from cdcd.postgres.source import read_source
from cdcd.transactions.position import Position, resume

FOUND_ERROR: Final = 10
"""The exit code when both sides answered and something is wrong (`errors.EXIT_CODES`)."""

CHECKPOINT_S: Final = 10.0
"""How long the broker may take for the checkpoint."""

Ask = Callable[[Config], Awaitable[Sequence[Finding]]]


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, PostgreSQL's first, and the exit code that follows from them."""

    findings: tuple[Finding, ...]
    exit_code: int


def examine(config: Config) -> Report:
    """Ask both sides, and then whether they go together. Raises nothing that the world can cause: that is reported."""
    return asyncio.run(_examine(config))


async def _examine(config: Config) -> Report:
    sides = await gather(config, {"PostgreSQL": ask_postgres, "Kafka": ask_kafka})
    if sides.exit_code not in (0, FOUND_ERROR):
        return sides
    # Not at the same time: each of PostgreSQL's two may take the last free walsender from the other.
    both = await gather(config, {"position": ask_position})
    return Report(sides.findings + both.findings, sides.exit_code or both.exit_code)


async def gather(config: Config, sides: Mapping[str, Ask]) -> Report:
    """The findings of the sides, by name, asked at the same time."""
    answers = await asyncio.gather(*(_ask(name, ask, config) for name, ask in sides.items()))
    findings = tuple(finding for found, _ in answers for finding in found)
    unasked = next((code for _, code in answers if code), 0)
    wrong = FOUND_ERROR if any(finding.level == "error" for finding in findings) else 0
    return Report(findings, unasked or wrong)


async def _ask(name: str, ask: Ask, config: Config) -> tuple[Sequence[Finding], int]:
    try:
        return await ask(config), 0
    except CdcdError as error:
        return [Finding("error", name, error.message, error.hint)], error.exit_code


async def ask_postgres(config: Config) -> Sequence[Finding]:
    """PostgreSQL's findings, from the settings that a run would use."""
    source = config.postgres
    wanted = Wanted(
        slot=source.slot,
        publication=source.publication,
        tables=source.tables,
        topics=config.topic_names(),
        protocol=source.protocol,
        streaming=source.streaming,
        two_phase=source.two_phase,
        failover=source.failover,
        messages=source.messages,
        origin=source.origin,
        binary=source.binary,
        status_interval_s=source.status_interval_s,
        pipeline=config.name,
        application_name=f"{config.name} check",
        connect_timeout_s=source.connect_timeout_s,
    )
    return await postgres.examine(parse_dsn(source.libpq()), wanted)


async def ask_kafka(config: Config) -> Sequence[Finding]:
    """Kafka's findings, from the settings that a run would use."""
    sink, topics = config.kafka, config.topics
    known = [topics.checkpoint]
    if topics.schemas:
        known.append(topics.schemas)
    if config.postgres.messages:
        known.append(topics.message)
    if sink.oversized == "dead_letter":
        known.append(sink.dead_letter_topic)
    connection, producer = client.split(sink.librdkafka())
    largest = str(producer.get("message.max.bytes", kafka.MESSAGE_MAX_BYTES))
    wanted = kafka.Wanted(
        topics=known,
        checkpoint=topics.checkpoint,
        schemas=topics.schemas,
        prefix=topics.prefix,
        spec=TopicSpec(
            topics.create.enabled,
            topics.create.partitions,
            topics.create.replication_factor,
            topics.create.config,
        ),
        exactly_once=sink.delivery == "exactly_once",
        transaction_timeout_s=sink.transaction.timeout_s,
        # What is no number is for librdkafka to refuse, in its words.
        message_max_bytes=int(largest) if largest.isdecimal() else kafka.MESSAGE_MAX_BYTES,
    )
    try:
        return await asyncio.to_thread(kafka.examine, connection, wanted)
    except TransientError as error:
        raise SinkUnavailableError(error.message, hint=error.hint) from error


async def ask_position(config: Config) -> Sequence[Finding]:
    """Whether the slot goes on where Kafka's checkpoint ends. What keeps it from being asked, the sides tell."""
    topic = config.topics.checkpoint
    try:
        position = await _position(config)
    except PositionError as error:
        return [Finding("error", "position", error.message, error.hint)]
    except SinkError as error:
        return [Finding("error", f"topic {topic}", error.message, error.hint)]
    except (TransientError, SourceError):
        return ()
    if position is None:
        return [Finding("ok", "position", f"there is no checkpoint in {topic}: begins where the slot stands")]
    return [Finding("ok", "position", f"goes on after {position}")]


async def _position(config: Config) -> Position | None:
    """Where a start would resume. The slot is read before the checkpoint, which a running daemon moves first."""
    dsn = parse_dsn(config.postgres.libpq())
    name, timeout_s = f"{config.name} check", config.postgres.connect_timeout_s
    async with AsyncExitStack() as stack:
        sql = await connect(dsn, application_name=name, connect_timeout_s=timeout_s)
        stack.push_async_callback(sql.close)
        slot = await read_slot(sql, config.postgres.slot)
        if slot is not None and (slot.confirmed_flush_lsn is None or slot.invalidation_reason):
            raise TransientError("the slot is of no use; PostgreSQL's findings say why")
        connection, _ = client.split(config.kafka.librdkafka())
        topic, key = config.topics.checkpoint, config.name
        found = await asyncio.to_thread(peek_checkpoint, connection, topic, key, CHECKPOINT_S)
        if found is None:
            return None
        stream = await ReplicationStream.open(dsn, application_name=name, connect_timeout_s=timeout_s)
        stack.callback(stream.close)
        identity = await stream.identify()
        source = await read_source(
            stream,
            identity,
            None if slot is None else slot.confirmed_flush_lsn,
            found,
            slot_name=config.postgres.slot,
            options=config.postgres.stream_options,
        )
        return resume(found, source, accept_gap=False).position
