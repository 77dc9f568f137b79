"""The values of rows for expressions, and the events into which an update is divided.

The rule: of an old row, PostgreSQL sends the replica identity, which is the whole row under REPLICA IDENTITY FULL;
it sends nothing if the identity did not change, because the new row has the same values. Values that it does not
send are not known, and are represented by `Missing`. A large value of the new row that was not sent because it is
unchanged (TOAST) is the old row's value, if that was sent.

For a row of a partitioned table, PostgreSQL sends the replica identity of the partition, but marks the row as whole
if the partitioned table has FULL. A replica identity never has NULL, so NULL means that the value was not sent
(`replica_identity.py`).

`UnansweredRows` counts rows for which an expression has no answer, and now and then reports one of them per table.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.core.catalog.copytext import NULL, split_row, unescape
from cdcd.core.catalog.protection import Protections
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.replica_identity import known_before
from cdcd.core.errors import ConfigError
from cdcd.core.facts import Observer, cut_short
from cdcd.core.facts.rules import FieldFailed, FilterFailed, RouteFailed
from cdcd.core.pasted import identifier
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import UNCHANGED, Delete, Insert, Relation, TupleData, Update, Value
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.shaping.column_values import ColumnValues
from cdcd.core.records.shaping.compiling import ExpressionError
from cdcd.core.records.shaping.evaluation import Missing, Values
from cdcd.core.table_names import table_text

NOT_SENT: Final = "PostgreSQL did not send the old row"

ORDINARY: Final = TableDescription()
"""Description of a table without partitions."""


class RowValues:
    """Selects the values that expressions use from rows, for one description of a table.

    Attributes:
        name: the table as `schema.table`.
        problem: why the expressions have no answer for any row: they do not match the table, or contradict each
            other; "" if they match. A start refuses such expressions, so the table was altered or created
            afterwards.
        reason: why the last evaluated row had no answer; "" if it had one.
        width: number of columns in its rows.
        indexes: indexes of the columns that the expressions use, in ascending order.
        columns: these columns.
    """

    def __init__(self, relation: Relation, problem: str, table: TableDescription = ORDINARY) -> None:
        self.name = table_text(relation.schema, relation.name)
        self.problem = problem
        self.reason = ""
        self.width = len(relation.columns)
        self.indexes: list[int] = []
        self.columns: list[ColumnValues] = []
        self._identity = known_before(relation, table)
        self._unsent = frozenset([column for column, _ in table.unsent])

    def _use(self, columns: list[ColumnValues]) -> dict[str, tuple[int, str]]:
        """Select these columns, and return their positions and kinds by name, for `compile_expression`."""
        self.columns = columns
        self.indexes = [each.index for each in columns]
        return {each.name: (place, each.kind) for place, each in enumerate(columns)}

    def _new_values(self, values: Sequence[Value]) -> Values:
        """Return the values for expressions, given a row's values of the columns `indexes`."""
        return [each.of(values[place]) for place, each in enumerate(self.columns)]

    def _old_values(self, old: Sequence[Value], whole: bool) -> Values:
        """Return the values for expressions, given what PostgreSQL has sent of an old row.

        Args:
            whole: whether PostgreSQL marks the row as whole; if not, only the replica identity is known.
        """
        return [
            each.of(value) if self._is_known(each, value, whole) else Missing(NOT_SENT)
            for each, value in zip(self.columns, old, strict=True)
        ]

    def _is_known(self, column: ColumnValues, value: Value, whole: bool) -> bool:
        """Return whether the old value of a column is known, as `_old_values` says."""
        if value is None:
            return whole and column.name not in self._unsent
        return whole or self._identity[column.index]

    def _line_values(self, line: bytes) -> list[Value] | None:
        """Return the values of the columns `indexes` in a line of COPY, with its newline.

        None if it has another number of columns. The format's encoder then reports the error.
        """
        fields = split_row(line)
        if len(fields) != self.width:
            return None
        values = [fields[index] for index in self.indexes]
        return [None if field == NULL else unescape(field) for field in values]

    def completed_values(self, new: Sequence[Value], old: Sequence[Value], *, whole: bool) -> Sequence[Value]:
        """Return the result of `completed` for the values of the columns `indexes`."""
        if UNCHANGED not in new:
            return new
        return [
            before
            if value is UNCHANGED and before is not None and (whole or self._identity[index])
            else value
            for index, value, before in zip(self.indexes, new, old, strict=True)
        ]

    def old_of(self, new: TupleData) -> TupleData:
        """Return the replica identity of an updated row, for which PostgreSQL sent none because it did not change."""
        return tuple([value if is_key else None for value, is_key in zip(new, self._identity, strict=True)])

    def completed(self, new: TupleData, old: TupleData | None, *, whole: bool) -> TupleData:
        """Return the new row, with the old row's values where the server sent none because they did not change."""
        if old is None or UNCHANGED not in new:
            return new
        values: list[Value] = list(new)
        for index, value in enumerate(values):
            # NULL means that the value was not sent, because the row's partition has another replica identity.
            if value is UNCHANGED and old[index] is not None and (whole or self._identity[index]):
                values[index] = old[index]
        return tuple(values)


@dataclass(frozen=True, slots=True)
class UnknownColumns:
    """Columns whose old values PostgreSQL does not always send: their names, the reason (as the end of a sentence) and
    what to do.
    """

    columns: str
    reason: str
    remedy: str


def unknown_columns(
    relation: Relation, table: TableDescription, columns: Iterable[ColumnValues]
) -> UnknownColumns | None:
    """Return the columns whose old values PostgreSQL does not always send; None if there are none.

    It is also None for a table without a replica identity, whose updates and deletes PostgreSQL rejects.
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


@dataclass(frozen=True, slots=True)
class RuleWords:
    """The words for one kind of rules in errors.

    Attributes:
        key: the section of the configuration that has the rules.
        once: the statement that a table can have one such rule or list of rules; `{}` stands for the table.
        unfit: the beginning of the statement that the rules do not fit a table; `{}` stands for the rules' key.
        asks: the beginning of the statement that the rules use columns; `{}` stands for the rules' key.
        part: the key that has the expressions.
        assumed: the effect of `old_row: assumed` on consumers.
    """

    key: str
    once: str
    unfit: str
    asks: str
    part: str
    assumed: str


def refuse_unfit(
    words: RuleWords,
    found: RowValues,
    relation: Relation,
    table: TableDescription,
    pattern: str,
    *,
    twice: str,
    needs_old: bool,
) -> None:
    """Raise ConfigError if rules do not match their table, or need values of old rows that PostgreSQL does not send.

    Args:
        found: the rules, for their table.
        pattern: the pattern of the configuration that has the rules.
        twice: why the table cannot have these rules; "" if it can.
        needs_old: whether all old values that the rules use must be known.
    """
    where = f"{words.key}.{pattern}"
    if twice:
        raise ConfigError(
            f"{words.once.format(found.name)}, and {twice}.",
            hint=f"Narrow one of the patterns of {words.key}.",
        )
    if found.problem:
        raise ConfigError(
            f"{words.unfit.format(where)} the table {found.name}: {found.problem}.",
            hint=f"Correct {where}.{words.part}, or narrow the pattern. docs/filters.md lists what an expression can "
            "have, and the types of columns.",
        )
    if not needs_old:
        return
    unknown = unknown_columns(relation, table, found.columns)
    if unknown is not None:
        raise ConfigError(
            f"{words.asks.format(where)} {unknown.columns} of {found.name}{unknown.reason}",
            hint=f"{unknown.remedy} Or set {where}.old_row: assumed, and {words.assumed}",
        )


def old_and_new(
    found: RowValues, frame: bytes, in_stream: bool
) -> tuple[Sequence[Value], Sequence[Value], bool]:
    """Return the values of an event's old row, those of its new row, and whether the old row was sent completely.

    For an insert, both are the new row; for a delete, both are the old one.

    Raises:
        ValueError, IndexError: the event is malformed. The format's encoder reports how.
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
    """Return the delete of the old row for an update."""
    update = read_message(frame, XLOG_HEADER, in_stream=in_stream)
    assert isinstance(update, Update), "only updates are divided"
    old = found.old_of(update.new) if update.old is None else update.old
    gone = Delete(update.xid, update.relation_oid, update.old_kind or "K", old)
    return frame[:XLOG_HEADER] + write_message(gone)


def insert_of(found: RowValues, frame: bytes, in_stream: bool, *, whole: bool) -> bytes:
    """Return the insert of the new row for an update; `whole` says whether the old row was sent completely."""
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
    """Return the columns with these names, which expressions use, in the table's order.

    Args:
        shown: words for what would reveal the values of a protected column.

    Raises:
        ExpressionError: a column is missing, has no CEL type or is protected.
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


REPORT_S: Final = 10
"""Minimum of seconds between two reports for the same table."""

REASON_MAX: Final = 400
"""Maximum number of characters of the reason in a report."""


class UnansweredRows:
    """Counts and reports rows for which the expressions of one kind have no answer.

    Attributes:
        counts: number of such rows, by table and `op`.

    Args:
        op: the name under which they are counted.
        fact: the class of the report.
    """

    def __init__(
        self, op: str, fact: type[FilterFailed] | type[RouteFailed] | type[FieldFailed], observe: Observer
    ) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self._op = op
        self._fact = fact
        self._observe = observe
        self._quiet: dict[str, tuple[int, int]] = {}
        """When the next report of each table is due, and how many rows without an answer were not reported since the
        last one."""

    def look_at(self, found: RowValues, lsn: int, now_us: int) -> None:
        """If the last evaluated row had no answer, count it, and report the reason unless the last report is too
        recent.
        """
        if not found.reason:
            return
        counted = found.name, self._op
        self.counts[counted] = self.counts.get(counted, 0) + 1
        left_out = self.note(found.name, now_us)
        if left_out is not None:
            reason = cut_short(found.reason, REASON_MAX)
            self._observe(self._fact(table=found.name, reason=reason, lsn=str(Lsn(lsn)), left_out=left_out))

    def note(self, table: str, now_us: int) -> int | None:
        """Note that a row of the table has no answer.

        Returns:
            The number of rows that were not reported since the last report, if this one is to be reported. None if
            this one is not to be reported.
        """
        due_us, left_out = self._quiet.get(table, (0, 0))
        if now_us < due_us:
            self._quiet[table] = (due_us, left_out + 1)
            return None
        self._quiet[table] = (now_us + REPORT_S * 1_000_000, 0)
        return left_out
