"""Catalog descriptions of the relations and types that Relation messages name by oid, and how long the description of a
relation in the stream is valid.

The catalog shows the present, but a Relation message shows its own position in the WAL. A table or type that was
dropped in between has an empty description, and the encoder works without it.

The rule: an answer is valid if the catalog was queried after the Relation message was received. So one query is
enough for all relations in the received frames, and its answers are valid until further frames are received.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from operator import itemgetter
from sys import intern
from typing import Any, Final

from cdcd.adapters.postgres.answers import translated
from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.kin import kin_of
from cdcd.adapters.postgres.quoting import identifier
from cdcd.core.catalog.logical import is_lasting
from cdcd.core.catalog.relations import CatalogColumn, TableDescription, TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.protocol import peek
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.snapshot.reading import Visibility

# A key identifies one row at every moment only if it is whole, immediate and without NULL. If two rows
# share one deferrable key, a delete does not say which row was deleted. PostgreSQL also refuses such a
# primary key as replica identity (RelationGetIndexList in relcache.c). Since PostgreSQL 18 a NOT NULL
# column can hold NULL in rows that are older than the constraint (NOT VALID).
_KEYS: Final = """
SELECT i.indrelid, i.indisprimary, array_agg(a.attname::text ORDER BY k.place)
  FROM pg_index i
 CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
 WHERE i.indrelid = ANY(%s) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL AND k.place <= i.indnkeyatts
   AND i.indimmediate AND (i.indisprimary OR i.indisvalid)
 GROUP BY i.indexrelid, i.indrelid, i.indisprimary
HAVING i.indisprimary OR bool_and(a.attnotnull AND NOT EXISTS (
           SELECT FROM pg_constraint c
            WHERE c.conrelid = i.indrelid AND c.contype = 'n' AND NOT c.convalidated AND a.attnum = ANY(c.conkey)))
 ORDER BY i.indexrelid
"""

# attmissingval, an array of one value, is read as an array of texts. Boxes contain commas, but commas do
# not separate the boxes of an array.
_MISSING: Final = """
CASE WHEN atttypid = 'box'::regtype THEN btrim(attmissingval::text, '{}') ELSE (attmissingval::text::text[])[1] END
"""

# The columns that the expression of a generated column reads, for 15 and later: older versions do not name the default
# in pg_depend. Generated columns can be published since 18.
_READS: Final = """
ARRAY(SELECT d.refobjsubid::int4 FROM pg_attrdef f JOIN pg_depend d
         ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid AND d.refclassid = 'pg_class'::regclass
        AND d.refobjid = f.adrelid AND d.refobjsubid NOT IN (0, f.adnum)
      WHERE attgenerated <> '' AND f.adrelid = attrelid AND f.adnum = attnum)
"""

# Generated columns are not published, except since 18 where the publication says so; records do not contain
# them. A new table has a file whose number is the table's oid (heap_create in heap.c).
_COLUMNS: Final = f"""
SELECT attrelid, attname::text, attnum, format_type(atttypid, atttypmod), atttypid::oid, attndims, {_MISSING},
       pg_attribute.xmin::text::int8, attgenerated <> '', {_READS},
       relkind = 'p', relnatts::int, CASE WHEN relfilenode = c.oid THEN 0 ELSE relfilenode::int8 END,
       EXISTS (SELECT FROM pg_publication_rel r WHERE r.prrelid = c.oid AND to_jsonb(r) ->> 'prattrs' IS NOT NULL),
       CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END - '0/0'::pg_lsn
  FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
 WHERE attrelid = ANY(%s) AND attnum > 0 AND NOT attisdropped
 ORDER BY attrelid, attnum
"""

# ADD COLUMN ... DEFAULT stores the value for older rows in the partitions. A partition that was created
# later has no such rows.
_PARTITIONS: Final = """
WITH RECURSIVE part(root, oid) AS (
    SELECT root, root FROM unnest(%s::oid[]) AS root
     UNION
    SELECT root, inhrelid FROM part JOIN pg_inherits ON inhparent = part.oid
)
"""
_MISSING_IN_PARTITIONS: Final = f"""{_PARTITIONS}
SELECT root::int8, attname::text, min(missing)
  FROM part JOIN LATERAL (
       SELECT attname, {_MISSING} AS missing FROM pg_attribute WHERE attrelid = part.oid AND atthasmissing
       ) AS own ON true
 GROUP BY root, attname
HAVING min(missing) = max(missing)
"""
_REWRITTEN_PARTITIONS: Final = f"""{_PARTITIONS}
SELECT root::int8, hashtextextended(string_agg(concat_ws(' ', c.oid, relfilenode), ',' ORDER BY c.oid), 0)
  FROM part JOIN pg_class c USING (oid)
 WHERE relkind = 'r' AND relfilenode <> c.oid
 GROUP BY root
"""

# A type is an array if it is its element type's typarray. int2vector, point and name have a typelem too,
# but another text form. Multiranges came with 14, together with a column of pg_range that does not exist in
# 13.
_TYPES: Final = """
WITH RECURSIVE part(whole, oid, place) AS NOT MATERIALIZED (
    SELECT t.oid, a.atttypid, a.attnum::int
      FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
     WHERE t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped
     UNION ALL
    SELECT r.rngtypid, r.rngsubtype, 1 FROM pg_range r
     UNION ALL
    SELECT (to_jsonb(r) ->> 'rngmultitypid')::oid, r.rngtypid, 1 FROM pg_range r
), wanted(oid) AS (
    SELECT unnest(%s::oid[])
     UNION
    SELECT next.oid
      FROM wanted JOIN pg_type t USING (oid)
     CROSS JOIN LATERAL (
           SELECT unnest(ARRAY[t.typelem, t.typbasetype]) UNION ALL SELECT part.oid FROM part WHERE part.whole = t.oid
           ) AS next(oid)
     WHERE next.oid <> 0
)
SELECT t.oid, n.nspname, t.typname, t.typtype::text, t.typcategory::text,
       CASE WHEN e.typarray = t.oid THEN t.typelem ELSE 0 END, t.typbasetype, t.typtypmod, t.typdelim::text,
       ARRAY(SELECT part.oid FROM part WHERE part.whole = t.oid ORDER BY part.place), t.typsend <> 0,
       ARRAY(SELECT l.oid::int8 FROM pg_enum l WHERE l.enumtypid = t.oid ORDER BY l.oid),
       ARRAY(SELECT l.enumlabel::text FROM pg_enum l WHERE l.enumtypid = t.oid ORDER BY l.oid)
  FROM wanted JOIN pg_type t USING (oid) JOIN pg_namespace n ON n.oid = t.typnamespace
  LEFT JOIN pg_type e ON e.oid = t.typelem
"""


# Each partition sends former values by its own replica identity. A partition without replica identity
# refuses UPDATE and DELETE.
_UNSENT: Final = f"""{_PARTITIONS}, leaf AS (
    SELECT root, c.oid, i.indkey, i.indnkeyatts
      FROM part JOIN pg_class c USING (oid)
      JOIN pg_index i ON i.indrelid = c.oid
       AND CASE c.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate
                               WHEN 'i' THEN i.indisreplident ELSE false END
     WHERE c.relkind = 'r'
)
SELECT root::int8, a.attname::text, min(leaf.oid::regclass::text)
  FROM leaf JOIN pg_attribute a ON a.attrelid = leaf.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE a.attnum <> ALL((leaf.indkey::int2[])[:leaf.indnkeyatts - 1])
 GROUP BY root, a.attname
 ORDER BY root, a.attname
"""

# Relations as pgoutput describes them: columns of the replica identity are flagged, with FULL all columns.
# Columns that an index only includes are not part of its key.
_RELATIONS: Final = """
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relreplident::text,
       a.attname::text, a.atttypid::int8, a.atttypmod,
       c.relreplident = 'f' OR EXISTS (
           SELECT FROM pg_index i
            WHERE i.indrelid = c.oid AND a.attnum = ANY((i.indkey::int2[])[:i.indnkeyatts - 1])
              AND CASE c.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate
                                       WHEN 'i' THEN i.indisreplident ELSE false END)
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.oid = ANY(%s)
 ORDER BY c.oid, a.attnum
"""

_LABELS: Final = b"""
SELECT coalesce(hashtext(string_agg(concat_ws(' ', enumtypid, oid, enumlabel), ',' ORDER BY oid)), 0) FROM pg_enum
"""
_OF_ENUMS: Final = """
WITH RECURSIVE enum(oid) AS (
    SELECT enumtypid FROM pg_enum
     UNION
    SELECT t.oid
      FROM enum JOIN pg_type t ON t.typbasetype = enum.oid OR (t.typelem = enum.oid AND t.typcategory = 'A')
)
SELECT DISTINCT a.attrelid::int8 FROM pg_attribute a JOIN enum ON enum.oid = a.atttypid
 WHERE a.attrelid = ANY(%s) AND a.attnum > 0 AND NOT a.attisdropped
"""
_DROPPED: Final = """
SELECT oid::int8 FROM unnest(%s::oid[]) AS wanted(oid)
 WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = wanted.oid)
"""


async def labels(connection: Connection) -> int:
    """Return a checksum of the labels of all enums; 0 if the database has no enum."""
    with translated("reading the labels of enums", {}):
        row: Any = await (await connection.execute(_LABELS)).fetchone()
    return int(row[0])


async def tables_with_enums(connection: Connection, oids: Collection[int]) -> tuple[int, ...]:
    """Find the relations that have a column whose type is an enum, a domain over an enum, or an array of enums."""
    with translated("looking for columns of enums", {}):
        rows: list[Any] = await (await connection.execute(_OF_ENUMS, (list(oids),))).fetchall()
    return tuple([row[0] for row in rows])


async def dropped(connection: Connection, oids: Collection[int]) -> tuple[int, ...]:
    """Find the oids of relations that do not exist. The query waits for no lock."""
    with translated("looking for dropped tables", {}):
        rows: list[Any] = await (await connection.execute(_DROPPED, (list(oids),))).fetchall()
    return tuple([row[0] for row in rows])


async def describe(
    connection: Connection, relation_oids: Collection[int], *, with_kin: bool = False
) -> dict[int, TableDescription]:
    """Return the keys and columns of each relation, one entry for each requested oid.

    Raises TransientError and SourceError.

    Args:
        with_kin: ask for `TableDescription.kin` too, which rules that protect columns need.

    The unique key is the oldest unique key whose columns are all NOT NULL.
    """
    primary: dict[int, tuple[str, ...]] = {}
    unique: dict[int, tuple[str, ...]] = {}
    with translated("reading the keys of tables", {}):
        cursor = await connection.execute(_KEYS, (list(relation_oids),))
        row: Any
        for row in await cursor.fetchall():
            oid, is_primary, columns = row
            (primary if is_primary else unique).setdefault(oid, tuple(columns))
        cursor = await connection.execute(_COLUMNS, (list(relation_oids),))
        found: dict[int, TableDescription] = {
            oid: TableDescription(primary.get(oid, ()), unique.get(oid, ())) for oid in relation_oids
        }
        of_columns: list[Any] = await cursor.fetchall()
        for oid, rows in groupby(of_columns, key=itemgetter(0)):
            listed = list(rows)
            *_, is_partitioned, last_id, rewritten, columns_listed, seen = listed[0]
            found[oid] = replace(
                found[oid],
                columns=tuple([_column(row) for row in listed]),
                is_partitioned=is_partitioned,
                last_id=last_id,
                rewritten=rewritten,
                listed=columns_listed,
                seen=int(seen),
            )
        await _look_into_partitions(connection, found)
        if with_kin:
            for oid, kin in (await kin_of(connection, relation_oids)).items():
                found[oid] = replace(found[oid], kin=tuple(kin))
    return found


def _column(row: Any) -> CatalogColumn:
    """Return the column of a row of `_COLUMNS`. Thousands of tables have the same names and types of columns."""
    name, number, type_name, *others, reads = row[1:-5]
    return replace(CatalogColumn(intern(name), number, intern(type_name), *others), reads=tuple(reads))


async def _look_into_partitions(connection: Connection, found: dict[int, TableDescription]) -> None:
    """Describe partitioned tables by their partitions, where the partitions differ from the table."""
    roots = [oid for oid, table in found.items() if table.is_partitioned]
    if not roots:
        return
    row: Any
    missing: dict[tuple[int, str], str] = {}
    # The order matters: a table that is rewritten between the two queries loses the values, and the second
    # answer shows the rewrite.
    for row in await (await connection.execute(_MISSING_IN_PARTITIONS, (roots,))).fetchall():
        missing[row[0], row[1]] = row[2]
    rewritten: dict[int, int] = {}
    for row in await (await connection.execute(_REWRITTEN_PARTITIONS, (roots,))).fetchall():
        rewritten[row[0]] = row[1]
    unsent: dict[int, list[tuple[str, str]]] = {}
    for row in await (await connection.execute(_UNSENT, (roots,))).fetchall():
        unsent.setdefault(row[0], []).append((row[1], row[2]))
    for oid in roots:
        columns = [replace(each, missing=missing.get((oid, each.name))) for each in found[oid].columns]
        found[oid] = replace(
            found[oid],
            columns=tuple(columns),
            rewritten=rewritten.get(oid, 0),
            unsent=tuple(unsent.get(oid, ())),
        )


async def partitioned(connection: Connection, oids: Collection[int]) -> list[int]:
    """Return the oids of the relations that are partitioned tables. Raises TransientError and SourceError."""
    with translated("looking for partitioned tables", {}):
        cursor = await connection.execute(
            b"SELECT oid::int8 FROM pg_class WHERE oid = ANY(%s) AND relkind = 'p'", (list(oids),)
        )
        rows: list[Any] = await cursor.fetchall()
    return [row[0] for row in rows]


async def relations(connection: Connection, oids: Collection[int]) -> list[Relation]:
    """Return the tables as the stream would describe them now, including columns that the publication leaves out.

    Raises:
        TransientError, SourceError.
    """
    with translated("reading the columns of tables", {}):
        rows: list[Any] = await (await connection.execute(_RELATIONS, (list(oids),))).fetchall()
    found: list[Relation] = []
    for (oid, schema, name, identity), columns in groupby(rows, key=lambda row: tuple(row[:4])):
        described = [
            Column(int(is_key), column, kind, modifier) for *_, column, kind, modifier, is_key in columns
        ]
        found.append(Relation(None, oid, schema, name, identity, tuple(described)))
    return found


async def visibility(connection: Connection) -> Visibility:
    """Return the visibility of a snapshot that PostgreSQL takes now. Raises TransientError and SourceError."""
    with translated("taking a snapshot", {}):
        row: Any = await (await connection.execute(b"SELECT pg_current_snapshot()::text")).fetchone()
    return Visibility.parse(row[0])


async def types(connection: Connection, oids: Collection[int]) -> dict[int, TypeDescription]:
    """Return the requested types and the types that they consist of, without types that were dropped.

    An array consists of its element type, a domain of its base type, a composite of its attributes' types, a range
    of its subtype.
    """
    with translated("reading types", {}):
        cursor = await connection.execute(_TYPES, (list(oids),))
        rows: list[Any] = await cursor.fetchall()
    return {row[0]: TypeDescription(*_described(row)) for row in rows}


def _described(row: Any) -> list[Any]:
    *of_type, parts, sends, numbers, labels = row
    return [*of_type, tuple(parts), sends, tuple(zip(numbers, labels, strict=True))]


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
        self._last: Relation | None = None
        """The relation that was looked up last."""

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
            self._types.update(await types(self._sql, missing))
        oid = relation.oid
        if relation is self._last:
            # The answer did not see the transaction.
            self._answers.pop(oid, None)
        self._last = relation
        if oid not in self._answers:
            await self._ask(oid, await visibility(self._sql) if self.protects else None)
        found, seen = self._take(oid, tentative=tentative)
        if tentative:
            self._note(oid)
            return found, self._types, seen
        if seen is None and not found.has_columns_of(relation):
            await self._ask(oid, await visibility(self._sql))
            found, seen = self._take(oid)
        self._noted.pop(oid, None)
        return found, self._types, seen

    def _take(self, oid: int, *, tentative: bool = False) -> tuple[TableDescription, Visibility | None]:
        """Return the answer. It stays for a partitioned table, because PostgreSQL describes that table again before the
        first change of each partition, and a query takes longer for more partitions.
        """
        answer = self._answers[oid]
        if tentative or not answer[0].is_partitioned:
            del self._answers[oid]
        return answer

    async def _ask(self, oid: int, seen: Visibility | None) -> None:
        """Describe the relation and the next relations of the frames, with `seen` as the snapshot before the query."""
        oids = [oid, *islice(self._following(oid), AHEAD_MAX - 1)]
        found = await describe(self._sql, oids, with_kin=self.protects)
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


VALUES_S: Final = 5
"""Seconds that `distinct_values` may take."""


async def distinct_values(connection: Connection, relation: Relation, column: str, most: int) -> list[str]:
    """Return at most `most` different values of a column, as the server writes them.

    The rule: nothing of the table's owner runs. So the column is read by COPY of the table, which PostgreSQL does not
    plan, which casts nothing, and which refuses a view. A table whose policies hold for this role is refused.

    Raises:
        TransientError, SourceError: the server does not answer in `VALUES_S`, or refuses the table or the column.
    """
    table = f"{identifier(relation.schema)}.{identifier(relation.name)}"
    settings = f"SET TRANSACTION READ ONLY; SET LOCAL row_security = off; SET LOCAL statement_timeout = '{VALUES_S}s'"
    found: dict[str, None] = {}
    with translated(f"reading values of {relation.schema}.{relation.name}.{column}", {}):
        async with connection.transaction(), connection.cursor() as cursor:
            await connection.execute(settings.encode())
            async with cursor.copy(f"COPY {table} ({identifier(column)}) TO STDOUT".encode()) as copy:
                async for (value,) in copy.rows():
                    if value is not None and len(found) < most:
                        found[value] = None
    return list(found)
