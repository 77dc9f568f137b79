"""Counts rows for which an expression has no answer, and now and then reports one of them per table."""

from typing import Final

from cdcd.core.facts import FilterFailed, Observer, RouteFailed, cut_short
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.shaping.row_values import RowValues

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

    def __init__(self, op: str, fact: type[FilterFailed] | type[RouteFailed], observe: Observer) -> None:
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
