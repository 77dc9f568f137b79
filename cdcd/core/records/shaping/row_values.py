"""What expressions are given of a table's rows, and the events that an update is divided into.

The rule: PostgreSQL sends of an old row what the replica identity has, all of it under REPLICA IDENTITY FULL, and
nothing if the identity did not change: then its columns are those of the new row. What it does not send is not known,
and `Missing` stands for it. A value of the new row that was not sent because it did not change (TOAST) is that of the
old row, if that was sent.

Of a row of a partitioned table, PostgreSQL sends what the replica identity of its partition has, and calls it whole
where that of the partitioned table is FULL. A replica identity has no NULL, so NULL stands for what was not sent
(`replica_identity.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.core.catalog.copytext import NULL, split_row, unescape
from cdcd.core.catalog.protection import Protections
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.replica_identity import known_before
from cdcd.core.pasted import identifier
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import UNCHANGED, Delete, Insert, Relation, TupleData, Update, Value
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.shaping.column_values import ColumnValues
from cdcd.core.records.shaping.compiling import ExpressionError
from cdcd.core.records.shaping.evaluation import Missing, Values

NOT_SENT: Final = "PostgreSQL did not send the old row"

ORDINARY: Final = TableDescription()
"""A table without partitions."""


class RowValues:
    """Picks the values that expressions ask for out of rows. A `RowValues` belongs to one description of a table.

    Attributes:
        name: of the table, as `schema.table`.
        problem: why the expressions have no answer for any row: they do not fit the table, or contradict each other;
            "": they fit. A start refuses such expressions, so the table was altered or made since.
        reason: why there was no answer for the row that was looked at last; "": there was one.
        width: how many columns its rows have.
        indexes: the columns that the expressions ask for, by their places in the relation, in rising order.
    """

    def __init__(self, relation: Relation, problem: str, table: TableDescription = ORDINARY) -> None:
        self.name = f"{relation.schema}.{relation.name}"
        self.problem = problem
        self.reason = ""
        self.width = len(relation.columns)
        self.indexes: list[int] = []
        self._columns: list[ColumnValues] = []
        self._identity = known_before(relation, table)
        self._unsent = frozenset([column for column, _ in table.unsent])

    def _use(self, columns: list[ColumnValues]) -> dict[str, tuple[int, str]]:
        """Expressions ask for these columns. Their places and kinds by name, as `compile_expression` wants them."""
        self._columns = columns
        self.indexes = [each.index for each in columns]
        return {each.name: (place, each.kind) for place, each in enumerate(columns)}

    def _new_values(self, values: Sequence[Value]) -> Values:
        """What expressions are given of a row with these values, of the columns `indexes`."""
        return [each.of(values[place]) for place, each in enumerate(self._columns)]

    def _old_values(self, old: Sequence[Value], whole: bool) -> Values:
        """The same for what PostgreSQL has sent of an old row.

        Args:
            whole: PostgreSQL calls it all of it; else it is the replica identity, and other columns are not known.
        """
        return [
            each.of(value) if self._is_known(each, value, whole) else Missing(NOT_SENT)
            for each, value in zip(self._columns, old, strict=True)
        ]

    def _is_known(self, column: ColumnValues, value: Value, whole: bool) -> bool:
        """Whether a column had this value, as `_old_values` says."""
        if value is None:
            return whole and column.name not in self._unsent
        return whole or self._identity[column.index]

    def _line_values(self, line: bytes) -> list[Value] | None:
        """The values of the columns `indexes` in a row of COPY, with its newline.

        None: it has another number of columns. The format's encoder says what is wrong with it.
        """
        fields = split_row(line)
        if len(fields) != self.width:
            return None
        values = [fields[index] for index in self.indexes]
        return [None if field == NULL else unescape(field) for field in values]

    def completed_values(self, new: Sequence[Value], old: Sequence[Value], *, whole: bool) -> Sequence[Value]:
        """As `completed`, for the values of the columns `indexes`."""
        if UNCHANGED not in new:
            return new
        return [
            before
            if value is UNCHANGED and before is not None and (whole or self._identity[index])
            else value
            for index, value, before in zip(self.indexes, new, old, strict=True)
        ]

    def old_of(self, new: TupleData) -> TupleData:
        """The replica identity of an updated row, if PostgreSQL sent none because it did not change."""
        return tuple([value if is_key else None for value, is_key in zip(new, self._identity, strict=True)])

    def completed(self, new: TupleData, old: TupleData | None, *, whole: bool) -> TupleData:
        """The new row, with the old row's values where the server has sent none because they did not change."""
        if old is None or UNCHANGED not in new:
            return new
        values: list[Value] = list(new)
        for index, value in enumerate(values):
            # NULL stands for a value that was not sent, because the row's partition has another replica identity.
            if value is UNCHANGED and old[index] is not None and (whole or self._identity[index]):
                values[index] = old[index]
        return tuple(values)


@dataclass(frozen=True, slots=True)
class UnknownColumns:
    """Columns of which PostgreSQL does not send all old values: their names, why (the end of a sentence) and what to do
    about it."""

    columns: str
    reason: str
    remedy: str


def unknown_columns(
    relation: Relation, table: TableDescription, columns: Iterable[ColumnValues]
) -> UnknownColumns | None:
    """Those of the columns of which PostgreSQL does not send all old values; None: there are none.

    None also for a table without a replica identity, whose updates and deletes PostgreSQL rejects.
    """
    columns, unsent = tuple(columns), dict(table.unsent)
    by_partitions = [each.name for each in columns if each.name in unsent]
    if by_partitions:
        partition = unsent[by_partitions[0]]
        return UnknownColumns(
            ", ".join(by_partitions),
            f". Of rows of partition {partition} that are updated or deleted, PostgreSQL sends only the replica "
            f"identity of the partition, whatever that of {relation.schema}.{relation.name} is.",
            f"Have PostgreSQL send old rows as a whole, for each partition: ALTER TABLE {partition} REPLICA IDENTITY "
            "FULL;",
        )
    unknown = [each.name for each in columns if not each.is_identity]
    if not unknown or not any(column.is_key for column in relation.columns):
        return None
    return UnknownColumns(
        ", ".join(unknown),
        ", and PostgreSQL sends only the replica identity of rows that are updated or deleted.",
        "Have PostgreSQL send old rows as a whole: ALTER TABLE "
        f"{identifier(relation.schema)}.{identifier(relation.name)} REPLICA IDENTITY FULL;",
    )


def old_and_new(
    found: RowValues, frame: bytes, in_stream: bool
) -> tuple[Sequence[Value], Sequence[Value], bool]:
    """Of a row's event: the values of the old row, those of the new one, and whether all of the old row was sent.

    Of an insert, both are the new row; of a delete, both are the old one.

    Raises:
        ValueError, IndexError: the event is malformed. The format's encoder says how.
    """
    tag, at = peek.tag_of(frame), peek.first_row(in_stream)
    kind = frame[at]
    whole = kind == peek.OLD_ROW
    old, at = peek.picked_values(frame, at, found.width, found.indexes)
    new: Sequence[Value] = old
    if tag == peek.UPDATE and kind != peek.NEW_ROW:
        if frame[at] != peek.NEW_ROW:
            raise ValueError("unknown kind of row")
        sent, at = peek.picked_values(frame, at, found.width, found.indexes)
        new = found.completed_values(sent, old, whole=whole)
    is_wrong = kind != peek.NEW_ROW if tag == peek.INSERT else tag == peek.DELETE and kind == peek.NEW_ROW
    if is_wrong or at != len(frame):
        raise ValueError("the row is not of its message's form")
    return old, new, whole


def delete_of(found: RowValues, frame: bytes, in_stream: bool) -> bytes:
    """The delete of the old row of an update."""
    update = read_message(frame, XLOG_HEADER, in_stream=in_stream)
    assert isinstance(update, Update), "only updates are divided"
    old = found.old_of(update.new) if update.old is None else update.old
    gone = Delete(update.xid, update.relation_oid, update.old_kind or "K", old)
    return frame[:XLOG_HEADER] + write_message(gone)


def insert_of(found: RowValues, frame: bytes, in_stream: bool, *, whole: bool) -> bytes:
    """The insert of the new row of an update. `whole`: all of the old row was sent."""
    update = read_message(frame, XLOG_HEADER, in_stream=in_stream)
    assert isinstance(update, Update), "only updates are divided"
    new = found.completed(update.new, update.old, whole=whole)
    return frame[:XLOG_HEADER] + write_message(Insert(update.xid, update.relation_oid, new))


def used_columns(
    relation: Relation,
    names: Iterable[str],
    types: Mapping[int, TypeDescription],
    protections: Protections,
    *,
    table: TableDescription,
    shown: str,
) -> list[ColumnValues]:
    """The columns with these names, which expressions ask for, in the table's order.

    Args:
        shown: what would show the values of a protected column, in words.

    Raises:
        ExpressionError: one is not there, has no CEL type or is protected.
    """
    found: list[ColumnValues] = []
    places = {column.name: index for index, column in enumerate(relation.columns)}
    rules = protections.in_force(relation, table)
    for name in names:
        if name not in places:
            raise ExpressionError(f"there is no published column {name}")
        rule = rules[places[name]]
        if rule is not None:
            raise ExpressionError(f"{rule} protects column {name}, and {shown} would show its values")
        each = ColumnValues(relation.columns[places[name]], places[name], types)
        if not each.kind:
            raise ExpressionError(f"the type of column {name} has no value in an expression")
        found.append(each)
    return sorted(found, key=_place)


def _place(column: ColumnValues) -> int:
    return column.index
