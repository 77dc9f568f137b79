import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.bindings_text import RUNS_MAX, SeenColumns, States, read_bindings, write_bindings
from cdcd.core.catalog.oids import squeezed

NUMBERS = st.integers(1, 1600)
STAMPS = st.sampled_from([0, 1, 700, 701, 1 << 32])
RULES = st.dictionaries(
    st.sampled_from(["a", "b"]), st.dictionaries(st.integers(1, 9), st.sets(NUMBERS, min_size=1), min_size=1)
)


@st.composite
def states(draw: st.DrawFn) -> SeenColumns:
    last = draw(st.integers(0, 40))
    stamps = draw(st.dictionaries(st.integers(1, last), STAMPS)) if last else {}
    return SeenColumns(draw(st.integers(0, 1 << 60)), last, stamps)


@given(RULES, st.lists(states(), max_size=3))
def test_what_was_written_is_read_back(rules: dict[str, dict[int, set[int]]], found: list[SeenColumns]):
    oids = {oid for tables in rules.values() for oid in tables}
    text = write_bindings(rules, dict.fromkeys([*oids, 99], found))
    assert bool(text) == bool(oids)
    if text:
        assert read_bindings(text) == (rules, dict.fromkeys(oids, found))


def test_the_form_of_version_1_is_read():
    data = {"rules": {"a": {"7": [1, 3]}}, "tables": {"7": [[100, 4, 700, -1, 701, 0]]}}
    text = json.dumps({"version": 1, "columns": squeezed(json.dumps(data).encode())})
    assert read_bindings(text) == ({"a": {7: {1, 3}}}, {7: [SeenColumns(100, 4, {1: 700, 3: 701, 4: 0})]})


@pytest.mark.parametrize(
    "table",
    [[100, 4, 700], [100, 4, 700, 0], [100, 4, 700, 1 << 40], [100], ["x", 4, 700, 1], [100, 4, [], 1]],
)
def test_runs_of_another_form_are_refused(table: list[object]):
    data = {"rules": {"a": {"7": [1, 1]}}, "tables": {"7": [table]}}
    with pytest.raises(ValueError, match="not the bindings of columns"):
        read_bindings(json.dumps({"version": 2, "columns": squeezed(json.dumps(data).encode())}))


def test_thousands_of_wide_tables_take_little_and_are_read_back():
    rules = {"a": {oid: {3, 4, 200} for oid in range(5000)}}
    found: States = {
        oid: [SeenColumns(1000 + oid, 300, dict.fromkeys(range(1, 301), 5000 + oid))] for oid in range(5000)
    }
    text = write_bindings(rules, found)
    assert len(text) < 100_000
    assert read_bindings(text) == (rules, found)


def test_tables_whose_columns_were_altered_one_by_one_are_written_without_stamps():
    # GIVEN tables in which each column was altered in a transaction of its own, and one table of three columns
    rules = {"a": {oid: {1} for oid in range(200)}}
    found: States = {
        oid: [SeenColumns(1, 1600, {number: 5000 + oid * 1600 + number * 7 for number in range(1, 1601)})]
        for oid in range(1, 200)
    }
    found[0] = [SeenColumns(1, 3, {1: 700, 3: 701})]
    # THEN the text stays small, and the table of three columns keeps its stamps
    text = write_bindings(rules, found)
    assert len(text) < 400_000
    bound, read = read_bindings(text)
    assert bound == rules
    assert read[0] == found[0]
    assert sum(len(state.runs) // 2 for each in read.values() for state in each) <= RUNS_MAX + len(read)
    unstamped = [oid for oid, (state,) in read.items() if set(state.stamps.values()) == {0}]
    assert 0 < len(unstamped) < 200
    assert all(set(read[oid][0].stamps) == set(found[oid][0].stamps) for oid in read)
