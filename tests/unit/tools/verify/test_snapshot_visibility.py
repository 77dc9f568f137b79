from cdcd.core.snapshot.reading import Visibility
from cdcd.tools.verify.snapshot_visibility import Sight

ROUND = 1 << 32


def test_a_transaction_is_judged_by_its_id_and_not_by_where_it_committed():
    sight = Sight(Visibility.parse("10:20:12,15"), lsn=1000, old_lsn=0)
    assert [sight.sees(lsn, xid) for lsn, xid in ((100, 9), (110, 12), (120, 13), (130, 20))] == [
        True,
        False,
        True,
        False,
    ]


def test_behind_the_end_of_the_wal_nothing_is_seen():
    assert not Sight(Visibility.parse("10:20:"), lsn=1000, old_lsn=0).sees(1000, 5)


def test_the_exact_lsn_is_that_of_the_first_commit_that_is_not_seen():
    sight = Sight(Visibility.parse("10:20:12"), lsn=1000, old_lsn=0)
    assert sight.exact_lsn == 1000
    assert not sight.sees(2000, 30)
    assert sight.exact_lsn == 1000
    sight.sees(900, 12)
    sight.sees(950, 12)
    assert sight.exact_lsn == 900


def test_ids_that_came_round_are_judged_by_the_place_of_their_commit():
    # GIVEN a server that is in its second round of ids, and a record from more than 2^31 ids ago
    sight = Sight(Visibility.parse(f"{ROUND + 10}:{ROUND + 20}:{ROUND + 12}"), lsn=1000, old_lsn=500)
    assert sight.sees(100, 30)  # by its id, it would be one of now
    assert not sight.sees(110, 12)  # committed long ago, and waiting for a standby ever since
    assert not sight.sees(600, 30)
