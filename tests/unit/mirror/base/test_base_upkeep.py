from datetime import UTC, datetime, timedelta

from cdcd.mirror.base.upkeep import Wear, expires_before, need, since_compaction
from cdcd.mirror.targets.target import Maintenance

NOW = datetime(2026, 11, 30, tzinfo=UTC)
POLICY = Maintenance(keep_s=3600, keep_versions=3, versions_max=100, small_files_min=8)


def versions(count: int, apart_s: int) -> tuple[datetime, ...]:
    """Times of `count` versions, the newest first."""
    return tuple([NOW - timedelta(seconds=number * apart_s) for number in range(count)])


def test_the_table_with_most_commits_since_its_compaction_needs_maintenance_most():
    assert need(Wear(7, versions(7, 1)), POLICY, NOW) < 1
    assert 1 <= need(Wear(8, versions(8, 1)), POLICY, NOW) < need(Wear(30, versions(30, 1)), POLICY, NOW)


def test_versions_need_maintenance_by_their_number_and_by_their_age():
    assert need(Wear(0, versions(105, 1)), POLICY, NOW) < 1
    assert need(Wear(0, versions(120, 1)), POLICY, NOW) >= 1
    assert need(Wear(0, versions(5, 1000)), POLICY, NOW) >= 1
    # The versions that are always kept may be old.
    assert need(Wear(0, versions(3, 100_000)), POLICY, NOW) < 1


def test_versions_expire_by_age_and_by_number_but_for_those_of_consistent_points():
    assert expires_before(Wear(0, versions(5, 1000)), POLICY, NOW, None) == NOW - timedelta(seconds=3600)
    assert expires_before(Wear(0, versions(3, 5000)), POLICY, NOW, None) is None
    many = versions(120, 1)
    assert expires_before(Wear(0, many), POLICY, NOW, None) == many[99]
    assert expires_before(Wear(0, many), POLICY, NOW, many[110]) == many[110]
    assert expires_before(Wear(0, many), POLICY, NOW, many[119]) is None


def test_commits_are_counted_from_the_last_compaction():
    assert since_compaction(["overwrite", "append", "replace", "overwrite"], "replace") == 2
    assert since_compaction(["MERGE", "WRITE"], "OPTIMIZE") == 2
