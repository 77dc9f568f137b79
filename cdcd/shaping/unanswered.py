"""Rows for which an expression has no answer: each counts, and for each table one is reported now and then."""

from typing import Final

REPORT_S: Final = 10
"""Seconds for which one report of a table's rows without an answer stands."""

REASON_MAX: Final = 400
"""Characters of the reason in a report."""


class UnansweredRows:
    """Says which of the rows without an answer are reported."""

    def __init__(self) -> None:
        self._quiet: dict[str, tuple[int, int]] = {}
        """By table: when the next report is due, and how many rows have had none since the last one."""

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
