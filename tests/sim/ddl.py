"""Statements that change tables: what becomes of their files and definitions, by the locks that they need.

All of them are transactional: the new definitions, which may name new files, are the transaction's own until it ends.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from tests.sim.catalog import INT4, INT8, NUMERIC, SECRET, Definition, Row
from tests.sim.database import Database, Transaction
from tests.sim.settings import Settings

TABLES_MAX: Final = 7

WIDER: Final = {INT4: INT8, INT8: NUMERIC, NUMERIC: INT4}

Lock = Callable[[Transaction, int], bool]
Names = Callable[[], set[str]]


class Alterations:
    """Each method changes tables for a transaction; it gives the oids whose cached definitions are invalid by it.

    Args:
        lock: takes ACCESS EXCLUSIVE; false: the statement would have to wait, and is not made.
        names: those that tables have, or may have when transactions that are open end.
    """

    def __init__(self, settings: Settings, rng: Random, database: Database, lock: Lock, names: Names) -> None:
        self.settings = settings
        self.rng = rng
        self.database = database
        self._lock = lock
        self._names = names
        self._next_name = 1

    def alter(self, transaction: Transaction, sub: int) -> tuple[int, ...]:
        """One statement, or two that belong together, of those that the seed's settings have."""
        return METHODS[self.rng.choice(self.settings.ddl)](self, transaction, sub)

    def _one(self, transaction: Transaction) -> Definition | None:
        """Some table, locked."""
        oids = self.database.oids_of(transaction)
        oid = self.rng.choice(oids) if oids else 0
        if not oid or not self._lock(transaction, oid):
            return None
        return self.database.of(transaction, oid)

    def _set(self, transaction: Transaction, definition: Definition) -> tuple[int, ...]:
        transaction.definitions[definition.oid] = definition
        transaction.sends.pop(definition.oid, None)
        self.database.learn(definition)
        return (definition.oid,)

    def _add_column(self, transaction: Transaction, sub: int) -> tuple[int, ...]:
        """With a constant default no row is written again (attmissingval)."""
        table = self._one(transaction)
        if table is None or len(table.columns) > 9:
            return ()
        version = self.database.version()
        missing = None if self.rng.random() < 0.3 else b"m%d" % version
        toast = self.rng.random() < 0.3 and not self.settings.protected
        return self._set(transaction, table.with_column(version, missing, sub, toast=toast))

    def _drop_column(self, transaction: Transaction, sub: int) -> tuple[int, ...]:
        table = self._one(transaction)
        if table is None:
            return ()
        names = [column.name for column in table.columns if column.name.startswith("c")]
        if not names:
            return ()
        return self._set(transaction, table.without_column(self.database.version(), self.rng.choice(names)))

    def _rename_column(self, transaction: Transaction, sub: int) -> tuple[int, ...]:
        """To a name that no column ever had. One whose values may be left unsent keeps its name."""
        table = self._one(transaction)
        if table is None:
            return ()
        columns = [column for column in table.columns if column.name.startswith("c") and not column.toast]
        if not columns:
            return ()
        version = self.database.version()
        column, name = self.rng.choice(columns), f"c_{version}"
        if self.settings.protected and self.rng.random() < 0.3 and SECRET not in _names(table):
            name = SECRET
        return self._set(transaction, table.with_names(version, {column.attnum: name}, sub))

    def _swap_columns(self, transaction: Transaction, sub: int) -> tuple[int, ...]:
        """Two columns swap their names, and perhaps swap them back in the next statement."""
        table = self._one(transaction)
        if table is None:
            return ()
        columns = [column for column in table.columns if column.name.startswith("c") and not column.toast]
        if len(columns) < 2:
            return ()
        one, other = self.rng.sample(columns, 2)
        names = {one.attnum: other.name, other.attnum: one.name}
        return self._set(transaction, table.with_names(self.database.version(), names, sub))

    def _retype(self, transaction: Transaction, sub: int) -> tuple[int, ...]:
        """ATRewriteTable: rows are written again by this transaction, nobody else sees them before it commits."""
        table = self._one(transaction)
        if table is None:
            return ()
        rows = [version.row for version in self.database.heap(table).current(transaction.xid)]
        filenode = self._refilled(sub, rows)
        other = WIDER[table.column("n").type_oid]
        return self._set(transaction, table.retyped(self.database.version(), filenode, "n", other, sub))

    def _refilled(self, sub: int, rows: list[Row]) -> int:
        filenode = self.database.filenode()
        heap = self.database.heaps[filenode]
        for row in rows:
            heap.insert(sub, row, self.rng, self.database.is_held)
        return filenode

    def _cluster(self, transaction: Transaction, sub: int) -> tuple[int, ...]:
        """CLUSTER keeps who wrote what; it packs the rows in another order."""
        table = self._one(transaction)
        if table is None:
            return ()
        # The definition differs by its file only: no Relation message tells of it.
        self._set(transaction, table.altered(table.version, filenode=self._packed(table)))
        return (table.oid,)

    def _packed(self, table: Definition) -> int:
        heap = self.database.heap(table)
        return self.database.repack(table, sorted(heap.versions, key=lambda version: repr(version.row)))

    def vacuum_full(self, transaction: Transaction) -> tuple[int, ...]:
        """Its own transaction, of which nothing but the invalidation is decoded."""
        return self._cluster(transaction, transaction.xid)

    def truncate(self, transaction: Transaction) -> tuple[Definition, ...]:
        """One table, or two; their definitions as they are truncated."""
        tables: list[Definition] = []
        for _ in range(1 if self.rng.random() < 0.8 else 2):
            table = self._one(transaction)
            if table is not None and table.oid not in [one.oid for one in tables]:
                tables.append(table)
        for table in tables:
            transaction.definitions[table.oid] = table.altered(
                table.version, filenode=self.database.filenode()
            )
        return tuple(tables)

    def _change_identity(self, transaction: Transaction, sub: int) -> tuple[int, ...]:
        table = self._one(transaction)
        if table is None:
            return ()
        identity = "d" if table.identity == "f" else "f"
        return self._set(transaction, table.altered(self.database.version(), identity=identity))

    def _swap(self, transaction: Transaction, sub: int) -> tuple[int, ...]:
        """Two tables change their names, as after a copy that was filled beside the original."""
        one, other = self._one(transaction), self._one(transaction)
        if one is None or other is None or one.oid == other.oid:
            return ()
        self._set(transaction, one.altered(self.database.version(), name=other.name))
        self._set(transaction, other.altered(self.database.version(), name=one.name))
        return (one.oid, other.oid)

    def _rename(self, transaction: Transaction, sub: int) -> tuple[int, ...]:
        """To a name that nobody ever had, or that a table has left, perhaps this one."""
        table = self._one(transaction)
        if table is None:
            return ()
        left = sorted(self.database.named.keys() - self._names())
        name = self.rng.choice(left) if left and self.rng.random() < 0.7 else self.name()
        return self._set(transaction, table.altered(self.database.version(), name=name))

    def _replace(self, transaction: Transaction, sub: int) -> tuple[int, ...]:
        """DROP TABLE, and CREATE TABLE under the same name; the new one is published if all tables are, or some day."""
        table = self._one(transaction)
        if table is None:
            return ()
        transaction.definitions[table.oid] = None
        self._create_as(transaction, table.name, sub)
        return (table.oid,)

    def _drop(self, transaction: Transaction, sub: int) -> tuple[int, ...]:
        table = self._one(transaction)
        if table is None:
            return ()
        transaction.definitions[table.oid] = None
        return (table.oid,)

    def _create(self, transaction: Transaction, sub: int) -> tuple[int, ...]:
        if len(self.database.oids_of(transaction)) >= TABLES_MAX:
            return ()
        self._create_as(transaction, self.name(), sub)
        return ()

    def _create_as(self, transaction: Transaction, name: str, sub: int) -> None:
        definition = self.new(name, published=self.rng.random() < self.settings.p_create_published, stamp=sub)
        transaction.definitions[definition.oid] = definition
        transaction.tables.add(definition.oid)
        transaction.exclusive.add(definition.oid)

    def new(self, name: str, *, published: bool, stamp: int = 0) -> Definition:
        composite = self.rng.random() < self.settings.p_composite
        identity = "f" if self.rng.random() < self.settings.p_full else "d"
        keyless = self.settings.p_keyless > 0 and self.rng.random() < self.settings.p_keyless
        return self.database.create(
            name,
            composite=composite,
            identity="f" if keyless else identity,
            published=published,
            keyless=keyless,
            stamp=stamp,
        )

    def name(self) -> str:
        self._next_name += 1
        return f"t{self._next_name - 1}"


def _names(table: Definition) -> set[str]:
    return {column.name for column in table.columns}


METHODS: Final[dict[str, Callable[[Alterations, Transaction, int], tuple[int, ...]]]] = {
    "add_column": Alterations._add_column,
    "drop_column": Alterations._drop_column,
    "rename_column": Alterations._rename_column,
    "swap_columns": Alterations._swap_columns,
    "retype": Alterations._retype,
    "cluster": Alterations._cluster,
    "identity": Alterations._change_identity,
    "swap": Alterations._swap,
    "rename": Alterations._rename,
    "replace": Alterations._replace,
    "drop": Alterations._drop,
    "create": Alterations._create,
}
