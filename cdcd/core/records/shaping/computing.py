"""Computed fields of rows (`fields.tables`, `computed`): values that expressions make of the columns of a row.

The rule: a computed field is one more column, which the server never sends. The table's description, its frames and its
lines of COPY get the column before a format sees them. So every format writes computed fields, with their schemas, as
it writes columns. All queries and all other settings know the columns of the table alone.

The type of the column follows from the expression alone: text, bigint, double precision or boolean. A field with the
name of a column takes its place; if not, the field stands behind the columns.

| the row | the field |
|---|---|
| all values that the expression uses are known | the value of the expression |
| such a value was not sent, because it is unchanged (TOAST) | not sent either, as `cdcd.unchanged` says |
| an old row, of which PostgreSQL did not send a value that the expression uses | null, as such columns are |
| the expression has no value (division by zero, an operation on NULL) | null, counted, reported as `fields.failed` |
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isinf, isnan
from typing import Final

from cdcd.core.catalog.copytext import NULL, escape, split_row, unescape
from cdcd.core.catalog.hints import HINT
from cdcd.core.catalog.protection import Protections
from cdcd.core.catalog.relations import TableDescription, TypeDescription, key_columns
from cdcd.core.catalog.table_rules import TableRules
from cdcd.core.errors import ConfigError, ProtocolError
from cdcd.core.facts import Observer
from cdcd.core.facts.rules import FieldFailed
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import UNCHANGED, Column, Delete, Insert, Relation, TupleData, Update, Value
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.shaping.compiling import ExpressionError, typed_expression
from cdcd.core.records.shaping.evaluation import BOOL, DOUBLE, INT, STRING, EvaluationError, Node, Values
from cdcd.core.records.shaping.expressions import CelCall, CelColumn, columns_of
from cdcd.core.records.shaping.row_values import RowValues, UnansweredRows, used_columns
from cdcd.core.records.shaping.settings import TableComputed
from cdcd.core.records.shaping.shape import FIELD_FAILED, of_row

KEY: Final = "fields.tables"

TYPES: Final[Mapping[str, int]] = {STRING: 25, INT: 20, DOUBLE: 701, BOOL: 16}
"""Type of the column of a computed field (`pg_type.oid`), by the type of its expression."""

BYTES_MAX: Final = 1 << 24
"""Maximum of bytes in a computed text. An expression may repeat a column, whose value may be large."""


class ComputedField:
    """One field: its index in the row, its expression, and the positions of the values that the expression uses."""

    def __init__(self, index: int, node: Node, places: list[int]) -> None:
        self.index = index
        self.node = node
        self.places = places


class ComputedTable(RowValues):
    """The computed fields of a table, by the table's latest description.

    Attributes:
        shown: the description with the columns of computed fields.
        names: names of the computed fields.

    Raises:
        ConfigError: an expression does not fit the table.
    """

    def __init__(
        self,
        relation: Relation,
        chosen: TableComputed,
        types: Mapping[int, TypeDescription],
        protections: Protections,
        table: TableDescription,
    ) -> None:
        RowValues.__init__(self, relation, "", table)
        self._fields: list[ComputedField] = []
        self.names = tuple([name for name, _ in chosen.fields])
        columns = list(relation.columns)
        known = {column.name: index for index, column in enumerate(columns)}
        keys = key_columns(relation, table)
        name = ""
        try:
            wanted = dict.fromkeys([each for _, made in chosen.fields for each in columns_of(made)])
            used = used_columns(relation, wanted, types, protections, table=table, shown="a computed field")
            places = self._use(used)
            for name, expression in chosen.fields:
                node = typed_expression(expression, places)
                if node.kind not in TYPES:
                    raise ExpressionError(
                        f"the expression has the type {node.kind}; write string(…), double(…) or int(…) around it"
                    )
                at = known.get(name, len(columns))
                is_keyed = name in keys or (
                    name in known and columns[at].is_key and relation.replica_identity != "f"
                )
                if is_keyed and expression != CelCall("string", (CelColumn(name),)):
                    raise ExpressionError(
                        f"the column is in the key, where only string(row.{name}) keeps the keys of rows apart"
                    )
                used_places = [places[each][0] for each in columns_of(expression)]
                self._fields.append(ComputedField(at, node, used_places))
                if at < len(columns):
                    columns[at] = Column(columns[at].flags, name, TYPES[node.kind], -1)
                else:
                    columns.append(Column(0, name, TYPES[node.kind], -1))
        except ExpressionError as error:
            where = f"{KEY}.{chosen.table}.computed"
            raise ConfigError(
                f"{where}{'.' + name if name else ''} does not fit the table {self.name}: {error}.",
                hint=f"Correct {where}, or narrow the pattern. docs/fields.md lists what an expression can have.",
            ) from None
        self.shown = replace(relation, columns=tuple(columns))

    def new_row(self, row: TupleData, old: TupleData | None, *, whole: bool) -> TupleData:
        """Return a new row with the computed fields; `old` is the row before, as far as PostgreSQL has sent it."""
        known = self.completed(row, old, whole=whole)
        picked = [known[index] for index in self.indexes]
        return self._with(row, self._new_values(picked), picked)

    def old_row(self, row: TupleData, *, whole: bool) -> TupleData:
        """Return an old row with the computed fields; NULL if they use columns whose old values were not sent."""
        reason = self.reason
        made = self._with(row, self._old_values([row[index] for index in self.indexes], whole), [])
        # The new row reports what it lacks; an old row without a value was reported when it was new.
        self.reason = reason
        return made

    def line(self, line: bytes) -> bytes:
        """Return a row of COPY, a line with its newline, with the computed fields."""
        fields = split_row(line)
        if len(fields) != self.width:
            return line
        row: TupleData = tuple([None if field == NULL else unescape(field) for field in fields])
        made = self.new_row(row, None, whole=True)
        for each in self._fields:
            value = made[each.index]
            text = escape(value) if isinstance(value, bytes) else NULL
            if each.index < len(fields):
                fields[each.index] = text
            else:
                fields.append(text)
        return b"\t".join(fields) + b"\n"

    def _with(self, row: TupleData, values: Values, picked: Sequence[Value]) -> TupleData:
        """Return the row with the computed fields.

        Args:
            values: values for the expressions.
            picked: the same values as they were sent; empty for an old row.
        """
        if len(row) != self.width:
            raise ProtocolError(
                f"A row of {self.name} has {len(row)} columns, but {self.width} in the Relation.", hint=HINT
            )
        self.reason = ""
        made = list(row)
        for each in self._fields:
            value: Value = None
            if picked and any(picked[place] is UNCHANGED for place in each.places):
                value = UNCHANGED
            else:
                value = self._value(each.node, values)
            if each.index < len(made):
                made[each.index] = value
            else:
                made.append(value)
        return tuple(made)

    def _value(self, node: Node, values: Values) -> Value:
        try:
            text = _text_of(node.value(values))
        except EvaluationError as error:
            self.reason = str(error)
            return None
        if text is not None and len(text) > BYTES_MAX:
            self.reason = f"the text has more than {BYTES_MAX} bytes"
            return None
        return text


def _text_of(value: object) -> bytes | None:
    """Return PostgreSQL's text for a value of an expression."""
    if value is None:
        return None
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, float):
        if isnan(value):
            return b"NaN"
        if isinf(value):
            return b"Infinity" if value > 0 else b"-Infinity"
        text = repr(value)
        return text.removesuffix(".0").encode("ascii")
    return str(value).encode()


class ComputedFields:
    """The computed fields of a configuration. ConfigError: a pattern is malformed.

    Args:
        observe: gets the facts about rows without a value.
    """

    def __init__(self, rules: Sequence[TableComputed], protections: Protections, observe: Observer) -> None:
        self._rules = TableRules(KEY, [(rule.table, rule) for rule in rules])
        self._protections = protections
        self._tables: dict[int, ComputedTable] = {}
        self._unanswered = UnansweredRows(FIELD_FAILED, FieldFailed, observe)

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Number of rows with a field that has no value, by table and op."""
        return self._unanswered.counts

    @property
    def is_on(self) -> bool:
        """Whether there may be tables with computed fields."""
        return bool(self._rules)

    def of_table(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> ComputedTable | None:
        """Return the computed fields of a table; None if it has none. ConfigError: they do not fit the table."""
        rule = self._rules.only(relation, "names the table's fields")
        if rule is None:
            return None
        return ComputedTable(relation, rule, types, self._protections, table)

    def take(self, oid: int, found: ComputedTable | None) -> None:
        """Take the computed fields of a relation with a new description; None: it has none."""
        if found is None:
            self._tables.pop(oid, None)
        else:
            self._tables[oid] = found

    def frame(self, frame: bytes, in_stream: bool, now_us: int) -> bytes:
        """Return an event with the computed fields of its row. ProtocolError: the message is malformed."""
        found = of_row(frame, in_stream, self._tables) if self._tables else None
        if found is None:
            return frame
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
        made: Insert | Update | Delete
        if isinstance(message, Insert):
            made = replace(message, new=found.new_row(message.new, None, whole=True))
        elif isinstance(message, Delete):
            made = replace(message, old=found.old_row(message.old, whole=message.old_kind == "O"))
        else:
            assert isinstance(message, Update), "only rows come here"
            whole = message.old_kind == "O"
            old = None if message.old is None else found.old_row(message.old, whole=whole)
            made = replace(message, old=old, new=found.new_row(message.new, message.old, whole=whole))
        if found.reason:
            self._unanswered.look_at(found, peek.lsn_of(frame), now_us)
        return frame[:XLOG_HEADER] + write_message(made)

    def lines(self, oid: int, lines: list[bytes], lsn: int, now_us: int) -> list[bytes]:
        """Return rows of COPY with their computed fields; `lsn` is the position up to which they are valid."""
        found = self._tables.get(oid)
        if found is None:
            return lines
        made: list[bytes] = []
        for line in lines:
            made.append(found.line(line))
            if found.reason:
                self._unanswered.look_at(found, lsn, now_us)
        return made
