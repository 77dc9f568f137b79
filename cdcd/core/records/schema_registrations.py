"""Schemas that must be registered before records use them, and their ids.

The rule: a record with a schema id is made only after the registry has returned the id, or after an earlier record
of the schemas topic has named it. The encoder says which schemas lack an id (`Encoder.unregistered`). The engine
has these registered before it encodes the rows (`EnsureSchemas`), just as it has topics created.

An id is written to the schemas topic in the Kafka transaction of the first record that uses it. So after a restart,
cdcd does not need the registry for schemas that it has used. The key of such a record is `{"subject", "schema"}`,
where `schema` is the fingerprint of the schema's text, and the value is

```
{"subject":"shop.public.orders-value","schema":"0f3a…","id":7,"registry":"http://registry:8081"} ```

With `format.change_header`, the value also has `type`, the registry's name of the kind of schema, and `text`, the
schema itself. So a reader of the topic needs no registry.

An id is a number of 31 bits, or the number of a UUID (AWS Glue), which is written as its text.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from cdcd.core import bounded_json

_RECORD_BYTES_MAX: Final = 1 << 21
"""Maximum size of a record with the id of a schema. The record may have the text of the schema, escaped as JSON."""
NUMBER_BITS: Final = 31
"""Bits of an id that is not a UUID. A UUID of a version has one of the bits above them."""
FINGERPRINT_DIGITS: Final = 32

TEXT_BYTES_MAX: Final = 1_000_000
"""Maximum size of the text of a schema in a record, as JSON. Kafka's default limit of a record is 1,048,588 bytes."""

Known = tuple[str, str]
"""A schema, identified by its subject and its fingerprint."""


@dataclass(frozen=True, slots=True)
class SchemaUse:
    """A schema and the subject under which records use it.

    Attributes:
        text: the schema as it is sent to the registry.
        kind: the registry's `schemaType`.
    """

    subject: str
    text: str
    kind: str = "AVRO"

    @property
    def known_as(self) -> Known:
        """The subject, and the fingerprint of the text."""
        return self.subject, sha256(self.text.encode()).hexdigest()[:FINGERPRINT_DIGITS]


class SchemaIds:
    """Keeps the known ids; all sessions of a process share one object, which the encoders read.

    `registry` is the URL of the registry without a login. An id from another registry is ignored.
    """

    def __init__(self, registry: str = "", known: Iterable[tuple[Known, int]] = ()) -> None:
        self.registry = registry
        self._ids: dict[Known, int] = dict(known)

    def get(self, use: SchemaUse) -> int | None:
        """Return the id of a schema; None if it is not known."""
        return self._ids.get(use.known_as)

    def put(self, use: SchemaUse, schema_id: int) -> None:
        """Keep an id that the registry has returned."""
        self._ids[use.known_as] = schema_id

    def take(self, value: bytes) -> bool:
        """Take a record of the schemas topic; returns False if it has no id from this registry."""
        found = _read(value)
        if found is None or found[2] != self.registry:
            return False
        self._ids[found[0]] = found[1]
        return True

    def has(self, known: Known) -> bool:
        """Return whether the id of a schema is known."""
        return known in self._ids

    def count(self, subject: str) -> int:
        """Return the number of known schemas of a subject."""
        return sum([each == subject for each, _ in self._ids])

    def newest(self) -> int | None:
        """Return the greatest known id; None if there is none."""
        return max(self._ids.values(), default=None)

    def forget(self) -> int:
        """Forget all ids, because the registry does not have them any more, and return how many there were."""
        count = len(self._ids)
        self._ids.clear()
        return count

    def record(self, use: SchemaUse, *, whole: bool = False) -> tuple[bytes, bytes]:
        """Return key and value of the record for the id of a schema, which must be known.

        Args:
            whole: the value has the text of the schema, unless the text is too large for a record.
        """
        subject, fingerprint = use.known_as
        key = {"subject": subject, "schema": fingerprint}
        value: dict[str, object] = {
            **key,
            "id": shown_id(self._ids[subject, fingerprint]),
            "registry": self.registry,
        }
        if whole and len(_json(use.text)) <= TEXT_BYTES_MAX:
            value |= {"type": use.kind, "text": use.text}
        return _json(key), _json(value)


def is_uuid(schema_id: int) -> bool:
    """Return whether an id is the number of a UUID."""
    return schema_id >> NUMBER_BITS != 0


def shown_id(schema_id: int) -> int | str:
    """Return an id as people and records have it: a UUID as text."""
    return str(UUID(int=schema_id)) if is_uuid(schema_id) else schema_id


@dataclass(frozen=True, slots=True)
class Registration:
    """The id of a schema in a registry, as a record of the schemas topic has it.

    Attributes:
        kind: the registry's `schemaType`; "" if the record does not have it.
        text: the schema; "" if the record does not have it.
    """

    id: int
    kind: str
    text: str


def read_registration(value: bytes) -> Registration | None:
    """Return the id and the schema of a record of the schemas topic. None: the record has no id of a schema."""
    try:
        data = _fields(value)
        kind, text = bounded_json.text(data.get("type", "")), bounded_json.text(data.get("text", ""))
    except ValueError:
        return None
    found = _registered(data)
    return None if found is None else Registration(found[1], kind, text)


def _read(value: bytes) -> tuple[Known, int, str] | None:
    try:
        data = _fields(value)
    except ValueError:
        return None
    return _registered(data)


def _fields(value: bytes) -> Mapping[str, Any]:
    return bounded_json.fields(bounded_json.parse(value, _RECORD_BYTES_MAX))


def _registered(data: Mapping[str, Any]) -> tuple[Known, int, str] | None:
    try:
        said = data["id"]
        schema_id = UUID(said).int if isinstance(said, str) else bounded_json.count(said)
        return (str(data["subject"]), str(data["schema"])), schema_id, str(data["registry"])
    except (ValueError, KeyError):
        return None


def _json(data: object) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
