"""The topics of a session: which are there, and how missing ones are created, claimed and checked.

The rule: each topic is created or checked once in a session, by few requests. A problem of one table's topic is the
error of this topic, and never of another one.
"""

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence

from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.errors import fill_names, rights_hint
from cdcd.adapters.kafka.sink_inputs import KnownOfBrokers
from cdcd.adapters.kafka.topics import (
    check_keyless,
    create_hint,
    ensure_topics,
    marker_problems,
    message_limits,
    not_writable,
)
from cdcd.config.loading import Config
from cdcd.core.catalog.sharing import whole_topic
from cdcd.core.engine.topics import SLICE
from cdcd.core.errors import CdcdError, SinkError, SinkUnavailableError
from cdcd.core.facts import Fact, Observer
from cdcd.core.facts.process import KafkaRetry
from cdcd.core.facts.tables import TopicCreated, TopicLost
from cdcd.core.pasted import read_table
from cdcd.daemon.claiming import Claiming
from cdcd.daemon.kafka_calls import KafkaCalls
from cdcd.daemon.settings import (
    names,
    topic_spec,
)


class KafkaTopics:
    """Creates and checks the topics of a session.

    Args:
        known: what the process has learned of the brokers.

    Attributes:
        goes_on: True if there is a checkpoint, so that topics of tables may have received records before this session.
    """

    def __init__(self, config: Config, observe: Observer, calls: KafkaCalls, known: KnownOfBrokers) -> None:
        self._config = config
        self._observe = observe
        self._calls = calls
        self._known = known
        self.goes_on = False
        self._topics: set[str] = set()
        self._keyless: set[str] = set()
        self._coming: dict[str, asyncio.Future[None]] = {}
        """Topics that are being created in advance; each future is done when the request has ended."""
        self._not_ahead: set[str] = set()
        """Topics that are created only when needed, because the broker refused one of them in advance."""
        self._had_records: Mapping[str, str] | None = None
        """Topics that received records before this session, with their tables. None: not read yet."""
        self._claiming: Claiming | None = None

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
            ahead: topics that will be needed soon. At most `SLICE` of them are created, with the others or alone. If
                the broker refuses one of them, only `topics` are created, and these topics are never again created in
                advance.
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
            others = [topic for topic in ahead if topic not in known][:SLICE]
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
            created, found = await self._calls.call(
                lambda: self._look(claiming, [*missing, *others], unchecked, prefix, None), anywhere=True
            )
        except SinkError:
            if not others and refused is None:
                raise
            # A problem of a table without records must not stop the other tables.
            self._not_ahead.update(others)
            others = []
            created, found = await self._calls.call(
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
        schemas = self._calls.schemas()
        if schemas is None or not self.goes_on:
            return {}
        if self._had_records is None:
            try:
                self._had_records = await self._calls.call(schemas.described_topics, anywhere=True)
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
        admin = self._calls.admin()
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
        usable = [topic for topic in missing if not refused or topic not in refused]
        if config.kafka.delivery == "at_least_once":
            self._known.sizes.learn_topics(message_limits(admin, sorted(existing.union(usable))))
        else:
            self._refuse_without_markers(admin, usable, created, existing, refused)
        return created, existing

    def _refuse_without_markers(
        self,
        admin: Admin,
        wanted: Collection[str],
        created: Collection[str],
        existing: set[str],
        refused: dict[str, CdcdError] | None,
    ) -> None:
        """Refuse topics that may refuse the markers of transactions.

        Args:
            wanted: topics that are needed now.
            created: topics that this session has created.
            existing: further topics that are there. Those that are refused are removed, so that the first record of
                their table asks about them.
            refused: gets the wanted topics that are refused, each with the error; None: the first error is raised.
        """
        compacted = {self._config.topics.checkpoint, self._config.topics.schemas}
        new = [topic for topic in created if topic not in compacted]
        found = marker_problems(admin, sorted(existing.union(wanted).difference(new)), new)
        existing.difference_update(found)
        for topic in wanted:
            if topic in found:
                if refused is None:
                    raise found[topic]
                refused[topic] = found[topic]

    async def release_claims(self, tables: Collection[str]) -> None:
        """Release this pipeline's claims on topics that no published table has now.

        Args:
            tables: all published tables, as `schema.table`.

        Raises:
            SinkUnavailableError: no broker answers.
        """
        claiming = self._claims()
        await self._calls.call(lambda: claiming.release_others(self._calls.admin(), tables), anywhere=True)

    def _claims(self) -> Claiming:
        if self._claiming is None:
            loop = asyncio.get_running_loop()

            def report(fact: Fact) -> None:
                loop.call_soon_threadsafe(self._observe, fact)

            self._claiming = Claiming(self._config, report, self._calls.answer_s, self._calls.giving_up)
        return self._claiming

    async def check_marked(self, topics: Collection[str]) -> None:
        """Check that existing topics among these accept watermarks.

        Raises:
            SinkUnavailableError: no broker answers.
            SinkError: a topic is compacted.
        """

        def look() -> None:
            admin = self._calls.admin()
            found = admin.names().intersection(topics)
            if found:
                check_keyless(admin, sorted(found), marked=True)

        await self._calls.call(look, anywhere=True)

    async def refusals(self, topics: Collection[str]) -> dict[str, CdcdError]:
        """Those of the topics that are gone, or to which this principal may not write, each with the reason.

        Raises:
            SinkUnavailableError: the broker is away.
        """

        def look() -> dict[str, CdcdError]:
            found: dict[str, CdcdError] = {}
            for name, info in self._calls.admin().each_topic(sorted(set(map(whole_topic, topics)))).items():
                if isinstance(info, CdcdError):
                    found[name] = info
                elif info is None:
                    hint = create_hint([name], compacted={})
                    found[name] = SinkError(f"Topic {name} does not exist any more.", hint=hint)
                elif info.may_write is False:
                    found[name] = not_writable(name)
            self._name_topics(found)
            return _of_shares(found, topics)

        return await self._calls.call(look, anywhere=True)

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
                if self._calls.giving_up.is_set():
                    raise
                wait_s = backoff.next(random.random())  # noqa: S311  spreads attempts, guards nothing
                self._observe(KafkaRetry(message=error.message, hint=error.hint, wait_s=round(wait_s, 3)))
                await asyncio.sleep(wait_s)


def _of_shares(refused: Mapping[str, CdcdError], topics: Collection[str]) -> dict[str, CdcdError]:
    """Return the error of each entry of `topics` that cannot be used. A share has the error of its topic."""
    return {each: refused[whole_topic(each)] for each in topics if whole_topic(each) in refused}
