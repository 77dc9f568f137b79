import string

from hypothesis import given
from hypothesis import strategies as st

from cdcd.mirror.targets.state import Place, State

lsns = st.integers(0, 2**63 - 1)
places = st.builds(Place, lsns, st.integers(0, 10**9), st.integers(0, 1), st.integers(0, 2**62))
by_partition = st.dictionaries(st.integers(0, 500), places, max_size=4)
positions = st.none() | st.tuples(lsns, st.integers(0, 10**9))
ids = st.text(string.ascii_letters + string.digits + "+/")
states = st.builds(State, lsns, by_partition, positions, st.none() | ids, st.integers(0, 10**9))


@given(states)
def test_a_state_is_read_as_it_was_written(state: State):
    assert State.from_json(state.to_json()) == state


def test_the_id_of_a_topic_that_a_former_version_wrote_is_that_of_librdkafka():
    written = State(topic_id="yYvfE-ssQR_pJhDPB3bpw").to_json()
    assert State.from_json(written).topic_id == "yYvfE+ssQR/pJhDPB3bpw"


@given(states, by_partition, positions)
def test_nothing_ever_goes_back(state: State, new: dict[int, Place], truncated: tuple[int, int] | None):
    later = state.advanced(new, truncated)
    assert later.commit_lsn >= state.commit_lsn
    assert (later.truncated or (0, 0)) >= (state.truncated or (0, 0))
    for partition, place in state.partitions.items():
        assert later.partitions[partition][:3] >= place[:3]
        assert later.partitions[partition].offset >= place.offset


@given(states, by_partition)
def test_the_same_changes_again_leave_it_where_it_is(state: State, new: dict[int, Place]):
    once = state.advanced(new)
    assert once.advanced(new) == once
    assert once.has(state)


def test_a_state_lacks_changes_of_a_partition_that_it_does_not_know_or_knows_less_of():
    state = State().advanced({0: Place(10, 1, 1, 5), 1: Place(20, 1, 1, 6)})
    assert not State().has(state)
    assert not State().advanced({0: Place(10, 1, 1, 5)}).has(state)
    assert not State().advanced({0: Place(10, 1, 1, 5), 1: Place(20, 1, 0, 6)}).has(state)
    assert state.advanced({0: Place(30, 1, 1, 9)}).has(state)


def test_a_state_of_a_former_version_reads_without_a_topic():
    text = '{"commit_lsn":7,"consistent_lsn":null,"partitions":{"0":[7,1,1,3]},"truncated":null,"batch_id":1}'
    assert State.from_json(text) == State(7, {0: Place(7, 1, 1, 3)}, None, None, 1)
