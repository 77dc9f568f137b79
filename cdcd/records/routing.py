"""Which topic a table's records go to: `<prefix>.<schema>.<table>`.

Characters that Kafka does not allow become `_` (Debezium's rule, which counts a character outside the basic plane as
two). That can give two tables one topic, and Kafka refuses two topics that differ only in `.` and `_`, whose
metrics have one name. Either would mix or lose changes, so the first such pair is an error.
"""

import re
from typing import Final

from cdcd.errors import SinkError

TOPIC_LENGTH_MAX: Final = 249
"""org.apache.kafka.common.internals.Topic: what a file name has room for with a partition's number."""

_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9._-]")


def topic_name(*parts: str) -> str:
    """The topic of the parts joined by points; SinkError when it is longer than Kafka allows."""
    name = _FORBIDDEN.sub(lambda match: "_" if match[0] < "\U00010000" else "__", ".".join(parts))
    if len(name) > TOPIC_LENGTH_MAX:
        raise SinkError(
            f"The topic {name} has {len(name)} characters; Kafka allows {TOPIC_LENGTH_MAX}.",
            hint="Choose a shorter topics.prefix or leave the table out of the publication.",
        )
    return name


class Routes:
    """Hands out topics and remembers whose they are."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._owners: dict[str, str] = {}

    def table(self, schema: str, name: str) -> str:
        """The topic of a table; SinkError when it collides with that of another one."""
        topic = topic_name(self._prefix, schema, name)
        self.claim(topic, f'table "{schema}"."{name}"')
        return topic

    def claim(self, topic: str, owner: str) -> None:
        """Say that `topic` is `owner`'s; SinkError when it, or one that Kafka takes for it, is another's."""
        holder = self._owners.setdefault(topic.replace(".", "_"), owner)
        if holder != owner:
            raise SinkError(
                f"The topic {topic} of {owner} collides with that of {holder}: to Kafka names that differ only in"
                " '.' and '_' are the same.",
                hint="Rename one of the tables or leave one out of the publication.",
            )
