"""A shape (`shape.py`) that leaves out rows which do not match their table's filter.

`row_filters.py` decides which rows a topic has, and this module changes events accordingly:

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
"""

from collections.abc import Mapping, Sequence

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.facts import FilterFailed, Observer
from cdcd.core.protocol import peek
from cdcd.core.protocol.messages import Relation, Value
from cdcd.core.records.encoder import Encoder, EncoderSettings
from cdcd.core.records.shaping.row_filters import RowFilter, TableFilters, contradiction
from cdcd.core.records.shaping.row_values import delete_of, insert_of, old_and_new
from cdcd.core.records.shaping.settings import TableFilter
from cdcd.core.records.shaping.shape import FILTER_FAILED, FILTERED, Counts, Lines, Part, Shape, of_row
from cdcd.core.records.shaping.unanswered import UnansweredRows
from cdcd.core.transactions.drafts import SpoolItem


def filtered(
    inner: Encoder, filters: tuple[TableFilter, ...], settings: EncoderSettings, observe: Observer
) -> Encoder:
    """Return `inner`, which leaves out rows that do not match the filters, if there are any."""
    if filters:
        inner.shape_by(FilterShape(filters, settings, observe))
    return inner


class FilterShape(Shape):
    """Leaves out rows that do not match their filters. See `Shape` for the methods."""

    def __init__(
        self, filters: tuple[TableFilter, ...], settings: EncoderSettings, observe: Observer
    ) -> None:
        self._chosen = TableFilters(filters)
        self._protections = settings.protections
        self._observe = observe
        self._filters: dict[int, RowFilter] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._unanswered = UnansweredRows(FILTER_FAILED, FilterFailed, observe)

    @property
    def is_on(self) -> bool:
        return bool(self._filters)

    def counted(self, counts: Counts) -> Counts:
        return {**counts, **self._counts, **self._unanswered.counts}

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

    def parts(self, part: Part, in_stream: bool, now_us: int) -> list[Part]:
        found = self._filters[peek.relation_of_row(part.frame, in_stream)]
        frame = self._shaped(found, part.frame, in_stream, now_us)
        if frame is None:
            self._left_out(found, 1)
            return []
        part.frame = frame
        return [part]

    def _shaped(self, found: RowFilter, frame: bytes, in_stream: bool, now_us: int) -> bytes | None:
        """Return the frame that the event becomes; None if it has no record."""
        tag = peek.tag_of(frame)
        old, new, whole = old_and_new(found, frame, in_stream)
        if tag == peek.INSERT:
            return frame if self._keeps(found, new, frame, now_us) else None
        if tag == peek.DELETE:
            return frame if self._kept(found, old, whole, frame, now_us) else None
        return self._update(found, old, new, whole, frame, in_stream, now_us)

    def _update(  # noqa: PLR0917  what the frame says
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
