"""`python -m tests.switchover`: handovers, one for each seed; 0 if nothing was found."""

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from deploy.local import KafkaBroker
from tests.scratch import scratch_folder
from tests.switchover.results import Result, add
from tests.switchover.switch import Switch
from tests.tested_commit import tested_commit


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.switchover", description=__doc__)
    parser.add_argument("--seed", type=int, help="the first one [default: any]")
    parser.add_argument("--seeds", type=int, default=1, help="so many, one after the other")
    parser.add_argument("--former", type=int, nargs="+", default=[13, 16], help="versions, in turn")
    parser.add_argument("--new", type=int, default=18, help="version of the new server")
    parser.add_argument("--rate", type=float, default=200.0, help="transactions a second")
    parser.add_argument("--seconds", type=float, default=15.0, help="of writes before the handover")
    parser.add_argument("--results", type=Path, help="the file that gets a row for each")
    options = parser.parse_args(arguments)
    first = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    good = True
    for seed in range(first, first + options.seeds):
        result = _round(seed, options.former[seed % len(options.former)], options)
        print(result.row(), flush=True)
        good &= not result.found
        if options.results is not None:
            text = options.results.read_text() if options.results.exists() else ""
            options.results.write_text(add(text, result))
    return 0 if good else 1


def _round(seed: int, former: int, options: argparse.Namespace) -> Result:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{seed}: {time.monotonic() - began:6.1f} s  {text}", flush=True)

    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder("switchover"))
        broker = stack.enter_context(KafkaBroker(folder / "kafka"))
        switch = Switch(former, options.new, broker, folder, f"switch{seed}", stack, seed)
        say(f"PostgreSQL {former} and {options.new} are ready")
        outcome = switch.run(options.rate, options.seconds, say)
    report = outcome.report
    return Result(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        commit=tested_commit("tests/switchover/*.py"),
        seed=seed,
        former=former,
        new=options.new,
        rate=(options.rate, outcome.rate),
        kills=outcome.kills,
        daemon="killed" if outcome.daemon_killed else "stopped",
        slipped=outcome.slipped,
        stopped_s=outcome.stopped_s,
        load=os.getloadavg()[0],
        transactions=report.logged,
        records=report.records,
        found=""
        if report.equal
        else "; ".join(each for each in report.lines() if not each.endswith("equal")),
    )


if __name__ == "__main__":
    sys.exit(main())
