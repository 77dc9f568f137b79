from dataclasses import replace

from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.spooling import Spooling, may_begin, spools_at
from cdcd.core.protocol.frames import Keepalive, read_status, write_frame
from cdcd.core.snapshot.progress import Progress
from cdcd.core.transactions.position import Position


def told(data: bytes | None) -> int | None:
    return None if data is None else read_status(data).flushed


def test_only_what_is_synced_is_told():
    spooling = Spooling(100, 10.0, now=0.0)
    assert told(spooling.status(0.0, 0)) == 100
    spooling.received([write_frame(Keepalive(500, 0, False))])
    assert spooling.status(1.0, 0) is None
    spooling.synced(200)
    spooling.synced(150)
    assert spooling.next_at() < 1.0
    assert told(spooling.status(1.0, 0)) == 200


def test_a_server_that_asks_is_answered_at_once():
    spooling = Spooling(100, 10.0, now=0.0)
    spooling.status(0.0, 0)
    spooling.received([write_frame(Keepalive(500, 0, True))])
    assert told(spooling.status(0.01, 0)) == 100


def test_no_log_begins_while_tables_are_read():
    done = Checkpoint("1", 1, "", Position(90, 130), 130)
    assert may_begin(done, all_is_read=True)
    assert may_begin(replace(done, snapshot=Progress()), all_is_read=True)
    assert not may_begin(done, all_is_read=False)


def test_a_log_begins_after_a_while_and_one_that_is_there_goes_on_at_once():
    assert spools_at(100.0, 10.0, log_goes_on=False) == 110.0
    assert spools_at(100.0, 10.0, log_goes_on=True) == 100.0
