"""The catalog's description of a relation in the stream, and how long this description is valid.

The rule: an answer is valid if the catalog was queried after the Relation message was received. So one query is
enough for all relations in the received frames, and its answers are valid until further frames are received.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from cdcd.adapters.postgres import catalog
from cdcd.adapters.postgres.connection import Connection
from cdcd.core.catalog.logical import is_lasting
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.protocol import peek
from cdcd.core.protocol.messages import Relation
from cdcd.core.snapshot.visibility import Visibility

AHEAD_MAX: Final = 500
"""Maximum number of relations in one query. Such a query takes PostgreSQL some milliseconds and one round trip."""

NOTED_MAX: Final = 10_000
"""Maximum number of remembered relations of open streamed transactions, which one query describes at the commit."""

FRAME_BYTES_MAX: Final = 65_536
"""Maximum size of a last frame that is kept until further frames arrive, because a large row must not stay in
memory."""


class CatalogLookUp:
    """Reads from the catalog what a Relation message does not contain: keys, columns, types.

    Types that never change are read once.

    Args:
        protects: True if rules protect columns. Then each answer also names the tables that this table belongs to
            and always has a snapshot, because the same names can denote other columns later.
    """

    def __init__(self, sql: Connection, *, protects: bool = False) -> None:
        self._sql = sql
        self.protects = protects
        self._types: dict[int, TypeDescription] = dict(BUILTIN_TYPES)
        self._frames: Sequence[bytes] = ()
        self._noted: dict[int, None] = {}
        """Oids of relations that streamed transactions described before their commit, in that order."""
        self._answers: dict[int, tuple[TableDescription, Visibility | None]] = {}
        """The catalog's answers by oid, since the last frames were received."""

    def received(self, frames: Sequence[bytes]) -> None:
        """Register the received frames; all frames before them are processed."""
        self._answers.clear()
        self._frames = frames if len(frames[-1]) <= FRAME_BYTES_MAX else frames[:-1]

    async def __call__(
        self, relation: Relation, *, tentative: bool = False
    ) -> tuple[TableDescription, dict[int, TypeDescription], Visibility | None]:
        """Return the table, all types that are known so far, and `seen`.

        `seen` is None if the catalog has all columns of the message and rules protect no column. Otherwise `seen`
        is a snapshot from before the query. If this snapshot does not see the transaction, the caller asks again,
        because a commit may be streamed a moment before snapshots see it.

        Args:
            tentative: True if the transaction is still open and may never commit. The catalog shows its tables only
                after the commit.

        Raises:
            TransientError, SourceError.
        """
        oids = [column.type_oid for column in relation.columns]
        missing = [oid for oid in oids if not is_lasting(oid, self._types)]
        if missing:
            self._types.update(await catalog.types(self._sql, missing))
        oid = relation.oid
        if oid not in self._answers:
            await self._ask(oid, await catalog.visibility(self._sql) if self.protects else None)
        found, seen = self._answers.pop(oid)
        if tentative:
            self._note(oid)
            return found, self._types, seen
        if seen is None and not found.has_columns_of(relation):
            await self._ask(oid, await catalog.visibility(self._sql))
            found, seen = self._answers.pop(oid)
        self._noted.pop(oid, None)
        return found, self._types, seen

    async def _ask(self, oid: int, seen: Visibility | None) -> None:
        """Describe the relation and the next relations of the frames, with `seen` as the snapshot before the query."""
        oids = [oid, *islice(self._following(oid), AHEAD_MAX - 1)]
        found = await catalog.describe(self._sql, oids, with_kin=self.protects)
        self._answers = {each: (found[each], seen) for each in oids}

    def _following(self, oid: int) -> Iterator[int]:
        """Return the oids of the relations that the frames describe after this relation, each once."""
        # When a streamed transaction has committed, its relations are described once more in the same
        # order.
        described = self._noted if oid in self._noted else peek.described_relations(self._frames)
        oids = list(dict.fromkeys(described))
        return iter(oids[oids.index(oid) + 1 :] if oid in oids else ())

    def _note(self, oid: int) -> None:
        if len(self._noted) >= NOTED_MAX:
            self._noted.clear()
        self._noted[oid] = None
