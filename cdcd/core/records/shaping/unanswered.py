"""Rows for which an expression has no answer: each counts, and for each table one is reported now and then."""

from typing import Final

from cdcd.core.facts import FilterFailed, Observer, RouteFailed, cut_short
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.shaping.row_values import RowValues

REPORT_S: Final = 10
"""Seconds for which one report of a table's rows without an answer stands."""

REASON_MAX: Final = 400
"""Characters of the reason in a report."""


class UnansweredRows:
    """Counts and reports the rows for which the expressions of one kind have no answer.

    Attributes:
        counts: of such rows, by table and `op`.

    Args:
        op: what they are counted as.
        fact: how one is reported.
    """

    def __init__(self, op: str, fact: type[FilterFailed] | type[RouteFailed], observe: Observer) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self._op = op
        self._fact = fact
        self._observe = observe
        self._quiet: dict[str, tuple[int, int]] = {}
        """By table: when the next report is due, and how many rows have had none since the last one."""

    def look_at(self, found: RowValues, lsn: int, now_us: int) -> None:
        """If there was no answer for the row that was looked at last, count the row and tell why, now and then."""
        if not found.reason:
            return
        counted = found.name, self._op
        self.counts[counted] = self.counts.get(counted, 0) + 1
        left_out = self.note(found.name, now_us)
        if left_out is not None:
            reason = cut_short(found.reason, REASON_MAX)
            self._observe(self._fact(table=found.name, reason=reason, lsn=str(Lsn(lsn)), left_out=left_out))

    def note(self, table: str, now_us: int) -> int | None:
        """A row of the table has no answer.

        Returns:
            How many rows of the table were not reported since the last report, for the report of this one. None: this
            one is not reported.
        """
        due_us, left_out = self._quiet.get(table, (0, 0))
        if now_us < due_us:
            self._quiet[table] = (due_us, left_out + 1)
            return None
        self._quiet[table] = (now_us + REPORT_S * 1_000_000, 0)
        return left_out
