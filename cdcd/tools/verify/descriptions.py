"""Table descriptions that records name, read from the schemas topic when a record names an unknown one.

A description is in the Kafka transaction of the first record that names it, or in an earlier transaction. So after
such a record was read, its description is in the topic, although a `read_committed` reader may not see it yet.
Reading waits until it is visible (`kafka/bounded_reading.py`).
"""

from collections.abc import Mapping
from contextlib import suppress

from cdcd.adapters.kafka.bounded_reading import BoundedReader
from cdcd.adapters.kafka.client import Properties
from cdcd.core.records.schemas import TableForm, read_form


class Descriptions:
    """Descriptions in the schemas topic of the tables with these topics. The caller owes `close`.

    Args:
        topic: name of the schemas topic; None: the pipeline has none.
        timeout_s: seconds to wait for an open transaction in the schemas topic.
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
        """Return the descriptions of the table with this topic, by fingerprint. `read` adds to the returned mapping."""
        if topic not in self._forms:
            self._forms[topic] = {}
            # Earlier reads did not keep the descriptions of this topic.
            for place, begin in self._begins.items():
                self._reader.rewind(place, begin)
        return self._forms[topic]

    def read(self) -> None:
        """Read the descriptions that exist now, from the end of the last read. Raises as `BoundedReader`."""
        self._begins |= self._reader.add(self._topics)
        for _, _, message in self._reader.read(self._reader.ends(), self._timeout_s):
            with suppress(ValueError):
                fingerprint, form = read_form(message.value() or b"")
                forms = self._forms.get(form.topic)
                if forms is not None:
                    forms[fingerprint] = form
