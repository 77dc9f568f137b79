import string
from datetime import UTC

from hypothesis import given
from hypothesis import strategies as st

from cdcd.mirror.targets.fencing import Stamp
from cdcd.mirror.targets.state import Origin, Place, Reach, State

lsns = st.integers(0, 2**63 - 1)
places = st.builds(Place, lsns, st.integers(0, 10**9), st.integers(0, 1), st.integers(0, 2**62))
by_partition = st.dictionaries(st.integers(0, 500), places, max_size=4)
positions = st.none() | st.tuples(lsns, st.integers(0, 10**9))
ids = st.text(string.ascii_letters + string.digits + "+/")
origins = st.builds(
    Origin, st.none() | ids, st.dictionaries(st.integers(0, 500), st.integers(0, 2**62), max_size=4)
)
stamps = st.builds(Stamp, st.text(), st.integers(0, 10**9))
times = st.none() | st.datetimes(timezones=st.just(UTC))
states = st.builds(
    State,
    lsns,
    st.none() | lsns,
    by_partition,
    positions,
    st.integers(0, 10**9),
    origins,
    stamps,
    st.none() | stamps,
    times,
    st.integers(0, 10**9),
)


@given(states)
def test_a_state_is_read_as_it_was_written(state: State):
    assert State.from_json(state.to_json()) == state


def test_the_id_of_a_topic_that_a_former_version_wrote_is_that_of_librdkafka():
    written = State(origin=Origin("yYvfE-ssQR_pJhDPB3bpw")).to_json()
    assert State.from_json(written).origin == Origin("yYvfE+ssQR/pJhDPB3bpw")


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


def test_a_batch_reaches_as_far_in_each_partition_as_nothing_is_held():
    reach = Reach({0: 10, 1: 20, 2: 0, 3: 7}, (40, 2))
    assert reach.places((30, 5), {1: 12, 3: 0}) == {0: Place(30, 5, 1, 9), 1: Place(30, 5, 1, 11)}


def test_a_consistent_lsn_holds_until_the_next():
    state = State().advanced({0: Place(10, 1, 1, 5)}, consistent_lsn=10)
    assert state.advanced({0: Place(20, 1, 1, 6)}, consistent_lsn=20).consistent_lsn == 20
    assert state.advanced({}).consistent_lsn == 10


def test_a_position_of_a_former_version_reads_without_an_origin():
    text = '{"commit_lsn":7,"consistent_lsn":null,"partitions":{"0":[7,1,1,3]},"truncated":null,"batch_id":1}'
    assert State.from_json(text).origin == Origin()
    assert State.from_json(text).advanced({}, origin=Origin("a", {0: 0})).origin == Origin("a", {0: 0})
