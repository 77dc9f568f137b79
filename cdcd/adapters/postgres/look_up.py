"""The catalog's description of a relation in the stream, and how long the description counts.

The rule: an answer counts if the catalog was asked after the Relation message was received. So one query is enough for
all relations that the received frames describe, and its answers count until further frames are received.
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
"""Number of relations that one query describes. Such a query takes PostgreSQL some milliseconds, and one round trip."""

NOTED_MAX: Final = 10_000
"""Number of relations of open streamed transactions that are remembered, to be looked up together at the commit."""

FRAME_BYTES_MAX: Final = 65_536
"""Largest size of a last frame that is kept until further frames come. A large row must not stay in memory."""


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
        self._frames: Sequence[bytes] = ()
        self._noted: dict[int, None] = {}
        """Oids of relations that streamed transactions described before their commit, in that order."""
        self._answers: dict[int, tuple[TableDescription, Visibility | None]] = {}
        """By oid: the catalog's answers since the last frames were received."""

    def received(self, frames: Sequence[bytes]) -> None:
        """Frames came, and those before are worked off."""
        self._answers.clear()
        self._frames = frames if len(frames[-1]) <= FRAME_BYTES_MAX else frames[:-1]

    async def __call__(
        self, relation: Relation, *, tentative: bool = False
    ) -> tuple[TableDescription, dict[int, TypeDescription], Visibility | None]:
        """The table, all types that are known so far, and `seen`.

        `seen` is None if the catalog has all columns of the message and no rule protects columns. Else it is a snapshot
        that was taken before the catalog was read: if that snapshot does not see the transaction, the caller asks
        again, because a commit may be streamed a moment before snapshots see it.

        Args:
            tentative: the transaction may never commit. The catalog shows its tables only afterwards.

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
        """Describe the relation, and the relations that come next, after this snapshot."""
        oids = [oid, *islice(self._following(oid), AHEAD_MAX - 1)]
        found = await catalog.describe(self._sql, oids, with_kin=self.protects)
        self._answers = {each: (found[each], seen) for each in oids}

    def _following(self, oid: int) -> Iterator[int]:
        """Return the oids of the relations that the frames describe after this relation, each once."""
        # The relations of a streamed transaction are described in the same order once more when it has committed.
        described = self._noted if oid in self._noted else peek.described_relations(self._frames)
        oids = list(dict.fromkeys(described))
        return iter(oids[oids.index(oid) + 1 :] if oid in oids else ())

    def _note(self, oid: int) -> None:
        if len(self._noted) >= NOTED_MAX:
            self._noted.clear()
        self._noted[oid] = None
