import marshal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.adapters.recording.blocks import RecordingError, pack, size_of, unpack

VALUES = st.binary(max_size=300) | st.floats(allow_nan=False) | st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(st.binary() | st.lists(VALUES | st.lists(st.binary(max_size=300))).map(tuple)))
def test_items_are_read_as_they_were_written(items):
    assert unpack(pack(items)) == items


def test_frames_count_with_their_bytes():
    assert size_of(b"abc") == 3
    assert size_of((1.0, [b"a", b"bc"])) == 3
    assert size_of((b"w", 1.0, 1_700_000_000_000_000)) == 0


@pytest.mark.parametrize(
    "value",
    [
        b"",
        (b"a",),
        [1.5],
        [[b"a"]],
        ["text"],
        [None],
        [(1.0, [[b"a"]])],
        [(1.0, {b"a": b"b"})],
        [(1 << 200,)],
        [(True,)],
    ],
)
def test_other_values_are_refused(value):
    with pytest.raises(RecordingError):
        unpack(marshal.dumps(value, 2))


def test_code_of_strangers_is_refused():
    code = compile("raise SystemExit", "stranger", "exec")
    with pytest.raises(RecordingError, match="not of its form"):
        unpack(marshal.dumps([(1.0, [code])], 2))
