"""The write-ahead log, as far as logical decoding looks at it: records at LSNs, and the changes in them."""

from enum import IntEnum
from typing import Final

from tests.sim.catalog import Definition, Row

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
    """One entry of the reorder buffer, and if its table is published, one event.

    `what` is a row's tag (I, U, D), T (Truncate), M (transactional Message), H (a row of a catalog or of another
    publication) or V (an invalidation of `oid`'s cached definition; 0: of all). `event` numbers what is written, and
    is in the row.

    Attributes:
        definition: of its table when it was written.
        published: whether it is sent; what decides it is as of the moment when it was written.
        row: the new row, for D the old one.
        old: for U, the row before.
        kept: attnums of the values that the update left out of line, which the WAL does not have.
        tables: for T, the definitions of all truncated tables.
        prefix, content: for M.
        shape: varies what has no meaning.
        frames: its bytes, by the definition that they were written with.
    """

    __slots__ = (
        "content",
        "definition",
        "event",
        "frames",
        "kept",
        "lsn",
        "oid",
        "old",
        "prefix",
        "published",
        "row",
        "shape",
        "sub",
        "tables",
        "what",
        "xid",
    )

    def __init__(self, what: str, xid: int, sub: int, *, oid: int = 0, event: int = 0) -> None:
        self.what = what
        self.xid = xid
        self.sub = sub
        self.oid = oid
        self.event = event
        self.definition: Definition | None = None
        self.published = True
        self.row: Row = {}
        self.old: Row = {}
        self.kept: tuple[int, ...] = ()
        self.tables: tuple[Definition, ...] = ()
        self.prefix = ""
        self.content = b""
        self.shape = 0
        self.lsn = 0
        self.frames: dict[int, bytes] = {}

    @property
    def moves(self) -> bool:
        """An update that changes the key."""
        return (
            self.what == "U"
            and self.definition is not None
            and (self.definition.key_of(self.old) != self.definition.key_of(self.row))
        )


class Record:
    """One WAL record. `xid` is the top-level transaction's, `sub` the one that wrote it, which may be the same."""

    __slots__ = ("changes", "children", "end", "gid", "kind", "message", "origin", "start", "sub", "xid")

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
        self.message: Change | None = None
        """Of a non-transactional message."""


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
        if record.message is not None:
            record.message.lsn = record.end
        self.records.append(record)
        return record
