"""Schemas that a registry must know before a record uses them: which there are, and which id each has.

The rule: a record with a schema id is made only after the registry has given the id, or after a former record of the
schemas topic has named it. The encoder says which schemas lack an id (`Encoder.unregistered`). The engine has them
registered before it works off the rows (`EnsureSchemas`), as it does with topics.

An id stands in the schemas topic in the Kafka transaction of the first record that uses it. So after a restart, cdcd
needs no registry for schemas that it has used. The key of such a record is `{"subject", "schema"}`, where `schema` is
the fingerprint of the schema's text, and the value is

```
{"subject":"shop.public.orders-value","schema":"0f3a…","id":7,"registry":"http://registry:8081"}
```
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from cdcd.core import bounded_json

FINGERPRINT_DIGITS: Final = 32

Known = tuple[str, str]
"""A schema by its subject and its fingerprint."""


@dataclass(frozen=True, slots=True)
class SchemaUse:
    """A schema under the subject that records use it with.

    Attributes:
        text: the schema as the registry gets it.
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
    """The ids that are known. All sessions of a process share the object, and its encoders read it.

    `registry` is the URL of the registry without a login. An id of another registry is not taken.
    """

    def __init__(self, registry: str = "", known: Iterable[tuple[Known, int]] = ()) -> None:
        self.registry = registry
        self._ids: dict[Known, int] = dict(known)

    def get(self, use: SchemaUse) -> int | None:
        """The id of a schema; None: it is not known."""
        return self._ids.get(use.known_as)

    def put(self, use: SchemaUse, schema_id: int) -> None:
        """The registry has given the id."""
        self._ids[use.known_as] = schema_id

    def take(self, value: bytes) -> bool:
        """A record of the schemas topic. False: it does not name an id of this registry."""
        found = _read(value)
        if found is None or found[2] != self.registry:
            return False
        self._ids[found[0]] = found[1]
        return True

    def newest(self) -> int | None:
        """The greatest id that is known; None: there is none."""
        return max(self._ids.values(), default=None)

    def forget(self) -> int:
        """Forget all ids, because the registry does not have them any more; how many those were."""
        count = len(self._ids)
        self._ids.clear()
        return count

    def record(self, use: SchemaUse) -> tuple[bytes, bytes]:
        """Key and value of the record that names the id of a schema, which must be known."""
        subject, fingerprint = use.known_as
        key = {"subject": subject, "schema": fingerprint}
        value = {**key, "id": self._ids[subject, fingerprint], "registry": self.registry}
        return _json(key), _json(value)


def is_registration(value: bytes) -> bool:
    """Whether a record of the schemas topic names the id of a schema, so that there are records in such a format."""
    return _read(value) is not None


def _read(value: bytes) -> tuple[Known, int, str] | None:
    try:
        data = bounded_json.fields(bounded_json.parse(value))
        schema_id = bounded_json.count(data["id"])
        return (str(data["subject"]), str(data["schema"])), schema_id, str(data["registry"])
    except (ValueError, KeyError):
        return None


def _json(data: object) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
