"""A session's work with Kafka beside its topics: the checkpoint, the transactional id, the schemas topic, the sink."""

import asyncio
from concurrent.futures import Executor
from typing import Final

from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.checkpoint import PARTITION, OnIgnored, peek_at_start
from cdcd.adapters.kafka.descriptions import FormerDescriptions
from cdcd.adapters.kafka.oversized import Oversized
from cdcd.adapters.kafka.shared_id import IdSearch, find_sharers, refusal
from cdcd.adapters.kafka.sink import Sink
from cdcd.adapters.kafka.sink_inputs import KnownOfBrokers, Ownership, SinkReports
from cdcd.adapters.postgres.kept_lock import KeptLock
from cdcd.adapters.postgres.lock import AdvisoryLock
from cdcd.config.loading import Config
from cdcd.config.reloading import reread
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.checkpoint_record import Ignored
from cdcd.core.errors import CdcdError, SinkError
from cdcd.core.facts import Fact, Observer
from cdcd.core.facts.operation import (
    CheckpointRecordsIgnored,
    CheckpointTopicsUnread,
    TransactionalIdShared,
    TransactionEnded,
)
from cdcd.core.facts.process import KafkaRetry, TransactionTimeoutUnknown
from cdcd.core.facts.transactions import MessageOversized, RecordOversized
from cdcd.core.records.schema_registrations import SchemaIds
from cdcd.daemon.kafka_calls import KafkaCalls
from cdcd.daemon.kafka_topics import KafkaTopics
from cdcd.daemon.settings import (
    TRANSACTION_S,
    checkpoint_topic,
    checkpoint_writer,
    claim_store,
    id_use,
    own_topics,
    sink_settings,
)

VERIFY_S: Final = 5.0
"""Seconds that PostgreSQL may take to confirm that this instance still holds the advisory lock."""


class KafkaSide:
    """Carries out a session's requests to Kafka. Only `thread` may use the sink.

    Args:
        known: what the process has learned of the brokers, which all of its sessions share.

    Attributes:
        calls: runs blocking calls.
        topics: creates and checks topics.
    """

    def __init__(
        self,
        config: Config,
        observe: Observer,
        thread: Executor,
        known: KnownOfBrokers | None = None,
    ) -> None:
        self._config = config
        self._observe = observe
        self._known = KnownOfBrokers() if known is None else known
        self.calls = KafkaCalls(config, thread)
        self.topics = KafkaTopics(config, observe, self.calls, self._known)
        self._used_id = ""
        """Transactional id by which the newest checkpoint was written; "": unknown."""
        self._ignored_until = -1
        """Offset of the last ignored record of the checkpoint topic that was reported."""

    async def peek(self, *, newest: bool = False, told: int = 0) -> Checkpoint | None:
        """Read the checkpoint without changing anything, before `Sink.open` fences another writer.

        `open_sink` has created or checked the topic before. `newest`, `told`: as in `PeekCheckpoint`.

        Raises:
            SinkUnavailableError: no broker answers.
        """
        topic = checkpoint_topic(self._config, self.calls.answer_s)
        on_ignored = self._report_ignored()
        found = await self.calls.call(
            lambda: peek_at_start(
                topic,
                self.calls.giving_up,
                exists=True,
                newest=newest,
                told=told,
                on_ignored=on_ignored,
            ),
            anywhere=True,
        )
        self.topics.goes_on = found is not None
        self._used_id = topic.records.transactional_id
        schemas = self.calls.schemas()
        if found is None and schemas is not None:
            await self.calls.call(schemas.refuse_others, anywhere=True)
        return found

    async def peek_before_sink(self) -> Checkpoint | None:
        """Return the newest checkpoint. None: the topic has no checkpoint, or does not exist. Raises as `peek`."""
        topic = checkpoint_topic(self._config, self.calls.answer_s)
        return await self.calls.call(
            lambda: peek_at_start(topic, self.calls.giving_up, exists=False), anywhere=True
        )

    async def refuse_shared_id(self, system_identifier: str) -> None:
        """Refuse a transactional id that another pipeline uses, unless this pipeline has used it before.

        Call it after `peek`, and before the sink is opened, because that would end the other pipeline.

        Raises:
            FencedError: another pipeline has used the id recently.
        """
        config = self._config
        use = id_use(config)
        if not use.transactional_id or self._used_id == use.transactional_id:
            return
        connection, _ = client.configured(config.kafka)

        def look() -> IdSearch:
            found = find_sharers(connection, config.topics.checkpoint, use, system_identifier)
            if refused := refusal(found.sharers, use.transactional_id):
                raise refused
            return found

        found = await self.calls.call(look, anywhere=True)
        if found.unread:
            self._observe(CheckpointTopicsUnread(transactional_id=use.transactional_id, topics=found.unread))
        for each in found.sharers:
            self._observe(
                TransactionalIdShared(
                    transactional_id=use.transactional_id,
                    pipeline=each.pipeline,
                    topic=each.topic,
                    age_s=round(each.age_s),
                )
            )

    def _report_ignored(self) -> OnIgnored:
        """Return a function that reports ignored records of the checkpoint topic, each only once."""
        loop = asyncio.get_running_loop()
        topic = self._config.topics.checkpoint

        def report(ignored: Ignored) -> None:
            if ignored.last <= self._ignored_until:
                return
            self._ignored_until = ignored.last
            fact = CheckpointRecordsIgnored(
                topic=topic,
                partition=PARTITION,
                count=ignored.count,
                first_offset=ignored.first,
                last_offset=ignored.last,
                reason=ignored.why,
            )
            loop.call_soon_threadsafe(self._observe, fact)

        return report

    async def forget(self) -> None:
        """Remove the checkpoint that this session wrote. The sink is unusable afterwards."""
        await self.calls.call(checkpoint_writer(self._config, self.calls.answer_s).forget)

    async def former_descriptions(self) -> FormerDescriptions:
        """Return the table descriptions of former runs. SinkUnavailableError: no broker answers."""
        schemas = self.calls.schemas()
        if schemas is None:
            return FormerDescriptions()
        return await self.calls.call(schemas.former_descriptions, anywhere=True)

    async def read_schema_ids(self, ids: SchemaIds) -> None:
        """Read the ids of schemas that former runs used. SinkUnavailableError: no broker answers."""
        schemas = self.calls.schemas()
        if schemas is not None:
            await self.calls.call(lambda: schemas.read(ids.take), anywhere=True)

    async def open_sink(self, lock: AdvisoryLock | KeptLock, *, messages: bool) -> Sink:
        """Create the topics that the sink needs, and the sink, which is not opened yet.

        Args:
            messages: True if logical messages have records, so that their topic is needed.
        """
        config = self._config
        loop = asyncio.get_running_loop()

        def prove_ownership() -> None:
            asyncio.run_coroutine_threadsafe(lock.verify(VERIFY_S), loop).result()

        def credentials() -> dict[str, str]:
            kafka = reread(config).kafka
            given = kafka.librdkafka()
            return {name: given[name] for name in kafka.properties_files}

        def report(fact: Fact) -> None:
            loop.call_soon_threadsafe(self._observe, fact)

        def on_retry(error: CdcdError, wait_s: float) -> None:
            report(KafkaRetry(message=error.message, hint=error.hint, wait_s=round(wait_s, 3)))

        topics = own_topics(config, messages=messages)
        events: tuple[str, ...] = ()
        if config.tables.on_error == "set_aside" and not config.outbox.messages:
            # If such a topic is refused, the first event sets the outbox table aside.
            events = config.outbox.settings.topics
            topics = [topic for topic in topics if topic not in events]
        # After a takeover, changes of all tables arrive soon. So all existing topics are listed once.
        await self.topics.ensure_topics(topics, prefix=config.topics.prefix)
        await self.topics.ensure_topics(events, refused={})
        timeout_s = await self._transaction_timeout_s()
        return Sink(
            sink_settings(config, timeout_s),
            Ownership(prove_ownership, lambda: lock.lapsed),
            SinkReports(
                on_retry,
                lambda offset: report(
                    TransactionEnded(topic=config.topics.checkpoint, partition=PARTITION, offset=offset)
                ),
                self._report_ignored(),
            ),
            self._known,
            credentials=credentials,
            stopping=self.calls.giving_up,
            oversized=Oversized(
                config.kafka.oversized,
                config.kafka.dead_letter_topic,
                claim_store(config.kafka),
                lambda topic, size, to: report(_oversized(config.kafka.oversized, topic, size, to)),
                config.topics.message,
            ),
        )

    async def _transaction_timeout_s(self) -> float:
        config = self._config.kafka
        if config.transaction.timeout_s is not None:
            return float(config.transaction.timeout_s)
        if config.delivery == "at_least_once":
            return TRANSACTION_S
        try:
            return await self.calls.call(
                lambda: self.calls.admin().transaction_timeout_max_s(), anywhere=True
            )
        except SinkError as error:
            self._observe(TransactionTimeoutUnknown(message=error.message, timeout_s=TRANSACTION_S))
            return TRANSACTION_S


def _oversized(policy: str, topic: str, size: int, to: str) -> Fact:
    if to:
        return RecordOversized(topic=topic, record_bytes=size, oversized=policy, went_to=to)
    return MessageOversized(topic=topic, record_bytes=size)
