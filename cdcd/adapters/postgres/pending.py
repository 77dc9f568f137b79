"""What a slot would send next: the events of its transactions, without taking anything from the slot."""

from dataclasses import dataclass
from typing import Any, Final

from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.refusals import translated
from cdcd.adapters.postgres.replication import identifier
from cdcd.core.protocol.lsn import Lsn

MESSAGES_MAX: Final = 1_000_000
"""About so many messages are decoded at most: the server keeps them in a temporary file meanwhile."""

_MESSAGES_SINCE: Final = 140000

# Tags of pgoutput's messages (logicalproto.h): BEGIN, COMMIT, DELETE, INSERT, MESSAGE, TRUNCATE, UPDATE. Only the tag
# and the LSN leave the server, so that rows of any size cost nothing here.
_TAGS: Final = "66, 67, 68, 73, 77, 84, 85"

_PENDING: Final = """
SELECT xid::text::bigint, lsn::text, chr(get_byte(data, 0)), count(*)
  FROM pg_logical_slot_peek_binary_changes(%s, %s::text::pg_lsn, %s, 'proto_version', '1', 'publication_names',
                                           %s{more})
 WHERE get_byte(data, 0) IN ({tags})
 GROUP BY 1, 2, 3
"""


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A transaction that the slot sends.

    Attributes:
        xid: 0 for a non-transactional logical message.
        end_lsn: the end of its commit.
        events: number of its changes and messages by their LSN. Rows of one statement may share one.
    """

    xid: int
    end_lsn: int
    events: dict[int, int]


async def current_lsn(connection: Connection) -> Lsn:
    """Up to where the server has written WAL. Raises TransientError and SourceError."""
    with translated("asking for the position in the WAL", {}):
        row: Any = await (await connection.execute("SELECT pg_current_wal_lsn()::text")).fetchone()
    return Lsn.parse(row[0])


async def read_pending(
    connection: Connection, slot: str, publication: str, up_to: Lsn
) -> tuple[list[PendingTransaction], bool]:
    """The transactions with events that end after the slot's position, by their ends; and whether that is all of them.

    Args:
        up_to: transactions that commit before it.

    Raises:
        SlotActiveError: somebody reads the slot.
        TransientError, SourceError.
    """
    more = ", 'messages', 'true'" if connection.info.server_version >= _MESSAGES_SINCE else ""
    query = _PENDING.format(more=more, tags=_TAGS).encode()
    with translated(f"looking at what slot {slot} has", {"slot": slot, "publication": publication}):
        rows: Any = await (
            await connection.execute(query, (slot, str(up_to), MESSAGES_MAX, identifier(publication)))
        ).fetchall()
    found: dict[int, PendingTransaction] = {}
    ends: dict[int, int] = {}
    for xid, text, tag, count in rows:
        lsn = Lsn.parse(text)
        if tag == "C":
            ends[xid] = lsn
        elif tag != "B":
            # A non-transactional message belongs to no transaction: its own position is its end.
            key = xid or -lsn
            events = found.setdefault(key, PendingTransaction(xid, lsn, {})).events
            events[lsn] = events.get(lsn, 0) + count
    transactions = [
        PendingTransaction(each.xid, ends.get(each.xid, each.end_lsn), each.events) for each in found.values()
    ]
    is_all = sum(count for *_, count in rows) < MESSAGES_MAX
    return sorted(transactions, key=lambda each: each.end_lsn), is_all
