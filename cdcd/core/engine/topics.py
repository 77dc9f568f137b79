"""Which topics exist and which schemas are registered, as both must be before records need them.

A topic is created, and a schema registered, before the first record of a table. Each is requested once, and several
are requested together.
"""

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

from cdcd.core.engine.actions import EnsureSchemas, EnsureTopics
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.records.shaping.settings import Outbox

NO_OUTBOX: Final = Outbox()

SLICE: Final = 250
"""Maximum number of topics in one request.

A broker takes ten times as long for 2,000 topics that are created one by one as for four requests of 500. It shows
none of a request's topics before it has created all of them, and tables are read while later topics are created.
"""

ASKED_MAX: Final = 500
"""No more topics are requested while this many topics are not ready, so that the broker creates topics in order."""


class Topics:
    """Keeps the topics and schemas of a session; the caller carries out `wanted` and `wanted_schemas`.

    Before records are sent to a topic, `is_ready` must be true, and `are_registered` if the encoder lacks ids of
    schemas.

    Args:
        outbox: which tables have events instead of rows.
        marked: whether every topic gets watermarks, which are records without a key.
    """

    def __init__(self, outbox: Outbox = NO_OUTBOX, *, marked: bool = False) -> None:
        self._outbox = outbox
        self._marked = marked
        self._ready: set[str] = set()
        self._wanted: dict[str, None] = {}
        self._asked: set[str] = set()
        self._keyless: set[str] = set()
        self._checked: frozenset[str] = frozenset()
        """Topics that the start has checked, if they are there."""
        self._again: set[str] = set()
        self._schemas_wanted: dict[SchemaUse, None] = {}
        self._schemas_asked: set[SchemaUse] = set()

    @property
    def awaits_topics(self) -> bool:
        """True if a topic is requested and not ready yet."""
        return bool(self._wanted or self._asked)

    @property
    def awaits_schemas(self) -> bool:
        """True if a schema is requested and not registered yet."""
        return bool(self._schemas_wanted or self._schemas_asked)

    def lacking(self, topics: Iterable[str]) -> list[str]:
        """Return the topics among `topics` that are not ready, so that no record may be sent to them."""
        return [topic for topic in topics if topic not in self._ready]

    def of_events(self, table: str) -> tuple[str, ...]:
        """Return the topics of a table's events (`outbox`), by its name as `schema.table`; () for other tables."""
        return self._outbox.topics_of(table)

    def has_only_events(self, topic: str) -> bool:
        """Return whether only events of outbox tables go to the topic; events of logical messages may go to any topic
        of events.
        """
        if topic in self._outbox.topics:
            return not self._outbox.messages
        return self._outbox.makes(topic)

    def has_events(self, table: str, topic: str) -> bool:
        """Return whether events of a table (`schema.table`) may go to the topic."""
        return self._outbox.has_events(table, topic)

    def is_ready(self, topic: str) -> bool:
        """Return whether records may go to the topic; if not, the topic is requested."""
        if topic in self._ready:
            return True
        if topic not in self._asked:
            self._wanted[topic] = None
        return False

    def has(self, topic: str) -> bool:
        """Return whether records may go to the topic."""
        return topic in self._ready

    def note_checked(self, topics: Iterable[str]) -> None:
        """Note that the start has checked these topics, if they are there."""
        self._checked = frozenset(topics)

    def takes_watermarks(self, topic: str) -> bool:
        """Return whether it is known that the topic takes records without a key."""
        return topic in self._checked or topic in self._ready

    def keep_keyless(self, topic: str) -> None:
        """Note that the topic has records without a key, so it must not be compacted."""
        self._keyless.add(topic)

    def wanted(self, ahead: tuple[str, ...] = ()) -> EnsureTopics | None:
        """Return the request to create or check topics now; None if no topic is to be created or checked.

        Many topics are requested in slices, so that records go to the first ones while the others are created.

        Args:
            ahead: topics of tables that are read later, which are created with the others.
        """
        if not self._wanted or len(self._asked) >= ASKED_MAX:
            return EnsureTopics((), ahead=ahead) if ahead else None
        topics = tuple(islice(self._wanted, SLICE))
        for topic in topics:
            del self._wanted[topic]
        self._asked.update(topics)
        again = tuple([topic for topic in topics if topic in self._again])
        self._again.difference_update(again)
        return EnsureTopics(
            topics,
            frozenset(topics if self._marked else self._keyless.intersection(topics)),
            ahead=ahead,
            again=again,
        )

    def ready(self, topics: Collection[str]) -> None:
        """Note that records may go to these topics."""
        self._ready.update(topics)
        self._asked.difference_update(topics)
        for topic in topics:
            self._wanted.pop(topic, None)

    def forget(self, topics: Collection[str]) -> None:
        """Note that these topics were refused, or must be checked again before more records go to them."""
        self._ready.difference_update(topics)
        self._asked.difference_update(topics)
        self._again.update(topics)
        for topic in topics:
            self._wanted.pop(topic, None)

    def forget_schemas(self, schemas: Collection[SchemaUse]) -> None:
        """Note that these schemas were refused."""
        self._schemas_asked.difference_update(schemas)
        for use in schemas:
            self._schemas_wanted.pop(use, None)

    def are_registered(self, lacking: Collection[SchemaUse]) -> bool:
        """Return whether a table's records have all their schemas (`Encoder.unregistered`); those that are lacking are
        requested.
        """
        for use in lacking:
            if use not in self._schemas_asked:
                self._schemas_wanted[use] = None
        return not lacking

    def wanted_schemas(self) -> EnsureSchemas | None:
        """Return the schemas to register now; None if there are none."""
        if not self._schemas_wanted:
            return None
        schemas = tuple(self._schemas_wanted)
        self._schemas_wanted.clear()
        self._schemas_asked.update(schemas)
        return EnsureSchemas(schemas)

    def registered(self, schemas: Collection[SchemaUse]) -> None:
        """Note that these schemas have ids."""
        self._schemas_asked.difference_update(schemas)
