"""The position of a table after commits of folds, of other writers, and of owners."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.mirror.base.position import (
    NO_VERSION,
    Carried,
    Kept,
    Node,
    Position,
    is_of,
    position_of,
)


def folded(parent: str, lsn: int, since: int, pin: str | None = None, form: str = "f") -> Node:
    return Node(parent, Carried(f"to {lsn}", lsn, since, parent if pin is None else pin, form, lsn))


def test_a_table_without_a_commit_is_folded_from_the_first_change():
    assert position_of(NO_VERSION, {}) == Position()


def test_the_last_fold_among_the_ancestors_tells_and_commits_of_others_are_passed_over():
    nodes = {"1": folded("", 16, 0), "2": folded("1", 32, 16), "3": Node("2"), "4": Node("3")}
    assert position_of("4", nodes) == Position(32, 32, "f")
    # A rollback leads to other ancestors.
    assert position_of("1", nodes) == Position(16, 16, "f")


def test_a_fold_that_another_commit_overtook_counts_as_not_done():
    # A folded to 32, and B, which had pinned the version before, committed behind it.
    nodes = {"1": folded("", 16, 0), "2": folded("1", 32, 16), "3": folded("2", 24, 16, pin="1")}
    assert position_of("3", nodes) == Position(16, 32, "f", clean=False)
    # The next fold makes the table clean.
    nodes["4"] = folded("3", 40, 16)
    assert position_of("4", nodes) == Position(40, 40, "f")


def test_a_fold_on_a_rolled_back_table_counts_from_the_position_that_the_rollback_left():
    nodes = {"1": folded("", 16, 0), "2": folded("1", 32, 16), "3": folded("1", 48, 32, pin="2")}
    assert position_of("3", nodes) == Position(16, 48, "f", clean=False)


def test_folds_that_were_overtaken_one_after_the_other_count_from_the_lowest_bound():
    nodes = {
        "1": folded("", 16, 0),
        "2": folded("1", 48, 8, pin="0"),
        "3": folded("2", 24, 16, pin="1", form="g"),
    }
    assert position_of("3", nodes) == Position(8, 48, "f", clean=False)


def test_the_offsets_of_a_position_are_those_of_its_lsn():
    first = Node("", Carried("a", 16, 0, "", "f", 16, ends={0: 4}))
    second = Node("1", Carried("b", 32, 16, "1", "f", 32, ends={0: 9}))
    nodes = {"1": first, "2": second, "3": folded("2", 40, 32, pin="1"), "4": folded("2", 40, 8, pin="1")}
    found = [position_of(version, nodes) for version in ("1", "2", "3", "4")]
    # An overtaken fold began after the last position, or before it, where the offsets are not known.
    assert [None if each is None else (each.lsn, each.ends) for each in found] == [
        (16, {0: 4}),
        (32, {0: 9}),
        (32, {0: 9}),
        (8, {}),
    ]
    # A former version of cdcd wrote no offsets.
    former = Carried("a", 16, 0, "", "f", 16).to_json().replace(',"ends":{}', "")
    assert Carried.from_json(former).ends == {}


def test_a_position_is_unknown_if_the_commits_that_say_it_are_expired():
    assert position_of("9", {"9": Node("8")}) is None
    assert position_of("9", {}) is None
    # An overtaken fold needs the position of its parent.
    assert position_of("9", {"9": folded("8", 32, 16, pin="7")}) is None


def test_a_position_that_is_kept_apart_counts_for_its_version_alone():
    kept = Kept("8", Position(32, 32, "f"))
    assert position_of("9", {"9": Node("8")}, kept) == Position(32, 32, "f")
    assert position_of("9", {"9": Node("7")}, kept) is None
    # Newer folds count first.
    assert position_of("9", {"9": folded("8", 48, 32)}, kept) == Position(48, 48, "f")


def test_a_commit_that_changes_columns_of_a_table_that_is_not_clean_leaves_it_so():
    columns = Carried("x", 8, 8, "3", "g", reached=48, clean=False)
    assert position_of("4", {"4": Node("3", columns)}) == Position(8, 48, "g", clean=False)


NUMBERS = st.integers(0, 2**63 - 1)
ENDS = st.dictionaries(st.integers(0, 9), NUMBERS)
POSITIONS = st.builds(Position, NUMBERS, NUMBERS, st.text(), st.booleans(), ENDS)


@given(st.builds(Carried, st.text(), NUMBERS, NUMBERS, st.text(), st.text(), NUMBERS, st.booleans(), ENDS))
def test_what_a_commit_carries_is_read_as_it_was_written(carried: Carried):
    assert Carried.from_json(carried.to_json()) == carried
    assert is_of(carried.fold, {"1": Node("", carried)})


@given(st.builds(Kept, st.text(), POSITIONS))
def test_what_is_kept_is_read_as_it_was_written(kept: Kept):
    assert Kept.from_json(kept.to_json()) == kept


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"lsn": "x"}', "7", '{"version": 1}', "null"])
def test_other_texts_are_neither(text: str):
    assert Kept.from_json(text) is None
    with pytest.raises(ValueError, match=r"."):
        Carried.from_json(text)


@given(st.data())
def test_no_part_of_the_log_is_passed_over_whatever_the_folds_had_pinned(data: st.DataObject):
    """A model: versions are sets of changes. A fold adds its part to the version that it lands on."""
    nodes: dict[str, Node] = {}
    has: dict[str, frozenset[int]] = {NO_VERSION: frozenset()}
    current = NO_VERSION
    for number in range(1, data.draw(st.integers(1, 12)) + 1):
        version = str(number)
        what = data.draw(st.sampled_from(["fold", "late", "other", "rollback"]))
        if what == "rollback":
            current = data.draw(st.sampled_from(sorted(has)))
            continue
        if what == "other":
            nodes[version], has[version] = Node(current), has[current]
        else:
            pin = current if what == "fold" else data.draw(st.sampled_from(sorted(has)))
            seen = position_of(pin, nodes)
            assert seen is not None
            bound = data.draw(st.integers(max(seen.reached, seen.lsn), 60))
            nodes[version] = Node(current, Carried(version, bound, seen.lsn, pin, "f", bound))
            has[version] = has[current] | frozenset(range(seen.lsn + 1, bound + 1))
        current = version
        position = position_of(current, nodes)
        assert position is not None
        assert frozenset(range(1, position.lsn + 1)) <= has[current]
        assert max(has[current], default=0) <= position.reached
        if position.clean:
            assert has[current] == frozenset(range(1, position.lsn + 1))
