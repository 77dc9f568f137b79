"""A histogram that costs next to nothing to fill: counts by bucket, and a sum."""

from bisect import bisect_left, bisect_right


class Histogram:
    """Values by bucket.

    Attributes:
        bounds: the upper ends of all buckets but the last one, which has none.
        counts: how many values each bucket has.
        sum: of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_ages(self, times: list[int], now: int) -> None:
        """Count how long ago each of `times` was at `now`, in seconds; both are in microseconds. The list is sorted.

        A time after `now`, by another clock, counts as now. The cost is that of sorting a list that is nearly sorted,
        and of one search for each bucket.
        """
        times.sort()
        # Ages fall as times rise, so the times of the first bucket are the last ones.
        end = len(times)
        for index, bound in enumerate(self.bounds):
            begin = bisect_left(times, now - round(bound * 1e6), 0, end)
            self.counts[index] += end - begin
            end = begin
        self.counts[-1] += end
        past = times[: bisect_right(times, now)]
        self.sum += (now * len(past) - sum(past)) / 1e6
