import pytest

from cdcd.core.errors import ProtocolError
from cdcd.core.protocol.frames import Keepalive, write_frame
from cdcd.core.protocol.messages import StreamStart
from cdcd.core.transactions.commits import Boundaries
from tests.unit.core.transactions.wire import begin, commit, frame, insert


def keepalive(lsn: int) -> bytes:
    return write_frame(Keepalive(lsn, 0, False))


def test_a_commit_and_an_idle_keepalive_are_places_between_two_transactions():
    boundaries = Boundaries(50)
    assert boundaries.take([begin(7, 100), insert("a"), commit(100)]) == 3
    assert boundaries.end == 110
    assert boundaries.take([keepalive(150), begin(8, 200), insert("b")]) == 1
    assert (boundaries.end, boundaries.inside) == (150, True)


def test_a_keepalive_within_a_transaction_is_none():
    boundaries = Boundaries(50)
    assert boundaries.take([begin(7, 100), keepalive(90), insert("a")]) == 0
    assert boundaries.end == 50


def test_what_begins_within_a_transaction_goes_on_there():
    boundaries = Boundaries(50, inside=True)
    assert boundaries.take([insert("a"), commit(100, 130), begin(8, 200)]) == 2
    assert boundaries.end == 130


def test_the_end_never_falls():
    boundaries = Boundaries(500)
    boundaries.take([begin(7, 100), commit(100), keepalive(90)])
    assert boundaries.end == 500


def test_a_streamed_transaction_is_refused():
    with pytest.raises(ProtocolError, match="neither streamed nor prepared"):
        Boundaries(0).take([frame(StreamStart(7, True))])
    with pytest.raises(ProtocolError, match="is between two transactions"):
        Boundaries(0).take([insert("a")])
