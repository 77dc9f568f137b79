"""What a seed decides is the same each time, and all of it comes."""

from tests.ha.failover import FAILOVER_SINCE
from tests.trial.faults import FAILOVER
from tests.trial.plan import BYTES_MAX, VERSIONS, draw_plan


def test_a_seed_has_one_plan_and_seeds_together_have_every_version_and_size():
    plans = [draw_plan(seed, 30) for seed in range(60)]
    assert plans == [draw_plan(seed, 30) for seed in range(60)]
    assert {plan.version for plan in plans} == set(VERSIONS)
    assert {plan.transaction["bytes_max"] for plan in plans} == set(BYTES_MAX)
    assert {plan.transaction.get("whole_bytes_max") for plan in plans} == {None, 0}


def test_only_servers_that_can_fail_over():
    for seed in range(60):
        plan = draw_plan(seed, 30)
        switches = sum(fault.kind == FAILOVER for fault in plan.faults)
        assert switches == (plan.version >= FAILOVER_SINCE)
    assert draw_plan(1, 30, version=18).version == 18
