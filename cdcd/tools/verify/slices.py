"""`cdcd verify --continuous`: which tables are compared in which slice, and what is told of it.

The rule: every table is compared in turn, each as a whole, because only then a row that the topics have too many is
seen. A slice has as many tables as can be read in the interval at the allowed rate, and one at least.
"""

from collections.abc import Mapping

from cdcd.telemetry.verify import VerifyTelemetry
from cdcd.tools.verify.report import PARTIAL, Report


class Slices:
    """Gives the tables of one slice after the other.

    Args:
        bytes_max: of a slice, on disk; 0: all tables are in each slice.
    """

    def __init__(self, bytes_max: float) -> None:
        self._bytes_max = bytes_max
        self._last = ""

    def next(self, sizes: Mapping[str, int]) -> list[str]:
        """The tables of the next slice, of those that there are, with their sizes in bytes."""
        names = sorted(sizes)
        if not self._bytes_max:
            return names
        names = [name for name in names if name > self._last] + [name for name in names if name <= self._last]
        found: list[str] = []
        size = 0
        for name in names:
            size += sizes[name]
            if found and size > self._bytes_max:
                break
            found.append(name)
            self._last = name
        return found


class Told:
    """Tells metrics of reports. Records that are wrong stay in the topic, and count when they are first seen."""

    def __init__(self, numbers: VerifyTelemetry) -> None:
        self._numbers = numbers
        self._faults: dict[str, int] = {}

    def tell(self, report: Report, now: float) -> None:
        """What a slice found. `now` is in Unix seconds."""
        for table in report.tables:
            faults = table.faults_in_all - self._faults.get(table.name, 0)
            self._faults[table.name] = table.faults_in_all
            self._numbers.compared(
                table.name,
                now,
                table.lsn,
                table.outcome.differing + faults,
                is_partial=table.verdict == PARTIAL or bool(table.limits or table.outcome.not_compared),
            )
