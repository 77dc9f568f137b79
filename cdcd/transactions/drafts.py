"""Rows of a transaction whose fate is open, encoded but for what its commit says.

After the commit of a large streamed transaction its consumers wait, before it nobody does. So the work on its rows is
done when they arrive: what is kept of them is a draft, which lacks the transaction's part (commit LSN, times, numbers).
The encoder makes drafts and finishes them (`records/formats/drafting.py`); here they are only kept, counted and left
out. Whatever can not be drafted is kept as its frame, in its place.

A draft is a tuple of what `marshal` writes in one call, for a run of rows that have all but their values in common.
"""

from typing import Final

from cdcd.protocol.frames import XLOG_HEADER

Draft = tuple[int, int, int, int, bytes, list[bytes], int]
"""xid that wrote the rows, oid of their relation, form, op, header, parts of each row, bytes of memory.

`form` says what of the relation's description is in the parts. `op` is that of the records, by its number; `header`
is that of the columns that the server did not send, or empty. Each row is one event and has `PARTS` parts: the key,
or empty; the value up to its source block; the event's LSN as text.
"""

PARTS: Final = 3

Kept = bytes | Draft
"""An event, or another message, as its frame; or several events as a draft."""

EVENTS: Final = frozenset(b"IUDTM")
"""Tags of the messages that are an event each: rows, Truncate, logical messages."""

_XID_AT: Final = XLOG_HEADER + 1


def xid_of(frame: bytes) -> int:
    """Which transaction or subtransaction wrote the change in the frame of a stream: the xid after its tag."""
    return int.from_bytes(frame[_XID_AT : _XID_AT + 4], "big")


def events(kept: list[Kept]) -> int:
    """How many events these are, if each frame is one."""
    return sum([1 if isinstance(one, bytes) else len(one[5]) // PARTS for one in kept])


def without_first(draft: Draft, count: int) -> Draft:
    """The draft without so many rows at its beginning."""
    xid, oid, form, op, header, parts, size = draft
    return (xid, oid, form, op, header, parts[PARTS * count :], size)
