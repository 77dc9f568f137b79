"""What counts as a difference, and how differences are kept."""

import pytest

from cdcd.core.engine.actions import Compared, Differences
from cdcd.tools.heal.comparer import murmur2, partitioner
from cdcd.tools.heal.differences import DELETE, INSERT, UPDATE, DifferenceLog, NotComparableError


def test_differences_are_returned_in_pieces_until_none_is_left(tmp_path):
    log = DifferenceLog(tmp_path)
    log.add(DELETE, b'1\0"a"')
    log.add(UPDATE, b"2\tx\n")
    log.add(INSERT, b"3\ty\n")
    assert log.end() == Compared(1, 1, 1)
    assert log.next(12) == Differences(((b"1", b'"a"'),), (b"2\tx\n",), ())
    assert log.next(12) == Differences((), (), (b"3\ty\n",))
    assert log.next(12) == Differences()
    assert list(tmp_path.iterdir()) == [], "the file has no name"
    log.close()


def test_deletes_of_one_topic_only_are_returned_at_a_time(tmp_path):
    log = DifferenceLog(tmp_path)
    for topic, keys in (("p.t", (b"1", b"2")), ("p.empty", ()), ("p.t-eu", (b"3",))):
        log.begin(topic)
        for key in keys:
            log.add(DELETE, key)
    assert log.end() == Compared(3, 0, 0)
    assert log.next(1000) == Differences(((b"1",), (b"2",)), topic="p.t")
    assert log.next(1000) == Differences(((b"3",),), topic="p.t-eu")
    assert not log.next(1000).rows
    log.close()


@pytest.mark.parametrize(
    ("data", "found"),
    [
        # UtilsTest.testMurmur2 of Kafka's Java client.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_have_the_hash_of_kafkas_client(data, found):
    assert murmur2(data) == found % (1 << 32)


def test_a_partitioner_that_is_not_known_makes_no_topic_comparable():
    assert partitioner("consistent_random", 8)(b"1") == 0x83DCEFB7 % 8
    assert 0 <= partitioner("murmur2_random", 3)(b"1") < 3
    with pytest.raises(NotComparableError, match="fnv1a"):
        partitioner("fnv1a", 3)
