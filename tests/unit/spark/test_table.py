from cdcd.spark.table import _slice, is_due


def test_a_batch_that_is_small_enough_is_taken_whole():
    assert _slice({0: 5}, {0: 10, 1: 3}, 8) == {0: 10, 1: 3}


def test_a_larger_one_goes_on_in_every_partition_in_proportion():
    assert _slice({0: 0, 1: 100}, {0: 900, 1: 200}, 100) == {0: 90, 1: 110}


def test_slices_come_to_the_end():
    ends = {0: 1000, 1: 7, 2: 0}
    start: dict[int, int] = {}
    turns = 0
    while any(start.get(partition, 0) < end for partition, end in ends.items()):
        start = _slice(start, ends, 100)
        turns += 1
    assert start == ends
    assert turns <= 12


def test_an_idle_table_is_maintained_after_its_last_change_and_when_that_is_old_enough_and_then_left_alone():
    assert is_due(100, None, 101, 1000)
    assert is_due(100, 50, 101, 1000)
    assert not is_due(100, 101, 1099, 1000)
    assert is_due(100, 101, 1100, 1000)
    assert not is_due(100, 1100, 9999, 1000)
