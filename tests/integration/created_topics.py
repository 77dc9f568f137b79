"""Topics that a test makes beside the daemon, so that every other client sees them.

A KRaft broker answers a CreateTopics request when the controller has written the topic. Its own list of topics follows
some milliseconds later (KIP-500: brokers replay the controller's log), so another client may miss a topic that
"was created".
"""

import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

_WAIT_S: Final = 30.0


def create_topics(
    servers: str, *names: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Create the topics with one replica; returns when the broker lists each of them."""
    admin = AdminClient({"bootstrap.servers": servers})
    topics = [NewTopic(name, partitions, 1, config=dict(config or {})) for name in names]
    for created in admin.create_topics(topics).values():
        created.result(_WAIT_S)
    deadline = time.monotonic() + _WAIT_S
    while missing := set(names) - admin.list_topics(timeout=_WAIT_S).topics.keys():
        assert time.monotonic() < deadline, f"the broker never listed {sorted(missing)}"
