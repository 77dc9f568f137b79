"""Which topics are there: they are made at the first record of a table, by few requests, and asked for once."""

from collections.abc import Collection

from cdcd.engine.actions import EnsureTopics


class Topics:
    """The topics of a session. Whoever has records for one asks `is_ready`; the caller owes what `wanted` gives."""

    def __init__(self) -> None:
        self._ready: set[str] = set()
        self._wanted: dict[str, None] = {}
        self._asked: set[str] = set()
        self._keyless: set[str] = set()

    @property
    def awaited(self) -> bool:
        """Whether some were wanted that are not there yet."""
        return bool(self._wanted or self._asked)

    def is_ready(self, topic: str) -> bool:
        """Whether records may go to the topic; if not, it is wanted."""
        if topic in self._ready:
            return True
        if topic not in self._asked:
            self._wanted[topic] = None
        return False

    def has(self, topic: str) -> bool:
        """Whether records may go to the topic."""
        return topic in self._ready

    def keep_keyless(self, topic: str) -> None:
        """Its records have no key: it must not be compacted."""
        self._keyless.add(topic)

    def wanted(self) -> EnsureTopics | None:
        """What is to be made sure of now; None: nothing."""
        if not self._wanted:
            return None
        topics = tuple(self._wanted)
        self._wanted.clear()
        self._asked.update(topics)
        return EnsureTopics(topics, frozenset(self._keyless.intersection(topics)))

    def ready(self, topics: Collection[str]) -> None:
        """These are there."""
        self._ready.update(topics)
        self._asked.difference_update(topics)
