"""Which of the checkpoint topic's records counts, whoever wrote the others."""

from dataclasses import replace

import pytest

from cdcd.core.engine.checkpoint import FORMER_FORMAT, Checkpoint
from cdcd.core.engine.checkpoint_record import SERIAL_MAX, CheckpointRecords, Ignored
from cdcd.core.errors import PositionError, SinkError
from cdcd.core.transactions.position import Position

NAME = "shop"
KEY, OTHER_KEY, PROCESS_KEY = b"k" * 32, b"o" * 32, b"p" * 32
FIRST = Checkpoint("7001", 1, "publication=shop", Position(100, 110), 110)
SECOND = replace(FIRST, position=Position(200, 210))
THIRD = replace(FIRST, position=Position(300, 310))
LATER = replace(FIRST, position=Position(150, 160), epoch=1)

Written = Checkpoint | bytes | None


def unsigned(checkpoint: Checkpoint, serial: int = 0) -> bytes:
    """As 99c61843 wrote it, or somebody without the key."""
    return replace(checkpoint, serial=serial).encode() if serial else checkpoint.encode(version=FORMER_FORMAT)


def judged(written: list[Written], *, keys=(), own=b"", told=0):
    """The records of a topic, written by one writer, or as they are; and what is ignored."""
    writer = CheckpointRecords(NAME, keys, own)
    reader = CheckpointRecords(NAME, keys, own)
    judging = reader.judging("shop.checkpoint")
    for offset, each in enumerate(written):
        value = writer.encode(each, offset) if isinstance(each, Checkpoint) else each
        judging.take(offset, NAME.encode(), value)
    return judging, reader


def test_the_transactional_id_is_that_of_the_record_that_counts():
    writer, reader = CheckpointRecords(NAME), CheckpointRecords(NAME)
    judging = reader.judging("shop.checkpoint")
    first, second = writer.encode(FIRST, 1), writer.encode(SECOND, 2)
    judging.take(0, NAME.encode(), first, "former")
    judging.take(1, NAME.encode(), second, "newest")
    # Neither a copy of a former record nor a record of another pipeline counts.
    judging.take(2, NAME.encode(), first, "copied")
    judging.take(3, b"other", second, "foreign")
    assert reader.transactional_id == "newest"
    judging.take(4, NAME.encode(), None, "reset")
    assert reader.transactional_id == ""


@pytest.mark.parametrize("keys", [(), (KEY,)], ids=["without a key", "with a key"])
@pytest.mark.parametrize(
    ("written", "latest"),
    [
        ([FIRST, SECOND], SECOND),
        # Positions go back where somebody accepts a gap.
        ([SECOND, FIRST], FIRST),
        ([FIRST, None], None),
        ([None, FIRST], FIRST),
        ([FIRST, None, SECOND], SECOND),
        # A writer that was frozen wrote once more, after its successor had begun.
        ([FIRST, LATER, SECOND], LATER),
        (
            [LATER, SECOND, replace(LATER, position=Position(300, 310))],
            replace(LATER, position=Position(300, 310)),
        ),
        ([LATER, None, SECOND], SECOND),
    ],
)
def test_the_last_one_of_the_latest_epoch_counts(written, latest, keys):
    judging, _ = judged(written, keys=keys)
    assert (judging.result(), judging.ignored) == (latest, None)


FORGED = {
    "deep": b"[" * 100_000,
    "no JSON": b"{",
    "empty": b"",
    "no object": b"[]",
    "a count beyond all": SECOND.encode().replace(b'"events_done":0', b'"events_done":' + b"9" * 31),
    "a key twice": SECOND.encode()[:-1] + b',"epoch":7}',
    "NaN": SECOND.encode().replace(b'"timeline":1', b'"timeline":NaN'),
    "a newer format without its fields": b'{"format":9}',
    "huge": b'"' + b"x" * (1 << 20) + b'"',
}


@pytest.mark.parametrize("keys", [(), (KEY,)], ids=["without a key", "with a key"])
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("place", ["before", "behind", "around"])
def test_what_is_no_checkpoint_does_not_count(forged, keys, place):
    around = {"before": [forged, FIRST], "behind": [FIRST, forged], "around": [forged, FIRST, forged]}[place]
    judging, _ = judged(around, keys=keys)
    assert judging.result() == FIRST
    ignored = judging.ignored
    assert ignored is not None
    assert (ignored.count, ignored.last) == (
        around.count(forged),
        len(around) - around[::-1].index(forged) - 1,
    )
    assert 0 < len(ignored.why) < 700


@pytest.mark.parametrize("keys", [(), (KEY,)], ids=["without a key", "with a key"])
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_with_nothing_else_of_the_pipeline_it_is_an_error(forged, keys):
    judging, _ = judged([forged], keys=keys)
    with pytest.raises(PositionError, match=r"shop\.checkpoint\[0\]@0"):
        judging.result()
    judging, _ = judged([forged, None], keys=keys)
    assert judging.result() is None


@pytest.mark.parametrize(("last", "count"), [(1, 1), (2, 2), (9, 9)])
def test_records_that_cannot_be_decompressed_are_ignored(last: int, count: int):
    judging, _ = judged([FIRST])
    judging.unread(1, last)
    assert judging.result() == FIRST
    assert judging.ignored == Ignored(count, 1, last, "it is too large when it is decompressed")


def test_another_key_is_somebody_elses():
    judging, reader = judged([FIRST])
    judging.take(1, b"other", SECOND.encode())
    judging.take(2, None, b"[[[[")
    judging.take(3, b"\xff\xfe" * 300_000, None)
    assert judging.result() == FIRST
    assert judging.ignored == Ignored(2, 1, 2, "its key is None, and not the pipeline's name")
    assert reader.serial > 0


def test_another_pipeline_is_refused_only_where_this_one_has_nothing():
    judging = CheckpointRecords(NAME).judging("shop.checkpoint")
    judging.take(7, b"other", SECOND.encode())
    with pytest.raises(SinkError, match=r"another pipeline \(key b'other', offset 7\)"):
        judging.result()
    judging.take(8, b"other", None)
    assert judging.result() is None


def test_a_stranger_s_record_that_is_no_checkpoint_is_no_pipeline():
    judging = CheckpointRecords(NAME).judging("shop.checkpoint")
    for offset, value in enumerate(FORGED.values()):
        judging.take(offset, b"x%d" % offset, value)
    assert judging.result() is None


# With a key.


@pytest.mark.parametrize(
    "forged",
    [
        unsigned(THIRD),
        unsigned(THIRD, SERIAL_MAX),
        replace(THIRD, serial=99, epoch=99).encode(OTHER_KEY, NAME),
        replace(THIRD, serial=99).encode(KEY, "another"),
        THIRD.encode().replace(b'"format":2', b'"format":3'),
        replace(THIRD, serial=99, downgraded=True).encode(),
    ],
)
def test_a_record_without_the_tag_does_not_count_beside_one_with_it(forged):
    for written in ([FIRST, SECOND, forged], [forged, FIRST, SECOND]):
        judging, _ = judged(written, keys=(KEY,))
        assert judging.result() == SECOND
        assert judging.result().authentic
    assert judging.ignored is None or judging.ignored.count == 1


def test_a_former_key_still_verifies_and_the_first_one_signs():
    former, _ = CheckpointRecords(NAME, (OTHER_KEY,)), None
    record = former.encode(FIRST, 5)
    judging, reader = judged([record], keys=(KEY, OTHER_KEY))
    assert judging.result().authentic
    judging, _ = judged([record, reader.encode(SECOND, 6)], keys=(KEY,))
    assert judging.result() == SECOND


def test_before_the_key_was_introduced_the_newest_counts_and_is_not_authentic():
    judging, _ = judged([unsigned(FIRST), unsigned(SECOND)], keys=(KEY,))
    found = judging.result()
    assert (found, found.authentic) == (SECOND, False)
    assert not judging.is_settled(0)


def test_all_of_the_topic_is_read_for_one_with_a_tag():
    judging, _ = judged([unsigned(FIRST)], keys=(KEY,))
    assert not judging.is_settled(0)
    judging, _ = judged([FIRST], keys=(KEY,))
    assert judging.is_settled(0)
    judging, _ = judged([unsigned(FIRST)])
    assert judging.is_settled(0)
    judging, _ = judged([b"{"])
    assert not judging.is_settled(0)
    judging, _ = judged([b"{", None])
    assert judging.is_settled(0)


# Copies.


@pytest.mark.parametrize("keys", [(), (KEY,)], ids=["without a key", "with a key"])
def test_a_copy_of_a_former_record_does_not_count(keys):
    writer = CheckpointRecords(NAME, keys)
    first, second = writer.encode(FIRST, 5), writer.encode(SECOND, 6)
    judging, _ = judged([first, second, first, first], keys=keys)
    assert judging.result() == SECOND
    assert judging.ignored == Ignored(2, 2, 3, "it is a copy of a former record")
    # Nor does one of format 1 that was copied forward.
    judging, _ = judged([unsigned(FIRST), second, unsigned(FIRST)], keys=keys)
    assert judging.result() == SECOND


@pytest.mark.parametrize("keys", [(), (KEY,)], ids=["without a key", "with a key"])
def test_a_copy_from_before_a_reset_does_not_count_behind_it(keys):
    writer = CheckpointRecords(NAME, keys)
    before = writer.encode(THIRD, 1000)
    # Another process, after the reset: nothing is below the clock.
    again = CheckpointRecords(NAME, keys).encode(FIRST, 2000)
    judging, _ = judged([before, None, again, before], keys=keys)
    assert judging.result() == FIRST


def test_copies_that_fill_the_end_are_found_by_what_postgresql_was_told():
    writer = CheckpointRecords(NAME, (KEY,))
    copy = writer.encode(FIRST, 5)
    judging, _ = judged([copy] * 64, keys=(KEY,))
    assert judging.is_settled(110)
    assert not judging.is_settled(210)


def test_serials_rise_also_where_a_clock_stands_still_or_goes_back():
    _, reader = judged([FIRST])
    reader.serial = 500
    serials = [Checkpoint.decode(reader.encode(FIRST, at), "").serial for at in (400, 600, 600, 100)]
    assert serials == [501, 600, 601, 602]


def test_a_serial_that_a_stranger_chose_stops_nobody():
    forged = unsigned(FIRST, SERIAL_MAX)
    judging, reader = judged([forged])
    own = [reader.encode(each, 7) for each in (SECOND, THIRD)]
    judging, _ = judged([forged, *own])
    assert judging.result() == THIRD
    judging, _ = judged([FIRST, unsigned(THIRD, SERIAL_MAX + 1)])
    assert judging.result() == FIRST


# Formats.


def test_a_newer_format_is_refused_and_not_passed_over():
    newer = SECOND.encode().replace(b'"format":2', b'"format":3')
    judging, _ = judged([FIRST, newer])
    assert judging.is_settled(0)
    with pytest.raises(PositionError, match="has format 3"):
        judging.result()
    judging, _ = judged([FIRST, newer, SECOND])
    assert judging.result() == SECOND


def test_with_a_key_a_newer_format_must_have_its_tag():
    unproven = THIRD.encode().replace(b'"format":2', b'"format":3')
    judging, _ = judged([FIRST, unproven], keys=(KEY,))
    assert judging.result() == FIRST


@pytest.mark.parametrize("keys", [(), (KEY,)], ids=["without a key", "with a key"])
def test_after_a_downgrade_records_of_format_1_count_and_then_those_of_format_2_again(keys):
    writer = CheckpointRecords(NAME, keys)
    marked = writer.encode(replace(FIRST, downgraded=True), 5)
    former = [unsigned(FIRST), unsigned(SECOND)]
    judging, reader = judged([marked, *former], keys=keys)
    assert judging.result() == SECOND
    again = reader.encode(THIRD, 6)
    judging, _ = judged([marked, *former, again], keys=keys)
    assert judging.result() == THIRD
    # A copy of a former record of format 2 does not count there.
    judging, _ = judged([writer.encode(FIRST, 4), marked, former[1], again, marked], keys=keys)
    assert judging.result() == THIRD


# A key of the process alone.


def test_a_process_knows_what_it_wrote_and_others_do_not():
    writer = CheckpointRecords(NAME, (), PROCESS_KEY)
    record = writer.encode(FIRST, 5)
    judging, _ = judged([record], own=PROCESS_KEY)
    assert judging.result().authentic
    judging, _ = judged([record], own=OTHER_KEY)
    assert not judging.result().authentic
    judging, _ = judged([record])
    assert not judging.result().authentic


def test_what_another_instance_wrote_counts_behind_what_this_process_wrote():
    mine, other = CheckpointRecords(NAME, (), PROCESS_KEY), CheckpointRecords(NAME, (), OTHER_KEY)
    judging, _ = judged([mine.encode(FIRST, 5), other.encode(SECOND, 6)], own=PROCESS_KEY)
    found = judging.result()
    assert (found, found.authentic) == (SECOND, False)
