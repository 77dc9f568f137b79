"""One topic for all tables, which consumers take apart by a field of the keys and by each record's source."""

import json
import re
from typing import Final

from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.catalog.sharing import DEFAULT_KEY_FIELD, SharedTopic
from cdcd.core.records.encoder import HEADER_NEW_KEY, HEADER_OLD_KEY
from tests.sim.catalog import SCHEMA
from tests.sim.expected import TOPIC_PREFIX, PromiseBrokenError, Record

TOPIC: Final = f"{TOPIC_PREFIX}.all"

SHARED: Final = (SharedTopic(TOPIC, (parse_pattern(f"{SCHEMA}.*"),)),)

_FIELD: Final = re.compile(rb'(.*),"%b":"([^"]*)"}' % DEFAULT_KEY_FIELD.encode(), re.DOTALL)

_KEYS: Final = (HEADER_NEW_KEY, HEADER_OLD_KEY)
"""Headers whose value is a key."""


def apart(record: Record) -> Record:
    """Return the record as a topic of its table alone would have it.

    Raises:
        PromiseBrokenError: the key and the source name two tables, or the key of a row names none.
    """
    topic, key, value, headers = record
    if topic.startswith(f"{TOPIC_PREFIX}.{SCHEMA}."):
        raise PromiseBrokenError(f"a record came to {topic}, and all tables share {TOPIC}")
    if topic != TOPIC:
        return record
    named, own = (None, None) if key is None else _without_field(key)
    if value is not None:
        source = json.loads(value)["source"]
        told = f"{TOPIC_PREFIX}.{source['schema']}.{source['table']}"
        if named not in (None, told):
            raise PromiseBrokenError(f"the key of a record of {told} names {named}: {key!r}")
        named = told
    assert named is not None, "a tombstone has a key"
    kept = [(name, _without_field(text)[1] if name in _KEYS else text) for name, text in headers or ()]
    return named, own, value, kept if headers else headers


def _without_field(key: bytes) -> tuple[str, bytes]:
    """The topic that the field names, and the key without the field."""
    found = _FIELD.fullmatch(key)
    if found is None:
        raise PromiseBrokenError(f"a key in {TOPIC} names no table: {key!r}")
    return found[2].decode(), found[1] + b"}"
