"""`python -m tests.sim --seeds 10000`: run seeds until one fails; `--seed N --trace` shows one of them move by move."""

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from cdcd.build import is_compiled
from tests.sim.settings import TABLE_FAULTS_AND_KILLS
from tests.sim.world import ORDINARY, World

if TYPE_CHECKING:
    from tests.sim.planted import Planted


FOCUSES: Final = tuple(TABLE_FAULTS_AND_KILLS.values())
"""Settings of seeds with `--table-faults`."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="say what happens")
    parser.add_argument("--planted", choices=sorted(planted()), help="with this bug, which must be found")
    parser.add_argument(
        "--table-faults",
        action="store_true",
        help="with faults of tables and kills in the fault; the seeds take the focuses of these in turn",
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="report every failing seed, not only the first"
    )
    arguments = parser.parse_args(argv)
    plant = planted()[arguments.planted] if arguments.planted else None
    parts, focus = (ORDINARY, None) if plant is None else (plant.parts, plant.focus)
    seeds = range(arguments.start, arguments.start + arguments.seeds)
    if arguments.seed is not None:
        seeds = range(arguments.seed, arguments.seed + 1)
    began = time.perf_counter()
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        for seed in seeds:
            if arguments.table_faults:
                focus = FOCUSES[seed % len(FOCUSES)]
            try:
                World(seed, directory, parts, print if arguments.trace else None, focus).run()
            except Exception as error:  # noqa: BLE001  # whatever it is, the seed is what matters
                failed += 1
                print(f"seed {seed}: {type(error).__name__}: {error}")
                print(f"    replay: python -m tests.sim --seed {seed} --trace{_also(arguments)}")
                if arguments.trace or not arguments.keep_going:
                    traceback.print_exception(error)
                    break
    took = time.perf_counter() - began
    number = seed - seeds.start + 1
    print(f"{number} seeds in {took:.1f} s, {number / took:.0f} seeds/s, {failed} failed")
    return 1 if failed else 0


def planted() -> "Mapping[str, Planted]":
    """The planted bugs: none where the product is compiled, whose classes cannot be subclassed by what is not."""
    if is_compiled():
        return {}
    from tests.sim.planted import PLANTED

    return PLANTED


def _also(arguments: argparse.Namespace) -> str:
    """Return the options that a replay needs as well."""
    planted = f" --planted {arguments.planted}" if arguments.planted else ""
    return planted + (" --table-faults" if arguments.table_faults else "")


if __name__ == "__main__":
    sys.exit(main())
