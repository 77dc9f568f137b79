"""What the catalog says of a relation that the stream describes, and how old the answer is."""

from cdcd.postgres import catalog
from cdcd.postgres.connection import Connection
from cdcd.protocol.messages import Relation
from cdcd.rows.logical import is_lasting
from cdcd.rows.relations import TableDescription, TypeDescription
from cdcd.rows.types import BUILTIN_TYPES
from cdcd.snapshots.visibility import Visibility


class CatalogLookUp:
    """Looks up what a Relation message does not say: keys, columns, types. Lasting types are looked up once.

    Args:
        protects: rules protect columns. Then the answer names the tables that this one belongs to, and comes with a
            snapshot in any case, because columns can be other ones under the same names.
    """

    def __init__(self, sql: Connection, *, protects: bool = False) -> None:
        self._sql = sql
        self.protects = protects
        self._types: dict[int, TypeDescription] = dict(BUILTIN_TYPES)

    async def __call__(
        self, relation: Relation
    ) -> tuple[TableDescription, dict[int, TypeDescription], Visibility | None]:
        """The table, all types that are known so far, and `seen`.

        `seen` is None if the catalog has all columns of the message and no rule protects columns. Else it is a snapshot
        that was taken before the catalog was read: if that snapshot does not see the transaction, the caller asks
        again, because a commit may be streamed a moment before snapshots see it.

        Raises:
            TransientError, SourceError.
        """
        oids = [column.type_oid for column in relation.columns]
        missing = [oid for oid in oids if not is_lasting(oid, self._types)]
        if missing:
            self._types.update(await catalog.types(self._sql, missing))
        seen: Visibility | None = None
        if self.protects:
            seen = await catalog.visibility(self._sql)
            found = (await catalog.describe(self._sql, [relation.oid], with_kin=True))[relation.oid]
            return found, self._types, seen
        found = (await catalog.describe(self._sql, [relation.oid]))[relation.oid]
        if not found.has_columns_of(relation):
            seen = await catalog.visibility(self._sql)
            found = (await catalog.describe(self._sql, [relation.oid]))[relation.oid]
        return found, self._types, seen
