"""An encoder in front of another one that leaves out rows which do not match their table's filter.

As `in_front.py` requires, each event of a transaction counts once, even if it has no record. `row_filters.py`
decides which rows a topic has, and this module changes events accordingly:

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
from cdcd.core.records.encoder import Encoded, Encoder, EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.shaping.in_front import FILTER_FAILED, FILTERED, EncoderInFront, of_row
from cdcd.core.records.shaping.row_filters import RowFilter, TableFilters, contradiction
from cdcd.core.records.shaping.row_values import delete_of, insert_of, old_and_new
from cdcd.core.records.shaping.settings import TableFilter
from cdcd.core.records.shaping.unanswered import UnansweredRows
from cdcd.core.transactions.drafts import SpoolItem


def filtered(
    inner: Encoder, filters: tuple[TableFilter, ...], settings: EncoderSettings, observe: Observer
) -> Encoder:
    """Return the encoder of a pipeline's changes, which is `inner` if no table has a filter."""
    return FilterEncoder(inner, filters, settings, observe) if filters else inner


class FilterEncoder(EncoderInFront):
    """Leaves out rows that do not match their filters, and passes everything else to `inner`.

    See `Encoder` for the methods.
    """

    def __init__(
        self, inner: Encoder, filters: tuple[TableFilter, ...], settings: EncoderSettings, observe: Observer
    ) -> None:
        EncoderInFront.__init__(self, inner)
        self._chosen = TableFilters(filters)
        self._protections = settings.protections
        self._observe = observe
        self._filters: dict[int, RowFilter] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._unanswered = UnansweredRows(FILTER_FAILED, FilterFailed, observe)

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        return {**self._inner.counts, **self._counts, **self._unanswered.counts}

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        self._inner.define(relation, table, types)
        chosen = self._chosen.of_table(relation)
        if chosen:
            self._filters[relation.oid] = RowFilter(
                relation, chosen[0], types, self._protections, contradiction(chosen), table=table
            )
        else:
            self._filters.pop(relation.oid, None)

    def encode_all(self, kept: list[SpoolItem], in_stream: bool, now_us: int, out: list[Record]) -> int:
        if not self._filters:
            return self._inner.encode_all(kept, in_stream, now_us, out)
        size = 0
        run: list[SpoolItem] = []
        for item in kept:
            found = of_row(item, in_stream, self._filters)
            if found is None:
                run.append(item)
                continue
            assert isinstance(item, bytes), "rows of tables with a filter are not drafted"
            try:
                shaped = self._shaped(found, item, in_stream, now_us)
            except (ValueError, IndexError) as cause:
                # The inner encoder raises the error, which names the malformed part of the message.
                self._inner.encode_all([*run, item], in_stream, now_us, out)
                raise AssertionError("a row was refused in which nothing is wrong") from cause
            if shaped is not None:
                run.append(shaped)
                continue
            if run:
                size += self._inner.encode_all(run, in_stream, now_us, out)
                run = []
            self._left_out(found, 1)
            self._inner.skip(1)
        if run:
            size += self._inner.encode_all(run, in_stream, now_us, out)
        return size

    def _shapes(self, item: SpoolItem, in_stream: bool) -> bool:
        return of_row(item, in_stream, self._filters) is not None

    def _shape(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        return self.encode_all([frame], in_stream, now_us, out)

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

    def encode_rows(  # noqa: PLR0917  as in `Encoder`
        self,
        oid: int,
        lines: list[bytes],
        position: SnapshotPosition,
        now_us: int,
        out: list[Record],
        dropped: set[bytes],
    ) -> Encoded:
        found = self._filters.get(oid)
        if found is not None:
            kept: list[bytes] = []
            for line in lines:
                if found.keeps_line(line):
                    kept.append(line)
                self._unanswered.look_at(found, position.lsn, now_us)
            if len(kept) < len(lines):
                self._left_out(found, len(lines) - len(kept))
            lines = kept
        return self._inner.encode_rows(oid, lines, position, now_us, out, dropped)
