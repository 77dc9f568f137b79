import json
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.oids import EXPANDED_MAX, squeezed
from cdcd.core.engine.checkpoint import (
    FORMER_FORMAT,
    STEPS_MAX,
    AsideTable,
    Checkpoint,
    NewerFormatError,
    Seal,
    tables_sum,
)
from cdcd.core.engine.resuming import Source, only_slot_is_lost, refuse_sealed, resume
from cdcd.core.errors import PositionError
from cdcd.core.protocol.lsn import LSN_MAX
from cdcd.core.transactions.position import COVERED, Position

CHECKPOINT = Checkpoint("7001", 1, "publication=shop", Position(commit_lsn=100, end_lsn=110), flushed_lsn=110)
CUT = replace(CHECKPOINT, position=Position(commit_lsn=200, end_lsn=200, events_done=3), flushed_lsn=200)
SOURCE = Source("7001", 1, wal_end=1000, slot_confirmed=90, stream="publication=shop", slot="cdcd_shop")


# What is skipped.


@pytest.mark.parametrize(
    ("position", "commit_lsn", "skip"),
    [
        (Position(), 0, 0),
        (Position(), 100, 0),
        (Position(100, 110), 99, COVERED),
        (Position(100, 110), 100, COVERED),
        (Position(100, 110), 109, COVERED),
        (Position(100, 110), 110, 0),
        (Position(0, 110), 109, COVERED),
        (Position(0, 110), 110, 0),
        (Position(200, 200, 3), 199, COVERED),
        (Position(200, 200, 3), 200, 3),
        (Position(200, 200, 3), 201, 0),
    ],
)
def test_one_lsn_divides_the_stream_into_what_is_done_and_what_is_not(position, commit_lsn, skip):
    assert position.skip(commit_lsn) == skip


def test_moving_on_keeps_the_last_commit():
    assert Position(100, 110).moved(150) == Position(100, 150)


def test_and_never_moves_back():
    assert Position(100, 110).moved(109) == Position(100, 110)
    assert Position(200, 200, 7).moved(200) == Position(200, 200, 7)


def test_a_position_reads_well():
    assert str(Position(0x16B3748, 0x16B3778)) == "0/16B3778"
    assert str(Position(0x16B3748, 0x16B3748, 7)) == "0/16B3748 and 7 events of 0/16B3748"


# The checkpoint record.


lsns = st.integers(0, LSN_MAX)


@given(
    st.builds(
        Checkpoint,
        system_identifier=st.text(),
        timeline=st.integers(0, 2**31),
        stream=st.text(),
        position=st.builds(Position, lsns, lsns, st.integers(0, 2**40)),
        flushed_lsn=lsns,
        settings=st.none()
        | st.dictionaries(st.text(), st.integers(0, 2**32 - 1)).map(lambda sums: (*sums.items(),)),
    )
)
def test_a_checkpoint_is_read_back_as_it_was_written(checkpoint):
    assert Checkpoint.decode(checkpoint.encode(), "topic[0]@7") == checkpoint


def test_the_records_of_a_half_delivered_transaction_are_read_back():
    counts = (("public.b", 3), ('public."a', 2))
    cut = replace(CUT, position=Position(200, 200, 7, counts))
    assert Checkpoint.decode(cut.encode(), "topic[0]@7").position.counts == counts
    assert Checkpoint.decode(CUT.encode(), "topic[0]@7").position.counts == ()
    assert b"records" not in CUT.encode()


@pytest.mark.parametrize("records", [b"[1]", b'{"t":-1}', b'{"t":"x"}', b"7"])
def test_damaged_counts_of_records_are_refused(records):
    data = CUT.encode().replace(b'"events_done"', b'"records":%b,"events_done"' % records)
    with pytest.raises(PositionError, match="cannot be read"):
        Checkpoint.decode(data, "topic[0]@7")


def test_a_person_can_read_the_record():
    assert json.loads(CUT.encode()) == {
        "format": 2,
        "system_identifier": "7001",
        "timeline": 1,
        "commit_lsn": "0/C8",
        "end_lsn": "0/C8",
        "events_done": 3,
        "flushed_lsn": "0/C8",
        "stream": "publication=shop",
        "epoch": 0,
    }


BOMB = squeezed(bytes(10 * EXPANDED_MAX))
LONG_OID = squeezed((200_000).to_bytes(4, "big") + b"\xff" * 200_000)


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(CUT.encode()), **fields}).encode()


def without(field: str) -> bytes:
    fields = json.loads(CUT.encode())
    del fields[field]
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b'"text"',
        b"\xff\xfe",
        CUT.encode()[:-1],
        CUT.encode() + b"}",
        changed(commit_lsn="nonsense"),
        changed(commit_lsn="0/123456789"),
        changed(end_lsn=7),
        changed(end_lsn=None),
        changed(flushed_lsn="nonsense"),
        changed(events_done=-1),
        changed(events_done="3"),
        changed(events_done=1.5),
        changed(events_done=True),
        changed(events_done=None),
        changed(timeline="one"),
        changed(system_identifier=7001),
        changed(settings=[1]),
        changed(settings={"filters.tables": "1"}),
        changed(stream=None),
        *[without(field) for field in json.loads(CUT.encode())],
    ],
    ids=lambda data: data.decode(errors="replace")[-60:],
)
def test_a_damaged_record_is_refused_with_its_place(damaged):
    with pytest.raises(PositionError, match=r"shop\.checkpoint\[0\]@7") as caught:
        Checkpoint.decode(damaged, "shop.checkpoint[0]@7")
    assert caught.value.hint


@given(st.binary(max_size=60))
def test_no_bytes_make_it_fail_in_another_way(data):
    with pytest.raises(PositionError):
        Checkpoint.decode(data, "somewhere")


@pytest.mark.parametrize("version", [3, 0, 2**53 - 1])
def test_another_format_is_refused_not_guessed_at(version):
    with pytest.raises(NewerFormatError, match=r"has format \d+, this cdcd reads 2 and 1"):
        Checkpoint.decode(changed(format=version), "somewhere")


@pytest.mark.parametrize(
    "forged",
    [
        b'{"format":3}',
        changed(format=10**30),
        changed(format="2"),
        changed(format=True),
        changed(format=[]),
        changed(format=-1),
    ],
)
def test_what_no_version_of_ours_can_have_written_is_no_newer_format(forged):
    with pytest.raises(PositionError) as caught:
        Checkpoint.decode(forged, "somewhere")
    assert not isinstance(caught.value, NewerFormatError)


def test_a_field_that_this_format_does_not_have_is_refused():
    with pytest.raises(PositionError, match="keys that this cdcd does not know: fates"):
        Checkpoint.decode(changed(fates=[]), "somewhere")


FULL = replace(
    CUT,
    bindings='{"16385":{"3":["hash"]},"name":"Größe"}',
    tables=(AsideTable(16385, 200, "too_large"), AsideTable(16390, 210, "collision")),
    topics=("shop.public.orders",),
    serial=7,
    downgraded=True,
)


def test_what_only_format_2_has_is_read_back():
    found = Checkpoint.decode(FULL.encode(), "somewhere")
    assert (found, found.serial, found.downgraded, found.authentic) == (FULL, 7, True, False)


def test_many_tables_that_are_set_aside_one_by_one_take_little_of_the_record():
    tables = tuple([AsideTable(16384 + 7 * n, 1000 + n, ("name", "topic")[n % 2]) for n in range(50_000)])
    record = replace(FULL, tables=tables).encode()
    assert len(record) < 400_000
    found = Checkpoint.decode(record, "somewhere")
    assert [(each.oid, each.fault) for each in found.tables] == [(each.oid, each.fault) for each in tables]
    # The newest ones keep their LSN, and none is later than it was.
    assert [each.since_lsn for each in found.tables[-STEPS_MAX // 2 :]] == [
        each.since_lsn for each in tables[-STEPS_MAX // 2 :]
    ]
    assert all(now.since_lsn <= then.since_lsn for now, then in zip(found.tables, tables, strict=True))
    # The record that was read is the one that was written.
    assert found.encode() == replace(FULL, tables=tables, serial=found.serial).encode()
    assert found.is_same(replace(FULL, tables=tables))


def test_format_1_is_read_and_written_without_what_it_has_no_place_for():
    record = FULL.encode(KEY, "shop", version=FORMER_FORMAT)
    assert json.loads(record).keys() == json.loads(CUT.encode()).keys()
    assert json.loads(record)["format"] == 1
    assert Checkpoint.decode(record, "somewhere") == replace(FULL, bindings="", tables=(), topics=())


KEY, OTHER_KEY = b"k" * 32, b"o" * 32


def test_a_tag_is_made_with_the_key_and_of_the_pipeline():
    record = FULL.encode(KEY, "shop")
    assert Checkpoint.decode(record, "", [OTHER_KEY, KEY], "shop").authentic
    assert not Checkpoint.decode(record, "", [OTHER_KEY], "shop").authentic
    assert not Checkpoint.decode(record, "", [KEY], "another").authentic
    assert not Checkpoint.decode(record, "", [b""], "shop").authentic
    assert not Checkpoint.decode(FULL.encode(), "", [KEY], "shop").authentic


@pytest.mark.parametrize("at", [20, 60, 120, -10, -70])
def test_a_record_that_somebody_changed_is_not_authentic(at):
    record = bytearray(FULL.encode(KEY, "shop"))
    changes = [byte for byte in b"0123456789abcdefgh" if byte != record[at]]
    for byte in changes:
        record[at] = byte
        try:
            assert not Checkpoint.decode(bytes(record), "", [KEY], "shop").authentic
        except PositionError:
            continue


@given(st.integers(0, 500), st.binary(max_size=3))
def test_no_bytes_in_a_tagged_record_make_another_authentic_one(at, put):
    record = FULL.encode(KEY, "shop")
    at %= len(record)
    other = record[:at] + put + record[at + len(put) :]
    try:
        found = Checkpoint.decode(other, "", [KEY], "shop")
    except PositionError:
        return
    assert found.authentic == (other == record)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    "forged",
    [
        b"[" * 1_000_000,
        nested(100_000),
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        CUT.encode()[:-1] + b',"bindings":' + nested(33) + b"}",
        CUT.encode()[:-1] + b',"bindings":{"a":"\\ud800"}}',
        CUT.encode()[:-1] + b',"epoch":0}',
        CUT.encode()[:-1] + b',"tables":[[1,"0/1"]]}',
        CUT.encode()[:-1] + b',"tables":{"a":1}}',
        CUT.encode()[:-1] + b',"topics":"abc"}',
        CUT.encode()[:-1] + b',"bindings":[]}',
        CUT.encode()[:-1] + b',"bindings":"' + b"x" * (1 << 20) + b'"}',
        b'"' + b'\\"' * 400_000,
        b'"' * 999_999,
        changed(events_done=10**30),
        changed(epoch=2**53),
        changed(timeline=float("nan")),
        changed(timeline=float("inf")),
        changed(timeline=1e3),
        b'{"format":' + b"9" * 5000 + b"}",
        CUT.encode().decode().encode("utf-16"),
        CUT.encode().replace(b"7001", b"70\xff1"),
        changed(snapshot={"method": "incremental", "tasks": 7}),
        changed(snapshot={"method": "incremental", "tasks": [{"name": ["a"], "oid": 1}]}),
        changed(snapshot={"method": "incremental", "tasks": [{"name": "a.b", "oid": 10**20}]}),
        changed(snapshot={"method": "incremental", "known": [10**20]}),
        changed(snapshot={"method": "incremental", "known": BOMB}),
        changed(snapshot={"method": "incremental", "known": LONG_OID}),
        changed(snapshot={"method": "incremental", "serial": "7"}),
    ],
    ids=range(28),
)
def test_what_a_stranger_writes_is_refused_soon(forged):
    began = time.process_time()
    with pytest.raises(PositionError, match=r"shop\.checkpoint\[0\]@7") as caught:
        Checkpoint.decode(forged, "shop.checkpoint[0]@7")
    assert time.process_time() - began < 1
    assert len(str(caught.value)) < 700


# How far PostgreSQL may have been told.


def test_it_may_be_told_what_the_ledger_says_however_far_the_position_is():
    done = Position(commit_lsn=300, end_lsn=310)
    assert CHECKPOINT.moved(done, 310) == replace(CHECKPOINT, position=done, flushed_lsn=310)
    assert CHECKPOINT.moved(done, 250) == replace(CHECKPOINT, position=done, flushed_lsn=250)


def test_what_it_was_told_it_was_told():
    assert CHECKPOINT.moved(Position(300, 310), 90).flushed_lsn == 110


def test_a_start_does_not_know_yet_what_is_undecided():
    held = replace(CHECKPOINT, flushed_lsn=70)
    assert held.moved(CHECKPOINT.position, 70) == held


def test_a_position_that_has_come_again_may_be_told():
    held = replace(CHECKPOINT, flushed_lsn=70)
    assert held.moved(CHECKPOINT.position, 110) == CHECKPOINT


# Where to resume.


def refusal(checkpoint: Checkpoint, source: Source) -> str:
    with pytest.raises(PositionError) as caught:
        resume(checkpoint, source, accept_gap=False)
    assert caught.value.hint
    return caught.value.message


def test_the_first_start_is_where_the_slot_stands():
    assert resume(None, SOURCE, accept_gap=False).position == Position(0, 90)


@pytest.mark.parametrize("checkpoint", [CHECKPOINT, CUT])
@pytest.mark.parametrize("slot_confirmed", [0, 90, 110])
def test_a_slot_that_is_not_ahead_of_the_checkpoint_goes_on_from_it(checkpoint, slot_confirmed):
    source = replace(SOURCE, slot_confirmed=slot_confirmed)
    assert resume(checkpoint, source, accept_gap=False).position == checkpoint.position


def test_another_server_is_refused():
    message = refusal(CHECKPOINT, replace(SOURCE, system_identifier="7002"))
    assert "system_identifier 7001, but the server has 7002" in message


def test_a_server_that_lost_wal_is_refused():
    assert "ahead of the server's WAL (0/6D)" in refusal(CHECKPOINT, replace(SOURCE, wal_end=109))
    assert resume(CHECKPOINT, replace(SOURCE, wal_end=110), accept_gap=False).position == CHECKPOINT.position


def test_a_server_that_lost_the_commit_of_a_half_delivered_transaction_is_refused():
    assert "ahead of the server's WAL (0/C8)" in refusal(CUT, replace(SOURCE, wal_end=200))
    assert resume(CUT, replace(SOURCE, wal_end=201), accept_gap=False).position == CUT.position


def test_a_half_delivered_transaction_that_commits_where_histories_part_is_refused():
    source = replace(SOURCE, timeline=2, branched_at=200)
    assert "ahead of the position at which this server left timeline 1" in refusal(CUT, source)


def test_a_slot_that_was_moved_past_the_checkpoint_is_refused():
    message = refusal(CHECKPOINT, replace(SOURCE, slot_confirmed=111))
    assert "Slot cdcd_shop is confirmed up to 0/6F but Kafka holds changes only up to 0/6E" in message


def test_a_slot_that_was_moved_past_an_undecided_prepare_is_refused():
    held = replace(CHECKPOINT, flushed_lsn=70)
    message = refusal(held, replace(SOURCE, slot_confirmed=71))
    assert "confirmed up to 0/47 but cdcd confirmed nothing past 0/46, before a PREPARE" in message
    assert resume(held, replace(SOURCE, slot_confirmed=70), accept_gap=False).position == held.position


def test_a_slot_that_is_gone_is_refused_where_there_is_a_checkpoint():
    assert "Slot cdcd_shop is not there" in refusal(CHECKPOINT, replace(SOURCE, slot_confirmed=None))
    assert resume(None, replace(SOURCE, slot_confirmed=None), accept_gap=False).position == Position()


def test_a_promoted_standby_that_had_everything_goes_on():
    source = replace(SOURCE, timeline=2, branched_at=110)
    assert resume(CHECKPOINT, source, accept_gap=False).position == CHECKPOINT.position


def test_a_promoted_standby_that_lacked_changes_is_refused():
    # Its WAL is longer by now: compared by LSN alone, other changes would be taken for those in Kafka.
    source = replace(SOURCE, timeline=2, branched_at=109, wal_end=5000)
    assert "ahead of the position at which this server left timeline 1 (0/6D)" in refusal(CHECKPOINT, source)


def test_a_server_on_another_branch_of_history_is_refused():
    assert "not in the history of the server's timeline 3" in refusal(CHECKPOINT, replace(SOURCE, timeline=3))


def test_other_options_are_refused_inside_a_transaction_only():
    source = replace(SOURCE, stream="publication=other")
    assert "stopped inside the transaction 0/C8 with other options" in refusal(CUT, source)
    assert resume(CHECKPOINT, source, accept_gap=False).position == CHECKPOINT.position


GAPS = [
    replace(SOURCE, system_identifier="7002"),
    replace(SOURCE, wal_end=100),
    replace(SOURCE, slot_confirmed=500),
    replace(SOURCE, timeline=3),
]


FORKED = replace(SOURCE, timeline=2)
HELD = replace(CHECKPOINT, flushed_lsn=70)


@pytest.mark.parametrize(
    ("checkpoint", "source", "position"),
    [
        # The checkpoint ends at 110. Without a fork: the slot says where the gap ends.
        (CHECKPOINT, replace(SOURCE, system_identifier="7002"), Position(0, 90)),
        (CHECKPOINT, replace(SOURCE, wal_end=100), Position(0, 90)),
        (CHECKPOINT, replace(SOURCE, slot_confirmed=500), Position(0, 500)),
        (CHECKPOINT, replace(SOURCE, slot_confirmed=None), Position(0, 0)),
        (HELD, replace(SOURCE, slot_confirmed=80), HELD.position),
        # A fork behind the checkpoint says nothing of the gap: the slot sends what lies before the fork.
        (CHECKPOINT, replace(FORKED, branched_at=5000, system_identifier="7002"), Position(0, 90)),
        (CHECKPOINT, replace(FORKED, branched_at=5000, wal_end=100), Position(0, 90)),
        (CHECKPOINT, replace(FORKED, branched_at=5000, slot_confirmed=500), Position(0, 500)),
        (CHECKPOINT, replace(FORKED, branched_at=5000, slot_confirmed=None), Position(0, 0)),
        (HELD, replace(FORKED, branched_at=5000, slot_confirmed=80), HELD.position),
        # The checkpoint is beyond the fork: Kafka holds everything that the slot sends from before it.
        (CHECKPOINT, replace(FORKED, branched_at=100, system_identifier="7002"), Position(0, 90)),
        (CHECKPOINT, replace(FORKED, branched_at=100), Position(0, 100)),
        (CHECKPOINT, replace(FORKED, branched_at=100, slot_confirmed=500), Position(0, 500)),
        (CHECKPOINT, replace(FORKED, branched_at=100, slot_confirmed=None), Position(0, 100)),
        (HELD, replace(FORKED, branched_at=100, slot_confirmed=80), Position(0, 100)),
        # A timeline of which nothing is known has no fork.
        (CHECKPOINT, replace(FORKED, timeline=3), Position(0, 90)),
    ],
)
def test_an_accepted_gap_leaves_out_no_change_that_the_slot_sends_and_kafka_lacks(
    checkpoint, source, position
):
    with pytest.raises(PositionError):
        resume(checkpoint, source, accept_gap=False)
    accepted = resume(checkpoint, source, accept_gap=True)
    assert accepted.position == position


def test_a_lost_prepare_inside_of_a_transaction_keeps_its_events_and_its_options():
    held = replace(CUT, flushed_lsn=70)
    source = replace(SOURCE, slot_confirmed=71)
    assert resume(held, source, accept_gap=True).position == CUT.position
    with pytest.raises(PositionError, match="with other options"):
        resume(held, replace(source, stream="publication=other"), accept_gap=True)


def test_a_lost_prepare_is_accepted_once():
    source = replace(SOURCE, slot_confirmed=80)
    accepted = resume(HELD, source, accept_gap=True)
    assert accepted.flushed_lsn == 80
    assert resume(accepted, source, accept_gap=False) == accepted


@pytest.mark.parametrize(
    ("source", "lost"),
    [
        (SOURCE, False),
        (replace(SOURCE, slot_confirmed=None), True),
        (replace(SOURCE, slot_confirmed=111), True),
        (replace(SOURCE, slot_confirmed=None, wal_end=109), False),
        (replace(SOURCE, slot_confirmed=None, system_identifier="7002"), False),
        (replace(SOURCE, slot_confirmed=None, timeline=3), False),
        (replace(FORKED, slot_confirmed=None, branched_at=110), True),
        (replace(FORKED, slot_confirmed=None, branched_at=109), False),
    ],
)
def test_only_the_slot_is_lost(source, lost):
    assert only_slot_is_lost(CHECKPOINT, source) is lost


@pytest.mark.parametrize("checkpoint", [CHECKPOINT, CUT])
@pytest.mark.parametrize("source", GAPS, ids=["server", "lost WAL", "slot", "timeline"])
def test_a_gap_may_be_accepted_and_goes_on_from_the_slot(checkpoint, source):
    assert resume(checkpoint, source, accept_gap=True).position == Position(0, source.slot_confirmed or 0)


def test_where_histories_part_an_accepted_gap_begins_at_the_fork():
    source = replace(SOURCE, timeline=2, branched_at=100)
    assert resume(CHECKPOINT, source, accept_gap=True).position == Position(0, 100)


def test_but_not_at_a_fork_of_another_cluster():
    source = replace(SOURCE, system_identifier="7002", timeline=2, branched_at=100)
    assert resume(CHECKPOINT, source, accept_gap=True).position == Position(0, 90)


def test_accepting_a_gap_changes_nothing_where_there_is_none():
    assert resume(CUT, SOURCE, accept_gap=True).position == CUT.position


def test_accepting_a_gap_does_not_accept_other_options_inside_a_transaction():
    with pytest.raises(PositionError, match="with other options"):
        resume(CUT, replace(SOURCE, stream="publication=other"), accept_gap=True)


# A seal.


SEALED = replace(CHECKPOINT, seal=Seal(110, "7002", 50, "pg_16400", tables_sum({1: "public.t"}), "abc"))


def test_a_seal_is_read_back_and_says_who_takes_over_and_what_to_do():
    assert Checkpoint.decode(SEALED.encode(), "here") == SEALED
    with pytest.raises(
        PositionError, match=r"sealed at 0/6E .* system_identifier 7002 .*token abc"
    ) as refused:
        refuse_sealed(SEALED)
    assert "handover adopt" in refused.value.hint
    assert "handover cancel" in refused.value.hint
    refuse_sealed(CHECKPOINT)
    refuse_sealed(None)


@pytest.mark.parametrize("damage", [{"seal": 7}, {"seal": {}}, {"seal": {"fence_lsn": "x"}}])
def test_a_damaged_seal_is_refused(damage):
    with pytest.raises(PositionError, match="cannot be read"):
        Checkpoint.decode(json.dumps({**json.loads(CHECKPOINT.encode()), **damage}).encode(), "here")


def test_other_tables_have_another_checksum():
    sums = {tables_sum(each) for each in ({}, {1: "public.t"}, {2: "public.t"}, {1: "public.u"})}
    assert len(sums) == 4
