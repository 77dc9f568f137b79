"""Every kind of snapshot on every version, killed five times: `make chaos`. CDCD_CHAOS_SEED repeats an earlier run."""

import os
import random

import pytest

from deploy.local import POSTGRES_VERSIONS
from tests.chaos import changes
from tests.chaos.snapshots import kinds, plans, run, servers

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

SEED = int(os.environ.get("CDCD_CHAOS_SEED", random.SystemRandom().randrange(1_000_000)))


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("version", POSTGRES_VERSIONS)
def test_a_snapshot_that_is_killed_goes_on_where_it_was_and_the_topics_are_the_tables(
    version: int, kind: str
):
    cell = plans(version, kind, kinds()[kind], random.Random(f"{SEED} {version} {kind}"))
    with servers(version) as (postgres, broker, folder):
        for outcome in run(cell, postgres, broker, folder):
            print(outcome)
            assert outcome.sound, f"seed {SEED}\n{outcome}\n{outcome.report}"


@pytest.mark.parametrize("method", changes.METHODS)
@pytest.mark.parametrize("version", POSTGRES_VERSIONS)
def test_a_snapshot_of_a_table_that_changes_is_complete_though_it_is_killed(version: int, method: str):
    with servers(version) as running:
        for story in changes.STORIES:
            dice = random.Random(f"{SEED} {version} docs {method} {story}")
            outcome = changes.run(version, method, story, *running, kills=5, dice=dice)
            print(outcome)
            assert outcome.sound, f"seed {SEED}\n{outcome}\n{outcome.report}"
