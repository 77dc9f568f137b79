"""A bug of CloudEvents."""

from cdcd.core.records.available import record_stream
from cdcd.core.records.cloudevents.attributes import DATA_CHANGE, Events
from cdcd.core.records.cloudevents.json_events import JsonEventRows
from cdcd.core.records.cloudevents.tables import EventTables
from cdcd.core.records.debezium_json.encoder import JsonFormat
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.stream import RecordStream
from tests.sim.events import EnvelopedEncoder, Seen


class NamedByTheChange(Events):
    """The `id` has the LSN of the change, as Debezium's. Rows of one command have one LSN."""

    def _value(self, slot: int, op: str, mark: str, lsn: int, event_no: int, total: int, order: int) -> bytes:
        number = lsn if slot == 0 else event_no
        return super()._value(slot, op, mark, lsn, number, total, order)


class TablesNamedByTheChange(EventTables):
    """The events of all tables."""

    def describe(self, fragments: TableFragments) -> None:
        self._tables[fragments.relation.oid] = NamedByTheChange(
            self._settings, self._form, DATA_CHANGE, fragments, self._metadata
        )


def stream_named_by_the_change(settings: EncoderSettings) -> RecordStream:
    """A stream with these events."""
    stream = record_stream(settings)
    assert isinstance(stream.format, JsonFormat)
    rows = stream.format._around
    assert isinstance(rows, JsonEventRows)
    rows._events.__class__ = TablesNamedByTheChange
    return stream


class NamesEventsByTheChange(EnvelopedEncoder):
    """What the simulation runs. The events of one session are enough to find it."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings, Seen(), make=stream_named_by_the_change)
