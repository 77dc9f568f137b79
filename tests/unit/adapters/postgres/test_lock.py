"""The lock's key."""

from cdcd.adapters.postgres.lock import lock_key


def test_the_key_of_a_slot_never_changes_between_versions_of_cdcd() -> None:
    assert lock_key("cdcd_shop") == 6835083932069090534


def test_slots_have_keys_of_their_own_within_64_bits() -> None:
    keys = {lock_key(f"slot_{number}") for number in range(1000)}
    assert len(keys) == 1000
    assert all(-(2**63) <= key < 2**63 for key in keys)
    assert min(keys) < 0 < max(keys)
