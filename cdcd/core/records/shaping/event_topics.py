"""The topics of events: those of the list `outbox.topics`, and those that rows of an outbox table make.

The rule: whoever may insert rows chooses the names of topics only within the form of `OutboxTable.topic`, and at most
`OutboxTable.topics_max` of them. The checkpoint has the topics that were made, so that they count after a restart, too.
An event for any other topic cannot be published (`outbox.py`). Neither can an event whose topic is refused: Kafka does
not create it, or it belongs to another pipeline. A refused topic is requested again after `REFUSED_S`.
"""

from collections.abc import Collection
from typing import Final

from cdcd.core.catalog.routing import TOPIC_LENGTH_MAX, equivalent, may_be_of_a_table
from cdcd.core.facts import cut_short
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.shaping.event_forms import REFUSED_S
from cdcd.core.records.shaping.settings import Outbox, OutboxTable

_SHOWN_MAX: Final = 200
_REASON_MAX: Final = 300


class EventTopics:
    """The topics that events may go to.

    Args:
        made: the topics that the checkpoint names.
    """

    def __init__(self, outbox: Outbox, settings: EncoderSettings, made: Collection[str] = ()) -> None:
        self.listed = frozenset(outbox.topics)
        self._prefix = settings.prefix
        self._made = dict.fromkeys([topic for topic in made if outbox.makes(topic)])
        self._refused: dict[str, tuple[str, int]] = {}
        """Refused topics. Each has the reason, and the time (microseconds) after which the topic is requested again."""
        names = settings.topics
        taken = [topic for topic, _ in names.own()] + [names.claims or ""] + list(names.names.values())
        self._taken = frozenset(map(equivalent, taken))

    @property
    def made(self) -> tuple[str, ...]:
        """The topics that rows have made, for the checkpoint."""
        return tuple(self._made)

    def admit(self, table: OutboxTable, topic: str, now_us: int) -> bool:
        """Return whether the topic of an event is one that rows make, which the caller requests.

        ValueError: no event may go to the topic.
        """
        if topic in self.listed:
            return False
        shown = cut_short(topic, _SHOWN_MAX)
        if not table.makes(topic):
            raise ValueError(f"outbox.topics does not have the topic {shown}")
        refused = self._refused.get(topic)
        if refused is not None:
            reason, until_us = refused
            if now_us < until_us:
                raise ValueError(f"the topic {shown} is refused: {reason}")
            del self._refused[topic]
        if topic in self._made:
            return True
        if len(topic) > TOPIC_LENGTH_MAX:
            raise ValueError(f"the topic {shown} has more than {TOPIC_LENGTH_MAX} characters")
        if equivalent(topic) in self._taken or may_be_of_a_table(topic, self._prefix):
            raise ValueError(f"the topic {shown} is, or could be, another topic of the pipeline")
        count = sum([table.makes(each) for each in (*self._made, *self._refused)])
        if count >= table.topics_max:
            raise ValueError(
                f"the topic {shown} would be one more than outbox.tables' topics_max, {table.topics_max}"
            )
        self._made[topic] = None
        return True

    def refuse(self, topic: str, reason: str, now_us: int) -> bool:
        """Note that a topic cannot be used. Returns False if it is none that rows have made."""
        if topic not in self._made:
            return False
        del self._made[topic]
        self._refused[topic] = cut_short(reason, _REASON_MAX), now_us + REFUSED_S * 1_000_000
        return True
