"""A session's claims on topics (`core/catalog/claims.py`): what is read, written and released, and when.

A topic of a table is claimed before it is created or checked, so before its first record. Topics that begin with the
pipeline's prefix are only compared with the claims of others, if the cluster has any.

A principal that may not read, create or write the topic with the claims goes on without them, and this is reported
once in each session: then nothing keeps another pipeline from the same topics.
"""

import threading
from collections.abc import Callable, Collection, Sequence

from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.claims import ClaimsTopic
from cdcd.adapters.kafka.topics import ensure_topics
from cdcd.config.loading import Config
from cdcd.core.catalog.claims import Claimant, Claims, foreign_prefix, under_prefix
from cdcd.core.errors import CdcdError, ClaimedError, SinkError
from cdcd.core.facts import Fact
from cdcd.core.facts.operation import ClaimRecordsIgnored, TopicsReleased, TopicsUnclaimed
from cdcd.core.table_names import split_table
from cdcd.daemon.settings import id_use, topic_spec


def claims_topic(config: Config, answer_s: float, stopping: threading.Event | None = None) -> ClaimsTopic:
    """Return the topic with the claims, for this pipeline.

    Args:
        answer_s: seconds that the broker may take for each answer.
    """
    connection, producer = client.configured(config.kafka)
    return ClaimsTopic(
        config.topics.claims,
        connection,
        producer,
        claimant(config),
        id_use(config).transactional_id,
        answer_s,
        stopping or threading.Event(),
    )


def claimant(config: Config) -> Claimant:
    """Return this pipeline, as its claims name it."""
    return Claimant(config.name, config.topics.checkpoint)


def own_of(config: Config) -> frozenset[str]:
    """Return the topics that belong to no table, so that cdcd claims none of them."""
    return frozenset(
        [
            *[topic for topic, _ in config.topic_names().own()],
            config.kafka.dead_letter_topic,
            *config.outbox.topics,
            config.topics.claims,
        ]
    )


class Claiming:
    """Claims topics for a session. The methods block, and any thread may call them at any time; one runs at a time.

    Args:
        report: is called with facts, in the calling thread.
        stopping: another thread sets it to end a method soon.
    """

    def __init__(
        self, config: Config, report: Callable[[Fact], None], answer_s: float, stopping: threading.Event
    ) -> None:
        self._config = config
        self._names = config.topic_names()
        self._own = own_of(config)
        self._report = report
        self._topic = claims_topic(config, answer_s, stopping)
        self._one = threading.Lock()
        """Held by a method that reads or writes the claims. Several requests for topics run at the same time."""
        self._claims = Claims()
        self._held: set[str] = set()
        """Topics that no other pipeline had when the session asked."""
        self._is_told = False

    def claim(
        self, admin: Admin, topics: Sequence[str], existing: Collection[str]
    ) -> dict[str, ClaimedError]:
        """Claim those of the topics that need it. Returns the topics that belong to other pipelines, with the errors.

        Args:
            existing: all topics of the cluster that this principal may see.

        Raises:
            TransientError: the broker does not answer.
        """
        with self._one:
            return self._claim(admin, topics, existing)

    def _claim(
        self, admin: Admin, topics: Sequence[str], existing: Collection[str]
    ) -> dict[str, ClaimedError]:
        asked = [topic for topic in topics if topic not in self._held and topic not in self._own]
        named = [topic for topic in asked if not self._names.is_under_prefix(topic)]
        if not named and (not asked or self._topic.name not in existing):
            return {}
        refused: dict[str, ClaimedError] = {}
        for topic in named:
            if checkpoint := foreign_prefix(topic, existing, self._own):
                refused[topic] = under_prefix(topic, checkpoint)
        try:
            self._read(admin, existing, create=bool(named))
            written = self._claims.unclaimed([topic for topic in named if topic not in refused])
            if written:
                self._topic.claim(written)
                self._topic.read(self._claims)
        except SinkError as error:
            if named:
                self._tell_unclaimed(error, len(named))
            self._held.update([topic for topic in asked if topic not in refused])
            return refused
        refused |= self._claims.refused(self._topic.claimant, asked, self._topic.name)
        # If this claim stayed behind the claim of another pipeline, it would become valid when that claim is released.
        self._release([topic for topic in written if topic in refused])
        self._held.update([topic for topic in asked if topic not in refused])
        return refused

    def release_others(self, admin: Admin, tables: Collection[str]) -> None:
        """Release this pipeline's claims on topics that none of its tables has now.

        Args:
            tables: all published tables, as `schema.table`.

        Raises:
            TransientError: the broker does not answer.
        """
        existing = admin.names()
        if self._topic.name not in existing:
            return
        with self._one:
            left = self._release_others(admin, existing, tables)
        if left:
            self._report(TopicsReleased(topics=tuple(left), claims=self._topic.name))

    def _release_others(self, admin: Admin, existing: Collection[str], tables: Collection[str]) -> list[str]:
        try:
            self._read(admin, existing, create=False)
            claimed = self._claims.of(self._topic.claimant)
            wanted = self._topics_of(tables) if claimed else set()
            # The topics that rows of an outbox have made belong to no table.
            makes = self._config.outbox.settings.makes
            left = [topic for topic in claimed if topic not in wanted and not makes(topic)]
            self._release(left)
        except SinkError as error:
            if self._names.has_claims:
                self._tell_unclaimed(error, len(self._topics_of(tables)))
            return []
        return left

    def _topics_of(self, tables: Collection[str]) -> set[str]:
        """Return the topics of tables."""
        return {topic for table in tables for topic in self._names.all_of(*split_table(table))}

    def _read(self, admin: Admin, existing: Collection[str], *, create: bool) -> None:
        if create and self._topic.name not in existing:
            ensure_topics(
                admin, [self._topic.name], topic_spec(self._config), checkpoint="", schemas=self._topic.name
            )
        before = self._claims.ignored
        self._topic.read(self._claims)
        if self._claims.ignored > before:
            self._report(
                ClaimRecordsIgnored(
                    topic=self._topic.name,
                    count=self._claims.ignored - before,
                    reason=self._claims.reason,
                )
            )

    def _release(self, topics: Collection[str]) -> None:
        if topics:
            self._topic.release(topics)
            self._topic.read(self._claims)

    def _tell_unclaimed(self, error: CdcdError, count: int) -> None:
        if not self._is_told:
            self._is_told = True
            self._report(TopicsUnclaimed(message=error.message, hint=error.hint, topics=count))
