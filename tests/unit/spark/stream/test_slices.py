from cdcd.spark.stream.slices import slice_of


def test_a_batch_that_is_small_enough_is_taken_whole():
    assert slice_of({0: 5}, {0: 10, 1: 3}, 8) == {0: 10, 1: 3}


def test_a_larger_one_goes_on_in_every_partition_in_proportion():
    assert slice_of({0: 0, 1: 100}, {0: 900, 1: 200}, 100) == {0: 90, 1: 110}


def test_slices_come_to_the_end():
    ends = {0: 1000, 1: 7, 2: 0}
    start: dict[int, int] = {}
    turns = 0
    while any(start.get(partition, 0) < end for partition, end in ends.items()):
        start = slice_of(start, ends, 100)
        turns += 1
    assert start == ends
    assert turns <= 12
