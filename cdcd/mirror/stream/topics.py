"""The topics of a mirror: which are tables' and wanted, what Kafka says of them, and which cannot be mirrored."""

import re
from collections.abc import Collection

from cdcd.mirror.kafka import Offsets
from cdcd.mirror.platform.kafka_admin import Admin, TopicFacts
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.stream.policies import policy_problem
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.watching.progress import Observer, Unmirrored


class Topics:
    """What is known of the topics. Each that is unfit or not mirrored is reported once.

    Attributes:
        policies: the `cleanup.policy` of each topic that was looked at; empty where it may not be seen.
    """

    def __init__(
        self, settings: MirrorSettings, admin: Admin, descriptions: Descriptions, observe: Observer
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._descriptions = descriptions
        self._observe = observe
        self.policies: dict[str, str] = {}
        self._facts: dict[str, TopicFacts] = {}
        self._ids: dict[str, str] = {}
        self._unmirrored: set[str] = set()
        self._subscribed: frozenset[str] = frozenset()
        self._compared: Offsets = {}
        """How far the descriptions were read when their topics were compared with `_subscribed`."""
        self._lacks_new = False

    def name(self, topic: str) -> str:
        return self._descriptions.table(topic) or topic

    def pattern(self, before: Collection[str] = ()) -> str:
        """Topics of tables, `<prefix>.<schema>.<table>` or described ones of other names, and of their descriptions,
        which may come alone; with consistent batches also the checkpoint's, which moves when nothing else does. A
        stream that had it keeps it.

        Args:
            before: topics that the stream had.
        """
        settings = self._settings
        has_checkpoint = settings.consistent or settings.checkpoint in before
        own = [settings.schemas, *([settings.checkpoint] if has_checkpoint else [])]
        self._compared = self._descriptions.read_to
        self._lacks_new = False
        named = self._named()
        self._subscribed = frozenset(named)
        return "|".join([self._by_prefix(), *map(re.escape, named), *map(re.escape, own)])

    def _by_prefix(self) -> str:
        others = "|".join(re.escape(name) for name in sorted(self._not_tables()))
        return rf"(?!(?:{others})$){re.escape(self._settings.prefix)}\.[^.]+\..+"

    def _named(self) -> list[str]:
        """The topics of mirrored tables whose names do not show that they are topics of this pipeline's tables."""
        form = re.compile(self._by_prefix())
        return [topic for topic in self.wanted(self._descriptions.topics()) if form.fullmatch(topic) is None]

    @property
    def has_new(self) -> bool:
        """Whether a topic of a mirrored table is described that the last `pattern` does not match. The caller then
        starts another query by another pattern."""
        if self._compared != self._descriptions.read_to:
            self._compared = self._descriptions.read_to
            self._lacks_new = not self._subscribed.issuperset(self._named())
        return self._lacks_new

    def _not_tables(self) -> Collection[str]:
        settings = self._settings
        return {*settings.not_tables, settings.schemas, settings.checkpoint}

    def wanted(self, topics: Collection[str]) -> list[str]:
        """Those of `topics` that are mirrored tables', in a stable order."""
        return [
            topic
            for topic in sorted(topics)
            if (table := self._descriptions.table(topic)) is not None and self._settings.wants(table)
        ]

    def of_tables(self) -> list[str]:
        """The topics that are read, but for tables that are known not to be mirrored."""
        pattern = re.compile(self.pattern())
        return [
            topic
            for topic in self._admin.topics()
            if pattern.fullmatch(topic)
            and topic != self._settings.checkpoint
            and ((table := self._descriptions.table(topic)) is None or self._settings.wants(table))
        ]

    def look_up(self, new: Collection[str]) -> None:
        """Ask Kafka about all topics whose tables begin now, together."""
        if new:
            self.look_at_policies(new)
            self._facts = self._admin.facts(new)
            self._ids |= {topic: found.topic_id for topic, found in self._facts.items() if found.topic_id}

    def facts_of(self, topic: str) -> TopicFacts:
        """What Kafka knows of a topic. The answer to `look_up` serves each table once; later calls ask Kafka."""
        known = self._facts.pop(topic, None)
        return known or self._admin.facts([topic]).get(topic) or TopicFacts(None, {})

    def look_again(self, topics: Collection[str]) -> None:
        """Ask Kafka for the ids of all topics of which a batch may have records, together."""
        self._ids = self._admin.topic_ids(topics) if topics else {}

    def id_of(self, topic: str) -> str | None:
        """The id that a topic has by now. The answer to `look_again` serves each table once; later calls ask Kafka."""
        return self._ids.pop(topic, None) or self._admin.topic_ids([topic]).get(topic)

    def look_at_policies(self, topics: Collection[str]) -> None:
        """Check the `cleanup.policy` of topics, and report each topic that loses records once."""
        new = [topic for topic in topics if topic not in self.policies]
        found = self._admin.cleanup_policies(new)
        self.policies.update({topic: found.get(topic, "") for topic in new})
        for topic in new:
            problem = policy_problem(topic, self.policies[topic], is_table=topic != self._settings.schemas)
            if problem is not None:
                self._observe(problem)

    def warn(self, topics: Collection[str]) -> None:
        for topic in topics:
            if topic not in self._unmirrored and self._descriptions.table(topic) is None:
                self._unmirrored.add(topic)
                if topic not in {self._settings.checkpoint, self._settings.schemas}:
                    self._observe(Unmirrored(topic, f"{self._settings.schemas} does not describe it"))
        for where, problem in self._descriptions.problems.items():
            if where not in self._unmirrored:
                self._unmirrored.add(where)
                self._observe(Unmirrored(where, problem))
