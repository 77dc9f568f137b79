"""`python -m tests.chaos`: the matrix, or a part of it, one line per cell; 0 when every one is equal."""

import argparse
import random
import sys
import time
import traceback
from collections.abc import Sequence

from tests.chaos.cell import RATE, STREAMING, Cell, matrix, run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--versions", type=int, nargs="+", choices=STREAMING, default=list(STREAMING))
    parser.add_argument(
        "--streaming", nargs="+", choices=("off", "on", "parallel"), default=["off", "on", "parallel"]
    )
    parser.add_argument("--two-phase", nargs="+", choices=("off", "on"), default=["off", "on"])
    parser.add_argument("--kills", type=int, default=20, help="of the daemon, per cell")
    parser.add_argument("--seed", type=int, help="of the first cell; a random one by default")
    parser.add_argument(
        "--rounds", type=int, default=1, help="the whole again so many times, with other seeds"
    )
    parser.add_argument("--rate", type=float, default=RATE, help="of the workload, in transactions a second")
    options = parser.parse_args(arguments)
    cells = matrix(options.versions, options.streaming, [phase == "on" for phase in options.two_phase])
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    began = time.monotonic()
    failed = []
    for number, cell in enumerate(cells * options.rounds):
        if not _run(cell, seed + number, options.kills, options.rate):
            failed.append(f"{cell} seed {seed + number}")
    count = len(cells) * options.rounds
    print(
        f"{count - len(failed)} of {count} cells equal in {(time.monotonic() - began) / 60:.0f} min",
        *failed,
        sep="\n",
    )
    return 1 if failed else 0


def _run(cell: Cell, seed: int, kills: int, rate: float) -> bool:
    try:
        outcome = run(cell, seed=seed, kills=kills, rate=rate)
    except Exception:  # noqa: BLE001 - the other cells shall run all the same
        print(f"{cell!s:24} seed {seed} FAILED", flush=True)
        traceback.print_exc()
        return False
    print(outcome, flush=True)
    if not outcome.report.equal:
        print(outcome.report, flush=True)
    return outcome.report.equal


if __name__ == "__main__":
    sys.exit(main())
