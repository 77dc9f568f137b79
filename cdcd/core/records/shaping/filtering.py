"""A shape (`shape.py`) that leaves out rows which do not match their table's filter.

`RowFilter` decides which rows a topic has, and `FilterShape` changes events accordingly:

| old row | new row | the event becomes |
|---|---|---|
| matches | matches | the update that it is |
| matches | does not | a delete of the old row |
| does not | matches | an insert of the new row |
| does not | does not | no record |

Truncates and logical messages are not filtered. A row for which the expression has no answer never ends the daemon:
`on_error` decides, and the reason is reported. For each table, at most one such report is made per `REPORT_S`.

Rows that snapshots read are filtered before they are encoded. Their pages count as delivered anyway, and a row that
is read again by its key and does not match needs no record.

The rule of `RowFilter`: a filter is about rows and not about events. Consumers of the topic have exactly the rows for
which the expression is true. So an update after which the expression is false becomes a delete, and one after which
it becomes true becomes an insert, as in PostgreSQL's own row filters (manual, "Row Filters", UPDATE Transformations).

This needs the old row. PostgreSQL sends only the columns of the replica identity, and nothing if these did not
change: then the new row has the same values in them. So an expression may only use columns of the replica identity,
which are all columns under REPLICA IDENTITY FULL. With `old_row: assumed`, it may use other columns too. If their
old values are not known, the old row is assumed to be in the topic. Consumers then get deletes of rows that they
never had, and an update in place of an insert, but they never keep a row that should be gone.

The same is assumed wherever the expression has no answer for the old row. For a new row without an answer,
`on_error` decides.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from cdcd.core.catalog.protection import Protections
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.table_rules import TableRules, both_match
from cdcd.core.facts import Observer
from cdcd.core.facts.rules import FilterFailed
from cdcd.core.protocol import peek
from cdcd.core.protocol.messages import Relation, Value
from cdcd.core.records.encoder import Encoder, EncoderSettings
from cdcd.core.records.shaping.compiling import ExpressionError, compile_expression
from cdcd.core.records.shaping.evaluation import BOOL, Condition, Values
from cdcd.core.records.shaping.expressions import columns_of
from cdcd.core.records.shaping.row_values import (
    ORDINARY,
    RowValues,
    RuleWords,
    UnansweredRows,
    delete_of,
    insert_of,
    old_and_new,
    refuse_unfit,
    used_columns,
)
from cdcd.core.records.shaping.settings import KEEP, REQUIRED, TableFilter
from cdcd.core.records.shaping.shape import FILTER_FAILED, FILTERED, Counts, Lines, Shape, ShapedPart, of_row
from cdcd.core.transactions.drafts import SpoolItem

KEY: Final = "filters.tables"

WORDS: Final = RuleWords(
    key=KEY,
    once="The table {} can have one filter",
    unfit="The filter {} does not fit",
    asks="The filter {} asks for",
    part="keep",
    assumed="consumers get deletes of rows that they never had (docs/filters.md).",
)


def table_filters(filters: Sequence[TableFilter]) -> TableRules[TableFilter]:
    """Return the filters of a configuration, by table. ConfigError: a pattern is malformed.

    A table should have at most one filter (`contradiction`).
    """
    return TableRules(KEY, [(each.table, each) for each in filters])


def contradiction(found: Sequence[TableFilter]) -> str:
    """Return why a table cannot have these filters; "" if it can."""
    return both_match(KEY, [each.table for each in found])


class RowFilter(RowValues):
    """The filter of a table, by the table's latest description. See `RowValues` for further attributes."""

    def __init__(
        self,
        relation: Relation,
        chosen: TableFilter,
        types: Mapping[int, TypeDescription],
        protections: Protections,
        problem: str = "",
        *,
        table: TableDescription = ORDINARY,
    ) -> None:
        RowValues.__init__(self, relation, problem, table)
        self._keeps_unanswered = chosen.on_error == KEEP
        self._requires_old = chosen.old_row == REQUIRED
        self._condition: Condition | None = None
        if problem:
            return
        try:
            names, shown = columns_of(chosen.keep), "which rows a topic has"
            places = self._use(used_columns(relation, names, types, protections, table=table, shown=shown))
            self._condition = Condition(compile_expression(chosen.keep, places, BOOL))
        except ExpressionError as error:
            self.problem = str(error)

    def keeps(self, values: Sequence[Value]) -> bool:
        """Return whether the topic has a row. `values` are the row's values in the columns `indexes`."""
        found = self._answer(self._new_values(values))
        return self._keeps_unanswered if found is None else found

    def kept(self, old: Sequence[Value], *, whole: bool) -> bool:
        """Return whether the topic may have had a row before it was changed.

        Args:
            old: the old row's values in the columns `indexes`, as far as PostgreSQL has sent them.
            whole: whether this is the complete row; if not, only the replica identity is known.
        """
        found = self._answer(self._old_values(old, whole))
        if found is None and not self._requires_old:
            # This is expected, and not a failure.
            self.reason = ""
        return found is not False

    def keeps_line(self, line: bytes) -> bool:
        """Return whether the topic has this row, which is a line of COPY with its newline."""
        values = self._line_values(line)
        return True if values is None else self.keeps(values)

    def _answer(self, values: Values) -> bool | None:
        found = None if self._condition is None else self._condition.answer(values)
        self.reason = ""
        if found is None:
            self.reason = self.problem if self._condition is None else self._condition.reason
        return found


def check_filter(
    relation: Relation,
    filters: Sequence[TableFilter],
    types: Mapping[int, TypeDescription],
    protections: Protections,
    table: TableDescription = ORDINARY,
) -> None:
    """Raise ConfigError if a filter does not match its table, or needs values of old rows that PostgreSQL does not
    send.

    Args:
        filters: the filters of the table, at least one.
    """
    chosen = filters[0]
    found = RowFilter(relation, chosen, types, protections, table=table)
    needs_old = chosen.old_row == REQUIRED
    twice = contradiction(filters)
    refuse_unfit(WORDS, found, relation, table, chosen.table, twice=twice, needs_old=needs_old)


def filtered(
    inner: Encoder,
    filters: tuple[TableFilter, ...],
    settings: EncoderSettings,
    observe: Observer,
    *,
    refuses: bool = False,
) -> Encoder:
    """Return `inner`, which leaves out rows that do not match the filters, if there are any.

    Args:
        refuses: as in `FilterShape`.
    """
    if filters:
        inner.shapes.put(FilterShape(filters, settings, observe, refuses=refuses))
    return inner


class FilterShape(Shape):
    """Leaves out rows that do not match their filters. See `Shape` for the methods.

    Args:
        refuses: whether a filter that does not fit its table is an error of the table. If not, it has no answer for
            any row (`TableFilter.on_error`).
    """

    def __init__(
        self,
        filters: tuple[TableFilter, ...],
        settings: EncoderSettings,
        observe: Observer,
        *,
        refuses: bool = False,
    ) -> None:
        self._refuses = refuses
        self._chosen = table_filters(filters)
        self._protections = settings.protections
        self._filters: dict[int, RowFilter] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._unanswered = UnansweredRows(FILTER_FAILED, FilterFailed, observe)

    @property
    def is_on(self) -> bool:
        return bool(self._filters)

    def counted(self, counts: Counts) -> Counts:
        return {**counts, **self._counts, **self._unanswered.counts}

    def check(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        chosen = self._chosen.of_table(relation) if self._refuses else ()
        if chosen:
            check_filter(relation, chosen, types, self._protections, table)

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        chosen = self._chosen.of_table(relation)
        if chosen:
            self._filters[relation.oid] = RowFilter(
                relation, chosen[0], types, self._protections, contradiction(chosen), table=table
            )
        else:
            self._filters.pop(relation.oid, None)

    def takes(self, item: SpoolItem, in_stream: bool) -> bool:
        return of_row(item, in_stream, self._filters) is not None

    def parts(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        found = of_row(frame, in_stream, self._filters)
        if found is None:
            return None
        shaped = self._shaped(found, frame, in_stream, now_us)
        if shaped is frame:
            return None
        if shaped is None:
            self._left_out(found, 1)
            return []
        return [ShapedPart(shaped)]

    def _shaped(self, found: RowFilter, frame: bytes, in_stream: bool, now_us: int) -> bytes | None:
        """Return the frame that the event becomes; None if it has no record."""
        tag = peek.tag_of(frame)
        old, new, whole = old_and_new(found, frame, in_stream)
        if tag == peek.INSERT:
            return frame if self._keeps(found, new, frame, now_us) else None
        if tag == peek.DELETE:
            return frame if self._kept(found, old, whole, frame, now_us) else None
        return self._update(found, old, new, whole, frame, in_stream, now_us)

    def _update(
        self,
        found: RowFilter,
        old: Sequence[Value],
        new: Sequence[Value],
        whole: bool,
        frame: bytes,
        in_stream: bool,
        now_us: int,
    ) -> bytes | None:
        was = self._kept(found, old, whole, frame, now_us)
        remains = self._keeps(found, new, frame, now_us)
        if was == remains:
            return frame if was else None
        if was:
            return delete_of(found, frame, in_stream)
        return insert_of(found, frame, in_stream, whole=whole)

    def _keeps(self, found: RowFilter, values: Sequence[Value], frame: bytes, now_us: int) -> bool:
        keeps = found.keeps(values)
        if found.reason:
            self._unanswered.look_at(found, peek.lsn_of(frame), now_us)
        return keeps

    def _kept(self, found: RowFilter, old: Sequence[Value], whole: bool, frame: bytes, now_us: int) -> bool:
        kept = found.kept(old, whole=whole)
        if found.reason:
            self._unanswered.look_at(found, peek.lsn_of(frame), now_us)
        return kept

    def _left_out(self, found: RowFilter, events: int) -> None:
        self._counts[found.name, FILTERED] = self._counts.get((found.name, FILTERED), 0) + events

    def rows(self, oid: int, given: Lines, lsn: int, now_us: int) -> list[Lines]:
        found = self._filters.get(oid)
        if found is None:
            return [given]
        kept: list[bytes] = []
        for line in given.lines:
            if found.keeps_line(line):
                kept.append(line)
            self._unanswered.look_at(found, lsn, now_us)
        if len(kept) < len(given.lines):
            self._left_out(found, len(given.lines) - len(kept))
        return [Lines(given.topic, kept)]
