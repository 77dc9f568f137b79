"""`cdcd verify --continuous`: the tables of each slice, and the metrics of the results.

The rule: every table is compared in turn and as a whole, because only then surplus rows of the topics are found. A
slice has as many tables as can be read in the interval at the allowed rate, but at least one.
"""

from collections.abc import Mapping

from cdcd.telemetry.verify import VerifyTelemetry
from cdcd.tools.verify.report import PARTIAL, VerifyReport


class Slices:
    """The sequence of slices.

    Args:
        bytes_max: maximum size of a slice on disk, in bytes; 0: each slice has all tables.
    """

    def __init__(self, bytes_max: float) -> None:
        self._bytes_max = bytes_max
        self._last = ""

    def next(self, sizes: Mapping[str, int]) -> list[str]:
        """Return the tables of the next slice; `sizes` has the present tables with their sizes in bytes."""
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
    """Reports results to the metrics.

    Flawed records stay in the topic, so they are counted when they are first found.
    """

    def __init__(self, numbers: VerifyTelemetry) -> None:
        self._numbers = numbers
        self._faults: dict[str, int] = {}

    def tell(self, report: VerifyReport, now: float) -> None:
        """Report the result of a slice. `now` is in Unix seconds."""
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
