"""Events that are published by logical messages: what is sent, and what must come of it."""

import json
from random import Random
from typing import Final

from cdcd.core.records.encoder import Record
from cdcd.core.records.shaping.settings import Outbox

PREFIX: Final = "cdcd.publish"
TOPIC: Final = "events"
OUTBOX: Final = Outbox((TOPIC,), messages=True)


def draw_event(rng: Random, number: int) -> bytes:
    """A content; a third of them cannot be published."""
    topic = TOPIC if rng.random() < 0.7 else "unknown"
    return json.dumps({"topic": topic, "key": str(number % 5), "payload": {"number": number}}).encode()


def record_of(prefix: str, content: bytes) -> Record | None:
    """The record of a message that is published; None: it is a message like any other."""
    if prefix != PREFIX:
        return None
    event = json.loads(content)
    if event["topic"] != TOPIC:
        return None
    return (TOPIC, event["key"].encode(), json.dumps(event["payload"]).encode(), None)
