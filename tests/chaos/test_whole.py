"""A shorter form of `python -m tests.chaos.whole`: `make chaos`. CDCD_CHAOS_SEED repeats an earlier run's moments."""

import os
import random

import pytest

from tests.chaos.whole import run

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

SEED = int(os.environ.get("CDCD_CHAOS_SEED", random.SystemRandom().randrange(1_000_000)))


@pytest.mark.parametrize("streaming", ["off", "on"])
def test_a_large_transaction_is_visible_as_a_whole_or_not_at_all(streaming: str):
    dice = random.Random(f"{SEED} {streaming}")
    outcome = run(streaming, rows=200_000, kills=4, dice=dice, form="uncompiled")
    print(*outcome.lines(), sep="\n")
    assert outcome.sound, f"seed {SEED}\n" + "\n".join(outcome.lines())
