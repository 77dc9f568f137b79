"""Ranges of a table's pages, to keep account of which pages were delivered."""

Pages = tuple[tuple[int, int], ...]
"""Ranges of page numbers, each from its first number up to but not including its second; sorted, and without
touching each other."""


def union(done: Pages, begin: int, end: int) -> Pages:
    """Return the ranges with one more range, joined where they touch."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted((*done, (begin, end))):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def gaps(done: Pages, pages: int) -> Pages:
    """Return which of the first `pages` pages are not in the ranges."""
    found: list[tuple[int, int]] = []
    at = 0
    for begin, end in done:
        if begin > at:
            found.append((at, begin))
        at = max(at, end)
    if at < pages:
        found.append((at, pages))
    return tuple(found)
