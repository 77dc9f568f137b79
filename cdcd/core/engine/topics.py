"""Which topics exist, and which schemas are registered: what must be there before the records that need it.

A topic is made, and a schema registered, when a table has its first record. Each is asked for once, several at a time.
"""

from collections.abc import Collection

from cdcd.core.engine.actions import EnsureSchemas, EnsureTopics
from cdcd.core.records.schema_registrations import SchemaUse


class Topics:
    """The topics and schemas of a session. The caller carries out `wanted` and `wanted_schemas`.

    Whoever has records for a topic asks `is_ready` and, if the encoder lacks ids of schemas, `are_registered`.

    Args:
        marked: every topic has records without a key, which are watermarks.
    """

    def __init__(self, *, marked: bool = False) -> None:
        self._marked = marked
        self._ready: set[str] = set()
        self._wanted: dict[str, None] = {}
        self._asked: set[str] = set()
        self._keyless: set[str] = set()
        self._again: set[str] = set()
        self._schemas_wanted: dict[SchemaUse, None] = {}
        self._schemas_asked: set[SchemaUse] = set()

    @property
    def awaited(self) -> bool:
        """Whether a topic was wanted that is not ready yet, or a schema that is not registered yet."""
        return bool(self._wanted or self._asked or self._schemas_wanted or self._schemas_asked)

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
        again = tuple([topic for topic in topics if topic in self._again])
        self._again.difference_update(again)
        return EnsureTopics(
            topics, frozenset(topics if self._marked else self._keyless.intersection(topics)), again=again
        )

    def ready(self, topics: Collection[str]) -> None:
        """Records may go to these topics from now on."""
        self._ready.update(topics)
        self._asked.difference_update(topics)

    def forget(self, topics: Collection[str]) -> None:
        """These topics are refused, or must be looked at again before further records go to them."""
        self._ready.difference_update(topics)
        self._asked.difference_update(topics)
        self._again.update(topics)
        for topic in topics:
            self._wanted.pop(topic, None)

    def forget_schemas(self, schemas: Collection[SchemaUse]) -> None:
        """These schemas are refused."""
        self._schemas_asked.difference_update(schemas)
        for use in schemas:
            self._schemas_wanted.pop(use, None)

    def are_registered(self, lacking: Collection[SchemaUse]) -> bool:
        """Whether a table's records lack no schema (`Encoder.unregistered`); if they do, the schemas are wanted."""
        for use in lacking:
            if use not in self._schemas_asked:
                self._schemas_wanted[use] = None
        return not lacking

    def wanted_schemas(self) -> EnsureSchemas | None:
        """The schemas that are to be registered now; None: there is none."""
        if not self._schemas_wanted:
            return None
        schemas = tuple(self._schemas_wanted)
        self._schemas_wanted.clear()
        self._schemas_asked.update(schemas)
        return EnsureSchemas(schemas)

    def registered(self, schemas: Collection[SchemaUse]) -> None:
        """These schemas have ids from now on."""
        self._schemas_asked.difference_update(schemas)
