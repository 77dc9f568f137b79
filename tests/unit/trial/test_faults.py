"""The schedule of faults: drawn from the seed, bounded, and with everything in it."""

from collections import Counter

from tests.trial.faults import AT_ONCE, CALM_S, FAILOVER, FAULTS, STANDBY, schedule

SECONDS = 120.0


def test_a_seed_gives_the_same_faults_and_another_one_others():
    assert schedule(1, SECONDS, failover=True) == schedule(1, SECONDS, failover=True)
    assert schedule(1, SECONDS, failover=True) != schedule(2, SECONDS, failover=True)


def test_every_fault_comes_in_the_time_and_after_the_calm():
    for seed in range(50):
        for fault in schedule(seed, SECONDS, failover=True):
            assert fault.at_s >= CALM_S
            assert fault.ends_s <= SECONDS


def test_all_kinds_come_over_some_seeds():
    kinds = Counter(fault.kind for seed in range(20) for fault in schedule(seed, SECONDS, failover=True))
    assert set(kinds) == {*FAULTS, FAILOVER}
    assert kinds[FAILOVER] == 20


def test_twenty_four_seeds_have_a_thousand_faults():
    assert sum(len(schedule(seed, SECONDS, failover=True)) for seed in range(24)) >= 1000


def test_faults_of_one_group_do_not_overlap_and_two_at_most_are_there_at_a_time():
    for seed in range(50):
        faults = schedule(seed, SECONDS, failover=True)
        for fault in faults:
            others = [each for each in faults if each.at_s <= fault.at_s < each.ends_s]
            assert len(others) <= AT_ONCE
            assert len({each.group for each in others}) == len(others)


def test_only_a_server_that_can_fails_over_and_its_standby_is_gone_afterwards():
    assert all(fault.kind != FAILOVER for fault in schedule(3, SECONDS, failover=False))
    for seed in range(50):
        faults = schedule(seed, SECONDS, failover=True)
        (switch,) = [fault for fault in faults if fault.kind == FAILOVER]
        assert all(fault.ends_s <= switch.at_s for fault in faults if fault.kind == STANDBY)


def test_kinds_can_be_chosen():
    faults = schedule(1, SECONDS, failover=False, kinds=("daemon killed",))
    assert {fault.kind for fault in faults} == {"daemon killed"}
