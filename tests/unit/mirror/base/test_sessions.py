from typing import Any, cast

from cdcd.mirror.base.sessions import Sessions


class FakeSpark:
    def newSession(self) -> object:  # noqa: N802 - Spark's name
        return object()


def test_a_session_is_in_one_hand_at_a_time_and_serves_the_next_one_afterwards():
    sessions = Sessions(cast("Any", FakeSpark()))
    with sessions.one() as first, sessions.one() as second:
        assert first is not second
    with sessions.one() as one, sessions.one() as other:
        assert {id(one), id(other)} == {id(first), id(second)}


def test_a_session_comes_back_from_a_table_that_failed():
    sessions = Sessions(cast("Any", FakeSpark()))
    try:
        with sessions.one() as first:
            raise ValueError("no")
    except ValueError:
        pass
    with sessions.one() as again:
        assert again is first
