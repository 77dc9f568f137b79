"""The log line with deliveries and lag, once a minute.

The rule: there is no line for a minute without deliveries and without anything left to deliver. So an idle daemon
is silent, but a hanging daemon is not, because its lag stays and is reported every minute.
"""

from typing import Final

from cdcd.core.facts_operation import StreamProgressed
from cdcd.telemetry.state import Telemetry

REPORT_S: Final = 60.0
"""Seconds between two lines."""


class ProgressReport:
    """Reports; call `due` at short intervals.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, telemetry: Telemetry, now: float) -> None:
        self._telemetry = telemetry
        self._at = now
        self._before = telemetry.totals()

    def due(self, now: float, unix_now: float) -> StreamProgressed | None:
        """Return the report of the last minute, if a minute has passed and there is something to report."""
        seconds = now - self._at
        if seconds < REPORT_S:
            return None
        telemetry, before = self._telemetry, self._before
        totals = self._before = telemetry.totals()
        self._at = now
        lag_bytes = telemetry.lag_bytes() or 0
        if telemetry.role != "active" or (totals == before and not lag_bytes):
            return None
        delivered = totals.since(before)
        lag_s = telemetry.lag_s(unix_now)
        return StreamProgressed(
            seconds=round(seconds, 1),
            transactions=delivered.transactions,
            rows=delivered.rows,
            bytes=delivered.bytes,
            lag_s=None if lag_s is None else round(lag_s, 1),
            lag_bytes=lag_bytes,
            waiting_records=telemetry.queue_records,
            waiting_bytes=telemetry.queue_bytes,
            wal_bytes=telemetry.retained_wal_bytes,
        )
