"""What the server's sessions share: the catalog as new snapshots see it, files with rows, and who is running."""

from collections.abc import Iterable
from random import Random
from typing import Final

from cdcd.core.snapshot.reading import Visibility
from tests.sim.catalog import FIRST_OID, SECRET, ColumnDefinition, Definition, Row, new_table
from tests.sim.heap import Heap, Transactions, Version
from tests.sim.wal import Change

FIRST_XID: Final = 700
FIRST_FILENODE: Final = 90001


class Savepoint:
    """Where in its transaction it was set; `xid` is 0 until something is written after it."""

    __slots__ = ("at", "children", "definitions", "xid")

    def __init__(self, at: int, definitions: dict[int, Definition | None]) -> None:
        self.at = at
        self.definitions = definitions
        self.xid = 0
        self.children: list[int] = []


class Transaction:
    """An open or prepared transaction; the bottom of `stack` is the top-level transaction itself.

    `definitions` are of the tables that it altered (None: dropped), `sends` whether its changes of a table are
    published, where its first change of the table has decided that.
    """

    __slots__ = ("definitions", "events", "exclusive", "first", "gid", "origin", "sends", "stack", "tables")

    def __init__(self, origin: str) -> None:
        self.stack = [Savepoint(0, {})]
        self.events: list[Change] = []
        self.definitions: dict[int, Definition | None] = {}
        self.tables: set[int] = set()
        self.exclusive: set[int] = set()
        self.sends: dict[int, bool] = {}
        self.origin = origin
        self.gid = ""
        self.first = -1

    @property
    def xid(self) -> int:
        return self.stack[0].xid


class Database:
    """Definitions by oid, files by their number.

    Attributes:
        rows: every version of a row, by the number of the event that wrote it, and `oids` of its table.
        generation: counts what the catalog's names and the publication had been.
    """

    def __init__(self, rng: Random, capacity: int, *, protected: bool = False) -> None:
        self.protected = protected
        self.secret: dict[int, set[int]] = {}
        """By oid of a table: the numbers of the columns whose name the rule matches, or matched at some time."""
        self.rng = rng
        self.capacity = capacity
        self.definitions: dict[int, Definition] = {}
        self.heaps: dict[int, Heap] = {}
        self.transactions = Transactions()
        self.rows: dict[int, Row] = {}
        self.oids: dict[int, int] = {}
        self.columns: dict[int, dict[str, ColumnDefinition]] = {}
        """By oid: the columns that names have or had."""
        self.first: dict[int, Definition] = {}
        """By oid: the table when it was made. Its key stays."""
        self.owners: dict[str, set[int]] = {}
        """Which tables have or had a name."""
        self.named: dict[str, set[int]] = {}
        """Likewise, with those of which nobody but their own transaction has seen it."""
        self.several: set[str] = set()
        """Names of tables that had several, in whatever order the daemon heard of them."""
        self.rejoined: set[str] = set()
        """Names of tables that left the publication and are back. Their former rows end."""
        self.published: set[int] = set()
        """Tables that are or were published."""
        self.held: Visibility | None = None
        """The snapshot that a slot exported, while somebody has it."""
        self.kept: list[Visibility] = []
        """Snapshots that sessions keep."""
        self.next_xid = FIRST_XID
        self._next_event = 1
        self._next_version = 1
        self._next_oid = FIRST_OID
        self._next_filenode = FIRST_FILENODE

    # Numbers.

    def xid(self, top: int | None = None) -> int:
        xid = self.next_xid
        self.next_xid += 1
        self.transactions.assign(xid, xid if top is None else top)
        return xid

    def event(self, oid: int = 0, row: Row | None = None) -> int:
        event = self._next_event
        self._next_event += 1
        if row is not None:
            self.rows[event] = row
            self.oids[event] = oid
        return event

    def version(self) -> int:
        self._next_version += 1
        return self._next_version

    def filenode(self) -> int:
        """A new, empty file."""
        filenode = self._next_filenode
        self._next_filenode += 1
        self.heaps[filenode] = Heap(filenode, self.capacity, self.transactions)
        return filenode

    # Tables.

    def create(
        self,
        name: str,
        *,
        composite: bool,
        identity: str,
        published: bool,
        keyless: bool = False,
        stamp: int = 0,
    ) -> Definition:
        """A definition that nobody sees yet."""
        oid = self._next_oid
        self._next_oid += 1
        definition = new_table(
            oid,
            self.version(),
            name,
            self.filenode(),
            composite=composite,
            identity=identity,
            published=published,
            protected=self.protected,
            keyless=keyless,
            stamp=stamp,
        )
        self.learn(definition)
        return definition

    def learn(self, definition: Definition) -> None:
        """Remember which column a name is, for who reads records of it later."""
        names = self.columns.setdefault(definition.oid, {})
        for column in definition.columns:
            names[column.name] = column
            if column.name == SECRET:
                self.secret.setdefault(definition.oid, set()).add(column.attnum)
        self.first.setdefault(definition.oid, definition)
        self.named.setdefault(definition.name, set()).add(definition.oid)
        had = [name for name, oids in self.named.items() if definition.oid in oids]
        if len(had) > 1:
            self.several.update(had)
        if definition.published:
            self.published.add(definition.oid)

    def of(self, transaction: Transaction, oid: int) -> Definition | None:
        """A table as the transaction sees it."""
        if oid in transaction.definitions:
            return transaction.definitions[oid]
        return self.definitions.get(oid)

    def oids_of(self, transaction: Transaction) -> list[int]:
        own = transaction.definitions
        oids = [oid for oid in self.definitions if oid not in own]
        return oids + [oid for oid, definition in own.items() if definition is not None]

    def by_name(self, name: str) -> Definition | None:
        """The table that has the name now."""
        return next((table for table in self.definitions.values() if table.name == name), None)

    def apply(self, definitions: dict[int, Definition | None]) -> None:
        """A transaction's changes of the catalog are seen by everybody."""
        for oid, definition in definitions.items():
            if definition is None:
                self.definitions.pop(oid, None)
            else:
                self.definitions[oid] = definition

    def heap(self, definition: Definition) -> Heap:
        return self.heaps[definition.filenode]

    def is_held(self, version: Version) -> bool:
        """Whether the exported snapshot, or one that a session keeps, sees the version."""
        kept = self.kept if self.held is None else [self.held, *self.kept]
        return any(self.transactions.is_seen(version.xmin, each) for each in kept)

    def repack(self, definition: Definition, versions: Iterable[Version]) -> int:
        """A new file with these versions, packed again; versions that are dead to all stay behind."""
        filenode = self.filenode()
        heap = self.heaps[filenode]
        for version in versions:
            copy = heap.insert(version.xmin, version.row, self.rng, self.is_held)
            copy.xmax = version.xmax
        return filenode
