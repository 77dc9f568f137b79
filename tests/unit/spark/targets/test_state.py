from hypothesis import given
from hypothesis import strategies as st

from cdcd.spark.targets.state import Place, State

lsns = st.integers(0, 2**63 - 1)
places = st.builds(Place, lsns, st.integers(0, 10**9), st.integers(0, 1), st.integers(0, 2**62))
by_partition = st.dictionaries(st.integers(0, 500), places, max_size=4)
positions = st.none() | st.tuples(lsns, st.integers(0, 10**9))
states = st.builds(State, lsns, st.none() | lsns, by_partition, positions, st.integers(0, 10**9))


@given(states)
def test_a_state_is_read_as_it_was_written(state: State):
    assert State.from_json(state.to_json()) == state


@given(states, by_partition, positions)
def test_nothing_ever_goes_back(state: State, new: dict[int, Place], truncated: tuple[int, int] | None):
    later = state.advanced(new, truncated=truncated)
    assert later.commit_lsn >= state.commit_lsn
    assert (later.truncated or (0, 0)) >= (state.truncated or (0, 0))
    for partition, place in state.partitions.items():
        assert later.partitions[partition][:3] >= place[:3]
        assert later.partitions[partition].offset >= place.offset


@given(states, by_partition)
def test_the_same_changes_again_leave_it_where_it_is(state: State, new: dict[int, Place]):
    once = state.advanced(new, batch_id=1)
    assert once.advanced(new, batch_id=1) == once


def test_a_consistent_lsn_holds_until_the_next():
    state = State().advanced({0: Place(10, 1, 1, 5)}, consistent_lsn=10)
    assert state.advanced({0: Place(20, 1, 1, 6)}, consistent_lsn=20).consistent_lsn == 20
    assert state.advanced({}).consistent_lsn == 10


def test_readers_get_the_next_offset_and_the_position():
    position = State().advanced({3: Place(10, 2, 1, 7)}, batch_id=4).position
    assert (position.commit_lsn, position.batch_id) == (10, 4)
    assert position.positions == {3: (10, 2)}
    assert position.offsets == {3: 8}
