"""Which seed finds which planted bug: `python -m tests.sim.planted_seeds` searches, and writes `planted_seeds.txt`.

A bug is found by one of the first thousand seeds. To search for that seed takes seconds to minutes for each bug, so
`make test` begins with the seed in the table and searches only where that seed does not find the bug any more, because
the simulation has changed. `make sim` searches for all of them, and fails where the table is out of date.
"""

import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from tests.sim.planted import PLANTED
from tests.sim.world import World

SEEDS_MAX: Final = 1000

TABLE: Final = Path(__file__).with_suffix(".txt")


def seeds() -> dict[str, int]:
    """The table: a bug's name, and the first seed that found it."""
    pairs = (line.split() for line in TABLE.read_text().splitlines())
    return {name: int(seed) for name, seed in pairs}


def is_found(name: str, seed: int, directory: str) -> bool:
    """Whether this seed finds the bug, in whichever way it shows."""
    plant = PLANTED[name]
    try:
        World(seed, directory, plant.parts, focus=plant.focus).run()
    except Exception:  # noqa: BLE001
        return True
    return False


def search(name: str) -> int | None:
    """The first seed that finds the bug; None if it is none of the first thousand."""
    with tempfile.TemporaryDirectory() as directory:
        return next((seed for seed in range(SEEDS_MAX) if is_found(name, seed, directory)), None)


def main() -> int:
    with ProcessPoolExecutor() as pool:
        found = dict(zip(PLANTED, pool.map(search, PLANTED), strict=True))
    TABLE.write_text("".join(f"{name} {seed}\n" for name, seed in sorted(found.items()) if seed is not None))
    lost = [name for name, seed in found.items() if seed is None]
    for name in lost:
        print(f"{SEEDS_MAX} seeds did not find {name}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
