"""The results as Markdown: a table with a row for each run of `cdcd verify`, and a summary of all runs. Pure."""

import random
from dataclasses import dataclass
from statistics import median
from typing import Final

HEAD: Final = """\
# What `cdcd verify` found under writes and kills

Written by `python -m tests.chaos.verified`: one row for each run of the command, also for those that found something
or did not end well. PostgreSQL, the broker, the writers and the daemon are on the same machine.

- "round": of a process that compares several times (`--continuous`), which comparison of it this was.
- "rate": transactions a second that were committed during the run, of those asked for.
- "kills": SIGKILLs of the daemon during the run.
- "seconds", "CPU": how long the command took, and the processor's seconds that it used.
- "peak memory": the largest resident set of the command (`ru_maxrss`).
- "load": the load average of a minute at the end of the run.
- "verdict": nothing was made different, so everything but `equal` is a mistake.
"""

COLUMNS: Final = (
    "date",
    "commit",
    "seed",
    "run",
    "round",
    "PostgreSQL",
    "form",
    "tables",
    "rows",
    "records",
    "rate",
    "kills",
    "seconds",
    "CPU",
    "peak memory",
    "load",
    "verdict",
)

PLANTED_COLUMNS: Final = (
    "date",
    "commit",
    "seed",
    "rows made different",
    "named",
    "named that were not",
    "after `--repair`",
)

RUNS: Final = "## Runs"
TOGETHER: Final = "## Together"
PLANTED: Final = "## Rows that were made different on purpose"

EQUAL: Final = "equal"
MEMORY_MAX: Final = 300 * 1000 * 1000
"""Bytes that `cdcd verify` may take at its peak."""

SHARES: Final = (0.02, 0.95)
DOWN_S: Final = (0.0, 3.0)


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill of the daemon: at this share of the seconds that the run before took; it stays away for `down_s`."""

    share: float
    down_s: float


def plan(seed: int, runs: int, kills: int) -> list[list[Kill]]:
    """The kills of each run, in their order."""
    dice = random.Random(seed)
    found: list[list[Kill]] = [[] for _ in range(runs)]
    for _ in range(kills):
        found[dice.randrange(runs)].append(Kill(dice.uniform(*SHARES), dice.uniform(*DOWN_S)))
    return [sorted(each, key=lambda kill: kill.share) for each in found]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the command.

    Attributes:
        number: from 1 on, of those with this seed.
        round_: from 1 on, of those of the same process.
        records: that the topics had.
        rate: transactions a second, asked for and reached.
        load: the load average of a minute at the end.
        verdict: the report's, or the exit code where there is no report.
    """

    date: str
    commit: str
    seed: int
    number: int
    round_: int
    version: int
    form: str
    tables: int
    rows: int
    records: int
    rate: tuple[float, float]
    kills: int
    seconds: float
    cpu_s: float
    peak_bytes: int
    load: float
    verdict: str

    @property
    def is_sound(self) -> bool:
        return self.verdict == EQUAL and self.peak_bytes < MEMORY_MAX

    def row(self) -> str:
        return _row(
            self.date,
            self.commit,
            self.seed,
            self.number,
            self.round_,
            self.version,
            self.form,
            self.tables,
            f"{self.rows:,}",
            f"{self.records:,}",
            f"{self.rate[1]:.0f} of {self.rate[0]:.0f}",
            self.kills,
            f"{self.seconds:.0f}",
            f"{self.cpu_s:.0f}",
            f"{self.peak_bytes / 1e6:.0f} MB",
            f"{self.load:.0f}",
            self.verdict,
        )


@dataclass(frozen=True, slots=True)
class Planted:
    """What became of the rows that were made different.

    Attributes:
        planted: how many there were.
        named: how many of them the command named.
        besides: how many others it named.
        repaired: the verdict after `--repair`.
    """

    date: str
    commit: str
    seed: int
    planted: int
    named: int
    besides: int
    repaired: str

    @property
    def is_sound(self) -> bool:
        return self.named == self.planted and not self.besides and self.repaired == EQUAL

    def row(self) -> str:
        return _row(self.date, self.commit, self.seed, self.planted, self.named, self.besides, self.repaired)


def add(text: str, result: Run | Planted) -> str:
    """The file with one more row."""
    runs, planted = _rows(text, RUNS), _rows(text, PLANTED)
    (runs if isinstance(result, Run) else planted).append(result.row())
    parts = [HEAD, f"{RUNS}\n", _table(COLUMNS, runs), "", f"{TOGETHER}\n", _together(runs)]
    if planted:
        parts += ["", f"{PLANTED}\n", _table(PLANTED_COLUMNS, planted)]
    return "\n".join(parts) + "\n"


def _together(rows: list[str]) -> str:
    if not rows:
        return "No run yet."
    cells = [dict(zip(COLUMNS, _cells(row), strict=True)) for row in rows]
    wrong = sum(each["verdict"] != EQUAL for each in cells)
    kills = sum(int(each["kills"]) for each in cells)
    seconds = [float(each["seconds"]) for each in cells]
    peak = max(int(each["peak memory"].removesuffix(" MB")) for each in cells)
    least, most = (choose(int(each["rows"].replace(",", "")) for each in cells) for choose in (min, max))
    return (
        f"Runs: {len(cells)}, with {kills} kills of the daemon; {wrong} were not equal. "
        f"The tables had {least:,} to {most:,} rows. A run took {median(seconds):.0f} s in the median, "
        f"{max(seconds):.0f} s at most. The peak memory was {peak} MB at most."
    )


def _table(columns: tuple[str, ...], rows: list[str]) -> str:
    return "\n".join([_row(*columns), f"|{'---|' * len(columns)}", *rows])


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def _rows(text: str, heading: str) -> list[str]:
    section = text.partition(f"{heading}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("| ").split("|")]
