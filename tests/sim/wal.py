"""The write-ahead log, as far as logical decoding looks at it: records at LSNs, and the changes in them."""

from enum import IntEnum
from typing import Final

ALIGNMENT: Final = 8
"""Records start at multiples of MAXIMUM_ALIGNOF; one often starts where the one before it ends."""

PAGE_HEADER: Final = 24
"""What lies between two records where a page begins."""

FIRST_LSN: Final = 0x1000000


class Kind(IntEnum):
    """What a record is to the decoder."""

    NOISE = 0
    CHANGES = 1
    MESSAGE = 2
    ROW_LOCK = 3
    COMMIT = 4
    ABORT = 5
    PREPARE = 6
    COMMIT_PREPARED = 7
    ROLLBACK_PREPARED = 8
    RUNNING = 9


class Change:
    """One entry of the reorder buffer, and if it is published, one event.

    `what` is a row's tag (I, U, D), T (Truncate), M (transactional Message), H (a row of a table that is not
    published) or V (an invalidation of `oid`'s cached definition; 0: of all). `event` numbers what is published.
    `shape` varies the form of the bytes. `frames` keeps the bytes by the definition that they were written with.
    """

    __slots__ = ("event", "frames", "lsn", "oid", "shape", "sub", "version", "what", "xid")

    def __init__(
        self, what: str, xid: int, sub: int, *, oid: int = 0, version: int = 0, event: int = 0, shape: int = 0
    ) -> None:
        self.what = what
        self.xid = xid
        self.sub = sub
        self.oid = oid
        self.version = version
        self.event = event
        self.shape = shape
        self.lsn = 0
        self.frames: dict[int, bytes] = {}


class Record:
    """One WAL record. `xid` is the top-level transaction's, `sub` the one that wrote it, which may be the same."""

    __slots__ = ("changes", "children", "end", "event", "gid", "kind", "origin", "start", "sub", "xid")

    def __init__(self, kind: Kind, xid: int = 0, sub: int = 0) -> None:
        self.kind = kind
        self.xid = xid
        self.sub = sub
        self.start = 0
        self.end = 0
        self.changes: tuple[Change, ...] = ()
        self.children: tuple[int, ...] = ()
        self.gid = ""
        self.origin = ""
        self.event = 0


class Wal:
    """An append-only list of records; `end` is the position after the last one."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.end = FIRST_LSN

    def append(self, record: Record, size: int, *, page: bool) -> Record:
        """Give the record its LSNs: `size` alignments long, on a new `page` or right behind the one before."""
        record.start = self.end + (PAGE_HEADER if page else 0)
        record.end = self.end = record.start + size * ALIGNMENT
        for change in record.changes:
            # Rows of a multi-insert share an LSN. A message's is the end of its record (decode.c).
            change.lsn = record.end if change.what == "M" else record.start
        self.records.append(record)
        return record
