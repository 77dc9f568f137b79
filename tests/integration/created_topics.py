"""Topics that a test makes, deletes or sets beside the daemon, so that every other client sees it.

A KRaft broker answers CreateTopics, DeleteTopics and IncrementalAlterConfigs when the controller has written it.
Its own list of topics follows some milliseconds later (KIP-500: brokers replay the controller's log), so another client
may miss a topic that "was created".
"""

import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

_WAIT_S: Final = 120.0


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


def delete_topic(servers: str, name: str) -> None:
    """Returns when the broker lists the topic no more."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([name])[name].result(_WAIT_S)
    deadline = time.monotonic() + _WAIT_S
    while name in admin.list_topics(timeout=_WAIT_S).topics:
        assert time.monotonic() < deadline, f"the broker still lists {name}"


def set_topic(servers: str, name: str, config: Mapping[str, str]) -> None:
    """Returns when the broker has these settings of the topic."""
    admin = AdminClient({"bootstrap.servers": servers})
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(_WAIT_S)
    deadline = time.monotonic() + _WAIT_S
    while True:
        (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name)]).values()
        found = {key: entry.value for key, entry in described.result(_WAIT_S).items()}
        if config.items() <= found.items():
            return
        assert time.monotonic() < deadline, f"the broker still has {found} for {name}"
