"""What slipped through a handover, judged from messages made by hand."""

import pytest

from cdcd.core.engine.checkpoint import Seal
from cdcd.core.errors import PositionError
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import (
    Begin,
    Column,
    Commit,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    Truncate,
)
from cdcd.core.protocol.writer import write_message
from cdcd.tools.handover.judging import HandoverVerdict, Judge, JudgedTransaction, TransactionReader, refuse

FENCE = 1000
SEAL = Seal(FENCE, "7002", 50, "pg_16400", 0, "token")
TABLE = Relation(None, 1, "public", "t", "d", (Column(1, "id", 23, -1),))
OTHER = Relation(None, 2, "public", "u", "d", (Column(1, "id", 23, -1),))
ROW = Insert(None, 1, (b"1",))


def held(end_lsn: int, origin_lsn: int = FENCE) -> JudgedTransaction:
    """Applied for the former server, and in Kafka."""
    return JudgedTransaction(end_lsn - 10, end_lsn, "pg_16400", origin_lsn, ("public.t",))


def after_the_fence(end_lsn: int) -> JudgedTransaction:
    return held(end_lsn, FENCE + 1)


def own(end_lsn: int) -> JudgedTransaction:
    """Written on the new server."""
    return JudgedTransaction(end_lsn - 10, end_lsn, "", 0, ("public.t",))


def judged(*transactions: JudgedTransaction) -> HandoverVerdict:
    judge = Judge(SEAL)
    for each in transactions:
        judge.take(each)
    return judge.verdict()


def read(*messages: Message) -> list[JudgedTransaction]:
    reader = TransactionReader()
    frames = [write_frame(XLogData(0, 0, 0, write_message(message))) for message in messages]
    return [found for frame in frames if (found := reader.take(frame)) is not None]


def test_a_transaction_has_its_origin_and_the_tables_that_it_changed():
    begin, commit = Begin(100, 0, 7), Commit(100, 110, 0)
    assert read(begin, Origin(900, "pg_16400"), TABLE, ROW, ROW, commit) == [
        JudgedTransaction(100, 110, "pg_16400", 900, ("public.t",))
    ]
    # The next one has no origin, for it was written here.
    assert read(
        begin, Origin(900, "pg_16400"), TABLE, ROW, commit, Begin(120, 0, 8), ROW, Commit(120, 130, 0)
    ) == [
        JudgedTransaction(100, 110, "pg_16400", 900, ("public.t",)),
        JudgedTransaction(120, 130, "", 0, ("public.t",)),
    ]


def test_a_truncate_is_a_change_of_each_of_its_tables():
    truncate = Truncate(None, False, False, (1, 2))
    (found,) = read(Begin(100, 0, 7), TABLE, OTHER, truncate, Commit(100, 110, 0))
    assert found.tables == ("public.t", "public.u")


def test_a_transaction_without_changes_counts_for_nothing():
    message = LogicalMessage(None, True, 90, "cdcd.watermark", b"")
    assert read(Begin(100, 0, 7), message, Commit(100, 110, 0)) == []


def test_nothing_that_slipped_through_lets_the_pipeline_go_on_behind_what_kafka_holds():
    verdict = judged(held(100), held(200))
    assert (verdict.position, verdict.held) == (200, 2)
    refuse(verdict, "7001", deliver_writes=False)


def test_without_any_transaction_it_goes_on_where_the_slot_begins():
    verdict = judged()
    assert verdict.position == SEAL.slot_lsn
    refuse(verdict, "7001", deliver_writes=False)


@pytest.mark.parametrize(
    ("late", "named"),
    [
        (own(300), "0/122 of the new server"),
        (after_the_fence(300), "0/3E9 of the former server"),
        (JudgedTransaction(290, 300, "pg_other", 5, ("public.t",)), "0/5 of the former server"),
    ],
    ids=["own", "former", "another subscription"],
)
def test_a_write_behind_what_kafka_holds_is_refused_with_its_lsn_or_delivered(
    late: JudgedTransaction, named: str
):
    verdict = judged(held(100), late)
    assert (verdict.position, verdict.late_count, verdict.lost_count) == (100, 1, 0)
    with pytest.raises(PositionError, match="1 transaction was written after the fence") as refused:
        refuse(verdict, "7001", deliver_writes=False)
    assert named in refused.value.message
    assert "--deliver-writes" in refused.value.hint
    refuse(verdict, "7001", deliver_writes=True)


def test_a_write_before_what_kafka_holds_can_never_be_delivered():
    verdict = judged(held(100), own(200), held(300), own(400))
    assert (verdict.position, verdict.late_count, verdict.lost_count) == (300, 1, 1)
    for deliver_writes in (False, True):
        with pytest.raises(PositionError, match="would never be delivered") as refused:
            refuse(verdict, "7001", deliver_writes=deliver_writes)
        assert "0/BE of the new server, tables public.t" in refused.value.message
        assert "`cdcd reset --checkpoint-of 7001`" in refused.value.hint


def test_so_many_writes_are_named_and_all_are_counted():
    verdict = judged(*[own(100 + 10 * number) for number in range(20)])
    with pytest.raises(PositionError, match="20 transactions were written") as refused:
        refuse(verdict, "7001", deliver_writes=False)
    assert refused.value.message.endswith("and 15 more.")
    lost = judged(*[own(100 + 10 * number) for number in range(20)], held(900))
    assert (lost.lost_count, len(lost.lost)) == (20, 5)
