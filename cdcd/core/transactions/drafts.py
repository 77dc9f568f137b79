"""Drafts: rows of an undecided transaction, encoded except for the data of its commit.

Consumers wait only from the commit of a large streamed transaction to its delivery. So its rows are encoded on
arrival: the stored draft lacks only the transaction's data (commit LSN, times, numbers). The encoder makes and
finishes drafts (`records/encoder.py`); this module only stores, counts and removes them. A message that cannot be
drafted is stored as its frame, in its place.

A draft is a tuple that `marshal` writes in one call, for a run of rows of one relation from one transaction or
subtransaction. Only the encoder that made a draft knows its contents. All other code reads drafts by the functions
below.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Relation, Truncate
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message

Draft = tuple[int, int, int, int, int, object]
"""xid that wrote the rows, oid of their relation, number of rows, number of rows removed since, bytes of memory, and
the encoder's part.

Each row is one event. A row with a value that the server left out (unchanged TOAST) is never in a draft, because
the code that reads tables must see it as a frame.
"""

SpoolItem = bytes | Draft
"""A message as its frame, or several rows as a draft."""

MakeDrafts = Callable[[list[SpoolItem], Mapping[int, tuple[int, Relation]]], list[SpoolItem]]
"""Makes drafts from the frames of rows in a stream, in their order; a frame that cannot be drafted stays unchanged.

The second argument has the relations that the transaction has described so far, by oid, each with the number of its
arrival.
"""


def make_draft(xid: int, relation_oid: int, rows: int, memory: int, content: object) -> Draft:
    """Return a draft of `rows` rows; `content` must be writable by `marshal`."""
    return (xid, relation_oid, rows, 0, memory, content)


def row_count(draft: Draft) -> int:
    """Return the number of rows in the draft, each of which is one event."""
    return draft[2] - draft[3]


def xid_of_draft(draft: Draft) -> int:
    """Return the transaction or subtransaction that wrote the rows."""
    return draft[0]


def relation_of_draft(draft: Draft) -> int:
    """Return the oid of the rows' relation."""
    return draft[1]


def content_of(draft: Draft) -> tuple[int, object]:
    """Return the number of removed rows at the beginning, and the encoder's content."""
    return draft[3], draft[5]


def memory_bytes(draft: Draft) -> int:
    """Return the bytes of memory that the draft takes."""
    return draft[4]


def events(items: list[SpoolItem]) -> int:
    """Return the number of events in these items, where each frame counts as one event."""
    return sum([1 if isinstance(one, bytes) else one[2] - one[3] for one in items])


def without_first(draft: Draft, count: int) -> Draft:
    """Return the draft without its first `count` rows."""
    xid, oid, rows, gone, memory, content = draft
    return (xid, oid, rows, gone + count, memory, content)


def oids_of(item: SpoolItem, in_stream: bool) -> Sequence[int]:
    """The relations of an event, or of the rows of a draft."""
    return peek.relation_oids(item, in_stream) if isinstance(item, bytes) else (relation_of_draft(item),)


def only(item: SpoolItem, in_stream: bool, kept: Sequence[int]) -> SpoolItem | None:
    """An event that is about some relations more, for those with the oids in `kept` only. None: nothing is left."""
    if not kept:
        return None
    assert isinstance(item, bytes), "a draft is of one relation"
    message = read_message(item, XLOG_HEADER, in_stream=in_stream)
    assert isinstance(message, Truncate), "no other event is about several relations"
    return item[:XLOG_HEADER] + write_message(replace(message, relation_oids=tuple(kept)))
