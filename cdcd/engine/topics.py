"""Which topics exist. A topic is made when a table has its first record; each is asked for once, several at a time."""

from collections.abc import Collection

from cdcd.engine.actions import EnsureTopics


class Topics:
    """The topics of a session. Whoever has records for a topic asks `is_ready`. The caller carries out `wanted`."""

    def __init__(self) -> None:
        self._ready: set[str] = set()
        self._wanted: dict[str, None] = {}
        self._asked: set[str] = set()
        self._keyless: set[str] = set()

    @property
    def awaited(self) -> bool:
        """Whether a topic was wanted that is not ready yet."""
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
        """The topic's records have no key, so the topic must not be compacted."""
        self._keyless.add(topic)

    def wanted(self) -> EnsureTopics | None:
        """The topics that are to be created or checked now; None: there is none."""
        if not self._wanted:
            return None
        topics = tuple(self._wanted)
        self._wanted.clear()
        self._asked.update(topics)
        return EnsureTopics(topics, frozenset(self._keyless.intersection(topics)))

    def ready(self, topics: Collection[str]) -> None:
        """Records may go to these topics from now on."""
        self._ready.update(topics)
        self._asked.difference_update(topics)
