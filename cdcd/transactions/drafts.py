"""Rows of a transaction whose fate is open, encoded but for what its commit says.

Consumers wait only from the commit of a large streamed transaction to its delivery. So its rows are encoded earlier,
when they arrive: what is kept of them is a draft, which lacks the transaction's part (commit LSN, times, numbers).
The encoder makes drafts and finishes them (`records/formats/drafting.py`); here they are only kept, counted and left
out. What cannot be drafted is kept as its frame, in its place.

A draft is a tuple of what `marshal` writes in one call, for a run of rows that have all but their values in common.
"""

from collections.abc import Callable, Mapping
from typing import Final

from cdcd.protocol.messages import Relation

Draft = tuple[int, int, int, int, list[bytes], int]
"""xid that wrote the rows, oid of their relation, form, op, parts of each row, bytes of memory.

`form` says what of the relation's description is in the parts. `op` is that of the records, by its number. Each row is
one event and has `PARTS` parts: the key, or empty; the value up to its source block; the event's LSN as text. A row of
which the server left a value out (unchanged TOAST) is never in a draft: whoever reads tables must see it as a frame.
"""

PARTS: Final = 3

SpoolItem = bytes | Draft
"""One message as its frame, or several rows as a draft."""

MakeDrafts = Callable[[list[SpoolItem], Mapping[int, tuple[int, Relation]]], list[SpoolItem]]
"""Makes drafts of the frames of rows in a stream, in their order; a frame that cannot be drafted stays as it is.

The second argument are the relations that the transaction described so far, by oid, each with the number of its
arrival.
"""


def row_count(draft: Draft) -> int:
    """How many rows, each of which is one event, the draft holds."""
    return len(draft[4]) // PARTS


def xid_of_draft(draft: Draft) -> int:
    """The transaction or subtransaction that wrote the rows."""
    return draft[0]


def memory_bytes(draft: Draft) -> int:
    """What the draft costs in memory."""
    return draft[5]


def events(items: list[SpoolItem]) -> int:
    """How many events these are, if each frame is one."""
    return sum([1 if isinstance(one, bytes) else len(one[4]) // PARTS for one in items])


def without_first(draft: Draft, count: int) -> Draft:
    """The draft without so many rows at its beginning."""
    xid, oid, form, op, parts, size = draft
    return (xid, oid, form, op, parts[PARTS * count :], size)
