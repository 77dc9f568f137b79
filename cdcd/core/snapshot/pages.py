"""Ranges of a table's pages: which of them are delivered, and which are not."""

Pages = tuple[tuple[int, int], ...]
"""Ranges of page numbers, each from its first to before its second, in order and apart."""


def union(done: Pages, begin: int, end: int) -> Pages:
    """The ranges with one more, joined where they touch."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted((*done, (begin, end))):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def gaps(done: Pages, pages: int) -> Pages:
    """What of `pages` pages is not in the ranges."""
    found: list[tuple[int, int]] = []
    at = 0
    for begin, end in done:
        if begin > at:
            found.append((at, begin))
        at = max(at, end)
    if at < pages:
        found.append((at, pages))
    return tuple(found)
