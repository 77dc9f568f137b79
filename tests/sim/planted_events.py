"""A bug of CloudEvents."""

from cdcd.core.records.cloudevents.attributes import DATA_CHANGE, EventForm, Events
from cdcd.core.records.cloudevents.json_encoder import JsonEventsEncoder
from cdcd.core.records.cloudevents.tables import EventTables, content_type
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.debezium_json.transaction_metadata import TransactionMetadata
from cdcd.core.records.encoder import EncoderSettings
from tests.sim.events import EnvelopedEncoder, Seen


class NamedByTheChange(Events):
    """The `id` has the LSN of the change, as Debezium's. Rows of one command have one LSN."""

    def _value(self, slot: int, op: str, mark: str, lsn: int, event_no: int, total: int, order: int) -> bytes:
        number = lsn if slot == 0 else event_no
        return super()._value(slot, op, mark, lsn, number, total, order)


class TablesNamedByTheChange(EventTables):
    """The events of all tables."""

    def describe(self, fragments: TableFragments, metadata: TransactionMetadata | None) -> None:
        self._tables[fragments.relation.oid] = NamedByTheChange(
            self._settings, self._form, DATA_CHANGE, fragments, metadata
        )


class EncoderNamedByTheChange(JsonEventsEncoder):
    """The encoder with these events."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        self._event_tables = TablesNamedByTheChange(
            settings, EventForm(settings, content_type(settings.events))
        )


class NamesEventsByTheChange(EnvelopedEncoder):
    """What the simulation runs. The events of one session are enough to find it."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings, Seen(), make=EncoderNamedByTheChange)
