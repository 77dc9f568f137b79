"""The results as Markdown: a table with a row for each trial, and a summary of all trials. Pure."""

from collections import Counter
from dataclasses import dataclass
from math import comb
from typing import Final

HEAD: Final = """\
# What trials found

Written by `make trial`: one row for each trial that ran to its end, also for those that found something.
Kafka has three brokers, PostgreSQL a synchronous standby, and the daemon two instances, all on one machine.
"""

COLUMNS: Final = (
    "date",
    "commit",
    "seed",
    "PostgreSQL",
    "seconds",
    "faults",
    "operations (ok, failed, unknown)",
    "records",
    "samples",
    "takeovers",
    "anomalies",
)

TRIALS: Final = "## Trials"
TOGETHER: Final = "## Together"
PLANTED: Final = "## Planted mistakes"
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Result:
    """One trial, as it came out."""

    date: str
    commit: str
    seed: int
    version: int
    seconds: float
    faults: Counter[str]
    outcomes: tuple[int, int, int]
    records: int
    samples: int
    takeovers: int
    anomalies: Counter[str]

    def row(self) -> str:
        cells = (
            self.date,
            self.commit,
            self.seed,
            self.version,
            f"{self.seconds:.0f}",
            f"{self.faults.total()}: {_counts(self.faults)}",
            f"{sum(self.outcomes)} ({', '.join(map(str, self.outcomes))})",
            self.records,
            self.samples,
            self.takeovers,
            f"{self.anomalies.total()}: {_counts(self.anomalies)}" if self.anomalies else "0",
        )
        return f"| {' | '.join(map(str, cells))} |"


def add_trial(text: str, result: Result) -> str:
    """The file with one more trial, and the bound over all of them."""
    rows = [*_rows(text, TRIALS), result.row()]
    return _file(rows, _rows(text, PLANTED))


def add_planted(text: str, row: tuple[str, ...]) -> str:
    """The file with what a planted mistake came to: name, seed, seconds, faults, and what was found."""
    planted = [each for each in _rows(text, PLANTED) if _cells(each)[0] != row[0]]
    return _file(_rows(text, TRIALS), [*planted, f"| {' | '.join(row)} |"])


def upper_bound(failures: int, tries: int) -> float:
    """The 95 % bound of a probability (Clopper and Pearson, one-sided); without failures nearly 3 / tries."""
    if failures >= tries:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(failures, tries, middle) > 1 - CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


def _at_most(failures: int, tries: int, p: float) -> float:
    return float(sum(comb(tries, k) * p**k * (1 - p) ** (tries - k) for k in range(failures + 1)))


def _file(trials: list[str], planted: list[str]) -> str:
    heading = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    parts = [HEAD, f"{TRIALS}\n", "\n".join([*heading, *trials]), "", f"{TOGETHER}\n", _together(trials)]
    if planted:
        names = ("mistake", "seed", "seconds", "faults", "found")
        parts += [
            "",
            f"{PLANTED}\n",
            "\n".join([f"| {' | '.join(names)} |", f"|{'---|' * len(names)}", *sorted(planted)]),
        ]
    return "\n".join(parts) + "\n"


def _together(rows: list[str]) -> str:
    cells = [_cells(row) for row in rows]
    faults = sum(int(each[5].partition(":")[0]) for each in cells)
    operations = sum(int(each[6].partition(" ")[0]) for each in cells)
    bad = sum(each[-1] != "0" for each in cells)
    seeds = len({each[2] for each in cells})
    return (
        f"Trials: {len(rows)}, of {seeds} different seeds, with {faults} faults and {operations} operations; {bad} of "
        "them found an anomaly. With 95 % confidence, a trial like these finds one with a probability of at most "
        f"{upper_bound(bad, len(rows)):.1%}, and one fault brings one about with at most "
        f"{upper_bound(bad, max(faults, bad, 1)):.2%}."
    )


def _rows(text: str, heading: str) -> list[str]:
    section = text.partition(f"{heading}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("| ").split("|")]


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items()))
