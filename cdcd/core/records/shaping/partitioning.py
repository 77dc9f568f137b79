"""A shape (`shape.py`) that chooses the partition of each record by columns of its table.

`catalog/table_rules.py` decides which columns.

The hash is Murmur2, as in Kafka's default partitioner, over PostgreSQL's texts for the values, joined by commas;
NULL is an empty text. So it depends on the values alone: not on `format`, and not on the columns' names. A table of
orders by `customer_id` and a table of customers by `id` put all records of a customer into partitions of the same
number, if their topics have the same number of partitions. A producer whose keys are the plain text does the same.

An update that changes one of the values becomes a delete and an insert, like an update of the key, even if the key
stays the same. Both have the number of the event. The delete and its tombstone go to the partition that has the
row's records so far, the insert to the row's new partition.

The hash is in a header (`HEADER_PARTITION`), which the sink removes. The encoder does not know the number of
partitions, so the same WAL always gives the same records.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from cdcd.core.catalog.binary_text import Reader
from cdcd.core.catalog.logical import logical_type
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.table_rules import KEY
from cdcd.core.errors import ConfigError, SourceError
from cdcd.core.protocol import peek
from cdcd.core.protocol.messages import Binary, Relation, Value
from cdcd.core.records.encoder import HEADER_PARTITION, Encoded, Encoder, EncoderSettings, Record
from cdcd.core.records.shaping.row_values import ORDINARY, RowValues, old_and_new
from cdcd.core.records.shaping.shape import Lines, Shape, ShapedPart, of_row
from cdcd.core.transactions.drafts import SpoolItem

if TYPE_CHECKING:
    from mypy_extensions import i64

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_BITS: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


def positive_murmur2(data: bytes) -> int:
    """Return the hash as a number of 31 bits; its remainder when divided by the number of partitions is the partition.

    Source: Utils.java of Kafka, `murmur2` and `toPositive`.
    """
    size: i64 = len(data)
    whole: i64 = size & ~3
    found: i64 = _SEED ^ size
    at: i64 = 0
    part: i64
    while at < whole:
        part = data[at] | (data[at + 1] << 8) | (data[at + 2] << 16) | (data[at + 3] << 24)
        part = (part * _M) & _BITS
        part ^= part >> 24
        part = (part * _M) & _BITS
        found = ((found * _M) & _BITS) ^ part
        at += 4
    if size > whole:
        while size > whole:
            size -= 1
            found ^= data[size] << (8 * (size - whole))
        found = (found * _M) & _BITS
    found ^= found >> 13
    found = (found * _M) & _BITS
    found ^= found >> 15
    return int(found & _POSITIVE)


HASH_BYTES: Final = 4

_COMMA: Final = b","

Headers = list[tuple[str, bytes]]

Texts = tuple[bytes, ...]
"""PostgreSQL's texts for the values of the chosen columns, empty for NULL."""


def partitioned(inner: Encoder, settings: EncoderSettings) -> Encoder:
    """Return `inner`, which chooses the partition of records by columns, if there are rules for it."""
    if settings.partition_rules:
        inner.shapes.put(PartitionShape(settings))
    return inner


def partition_header(texts: Texts) -> tuple[str, bytes]:
    """Return the header for the sink in a record of a row with these values."""
    return HEADER_PARTITION, positive_murmur2(_COMMA.join(texts)).to_bytes(HASH_BYTES, "big")


def taken_out(headers: Headers | None) -> tuple[int | None, Headers | None]:
    """Return the hash from the headers of a record (None if there is none), and the other headers."""
    for place, (name, value) in enumerate(headers or ()):
        if name == HEADER_PARTITION:
            assert headers is not None
            return int.from_bytes(value, "big"), [*headers[:place], *headers[place + 1 :]] or None
    return None, headers


def without_partition(record: Record) -> Record:
    """Return the record as it is written to Kafka."""
    topic, key, value, headers = record
    return topic, key, value, taken_out(headers)[1]


class PartitionedTable(RowValues):
    """A table whose partitions are chosen by columns, by its latest description.

    Args:
        columns: the columns that choose the partition, in the order of the configuration.

    Raises:
        ConfigError: the values of a column's type are not plain text.
    """

    def __init__(
        self,
        relation: Relation,
        columns: Sequence[str],
        types: Mapping[int, TypeDescription],
        table: TableDescription = ORDINARY,
    ) -> None:
        RowValues.__init__(self, relation, "", table)
        at = {column.name: index for index, column in enumerate(relation.columns)}
        self.indexes = sorted([at[name] for name in columns])
        self._order = [self.indexes.index(at[name]) for name in columns]
        self._names = [relation.columns[index].name for index in self.indexes]
        self._readers: list[Reader | None] = []
        for index in self.indexes:
            column = relation.columns[index]
            logical = logical_type(column.type_oid, column.type_modifier, types)
            if logical.element is not None:
                raise ConfigError(
                    f"{KEY} has column {column.name} of {self.name}, which is an array.",
                    hint="Choose the partitions by columns of other types.",
                )
            self._readers.append(logical.read)

    def texts(self, values: Sequence[Value]) -> Texts:
        """Return the texts of the values of the columns `indexes`, in the order of the configuration.

        Raises:
            SourceError: the server did not send one of them.
        """
        found = [self._text(place, value) for place, value in enumerate(values)]
        return tuple([found[place] for place in self._order])

    def _text(self, place: int, value: Value) -> bytes:
        if value is None:
            return b""
        if isinstance(value, bytes):
            return value
        if isinstance(value, Binary):
            read = self._readers[place]
            if read is not None:
                return read(value.data).encode("latin-1")
        raise SourceError(
            f"The server did not send column {self._names[place]!r} of {self.name}, which chooses the partition "
            f"({KEY}).",
            hint="PostgreSQL before 13.6 and 14.2 loses such values: update it, or set REPLICA IDENTITY FULL.",
        )

    def of_frame(self, frame: bytes, in_stream: bool) -> tuple[Texts, Texts]:
        """Return the texts of the old row and of the new one; both are the same if the event has only one of the two
        rows.

        Raises:
            ValueError, IndexError: the frame is malformed.
            SourceError: the server did not send a value.
        """
        old, new, _ = old_and_new(self, frame, in_stream)
        return self.texts(old), self.texts(new)

    def of_line(self, line: bytes) -> Texts | None:
        """Return the texts of a line of COPY, with its newline; None if it has another number of columns."""
        values = self._line_values(line)
        return None if values is None else self.texts(values)


class PartitionShape(Shape):
    """Chooses the partition of each record. See `Shape` for the methods."""

    def __init__(self, settings: EncoderSettings) -> None:
        self._chosen = settings.chosen_partitions
        self._parted: dict[int, PartitionedTable] = {}

    @property
    def is_on(self) -> bool:
        return bool(self._parted)

    def check(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        self._made(relation, table, types)

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        parted = self._made(relation, table, types)
        if parted is None:
            self._parted.pop(relation.oid, None)
        else:
            self._parted[relation.oid] = parted

    def _made(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> PartitionedTable | None:
        columns = self._chosen.columns(relation, table)
        return PartitionedTable(relation, columns, types, table) if columns else None

    def takes(self, item: SpoolItem, in_stream: bool) -> bool:
        return of_row(item, in_stream, self._parted) is not None

    def parts(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        parted = of_row(frame, in_stream, self._parted)
        if parted is None:
            return None
        old, new = parted.of_frame(frame, in_stream)
        part = ShapedPart(frame, peek.relation_of_row(frame, in_stream))
        part.came = part.left = partition_header(new)
        if old != new:
            part.moves = True
            part.left = partition_header(old)
        return [part]

    def encoded(self, oid: int, given: Lines, encoded: Encoded, topic: str, records: list[Record]) -> None:
        parted = self._parted.get(oid)
        if parted is None:
            return
        left_out = set(encoded.left_out)
        written = iter([line for number, line in enumerate(given.lines) if number not in left_out])
        for number, (name, key, value, headers) in enumerate(records):
            if name == topic:
                texts = parted.of_line(next(written))
                assert texts is not None, "a row that was encoded has its table's columns"
                records[number] = (name, key, value, [*(headers or ()), partition_header(texts)])
        assert next(written, None) is None, "each row has one record"
