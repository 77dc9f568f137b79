"""`python -m tests.ha takeover|failover`: rounds of it, one line each; 0 when all went as promised."""

import argparse
import random
import sys
from collections.abc import Sequence

from tests.ha import failover, takeover


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ha", description=__doc__)
    commands = parser.add_subparsers(required=True)
    rounds = commands.add_parser("takeover", help="blows to the active one of two daemons")
    rounds.add_argument("--rounds", type=int, default=20)
    rounds.add_argument("--blows", nargs="+", choices=takeover.BLOWS, default=list(takeover.BLOWS))
    rounds.add_argument("--version", type=int, default=18, help="of PostgreSQL")
    rounds.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    rounds.add_argument("--rate", type=float, default=takeover.RATE, help="transactions a second")
    rounds.add_argument("--at-least-once", action="store_true")
    rounds.set_defaults(run=_takeover)
    primary = commands.add_parser("failover", help="the primary is killed, its standby promoted")
    primary.add_argument("--versions", type=int, nargs="+", default=[17, 18])
    primary.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    primary.add_argument("--rate", type=float, default=failover.RATE, help="transactions a second")
    primary.set_defaults(run=_failover)
    options = parser.parse_args(arguments)
    code: int = options.run(options)
    return code


def _takeover(options: argparse.Namespace) -> int:
    blows = [options.blows[number % len(options.blows)] for number in range(options.rounds)]
    outcome = takeover.run(
        blows,
        version=options.version,
        seed=options.seed,
        rate=options.rate,
        sections={"kafka": {"delivery": "at_least_once" if options.at_least_once else "exactly_once"}},
        tell=lambda each: print(each, flush=True),
    )
    print(*outcome.lines(), sep="\n")
    return 0 if outcome.report.equal and outcome.longest_s <= takeover.BOUND_S else 1


def _failover(options: argparse.Namespace) -> int:
    equal = True
    for version in options.versions:
        with takeover.scratch_folder() as folder:
            outcome = failover.run(version, folder, seed=options.seed, rate=options.rate)
        print(*outcome.lines(), sep="\n", flush=True)
        equal &= outcome.report.equal
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
