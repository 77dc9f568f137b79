"""The results as Markdown: a table with a row for each handover, and a summary of all handovers. Pure."""

from dataclasses import dataclass
from statistics import median
from typing import Final

HEAD: Final = """\
# What handovers came to

Written by `make switchover`: one row for each handover that ran to its end, also for those that found something. Both
servers, the broker, the writers and the daemon are on one machine.

- "rate": transactions a second that were committed on the former server, of those asked for.
- "kills": SIGKILLs of `cdcd handover prepare` and of `adopt`; "daemon": how it was stopped when `prepare` asked for it.
- "slipped": a write on the new server before `adopt`, which had to be refused, and was delivered by `--deliver-writes`.
- "stopped": seconds from the stop of the writes to the end of `adopt`, when writes may go on.
- "found": differences and broken promises in the topics, compared with the tables of the new server.
"""

COLUMNS: Final = (
    "date",
    "commit",
    "seed",
    "PostgreSQL",
    "rate",
    "kills",
    "daemon",
    "slipped",
    "stopped",
    "load",
    "transactions",
    "records",
    "found",
)

ROUNDS: Final = "## Handovers"
TOGETHER: Final = "## Together"
UNDISTURBED: Final = "0 + 0"


@dataclass(frozen=True, slots=True)
class Result:
    """One handover, as it came out.

    Attributes:
        rate: transactions a second, asked for and reached.
        kills: of prepare, and of adopt.
        stopped_s: seconds without writes.
        load: the load average of a minute at the end.
        found: what is wrong; "" for nothing.
    """

    date: str
    commit: str
    seed: int
    former: int
    new: int
    rate: tuple[float, float]
    kills: tuple[int, int]
    daemon: str
    slipped: bool
    stopped_s: float
    load: float
    transactions: int
    records: int
    found: str

    def row(self) -> str:
        cells = (
            self.date,
            self.commit,
            self.seed,
            f"{self.former} → {self.new}",
            f"{self.rate[1]:.0f} of {self.rate[0]:.0f}",
            f"{self.kills[0]} + {self.kills[1]}",
            self.daemon,
            "yes" if self.slipped else "no",
            f"{self.stopped_s:.1f} s",
            f"{self.load:.0f}",
            self.transactions,
            self.records,
            self.found.replace("|", "/").replace("\n", "; ") or "0",
        )
        return f"| {' | '.join(map(str, cells))} |"


def add(text: str, result: Result) -> str:
    """The file with one more handover."""
    section = text.partition(f"{ROUNDS}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    rows.append(result.row())
    heading = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    parts = [HEAD, f"{ROUNDS}\n", "\n".join([*heading, *rows]), "", f"{TOGETHER}\n", _together(rows)]
    return "\n".join(parts) + "\n"


def _together(rows: list[str]) -> str:
    cells = [[cell.strip() for cell in row.strip("| ").split("|")] for row in rows]
    kills = [sum(map(int, each[COLUMNS.index("kills")].split("+"))) for each in cells]
    found = sum(each[-1] != "0" for each in cells)
    seeds = {(each[COLUMNS.index("PostgreSQL")], each[COLUMNS.index("seed")]) for each in cells}
    text = (
        f"Handovers: {len(cells)}, of {len(seeds)} different seeds, with {sum(kills)} kills; "
        f"{found} found something."
    )
    quiet = [
        float(each[COLUMNS.index("stopped")].removesuffix(" s"))
        for each in cells
        if each[COLUMNS.index("kills")] == UNDISTURBED and each[COLUMNS.index("slipped")] == "no"
    ]
    if quiet:
        text += (
            f" Without kills and slipped writes ({len(quiet)}), writes were stopped for {median(quiet):.1f} s in the "
            f"median, {max(quiet):.1f} s at most."
        )
    return text
