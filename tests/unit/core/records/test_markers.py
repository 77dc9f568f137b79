from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.records.markers import Marked, Markers, marker_of_single

Chunk = tuple[int, int]
"""Its table, and how many rows it has."""


def written(marked: list[Marked[Chunk]]) -> list[tuple[int, str]]:
    """Each row's table and marker, as records carry them."""
    rows = []
    for each in marked:
        table, count = each.chunk
        if count == 1:
            rows.append((table, marker_of_single(each)))
        else:
            rows += [(table, each.first), *[(table, "true")] * (count - 2), (table, each.last)]
    return rows


def test_two_tables_have_debeziums_markers():
    markers: Markers[Chunk] = Markers()
    out = markers.add(1, (1, 3)) + markers.complete(1) + markers.add(2, (2, 2))
    out += markers.complete(2) + markers.finish()
    assert written(out) == [
        (1, "first"),
        (1, "true"),
        (1, "last_in_data_collection"),
        (2, "first_in_data_collection"),
        (2, "last"),
    ]


def test_the_only_row_of_all_is_the_last():
    markers: Markers[Chunk] = Markers()
    out = markers.add(1, (1, 1)) + markers.complete(1) + markers.finish()
    assert written(out) == [(1, "last")]


def test_a_table_without_rows_has_no_part_in_it():
    markers: Markers[Chunk] = Markers()
    assert markers.complete(1) == []
    assert markers.finish() == []


def test_a_table_that_is_left_to_others_has_no_last_row():
    markers: Markers[Chunk] = Markers()
    out = markers.add(1, (1, 2)) + markers.finish()
    assert written(out) == [(1, "first"), (1, "true")]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=20))
def test_there_is_one_first_and_one_last_in_all_and_of_each_table(chunks: list[Chunk]):
    markers: Markers[Chunk] = Markers()
    out: list[Marked[Chunk]] = []
    for index, chunk in enumerate(chunks):
        out += markers.add(chunk[0], chunk)
        if chunk[0] not in [table for table, _ in chunks[index + 1 :]]:
            out += markers.complete(chunk[0])
    out += markers.finish()
    rows = written(out)
    assert sorted(each.chunk for each in out) == sorted(chunks)
    assert len(rows) == sum(count for _, count in chunks)
    if not rows:
        return
    assert rows[-1][1] == "last"
    assert len(rows) == 1 or rows[0][1] == "first"
    for table in {table for table, _ in rows}:
        own = [marker for each, marker in rows if each == table]
        assert own[-1] in ("last", "last_in_data_collection") or (len(own) == 1 and own == ["first"])
        assert len(own) == 1 or own[0] in ("first", "first_in_data_collection")
        assert all(marker == "true" for marker in own[1:-1])
