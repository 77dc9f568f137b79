"""Rows of a transaction whose fate is open, encoded but for what its commit says.

Consumers wait only from the commit of a large streamed transaction to its delivery. So its rows are encoded earlier,
when they arrive: what is kept of them is a draft, which lacks the transaction's part (commit LSN, times, numbers).
The encoder makes drafts and finishes them (`records/encoder.py`); here they are only kept, counted and left
out. What cannot be drafted is kept as its frame, in its place.

A draft is a tuple of what `marshal` writes in one call, for a run of rows of one relation that one transaction or
subtransaction wrote. What is in it, only the encoder that made it knows. Nobody else takes a draft apart than the
functions below.
"""

from collections.abc import Callable, Mapping

from cdcd.core.protocol.messages import Relation

Draft = tuple[int, int, int, int, int, object]
"""xid that wrote the rows, oid of their relation, how many they are, how many of these were taken away since, bytes of
memory, and the encoder's part.

Each row is one event. A row of which the server left a value out (unchanged TOAST) is never in a draft: whoever reads
tables must see it as a frame.
"""

SpoolItem = bytes | Draft
"""One message as its frame, or several rows as a draft."""

MakeDrafts = Callable[[list[SpoolItem], Mapping[int, tuple[int, Relation]]], list[SpoolItem]]
"""Makes drafts of the frames of rows in a stream, in their order; a frame that cannot be drafted stays as it is.

The second argument are the relations that the transaction described so far, by oid, each with the number of its
arrival.
"""


def make_draft(xid: int, relation_oid: int, rows: int, memory: int, content: object) -> Draft:
    """A draft of so many rows; `content` is made of what `marshal` can write."""
    return (xid, relation_oid, rows, 0, memory, content)


def row_count(draft: Draft) -> int:
    """How many rows, each of which is one event, the draft holds."""
    return draft[2] - draft[3]


def xid_of_draft(draft: Draft) -> int:
    """The transaction or subtransaction that wrote the rows."""
    return draft[0]


def relation_of_draft(draft: Draft) -> int:
    """The oid of the rows' relation."""
    return draft[1]


def content_of(draft: Draft) -> tuple[int, object]:
    """For the encoder: how many rows at the beginning are no longer in the draft, and what it put in."""
    return draft[3], draft[5]


def memory_bytes(draft: Draft) -> int:
    """What the draft costs in memory."""
    return draft[4]


def events(items: list[SpoolItem]) -> int:
    """How many events these are, if each frame is one."""
    return sum([1 if isinstance(one, bytes) else one[2] - one[3] for one in items])


def without_first(draft: Draft, count: int) -> Draft:
    """The draft without so many rows at its beginning."""
    xid, oid, rows, gone, memory, content = draft
    return (xid, oid, rows, gone + count, memory, content)
