"""Keys and payloads of published events in Avro, with their schemas in a registry.

The rule: whoever may write into an outbox chooses the schemas of its payloads, so neither the registry nor the memory
is filled by them. A subject has at most `OutboxTable.schemas_max` schemas, which are counted by the ids that the
pipeline knows, also after a restart. A schema above this number, or one that the registry has refused, makes the event
one that cannot be published (`outbox.py`). A refused schema is sent to the registry again after `REFUSED_S`.

An event is written in two steps, because a schema must have an id before a record uses it: `OutboxRows.prepared` makes
the event and names its schemas. The engine has these registered. Then `EventSchemas.record` makes the record.
"""

from dataclasses import dataclass
from typing import Any, Final

from librt.strings import BytesWriter

from cdcd.core.errors import ConfigError
from cdcd.core.facts import cut_short
from cdcd.core.records.avro.form import AvroForm, known_id
from cdcd.core.records.avro.writing import AvroValueError, encoded, write_value
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.schema_registrations import Known, SchemaUse

SCHEMA_BYTES_MAX: Final = 64 << 10
"""Maximum number of bytes of a payload's schema, so that a subject stays below some megabytes in the registry."""

REFUSED_S: Final = 600
"""Seconds until a refused schema is sent to the registry again."""

_REASON_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """A key or a payload.

    Attributes:
        data: its bytes, without the beginning that names its schema.
        use: its schema; None if it has none.
    """

    data: bytes
    use: SchemaUse | None = None


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """An event of an outbox table.

    Attributes:
        value: the payload; None for a tombstone.
        schemas_max: maximum number of schemas of a subject.
        is_made: whether the event has made its topic.
    """

    topic: str
    key: EncodedPart
    value: EncodedPart | None
    headers: list[tuple[str, bytes]] | None
    schemas_max: int
    is_made: bool = False

    @property
    def uses(self) -> list[SchemaUse]:
        """The schemas of key and payload."""
        found = [self.key.use, None if self.value is None else self.value.use]
        return [use for use in found if use is not None]


class EventSchemas:
    """The schemas of events: which ones have ids, which ones are requested, and which ones are refused."""

    def __init__(self, settings: EncoderSettings) -> None:
        self._settings = settings
        self._form = AvroForm()
        self._told: set[Known] = set()
        """Schemas whose ids this session has written to the schemas topic."""
        self._asked: dict[str, set[Known]] = {}
        """Requested schemas without an id, by subject."""
        self._refused: dict[Known, tuple[str, int]] = {}
        """Refused schemas, each with the reason, and the time in microseconds from which it is requested again."""

    def column(self, topic: str, schema: Schema, json_text: bytes, part: str) -> EncodedPart:
        """Return the value of a column. ValueError: the value does not match the schema of the column.

        Args:
            json_text: the value as JSON has it.
            part: key or value.
        """
        return EncodedPart(encoded(schema, json_text), self._form.use(self._settings, topic, schema, part))

    def record_of_json(self, topic: str, schema: Schema, value: Any) -> EncodedPart:
        """Return a payload with a derived schema. ValueError: Avro cannot represent it, or the schema is too large."""
        out = BytesWriter()
        try:
            write_value(schema, value, out)
            use = self._form.use(self._settings, topic, schema, "value")
        except AvroValueError as unfit:
            raise ValueError(f"a value of it is not {unfit}") from None
        except OverflowError:
            raise ValueError("it has a number that a double does not hold") from None
        except ConfigError:
            raise ValueError("two of its fields have one name in Avro") from None
        size = len(use.text.encode())
        if size > SCHEMA_BYTES_MAX:
            raise ValueError(f"its schema has {size} bytes, and {SCHEMA_BYTES_MAX} are allowed")
        return EncodedPart(out.getvalue(), use)

    def lacking(self, event: OutboxEvent, now_us: int) -> list[SchemaUse]:
        """Return the schemas of an event that have no id yet, which the caller has registered.

        ValueError: a schema is refused, or the subject has too many schemas.
        """
        found: list[SchemaUse] = []
        for use in event.uses:
            if self._settings.schema_ids.get(use) is None:
                self._admit(use, event.schemas_max, now_us)
                found.append(use)
        return found

    def _admit(self, use: SchemaUse, schemas_max: int, now_us: int) -> None:
        known = use.known_as
        refused = self._refused.get(known)
        if refused is not None:
            reason, until_us = refused
            if now_us < until_us:
                raise ValueError(f"the registry refuses the schema of subject {use.subject}: {reason}")
            del self._refused[known]
        asked = self._asked.setdefault(use.subject, set())
        if known in asked:
            return
        asked -= {each for each in asked if self._settings.schema_ids.has(each)}
        if self._settings.schema_ids.count(use.subject) + len(asked) >= schemas_max:
            raise ValueError(
                f"subject {use.subject} has {schemas_max} schemas, which is outbox.tables' schemas_max"
            )
        asked.add(known)

    def refuse(self, use: SchemaUse, reason: str, now_us: int) -> bool:
        """Note that the registry refuses a schema. Returns False if it is not a schema of an event."""
        known = use.known_as
        if known not in self._asked.get(use.subject, ()):
            return False
        self._refused[known] = cut_short(reason, _REASON_MAX), now_us + REFUSED_S * 1_000_000
        return True

    def ids(self, event: OutboxEvent) -> list[Record]:
        """Return the records of the schemas topic for the schemas that the session uses for the first time."""
        topic, ids = self._settings.schemas_topic, self._settings.schema_ids
        new = [use for use in event.uses if use.known_as not in self._told]
        self._told.update([use.known_as for use in new])
        whole = self._settings.change_header
        return [] if topic is None else [(topic, *ids.record(use, whole=whole), None) for use in new]

    def record(self, event: OutboxEvent) -> Record:
        """Return the record of an event. TransientError: a schema has no id yet."""
        value = None if event.value is None else self._with_head(event.value)
        return (event.topic, self._with_head(event.key), value, event.headers)

    def _with_head(self, part: EncodedPart) -> bytes:
        if part.use is None:
            return part.data
        return self._form.head(known_id(self._settings, part.use)) + part.data
