"""Stage 5: JSON values -> what stands around them in a record: the source block and the times.

Debezium's `source` has what a consumer needs to order and find an event. Its fields here are Debezium's for
PostgreSQL, in its order, and two at the end under the names of Debezium's SQL Server connector: `commit_lsn`, the
position of the transaction, and `event_serial_no`, the number of the event in it, from 1. Together they order all
events of a slot, which `lsn` does not: rows of one multi-insert share one, and transactions commit in another order
than their rows were written. After them comes `schema_id`, which names the description of the table (`schemas.py`).

Everything but three numbers (twice the event's LSN, its serial number) is the same for all events of a transaction on a
table, so it is made once for that and kept in pieces.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cdcd.errors import ConfigError
from cdcd.protocol.messages import POSTGRES_EPOCH_US
from cdcd.records.protection import Protections
from cdcd.records.routing import Table, TopicNames, topic_name
from cdcd.records.wiretext import quote, wire

Record = tuple[str, bytes | None, bytes | None, list[tuple[str, bytes]] | None]
"""Topic, key, value and headers; a value of None is a tombstone."""

HEADER_NEW_KEY: Final = "__debezium.newkey"
HEADER_OLD_KEY: Final = "__debezium.oldkey"
HEADER_UNCHANGED: Final = "cdcd.unchanged"
"""JSON array of the columns whose value in this record is a placeholder, because the server did not send it."""


@dataclass(frozen=True, slots=True)
class EnvelopeSettings:
    """What the records' form depends on, apart from the data.

    Attributes:
        version: cdcd's version, `source.version`.
        prefix: of the topics, `source.name`.
        database: its name, `source.db`.
        message_topic: for logical messages; None is `<prefix>.message`.
        schemas_topic: for the descriptions of tables (`schemas.py`); None: there are none, nor `source.schema_id`.
        names: topics of the tables that are not called after the rule (`routing.py`).
        checkpoint_topic, dead_letter_topic: which no table may take; None: there is none.
        tombstones: a delete is followed by a record without a value.
        truncate: TRUNCATE makes records.
        decimal: how numeric is written; only "string" so far.
        interval: likewise; only "iso8601" so far.
        unavailable: stands for a value that the server did not send.
        protections: which columns' values are left out or replaced.
    """

    version: str
    prefix: str
    database: str
    message_topic: str | None = None
    schemas_topic: str | None = None
    names: Mapping[Table, str] = field(default_factory=dict)
    checkpoint_topic: str | None = None
    dead_letter_topic: str | None = None
    tombstones: bool = True
    truncate: bool = True
    decimal: str = "string"
    interval: str = "iso8601"
    unavailable: str = "__debezium_unavailable_value"
    protections: Protections = field(default_factory=Protections)

    def __post_init__(self) -> None:
        if self.decimal != "string":
            raise ConfigError(f"decimal: {self.decimal} is not supported.", hint="It can be: string.")
        if self.interval != "iso8601":
            raise ConfigError(f"interval: {self.interval} is not supported.", hint="It can be: iso8601.")

    @property
    def topics(self) -> TopicNames:
        """How the topics are called. SinkError: the prefix makes the name of the messages' topic too long."""
        return TopicNames(
            self.prefix,
            self.names,
            topic_name(self.message_topic or f"{self.prefix}.message"),
            self.schemas_topic,
            self.checkpoint_topic,
            self.dead_letter_topic,
        )


class SourceBlock:
    """The pieces of `source` for the transaction that is open."""

    def __init__(self, settings: EnvelopeSettings) -> None:
        name = quote(wire(settings.prefix))
        version = quote(wire(settings.version))
        self._start = f',"source":{{"version":{version},"connector":"postgresql","name":{name},"ts_ms":'
        self._snapshot = "false"
        self._sequence = f'","db":{quote(wire(settings.database))},"sequence":"['
        self._txid = ""
        self._commit_lsn = 0
        self._unix_us = 0
        self._last = ""
        self._origin = _NO_ORIGIN

    def begin(
        self,
        xid: int | None,
        commit_lsn: int,
        unix_us: int,
        last_commit_lsn: int | None,
        snapshot: str = "false",
    ) -> None:
        """A transaction begins. `unix_us`: its commit, in microseconds since 1970; `xid` None: there is none."""
        self._txid = "null" if xid is None else str(xid)
        self._snapshot = snapshot
        self._commit_lsn = commit_lsn
        self._unix_us = unix_us
        self._last = "null" if last_commit_lsn is None else f'\\"{last_commit_lsn}\\"'
        self._origin = _NO_ORIGIN

    def set_origin(self, name: str | None, lsn: int | None) -> None:
        """The transaction was made on another server; `lsn` is where it was committed there."""
        origin = "null" if name is None else quote(wire(name))
        self._origin = _origin(origin, "null" if lsn is None else str(lsn))

    def pieces(self, table: str) -> tuple[bytes, bytes, bytes]:
        """What stands before the event's LSN, between it and its repetition, and from there to the serial number.

        `table` is the table's own piece (`of_table`). The closing brace is the next piece's.
        """
        micros = self._unix_us
        head = f'{self._start}{micros // 1000},"snapshot":"{self._snapshot}{self._sequence}{self._last},\\"'
        middle = f'\\"]","ts_us":{micros},"ts_ns":{micros * 1000}{table},"txId":{self._txid},"lsn":'
        tail = f'{self._origin}{self._commit_lsn},"event_serial_no":'
        return head.encode("latin-1"), middle.encode("latin-1"), tail.encode("latin-1")


def _origin(name: str, lsn: str) -> str:
    return f',"xmin":null,"origin":{name},"origin_lsn":{lsn},"commit_lsn":'


_NO_ORIGIN: Final = _origin("null", "null")


def of_table(schema: str, name: str) -> str:
    """A table's own piece of `source`, wire text; both empty for a logical message."""
    return f',"schema":{quote(wire(schema))},"table":{quote(wire(name))}'


def closing(op: str, schema_id: str | None = None) -> bytes:
    """What stands between the serial number and the times of an envelope."""
    described = "" if schema_id is None else f',"schema_id":"{schema_id}"'
    return f'{described}}},"transaction":null,"op":"{op}",'.encode("ascii")


def processed_at(now_us: int) -> bytes:
    """The times at the end of an envelope, and its end."""
    return f'"ts_ms":{now_us // 1000},"ts_us":{now_us},"ts_ns":{now_us * 1000}}}'.encode("ascii")


def unix_us(postgres_us: int) -> int:
    """Microseconds since 1970 of a time on the wire, in microseconds since 2000."""
    return postgres_us + POSTGRES_EPOCH_US
