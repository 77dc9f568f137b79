"""Kafka as a life of the pipeline sees it: the sink, the topics, and blocking calls in the right thread."""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Executor
from typing import Final, TypeVar

from cdcd.config.loading import Config
from cdcd.config.secrets import reread
from cdcd.errors import CdcdError, SinkError, SinkUnavailableError, TransientError
from cdcd.facts import (
    Fact,
    KafkaRetry,
    Observer,
    RecordOversized,
    TopicCreated,
    TransactionTimeoutUnknown,
)
from cdcd.kafka import client
from cdcd.kafka.admin import Admin
from cdcd.kafka.checkpoint import peek_at_start
from cdcd.kafka.descriptions import FormerDescriptions, read_descriptions
from cdcd.kafka.fitting import SizeLimits
from cdcd.kafka.oversized import Oversized
from cdcd.kafka.producer import SinkSettings
from cdcd.kafka.sink import Sink
from cdcd.kafka.topics import TopicSpec, check_keyless, ensure_topics, existing_topics
from cdcd.postgres.lock import AdvisoryLock
from cdcd.retry import Backoff
from cdcd.transactions.position import Checkpoint

VERIFY_S: Final = 5.0
"""How long PostgreSQL may take to say that the advisory lock is still ours."""

TOPICS_S: Final = 15.0
"""How long the broker may take to answer about topics, or `startup_timeout_s` where that is shorter."""

TRANSACTION_S: Final = 60.0
"""The timeout of Kafka transactions, in seconds, if the brokers do not tell the longest one that they allow."""

T = TypeVar("T")


class KafkaSide:
    """One life's dealings with Kafka. `thread` is the one that alone may touch the sink.

    `sizes`: what brokers refused for its size; give each life of the process the same object.
    """

    def __init__(
        self, config: Config, observe: Observer, thread: Executor, sizes: SizeLimits | None = None
    ) -> None:
        self.thread = thread
        self._sizes = SizeLimits() if sizes is None else sizes
        self.giving_up = threading.Event()
        self._config = config
        self._observe = observe
        self._topics: set[str] = set()
        self._keyless: set[str] = set()
        self._answer_s = min(TOPICS_S, max(1.0, config.startup_timeout_s))

    async def peek(self) -> Checkpoint | None:
        """The checkpoint as it is now, to be judged before `Sink.open` shuts out another writer and reads it again.

        It changes nothing and creates nothing. A broker that is away: SinkUnavailableError.
        """
        config = self._config
        connection, _ = client.split(config.kafka.librdkafka())
        return await self.call(
            lambda: peek_at_start(
                connection, config.topics.checkpoint, config.name, self._answer_s, self.giving_up
            ),
            anywhere=True,
        )

    async def former_descriptions(self) -> FormerDescriptions:
        """What former runs said of tables. A broker that is away: SinkUnavailableError."""
        config = self._config
        topic = config.topics.schemas
        if not topic:
            return FormerDescriptions()
        connection, _ = client.split(config.kafka.librdkafka())
        return await self.call(
            lambda: read_descriptions(
                connection, topic, f"{config.name}-schemas", self._answer_s, self.giving_up
            ),
            anywhere=True,
        )

    async def open_sink(self, lock: AdvisoryLock, *, messages: bool) -> Sink:
        """The sink, not opened yet, with the topics it needs; `messages`: logical messages will come."""
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

        connection, producer = client.split(config.kafka.librdkafka())
        topics = [config.topics.checkpoint]
        if config.topics.schemas:
            topics.append(config.topics.schemas)
        if messages:
            topics.append(config.topics.message)
        if config.kafka.oversized == "dead_letter":
            topics.append(config.kafka.dead_letter_topic)
        # A takeover meets every table within moments: what is there need not be asked for one by one.
        await self.ensure_topics(topics, prefix=config.topics.prefix)
        timeout_s = await self._transaction_timeout_s()
        return Sink(
            SinkSettings(
                client=connection,
                producer=producer,
                exactly_once=config.kafka.delivery == "exactly_once",
                transactional_id=config.kafka.transactional_id,
                checkpoint_topic=config.topics.checkpoint,
                key=config.name,
                batch_bytes_max=config.kafka.transaction.bytes_max,
                timeout_s=timeout_s,
                backoff_initial_s=config.kafka.retry.initial_s,
                backoff_max_s=config.kafka.retry.max_s,
            ),
            prove_ownership=prove_ownership,
            credentials=credentials,
            lapsed=lambda: lock.lapsed,
            stopping=self.giving_up,
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
            sizes=self._sizes,
        )

    async def _transaction_timeout_s(self) -> float:
        config = self._config.kafka
        if config.transaction.timeout_s is not None:
            return float(config.transaction.timeout_s)
        if config.delivery == "at_least_once":
            return TRANSACTION_S
        try:
            return await self.call(lambda: self._admin().transaction_timeout_max_s(), anywhere=True)
        except SinkError as error:
            self._observe(TransactionTimeoutUnknown(message=error.message, timeout_s=TRANSACTION_S))
            return TRANSACTION_S

    async def ensure_topics(
        self, topics: Sequence[str], *, prefix: str = "", keyless: Collection[str] = ()
    ) -> None:
        """Create or check topics by few requests, once each.

        With a `prefix`, also learn which of those that begin with it are there. `keyless`: those of `topics` whose
        records have no key, which must not be compacted.

        Raises:
            SinkUnavailableError: the broker is away.
            SinkError: a topic is missing and may not be created, or does not take what is to be written to it.
        """
        missing = [topic for topic in topics if topic not in self._topics]
        unchecked = [topic for topic in topics if topic in keyless and topic not in self._keyless]
        if not missing and not unchecked:
            return
        created, found = await self.call(lambda: self._look(missing, unchecked, prefix), anywhere=True)
        for topic in created:
            self._observe(TopicCreated(topic=topic))
        self._topics.update(missing, found)
        self._keyless.update(unchecked)

    def _look(self, missing: list[str], keyless: list[str], prefix: str) -> tuple[list[str], set[str]]:
        """What was created, and what is there."""
        config = self._config
        admin = self._admin()
        create = config.topics.create
        spec = TopicSpec(create.enabled, create.partitions, create.replication_factor, dict(create.config))
        created = []
        if missing:
            created = ensure_topics(
                admin, missing, spec, checkpoint=config.topics.checkpoint, schemas=config.topics.schemas
            )
        if keyless:
            check_keyless(admin, keyless)
        return created, existing_topics(admin, prefix) if prefix else set()

    def _admin(self) -> Admin:
        """A client that lives and ends in the calling thread: the end may block."""
        connection, _ = client.split(self._config.kafka.librdkafka())
        return Admin(connection, self._answer_s, self.giving_up)

    async def await_topics(self, topics: Sequence[str], *, keyless: Collection[str] = ()) -> None:
        """As `ensure_topics` for a stream that runs: leaving PostgreSQL would not bring the broker back."""
        retry = self._config.kafka.retry
        backoff = Backoff(retry.initial_s, retry.max_s)
        while True:
            try:
                return await self.ensure_topics(topics, keyless=keyless)
            except SinkUnavailableError as error:
                if self.giving_up.is_set():
                    raise
                wait_s = backoff.next(random.random())  # noqa: S311  spreads attempts, guards nothing
                self._observe(KafkaRetry(message=error.message, hint=error.hint, wait_s=round(wait_s, 3)))
                await asyncio.sleep(wait_s)

    async def call(self, call: Callable[[], T], *, anywhere: bool = False) -> T:
        """Run a blocking Kafka call, `anywhere` if it does not touch the sink. A broker away: SinkUnavailableError."""
        try:
            if anywhere:
                return await asyncio.to_thread(call)
            return await self.in_thread(call)
        except TransientError as error:
            raise SinkUnavailableError(error.message, hint=error.hint) from error

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        """Run a call that may touch the sink."""
        return asyncio.get_running_loop().run_in_executor(self.thread, call)
