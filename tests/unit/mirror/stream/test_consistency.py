import json

import pytest

from cdcd.core.errors import PositionError
from cdcd.mirror.stream.consistency import PENDING_MAX, Covered, Cuts, Mark, covered


def checkpoint(**fields: object) -> bytes:
    return json.dumps({"commit_lsn": "0/2A", "end_lsn": "0/50", "events_done": 0, **fields}).encode()


def test_a_batch_holds_what_a_checkpoint_covers_when_it_goes_as_far_in_every_partition():
    mark = Mark(42, {"a": {0: 10, 1: 5}, "b": {0: 3}})
    assert mark.is_before({"a": {0: 10, 1: 9}, "b": {0: 3}})
    assert not mark.is_before({"a": {0: 10, 1: 4}, "b": {0: 3}})
    assert not mark.is_before({"a": {0: 10, 1: 5}})


def test_the_newest_mark_that_a_batch_fulfils_is_its_cut():
    cuts = Cuts()
    for lsn, offset in ((10, 100), (20, 200), (30, 300)):
        cuts.take(Mark(lsn, {"a": {0: offset}}))
    assert cuts.cut({"a": {0: 99}}) is None
    assert cuts.cut({"a": {0: 250}}) == 20
    assert cuts.cut({"a": {0: 260}}) == 20
    assert cuts.cut({"a": {0: 300}}) == 30


def test_cuts_never_go_back():
    cuts = Cuts()
    cuts.take(Mark(30, {}))
    assert cuts.cut({}) == 30
    cuts.take(Mark(20, {}))
    assert cuts.cut({}) == 30


def test_marks_that_wait_are_bounded_and_the_first_and_the_last_are_kept_for_their_time():
    cuts = Cuts()
    for lsn in range(1, 4 * PENDING_MAX):
        cuts.take(Mark(lsn, {"a": {0: lsn}}))
    assert len(cuts._marks) <= PENDING_MAX
    assert cuts.cut({"a": {0: 4 * PENDING_MAX}}) == 4 * PENDING_MAX - 1


def test_a_checkpoint_in_the_middle_of_a_transaction_covers_what_committed_before_it():
    assert covered(checkpoint(), "t@1") == Covered(42, 79)
    assert covered(checkpoint(end_lsn="0/2A", events_done=7), "t@1") == Covered(41, 41)


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", checkpoint(commit_lsn="x")])
def test_what_is_no_checkpoint_is_refused(value: bytes):
    with pytest.raises(PositionError, match=r"shop\.checkpoint@9"):
        covered(value, "shop.checkpoint@9")
