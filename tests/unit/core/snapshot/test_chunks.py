from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.snapshot.chunks import PAGES_MAX, Chunk, Chunks
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.table_task import Part, TableTask

PAGE = 8192


def planned(*parts: Part, name: str = "public.t") -> TableTask:
    return TableTask(name, 1, parts=parts)


def spans(chunks: Chunks) -> list[tuple[int, int, int]]:
    found = []
    while chunk := chunks.next():
        found.append((chunk.part, chunk.begin, chunk.end))
    return found


def test_a_table_is_cut_by_what_it_has_on_disk():
    chunks = Chunks(4 * PAGE)
    chunks.add(planned(Part(1, 0, 10, 10 * PAGE), Part(2, 0, 2, 20 * PAGE)))
    assert spans(chunks) == [(1, 0, 4), (1, 4, 8), (1, 8, 10), (2, 0, 1), (2, 1, 2)]


def test_what_is_done_is_left_out():
    chunks = Chunks(100 * PAGE)
    chunks.add(planned(Part(1, 0, 10, 10 * PAGE, ((0, 3), (5, 9)))))
    assert spans(chunks) == [(1, 3, 5), (1, 9, 10)]


def test_a_chunk_has_a_page_at_least_and_not_too_many():
    chunks = Chunks(1)
    chunks.add(planned(Part(1, 0, 2, 10**9)))
    assert spans(chunks) == [(1, 0, 1), (1, 1, 2)]
    chunks = Chunks(10**12)
    chunks.add(planned(Part(1, 0, PAGES_MAX + 1, 1)))
    assert spans(chunks) == [(1, 0, PAGES_MAX), (1, PAGES_MAX, PAGES_MAX + 1)]


def test_a_chunk_that_is_too_large_is_halved_down_to_a_page():
    chunks = Chunks(100 * PAGE)
    chunks.add(planned(Part(1, 0, 3, 3 * PAGE)))
    chunk = chunks.next()
    assert chunk is not None
    assert chunks.split(chunk)
    assert spans(chunks) == [(1, 0, 1), (1, 1, 3)]
    assert not chunks.split(Chunk(chunk.task, 1, 0, 0, 1))


def test_a_task_is_exhausted_when_every_chunk_is_settled():
    chunks, task = Chunks(2 * PAGE), planned(Part(1, 0, 4, 4 * PAGE))
    assert not chunks.is_exhausted(task)
    chunks.add(task)
    first, second = chunks.next(), chunks.next()
    assert first is not None
    assert second is not None
    assert chunks.settle(first)
    assert not chunks.is_exhausted(task)
    chunks.give_back(second)
    assert not chunks.is_exhausted(task)
    assert chunks.next() == second
    chunks.settle(second)
    assert chunks.is_exhausted(task)


def test_an_empty_table_is_exhausted_at_once():
    chunks, task = Chunks(PAGE), planned()
    chunks.add(task)
    assert chunks.is_exhausted(task)


def test_chunks_of_a_task_that_was_dropped_are_nobodys():
    chunks, task = Chunks(PAGE), planned(Part(1, 0, 3, 3 * PAGE))
    chunks.add(task)
    chunk = chunks.next()
    assert chunk is not None
    chunks.drop(task)
    chunks.give_back(chunk)
    assert not chunks.settle(chunk)
    assert chunks.next() is None
    assert not chunks.has(task)


@given(st.integers(1, 60), st.integers(1, 20), st.lists(st.integers(0, 3), max_size=80))
def test_no_page_is_lost_or_twice_whatever_becomes_of_the_chunks(pages: int, size: int, fates: list[int]):
    task = planned(Part(1, 0, pages, pages * PAGE))
    chunks, progress = Chunks(size * PAGE), Progress(tasks=(task,))
    chunks.add(task)
    settled: list[int] = []
    fate = iter([*fates, *[0] * 1000])
    while chunk := chunks.next():
        match next(fate):
            case 1:
                chunks.give_back(chunk)
            case 2 if chunks.split(chunk):
                pass
            case _:
                chunks.settle(chunk)
                settled += range(chunk.begin, chunk.end)
                progress = progress.deliver(task, 1, chunk.begin, chunk.end, 0)
    assert sorted(settled) == list(range(pages))
    assert chunks.is_exhausted(task)
    found = progress.find(task)
    assert found is not None
    assert found.is_done
