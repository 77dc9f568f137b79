"""`python -m tests.ha takeover|failover`: rounds of it, one line each; 0 when all went as promised."""

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from cdcd.core.errors import PositionError
from deploy.local import KafkaBroker
from tests.ha import failover, results, takeover
from tests.scratch import scratch_folder


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ha", description=__doc__)
    commands = parser.add_subparsers(required=True)
    rounds = commands.add_parser("takeover", help="blows to the active one of two daemons")
    rounds.add_argument("--rounds", type=int, default=20)
    rounds.add_argument("--blows", nargs="+", choices=takeover.BLOWS, default=list(takeover.BLOWS))
    rounds.add_argument("--version", type=int, default=18, help="of PostgreSQL")
    rounds.add_argument("--rate", type=float, default=takeover.RATE, help="transactions a second")
    rounds.add_argument("--at-least-once", action="store_true")
    rounds.set_defaults(run=_takeover)
    primary = commands.add_parser("failover", help="the primary is killed, its standby promoted")
    primary.add_argument("--versions", type=int, nargs="+", default=[17, 18])
    primary.add_argument("--rate", type=float, default=failover.RATE, help="transactions a second")
    primary.set_defaults(run=_failover)
    for command in (rounds, primary):
        command.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
        command.add_argument(
            "--results", type=Path, help="the file with what was measured, whose section it writes"
        )
    options = parser.parse_args(arguments)
    code: int = options.run(options)
    return code


def _takeover(options: argparse.Namespace) -> int:
    told: list[str] = []

    def tell(line: object) -> None:
        told.append(str(line))
        print(line, flush=True)

    blows = [options.blows[number % len(options.blows)] for number in range(options.rounds)]
    outcome = takeover.run(
        blows,
        version=options.version,
        seed=options.seed,
        rate=options.rate,
        sections={"kafka": {"delivery": "at_least_once" if options.at_least_once else "exactly_once"}},
        tell=tell,
    )
    for line in outcome.lines():
        tell(line)
    _keep(options, "takeover", told)
    return 0 if outcome.report.equal and outcome.longest_s <= takeover.BOUND_S else 1


def _failover(options: argparse.Namespace) -> int:
    told: list[str] = []
    good = True
    for version in options.versions:
        with scratch_folder("ha") as folder:
            outcome = failover.run(version, folder, seed=options.seed, rate=options.rate)
        with scratch_folder("ha") as folder, KafkaBroker(folder / "kafka") as broker:
            refusal = failover.refuse(version, folder, broker, failover.NAME)
        lines = [*outcome.lines(), *refusal.lines()]
        print(*lines, sep="\n", flush=True)
        told += lines
        good &= outcome.report.equal and refusal.exit_code == PositionError.exit_code
    _keep(options, "failover", told)
    return 0 if good else 1


def _keep(options: argparse.Namespace, name: str, lines: Sequence[str]) -> None:
    if options.results is not None:
        results.write(options.results, name, f"python -m tests.ha {name} --seed {options.seed}", lines)


if __name__ == "__main__":
    sys.exit(main())
