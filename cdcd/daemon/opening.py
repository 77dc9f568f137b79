"""From a configuration to a pipeline that is ready to run, in the one order that is safe.

1. The advisory lock: from here on no other instance of the pipeline is active.
2. Kafka: topics, then `init_transactions`, which shuts out a former instance that is still alive somewhere, then the
   checkpoint, which only now can not change any more.
3. Checkpoint against server and slot: where to resume, or why not, before anything is made on a server that may be
   the wrong one. Beside a checkpoint, a missing slot is a gap.
4. Publication and slot, created where they are missing.
5. START_REPLICATION, from the slot's own position: what the checkpoint covers is skipped here, not by asking the
   server to start later, because it would leave out prepared transactions that are not decided yet.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from cdcd import __version__
from cdcd.daemon.config import Config
from cdcd.daemon.facts import (
    CheckpointRead,
    Fact,
    GapAccepted,
    KafkaRetry,
    LockAcquired,
    Observer,
    PublicationCreated,
    RecordOversized,
    SlotCreated,
    SlotWaiting,
    StandbyWaiting,
    StreamStarted,
    TopicCreated,
)
from cdcd.daemon.observe import Telemetry
from cdcd.daemon.pipeline import Limits, Pipeline
from cdcd.errors import (
    CdcdError,
    LimitError,
    PositionError,
    SinkUnavailableError,
    SourceError,
    TransientError,
)
from cdcd.kafka import client
from cdcd.kafka.oversized import Oversized
from cdcd.kafka.sink import Sink, SinkSettings
from cdcd.kafka.topics import TopicSpec, ensure_topics
from cdcd.postgres import catalog
from cdcd.postgres.connection import Connection, Dsn, connect, parse_dsn
from cdcd.postgres.lock import AdvisoryLock
from cdcd.postgres.publication import ensure_publication, read_publication
from cdcd.postgres.replication import Identity, ReplicationStream
from cdcd.postgres.slot import SlotState, check_slot, create_slot, read_slot
from cdcd.protocol.lsn import Lsn
from cdcd.protocol.messages import Relation
from cdcd.protocol.versions import Options, start_options
from cdcd.records.envelope import EnvelopeSettings
from cdcd.records.formats.debezium_json import DebeziumJsonEncoder
from cdcd.records.relations import BUILTIN_TYPES, TypeDescription
from cdcd.transactions.assembler import Assembler
from cdcd.transactions.batches import Batch, Batches
from cdcd.transactions.feedback import Feedback, interval_for
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.position import Checkpoint, Source, resume
from cdcd.transactions.spool import Spool

SLOT_WAIT_SHARE: Final = 1.25
"""A walsender whose client died silently holds the slot until `wal_sender_timeout`: wait a little longer."""

SLOT_WAIT_S: Final = 75.0
"""The same where the server has no such timeout: about what TCP keepalives need."""

VERIFY_S: Final = 5.0

T = TypeVar("T")


class Opening:
    """Owns all that a life holds open; `open` once, `close` always."""

    def __init__(
        self,
        config: Config,
        telemetry: Telemetry,
        observe: Observer,
        kafka_thread: Executor,
        *,
        flushed: int,
        unstreamed_until: int,
    ) -> None:
        self._config = config
        self._telemetry = telemetry
        self._observe = observe
        self._kafka_thread = kafka_thread
        self._giving_up = threading.Event()
        self._stack = AsyncExitStack()
        self._types: dict[int, TypeDescription] = dict(BUILTIN_TYPES)
        self._topics: set[str] = set()
        self._ledger = Ledger(flushed)
        self._unstreamed_until = unstreamed_until

    @property
    def flushed(self) -> int:
        """The position that this life told PostgreSQL at most; the next one's must not be lower."""
        return self._ledger.flushed

    def give_up(self) -> None:
        """Make whatever waits for Kafka return with a `TransientError`."""
        self._giving_up.set()

    async def close(self) -> None:
        """Close all, and wait until the Kafka thread has let go of this life's sink."""
        self.give_up()
        await self._stack.aclose()

    async def open(self, *, accept_gap: bool) -> Pipeline:
        """Everything up to a running stream.

        Raises:
            TransientError: a side does not answer, or is not ready.
            FatalError: configuration, privileges, positions: a person must act.
        """
        config = self._config
        dsn = parse_dsn(config.postgres.libpq())
        lock = await self._lock(dsn)
        sql = await connect(
            dsn,
            application_name=f"{config.name} catalog",
            connect_timeout_s=config.postgres.connect_timeout_s,
        )
        self._stack.push_async_callback(sql.close)
        stream = await ReplicationStream.open(
            dsn, application_name=config.name, connect_timeout_s=config.postgres.connect_timeout_s
        )
        self._stack.callback(stream.close)
        options = start_options(
            stream.server_version,
            config.postgres.protocol,
            [config.postgres.publication],
            streaming="off" if self._unstreamed_until else config.postgres.streaming,
            two_phase=config.postgres.two_phase,
            messages=config.postgres.messages,
            origin=config.postgres.origin,
            binary=config.postgres.binary,
        )
        sink = await self._sink(lock, messages=options.messages)
        found = await self._kafka(sink.open)
        # Only now: a former instance may have delivered what the server wrote until it was shut out.
        identity = await stream.identify()
        slot = await self._find_slot(sql, identity)
        source = await self._source(stream, identity, slot, found)
        gap = _gap(found, source, accept_gap=accept_gap)
        await self._publication(sql)
        if slot is None:
            slot = await self._create_slot(sql, stream, identity)
            source = replace(source, slot_confirmed=slot.confirmed_flush_lsn)
        checkpoint = await self._resume(sink, found, source, gap)
        pipeline = await self._pipeline(stream, lock, sink, sql, checkpoint, slot, options, identity)
        await stream.start(
            config.postgres.slot,
            0,
            options.options,
            publication=config.postgres.publication,
            slot_wait_s=SLOT_WAIT_SHARE * await stream.wal_sender_timeout_s() or SLOT_WAIT_S,
            on_slot_active=lambda message: self._observe(
                SlotWaiting(slot=config.postgres.slot, message=message)
            ),
        )
        self._observe(
            StreamStarted(
                slot=config.postgres.slot,
                server_version=stream.server_version,
                protocol=options.protocol,
                streaming=options.streaming.value,
                position=str(checkpoint.position),
            )
        )
        return pipeline

    async def _lock(self, dsn: Dsn) -> AdvisoryLock:
        config = self._config
        lock = await AdvisoryLock.open(
            dsn,
            config.postgres.slot,
            application_name=f"{config.name} lock",
            connect_timeout_s=config.postgres.connect_timeout_s,
        )
        self._stack.callback(lock.close)
        self._telemetry.role = "standby"
        await lock.acquire(
            lambda held: self._observe(
                StandbyWaiting(slot=config.postgres.slot, holder_pid=held.pid, holder=held.application_name)
            )
        )
        self._telemetry.role = "active"
        self._observe(LockAcquired(slot=config.postgres.slot))
        return lock

    async def _publication(self, sql: Connection) -> None:
        postgres = self._config.postgres
        tables = None if postgres.tables is None else list(postgres.tables)
        ensured = await ensure_publication(sql, postgres.publication, tables)
        if ensured.created:
            self._observe(PublicationCreated(publication=postgres.publication))

    async def _find_slot(self, sql: Connection, identity: Identity) -> SlotState | None:
        postgres = self._config.postgres
        state = await read_slot(sql, postgres.slot)
        if state is None:
            return None
        check_slot(state, identity.database)
        if state.two_phase and not postgres.two_phase:
            raise SourceError(
                f"Slot {postgres.slot} decodes prepared transactions at PREPARE, the configuration says otherwise.",
                hint="Set postgres.two_phase: true; a slot keeps this mode once it has it (PostgreSQL before 18).",
            )
        return state

    async def _create_slot(self, sql: Connection, stream: ReplicationStream, identity: Identity) -> SlotState:
        postgres = self._config.postgres
        created = await create_slot(
            stream,
            postgres.slot,
            two_phase=postgres.two_phase,
            observer=sql,
            on_wait=lambda wait: self._observe(
                SlotWaiting(slot=wait.slot, message=f"open transaction: pid {wait.pid}, gid {wait.gid}")
            ),
        )
        self._observe(SlotCreated(slot=postgres.slot, position=str(Lsn(created.consistent_point))))
        state = await self._find_slot(sql, identity)
        if state is None:
            raise PositionError(
                f"Slot {postgres.slot} was dropped as soon as it was created.", hint="By whom?"
            )
        return state

    async def _sink(self, lock: AdvisoryLock, *, messages: bool) -> Sink:
        config = self._config
        loop = asyncio.get_running_loop()

        def prove_ownership() -> None:
            asyncio.run_coroutine_threadsafe(lock.verify(VERIFY_S), loop).result()

        def report(fact: Fact) -> None:
            loop.call_soon_threadsafe(self._observe, fact)

        def on_retry(error: CdcdError, wait_s: float) -> None:
            report(KafkaRetry(message=error.message, hint=error.hint, wait_s=round(wait_s, 3)))

        connection, producer = client.split(config.kafka.librdkafka())
        topics = [config.topics.checkpoint]
        if messages:
            topics.append(config.topics.message)
        if config.kafka.oversized == "dead_letter":
            topics.append(config.kafka.dead_letter_topic)
        await self._ensure_topics(topics)
        sink = Sink(
            SinkSettings(
                client=connection,
                producer=producer,
                exactly_once=config.kafka.delivery == "exactly_once",
                transactional_id=config.kafka.transactional_id,
                checkpoint_topic=config.topics.checkpoint,
                key=config.name,
                timeout_s=float(config.kafka.transaction.timeout_s),
                backoff_initial_s=config.kafka.retry.initial_s,
                backoff_max_s=config.kafka.retry.max_s,
            ),
            prove_ownership=prove_ownership,
            stopping=self._giving_up,
            oversized=Oversized(
                config.kafka.oversized,
                config.kafka.dead_letter_topic,
                str(config.kafka.claim_check_directory or ""),
                lambda topic, size, to: report(
                    RecordOversized(
                        topic=topic, record_bytes=size, oversized=config.kafka.oversized, went_to=to
                    )
                ),
            ),
            on_retry=on_retry,
        )
        self._stack.push_async_callback(self._in_kafka_thread, sink.close)
        return sink

    async def _source(
        self,
        stream: ReplicationStream,
        identity: Identity,
        slot: SlotState | None,
        found: Checkpoint | None,
    ) -> Source:
        postgres = self._config.postgres
        before = identity.timeline if found is None else found.timeline
        return Source(
            system_identifier=identity.system_identifier,
            timeline=identity.timeline,
            wal_end=identity.flushed,
            slot_confirmed=None if slot is None else slot.confirmed_flush_lsn,
            stream=f"publication={postgres.publication} messages={postgres.messages} origin={postgres.origin}",
            branched_at=await stream.branched_at(before, identity.timeline),
            slot=postgres.slot,
        )

    async def _resume(
        self, sink: Sink, found: Checkpoint | None, source: Source, gap: PositionError | None
    ) -> Checkpoint:
        topic = self._config.topics.checkpoint
        position = resume(found, source, accept_gap=gap is not None)
        if gap is not None:
            self._observe(GapAccepted(message=gap.message, position=str(position)))
        start = Checkpoint(source.system_identifier, source.timeline, source.stream, position)
        self._observe(CheckpointRead(topic=topic, found=found is not None, position=str(position)))
        if start != found:
            await self._kafka(lambda: sink.deliver(Batch(position, position), start))
        return start

    async def _pipeline(
        self,
        stream: ReplicationStream,
        lock: AdvisoryLock,
        sink: Sink,
        sql: Connection,
        checkpoint: Checkpoint,
        slot: SlotState,
        options: Options,
        identity: Identity,
    ) -> Pipeline:
        config, position = self._config, checkpoint.position
        assert slot.confirmed_flush_lsn is not None
        self._ledger = Ledger(max(self._ledger.flushed, slot.confirmed_flush_lsn))
        interval_s = interval_for(config.postgres.status_interval_s, await stream.wal_sender_timeout_s())
        encoder = DebeziumJsonEncoder(
            EnvelopeSettings(
                version=__version__,
                prefix=config.topics.prefix,
                database=identity.database,
                message_topic=config.topics.message,
                tombstones=config.topics.tombstones,
                truncate=config.topics.truncate,
            )
        )
        spool = Spool(self._spool_directory(), config.spool.memory_bytes_max, config.spool.disk_bytes_max)
        assembler = Assembler(self._ledger, spool, position, abort_info=options.abort_info)
        self._stack.callback(assembler.close)

        self._telemetry.queue_bytes_max = config.kafka.queue_bytes_max

        async def describe(relation: Relation) -> None:
            await self._describe(sql, encoder, relation)

        async def survey() -> None:
            await self._survey(sql)

        return Pipeline(
            limits=Limits(
                status_interval_s=interval_s,
                shutdown_grace_s=config.postgres.shutdown_grace_s,
                prepared_warning_age_s=config.postgres.prepared_warning_age_s,
            ),
            stream=stream,
            lock=lock,
            sink=sink,
            kafka_thread=self._kafka_thread,
            start=checkpoint,
            ledger=self._ledger,
            feedback=Feedback(interval_s, time.monotonic()),
            assembler=assembler,
            spool=spool,
            batches=Batches(
                position,
                bytes_max=config.kafka.transaction.bytes_max,
                records_max=config.kafka.transaction.records_max,
                queue_bytes_max=config.kafka.queue_bytes_max,
                idle_s=interval_s,
            ),
            encoder=encoder,
            describe=describe,
            survey=survey,
            unstreamed_until=self._unstreamed_until,
            telemetry=self._telemetry,
            observe=self._observe,
        )

    def _spool_directory(self) -> str:
        directory = Path(self._config.spool.directory)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise LimitError(
                f"Cannot create the spool directory {directory}: {error.strerror}.",
                hint="Create it for the daemon's user, or point spool.directory elsewhere.",
            ) from error
        return str(directory)

    async def _describe(self, sql: Connection, encoder: DebeziumJsonEncoder, relation: Relation) -> None:
        missing = [column.type_oid for column in relation.columns if column.type_oid not in self._types]
        if missing:
            self._types.update(await catalog.types(sql, missing))
        tables = await catalog.describe(sql, [relation.oid])
        encoder.define(relation, tables[relation.oid], self._types)
        await self._await_topic(encoder.topic_of(relation.oid))

    async def _survey(self, sql: Connection) -> None:
        postgres = self._config.postgres
        state = await read_slot(sql, postgres.slot)
        if state is None:
            raise PositionError(
                f"Slot {postgres.slot} was dropped while it was in use.",
                hint="Changes since then are lost to it. Start again for a new slot, with --accept-gap.",
            )
        self._telemetry.retained_wal_bytes = state.retained_bytes
        if await read_publication(sql, postgres.publication) is None:
            raise SourceError(
                f"Publication {postgres.publication} was dropped while it was in use.",
                hint="Create it again. Changes written in between can not be decoded any more: PostgreSQL looks a "
                "publication up as of the change.",
            )

    async def _ensure_topics(self, topics: list[str]) -> None:
        """Create or check topics, once each; a broker that is away is waited for."""
        config = self._config
        missing = [topic for topic in topics if topic not in self._topics]
        if not missing:
            return
        connection, _ = client.split(config.kafka.librdkafka())
        create = config.topics.create
        spec = TopicSpec(create.enabled, create.partitions, create.replication_factor, dict(create.config))
        created = await self._kafka(
            lambda: ensure_topics(connection, missing, spec, checkpoint=config.topics.checkpoint),
            anywhere=True,
        )
        for topic in created:
            self._observe(TopicCreated(topic=topic))
        self._topics.update(missing)

    async def _await_topic(self, topic: str) -> None:
        """As `_ensure_topics` for a stream that runs: leaving PostgreSQL would not bring the broker back."""
        retry = self._config.kafka.retry
        wait_s = retry.initial_s
        while True:
            try:
                return await self._ensure_topics([topic])
            except SinkUnavailableError as error:
                if self._giving_up.is_set():
                    raise
                self._observe(KafkaRetry(message=error.message, hint=error.hint, wait_s=wait_s))
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, retry.max_s)

    async def _kafka(self, call: Callable[[], T], *, anywhere: bool = False) -> T:
        """Run a blocking Kafka call, `anywhere` if it does not touch the sink. A broker away: SinkUnavailableError."""
        try:
            if anywhere:
                return await asyncio.to_thread(call)
            return await self._in_kafka_thread(call)
        except TransientError as error:
            raise SinkUnavailableError(error.message, hint=error.hint) from error

    def _in_kafka_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._kafka_thread, call)


def _gap(found: Checkpoint | None, source: Source, *, accept_gap: bool) -> PositionError | None:
    """The gap between checkpoint and source if there is one and it is accepted; raised if it is not."""
    try:
        resume(found, source, accept_gap=False)
    except PositionError as gap:
        if not accept_gap:
            raise
        return gap
    return None
