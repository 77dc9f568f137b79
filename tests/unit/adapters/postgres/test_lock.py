"""The lock's key, and how long its holder may be silent."""

import pytest

from cdcd.adapters.postgres.lease import LOOK_S_MIN, POLL_S, STEP_S_MAX, Silence, next_look_s, took_over
from cdcd.adapters.postgres.lock import lock_key


def test_the_key_of_a_slot_never_changes_between_versions_of_cdcd() -> None:
    assert lock_key("cdcd_shop") == 6835083932069090534


def test_slots_have_keys_of_their_own_within_64_bits() -> None:
    keys = {lock_key(f"slot_{number}") for number in range(1000)}
    assert len(keys) == 1000
    assert all(-(2**63) <= key < 2**63 for key in keys)
    assert min(keys) < 0 < max(keys)


HOLDER = (4711, "2026-11-21 14:00:00+00")


def test_silence_grows_while_the_sign_stays_the_same() -> None:
    silence = Silence()
    heard = [silence.observe(HOLDER, now) for now in (10.0, 10.3, 10.6, 10.9)]
    assert heard == pytest.approx([0, 0.3, 0.6, 0.9])


@pytest.mark.parametrize("news", [(4711, "2026-11-21 14:00:01+00"), (4712, HOLDER[1]), None])
def test_a_sign_of_life_another_holder_or_a_hidden_one_begins_it_anew(news: tuple[int, str] | None) -> None:
    silence = Silence()
    silence.observe(HOLDER, 1.0)
    assert silence.observe(HOLDER, 1.3) > 0
    assert silence.observe(news, 1.6) == 0
    assert silence.observe(HOLDER, 1.9) == 0


def test_a_session_that_is_hidden_is_never_silent() -> None:
    silence = Silence()
    assert [silence.observe(None, now) for now in range(5)] == [0] * 5


def test_a_standby_that_stood_still_itself_has_seen_no_silence_meanwhile() -> None:
    silence = Silence()
    silence.observe(HOLDER, 1.0)
    assert silence.observe(HOLDER, 3600.0) == STEP_S_MAX


@pytest.mark.parametrize(
    ("silent_s", "wait_s"),
    [(0.0, POLL_S), (2.0, POLL_S), (2.4, 0.1), (2.499, LOOK_S_MIN), (2.5, POLL_S), (60.0, POLL_S)],
)
def test_a_standby_looks_when_the_lease_is_over_and_not_all_the_time_after_that(
    silent_s: float, wait_s: float
) -> None:
    assert next_look_s(silent_s, lease_s=2.5) == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("holder", "lapsed", "successor"),
    [
        (7, frozenset(), False),
        (7, frozenset({7}), False),
        (8, frozenset({7}), True),
        (None, frozenset({7}), True),
    ],
)
def test_a_holder_that_is_not_our_former_session_took_over(
    holder: int | None, lapsed: frozenset[int], successor: bool
):
    """A lease that never ran out says nothing; our own session may still hold the lock for a moment."""
    assert took_over(holder, lapsed) is successor
