"""The descriptions of tables that records name, read from the schemas topic when a record names one that is not known.

A description is in the Kafka transaction of the first record that names it, or in an earlier one. So once such a record
was read, its description is in the topic, though a `read_committed` reader may not see it yet. Reading waits for that
(`kafka/bounded_reading.py`).
"""

from collections.abc import Mapping
from contextlib import suppress

from cdcd.adapters.kafka.bounded_reading import BoundedReader
from cdcd.adapters.kafka.client import Properties
from cdcd.core.records.schemas import TableForm, read_form


class Descriptions:
    """What the schemas topic says of the tables with these topics. The caller owes `close`.

    Args:
        topic: the schemas topic; None: there is none.
        timeout_s: how long a transaction that is open there may take.
    """

    def __init__(self, client: Properties, group: str, topic: str | None, timeout_s: float) -> None:
        self._topics = [] if topic is None else [topic]
        self._timeout_s = timeout_s
        self._reader = BoundedReader(client, group)
        self._begins: dict[tuple[str, int], int] = {}
        self._forms: dict[str, dict[str, TableForm]] = {}

    def close(self) -> None:
        self._reader.close()

    def of(self, topic: str) -> Mapping[str, TableForm]:
        """The descriptions of the table with this topic, by fingerprint. `read` adds to them."""
        if topic not in self._forms:
            self._forms[topic] = {}
            # What was read before was not kept for this one.
            for place, begin in self._begins.items():
                self._reader.rewind(place, begin)
        return self._forms[topic]

    def read(self) -> None:
        """Read what there is by now, from where the last reading ended. Raises as `BoundedReader`."""
        self._begins |= self._reader.add(self._topics)
        for _, _, message in self._reader.read(self._reader.ends(), self._timeout_s):
            with suppress(ValueError):
                fingerprint, form = read_form(message.value() or b"")
                forms = self._forms.get(form.topic)
                if forms is not None:
                    forms[fingerprint] = form
