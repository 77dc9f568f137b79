"""A session's work with Kafka: creates the sink and the topics, and runs blocking calls in the right thread."""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from typing import Final, TypeVar

from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.checkpoint import PARTITION, OnIgnored, peek_at_start
from cdcd.adapters.kafka.descriptions import FormerDescriptions, SchemasTopic
from cdcd.adapters.kafka.errors import fill_names, rights_hint, unavailable
from cdcd.adapters.kafka.oversized import Oversized
from cdcd.adapters.kafka.shared_id import IdSearch, find_sharers, refusal
from cdcd.adapters.kafka.sink import KnownOfBrokers, Ownership, Sink, SinkReports
from cdcd.adapters.kafka.topics import (
    check_keyless,
    create_hint,
    ensure_topics,
    message_limits,
    not_writable,
)
from cdcd.adapters.postgres.kept_lock import KeptLock
from cdcd.adapters.postgres.lock import AdvisoryLock
from cdcd.config.loading import Config
from cdcd.config.reloading import reread
from cdcd.core.catalog.sharing import whole_topic
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.checkpoint_record import Ignored
from cdcd.core.errors import CdcdError, SinkError, SinkUnavailableError, TransientError
from cdcd.core.facts import Fact, Observer
from cdcd.core.facts.operation import (
    CheckpointRecordsIgnored,
    CheckpointTopicsUnread,
    TransactionalIdShared,
    TransactionEnded,
)
from cdcd.core.facts.process import KafkaRetry, TransactionTimeoutUnknown
from cdcd.core.facts.tables import TopicCreated, TopicLost
from cdcd.core.facts.transactions import MessageOversized, RecordOversized
from cdcd.core.pasted import read_table
from cdcd.core.records.schema_registrations import SchemaIds
from cdcd.daemon.claiming import Claiming
from cdcd.daemon.settings import (
    TRANSACTION_S,
    checkpoint_topic,
    checkpoint_writer,
    claim_store,
    id_use,
    names,
    own_topics,
    sink_settings,
    topic_spec,
)

VERIFY_S: Final = 5.0
"""Seconds that PostgreSQL may take to confirm that this instance still holds the advisory lock."""

TOPICS_S: Final = 15.0
"""Seconds within which the broker must answer about topics. A shorter `startup_timeout_s` has precedence."""

AHEAD_MAX: Final = 500
"""Maximum number of topics that are created in advance, in one request with a topic that is needed now."""

T = TypeVar("T")


class KafkaSide:
    """Carries out a session's requests to Kafka. Only `thread` may use the sink.

    Args:
        known: what the process has learned of the brokers, which all of its sessions share.
    """

    def __init__(
        self,
        config: Config,
        observe: Observer,
        thread: Executor,
        known: KnownOfBrokers | None = None,
    ) -> None:
        self.thread = thread
        self._known = KnownOfBrokers() if known is None else known
        self.giving_up = threading.Event()
        self._config = config
        self._observe = observe
        self._topics: set[str] = set()
        self._keyless: set[str] = set()
        self._coming: dict[str, asyncio.Future[None]] = {}
        """Topics that are being created in advance; each future is done when the request has ended."""
        self._not_ahead: set[str] = set()
        """Topics that are created only when needed, because the broker refused one of them in advance."""
        self._goes_on = False
        """True if there is a checkpoint, so that topics of tables may have received records before this session."""
        self._used_id = ""
        """Transactional id by which the newest checkpoint was written; "": unknown."""
        self._had_records: Mapping[str, str] | None = None
        """Topics that received records before this session, with their tables. None: not read yet."""
        self._ignored_until = -1
        """Offset of the last ignored record of the checkpoint topic that was reported."""
        self._claiming: Claiming | None = None
        self._answer_s = min(TOPICS_S, max(1.0, config.startup_timeout_s))

    async def peek(self, *, newest: bool = False, told: int = 0) -> Checkpoint | None:
        """Read the checkpoint without changing anything, before `Sink.open` fences another writer.

        `open_sink` has created or checked the topic before. `newest`, `told`: as in `PeekCheckpoint`.

        Raises:
            SinkUnavailableError: no broker answers.
        """
        topic = checkpoint_topic(self._config, self._answer_s)
        on_ignored = self._report_ignored()
        found = await self.call(
            lambda: peek_at_start(
                topic,
                self.giving_up,
                exists=True,
                newest=newest,
                told=told,
                on_ignored=on_ignored,
            ),
            anywhere=True,
        )
        self._goes_on = found is not None
        self._used_id = topic.records.transactional_id
        schemas = self._schemas()
        if found is None and schemas is not None:
            await self.call(schemas.refuse_others, anywhere=True)
        return found

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

        found = await self.call(look, anywhere=True)
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
        await self.call(checkpoint_writer(self._config, self._answer_s).forget)

    async def former_descriptions(self) -> FormerDescriptions:
        """Return the table descriptions of former runs. SinkUnavailableError: no broker answers."""
        schemas = self._schemas()
        if schemas is None:
            return FormerDescriptions()
        return await self.call(schemas.former_descriptions, anywhere=True)

    async def read_schema_ids(self, ids: SchemaIds) -> None:
        """Read the ids of schemas that former runs used. SinkUnavailableError: no broker answers."""
        schemas = self._schemas()
        if schemas is not None:
            await self.call(lambda: schemas.read(ids.take), anywhere=True)

    def _schemas(self) -> SchemasTopic | None:
        config = self._config
        topic = config.topics.schemas
        if not topic:
            return None
        connection, _ = client.configured(config.kafka)
        return SchemasTopic(topic, connection, config.name, self._answer_s, self.giving_up)

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
        await self.ensure_topics(topics, prefix=config.topics.prefix)
        await self.ensure_topics(events, refused={})
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
            stopping=self.giving_up,
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
            return await self.call(lambda: self._admin().transaction_timeout_max_s(), anywhere=True)
        except SinkError as error:
            self._observe(TransactionTimeoutUnknown(message=error.message, timeout_s=TRANSACTION_S))
            return TRANSACTION_S

    def has_topics(self, topics: Collection[str]) -> bool:
        """Whether this session knows that all of these topics exist. A share counts as its topic (`sharing.py`)."""
        return self._topics.issuperset(map(whole_topic, topics))

    async def ensure_topics(
        self,
        topics: Sequence[str],
        *,
        prefix: str = "",
        keyless: Collection[str] = (),
        ahead: Sequence[str] = (),
        refused: dict[str, CdcdError] | None = None,
    ) -> None:
        """Create or check each topic once, by few requests.

        Args:
            prefix: prefix of further existing topics to remember; "": none.
            keyless: topics among `topics` with records without a key. They must not be compacted.
            ahead: topics that will be needed soon. They are created with the others, or alone. If the broker
                refuses one of them, only `topics` are created, and these topics are never again created in advance.
            refused: gets the topics that cannot be used, each with the error; None: the first error is raised.

        Raises:
            SinkUnavailableError: no broker answers.
            SinkError: a topic is missing and may not be created, or does not accept its records.
        """
        while coming := {self._coming[topic] for topic in topics if topic in self._coming}:
            await asyncio.wait(coming)
        missing = [topic for topic in topics if topic not in self._topics]
        unchecked = [topic for topic in topics if topic in keyless and topic not in self._keyless]
        others: list[str] = []
        if self._config.topics.create.enabled:
            known = self._topics.union(self._not_ahead, self._coming, missing)
            others = [topic for topic in ahead if topic not in known][:AHEAD_MAX]
        if not missing and not unchecked and not others:
            return
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._coming.update(dict.fromkeys(others, ended))
        try:
            await self._ensure(missing, unchecked, others, prefix, refused)
        finally:
            for topic in others:
                del self._coming[topic]
            ended.set_result(None)

    async def _ensure(
        self,
        missing: list[str],
        unchecked: list[str],
        others: list[str],
        prefix: str,
        refused: dict[str, CdcdError] | None,
    ) -> None:
        """Create or check the topics in `missing`, and those in `others` if the broker refuses none of them."""
        claiming = self._claims()
        # The descriptions are read before a topic is created. If this read failed after the creation, the next attempt
        # would find the topic and not report that it was lost.
        had_records = await self._had_records_before() if missing or others else {}
        try:
            created, found = await self.call(
                lambda: self._look(claiming, [*missing, *others], unchecked, prefix, None), anywhere=True
            )
        except SinkError:
            if not others and refused is None:
                raise
            # A problem of a table without records must not stop the other tables.
            self._not_ahead.update(others)
            others = []
            created, found = await self.call(
                lambda: self._look(claiming, missing, unchecked, prefix, refused), anywhere=True
            )
        for topic in created:
            self._observe(TopicCreated(topic=topic))
            if table := had_records.get(topic):
                self._observe(TopicLost(topic=topic, table=table, command=read_table(table)))
        self._topics.update(missing, others, found)
        self._known.topics.update(missing, others)
        self._keyless.update(unchecked)
        if refused:
            self._name_topics(refused)
            self._topics.difference_update(refused)
            self._keyless.difference_update(refused)

    async def _had_records_before(self) -> Mapping[str, str]:
        """Return every topic that table descriptions name; a description is written with a table's first record.

        The result is empty if this principal may not read the descriptions, because then no lost topic can be reported,
        and a new topic must not end the daemon.
        """
        schemas = self._schemas()
        if schemas is None or not self._goes_on:
            return {}
        if self._had_records is None:
            try:
                self._had_records = await self.call(schemas.described_topics, anywhere=True)
            except SinkError:
                self._had_records = {}
        return self._had_records

    def _look(
        self,
        claiming: Claiming,
        missing: list[str],
        keyless: list[str],
        prefix: str,
        refused: dict[str, CdcdError] | None,
    ) -> tuple[list[str], set[str]]:
        """Create the missing topics.

        Returns:
            The topics that were created, and the topics with the prefix that existed before.
        """
        config = self._config
        admin = self._admin()
        spec = topic_spec(config)
        created = []
        listed = admin.names() if missing or prefix else set()
        existing = {name for name in listed if name.startswith(f"{prefix}.")} if prefix else set()
        existing.difference_update(missing)
        # The first record of a table would not ask about a topic that is known to exist.
        claimed = claiming.claim(admin, [*missing, *sorted(existing)], listed)
        existing.difference_update(claimed)
        taken = {topic: claimed[topic] for topic in missing if topic in claimed}
        if taken and refused is None:
            raise next(iter(taken.values()))
        if refused is not None:
            refused |= taken
        missing = [topic for topic in missing if topic not in taken]
        if missing:
            created = ensure_topics(
                admin,
                missing,
                spec,
                checkpoint=config.topics.checkpoint,
                schemas=config.topics.schemas,
                refused=refused,
            )
        if refused:
            keyless = [topic for topic in keyless if topic not in refused]
        if keyless:
            marked = config.heartbeat.watermark_interval_s > 0
            repeating = [topic for topic, each in config.topics.shared.items() if each.key_field is None]
            check_keyless(admin, keyless, marked=marked, refused=refused, repeating=repeating)
        if config.kafka.delivery == "at_least_once":
            known = existing.union([topic for topic in missing if not refused or topic not in refused])
            self._known.sizes.learn_topics(message_limits(admin, sorted(known)))
        return created, existing

    async def release_claims(self, tables: Collection[str]) -> None:
        """Release this pipeline's claims on topics that no published table has now.

        Args:
            tables: all published tables, as `schema.table`.

        Raises:
            SinkUnavailableError: no broker answers.
        """
        claiming = self._claims()
        await self.call(lambda: claiming.release_others(self._admin(), tables), anywhere=True)

    def _claims(self) -> Claiming:
        if self._claiming is None:
            loop = asyncio.get_running_loop()

            def report(fact: Fact) -> None:
                loop.call_soon_threadsafe(self._observe, fact)

            self._claiming = Claiming(self._config, report, self._answer_s, self.giving_up)
        return self._claiming

    async def check_marked(self, topics: Collection[str]) -> None:
        """Check that existing topics among these accept watermarks.

        Raises:
            SinkUnavailableError: no broker answers.
            SinkError: a topic is compacted.
        """

        def look() -> None:
            admin = self._admin()
            found = admin.names().intersection(topics)
            if found:
                check_keyless(admin, sorted(found), marked=True)

        await self.call(look, anywhere=True)

    def _admin(self) -> Admin:
        """Return a client for the calling thread, which must also drop it, because dropping it may block."""
        connection, _ = client.configured(self._config.kafka)
        return Admin(connection, self._answer_s, self.giving_up)

    async def refusals(self, topics: Collection[str]) -> dict[str, CdcdError]:
        """Those of the topics that are gone, or to which this principal may not write, each with the reason.

        Raises:
            SinkUnavailableError: the broker is away.
        """

        def look() -> dict[str, CdcdError]:
            found: dict[str, CdcdError] = {}
            for name, info in self._admin().each_topic(sorted(set(map(whole_topic, topics)))).items():
                if isinstance(info, CdcdError):
                    found[name] = info
                elif info is None:
                    hint = create_hint([name], compacted=())
                    found[name] = SinkError(f"Topic {name} does not exist any more.", hint=hint)
                elif info.may_write is False:
                    found[name] = not_writable(name)
            self._name_topics(found)
            return _of_shares(found, topics)

        return await self.call(look, anywhere=True)

    def _name_topics(self, refused: Mapping[str, CdcdError]) -> None:
        """Fill the names of this pipeline, and of topics that do not begin with its prefix, into the hints."""
        for topic, error in refused.items():
            if error.hint == rights_hint():
                error.hint = rights_hint([topic], self._config.topics.prefix)
            fill_names(error, names(self._config))

    async def await_topics(
        self,
        topics: Sequence[str],
        *,
        keyless: Collection[str] = (),
        ahead: Sequence[str] = (),
        again: Collection[str] = (),
    ) -> dict[str, CdcdError]:
        """As `ensure_topics`, but repeat it while the broker is away: a new session would not bring the broker back.

        A share of a topic is asked for as its topic (`sharing.py`), and is refused like it.

        Args:
            again: those of `topics` that were refused before, or may be gone.

        Returns:
            The topics that cannot be used, each with the error.
        """
        self._topics.difference_update(map(whole_topic, again))
        self._keyless.difference_update(map(whole_topic, again))
        whole, later = (list(dict.fromkeys(map(whole_topic, each))) for each in (topics, ahead))
        without_key = frozenset(map(whole_topic, keyless))
        backoff = self._config.kafka.retry.delays.backoff()
        while True:
            refused: dict[str, CdcdError] = {}
            try:
                await self.ensure_topics(whole, keyless=without_key, ahead=later, refused=refused)
                return _of_shares(refused, topics)
            except SinkUnavailableError as error:
                if self.giving_up.is_set():
                    raise
                wait_s = backoff.next(random.random())  # noqa: S311  spreads attempts, guards nothing
                self._observe(KafkaRetry(message=error.message, hint=error.hint, wait_s=round(wait_s, 3)))
                await asyncio.sleep(wait_s)

    async def call(self, call: Callable[[], T], *, anywhere: bool = False) -> T:
        """Run a blocking call to Kafka.

        Args:
            anywhere: True if the call does not use the sink, so that any thread may run it.

        Raises:
            SinkUnavailableError: no broker answers.
        """
        try:
            if anywhere:
                return await asyncio.to_thread(self._named, call)
            return await self.in_thread(call)
        except TransientError as error:
            raise unavailable(error) from error

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        """Run a call that may use the sink, in the sink's thread."""
        return asyncio.get_running_loop().run_in_executor(self.thread, self._named, call)

    def _named(self, call: Callable[[], T]) -> T:
        """Make the call, and fill the names of this pipeline into the hint of its error."""
        try:
            return call()
        except CdcdError as error:
            fill_names(error, names(self._config))
            raise


def _of_shares(refused: Mapping[str, CdcdError], topics: Collection[str]) -> dict[str, CdcdError]:
    """Return the error of each entry of `topics` that cannot be used. A share has the error of its topic."""
    return {each: refused[whole_topic(each)] for each in topics if whole_topic(each) in refused}


def _oversized(policy: str, topic: str, size: int, to: str) -> Fact:
    if to:
        return RecordOversized(topic=topic, record_bytes=size, oversized=policy, went_to=to)
    return MessageOversized(topic=topic, record_bytes=size)
