import time

from cdcd.mirror.targets.delta import _kept_hours
from cdcd.mirror.targets.pinned import Pinned
from cdcd.mirror.targets.target import Maintenance


def test_vacuum_keeps_whole_hours_and_what_the_oldest_point_needs():
    assert [_kept_hours(Maintenance(keep_s=keep_s), None) for keep_s in (0, 60, 3600, 3601)] == [0, 1, 1, 2]
    just_now = int(time.time() * 1_000_000)
    assert _kept_hours(Maintenance(keep_s=0), Pinned(7, just_now, 1)) == 1
    assert _kept_hours(Maintenance(keep_s=0), Pinned(7, just_now - 3 * 3600 * 1_000_000, 1)) == 4
    assert _kept_hours(Maintenance(keep_s=86_400), Pinned(7, just_now, 1)) == 24
