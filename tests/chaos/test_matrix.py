"""The whole matrix: `make chaos`. CDCD_CHAOS_SEED repeats the choices of an earlier run."""

import os
import random

import pytest

from tests.chaos.cell import Cell, matrix, run

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

SEED = int(os.environ.get("CDCD_CHAOS_SEED", random.SystemRandom().randrange(1_000_000)))


@pytest.mark.parametrize("cell", matrix(), ids=str)
def test_every_committed_change_is_there_once_and_in_order_whatever_is_killed(cell: Cell):
    outcome = run(cell, seed=SEED)
    print(outcome)
    assert outcome.kills >= 20
    assert outcome.report.equal, f"seed {SEED}\n{outcome.report}"
