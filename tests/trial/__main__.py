"""`python -m tests.trial`: one trial, or several with consecutive seeds; 0 when none found an anomaly."""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from deploy.local import POSTGRES_VERSIONS
from tests.tested_commit import tested_commit
from tests.trial import results, trial
from tests.trial.plan import draw_plan, plan_for
from tests.trial.planted import PLANTED
from tests.trial.world import end_on_signals

SECONDS: Final = 120.0
PLANTED_S: Final = 40.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trial", description=__doc__)
    parser.add_argument("--seconds", type=float, help=f"of faults; {SECONDS:g}, {PLANTED_S:g} with --planted")
    parser.add_argument("--seed", type=int, help="of the first trial; a random one by default")
    parser.add_argument("--seeds", type=int, default=1, help="how many trials, each with the next seed")
    parser.add_argument(
        "--version", type=int, choices=POSTGRES_VERSIONS, help="of PostgreSQL; drawn by default"
    )
    parser.add_argument(
        "--planted", nargs="+", choices=["all", *PLANTED], default=[], help="a mistake that must be found"
    )
    parser.add_argument("--results", type=Path, help="the file to which a row for each trial is added")
    options = parser.parse_args(arguments)
    end_on_signals()
    first = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    good = True
    if options.planted:
        for name in PLANTED if "all" in options.planted else options.planted:
            good &= _run_planted(options, name, first)
    else:
        for seed in range(first, first + options.seeds):
            good &= _run(options, seed)
    return 0 if good else 1


def _run(options: argparse.Namespace, seed: int) -> bool:
    seconds = options.seconds or SECONDS
    outcome = trial.run(seed, draw_plan(seed, seconds, options.version), seconds, _tell)
    result = results.Result(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        commit=tested_commit("tests/trial/*.py"),
        seed=seed,
        version=outcome.version,
        seconds=seconds,
        faults=outcome.faults,
        outcomes=outcome.outcomes,
        records=outcome.records,
        samples=outcome.samples,
        takeovers=outcome.takeovers,
        anomalies=outcome.kinds(),
    )
    _tell(result.row())
    if options.results is not None:
        text = options.results.read_text() if options.results.exists() else ""
        options.results.write_text(results.add_trial(text, result))
    return not outcome.anomalies and not outcome.ended


def _run_planted(options: argparse.Namespace, name: str, first: int) -> bool:
    """Tries seeds until the mistake is found; False: `--seeds` of them did not find it."""
    seconds = options.seconds or PLANTED_S
    found: Counter[str] = Counter()
    for seed in range(first, first + options.seeds):
        began = time.monotonic()
        outcome = trial.run(
            seed, plan_for(PLANTED[name], seed, seconds, options.version), seconds, _tell, planted=name
        )
        found = outcome.kinds()
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(found.items())) or "nothing"
        row = (name, str(seed), f"{seconds:.0f}", str(outcome.faults.total()), told)
        _tell(f"planted {' | '.join(row)} ({time.monotonic() - began:.0f} s in all)")
        if options.results is not None:
            text = options.results.read_text() if options.results.exists() else ""
            options.results.write_text(results.add_planted(text, row))
        if outcome.anomalies:
            return True
    return False


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Interrupted: everything that was started has ended.")
