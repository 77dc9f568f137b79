"""The publication follows the configuration: tables that match are added, tables that match no more are dropped.

The desired state is that of the patterns (`Desired`). `compare` is the decision, for the daemon and for `cdcd check`.
Publishing a table changes what its applications may do: without a replica identity, UPDATE and DELETE fail from then
on. So such a table is withheld, and a person decides.

No code of a table's owner runs in this module. ALTER PUBLICATION evaluates no expression of a table. The function
`cdcd.change_publication`, which a DBA installs (deploy/sql/follow.sql), is called only if nobody but a trusted role can
have replaced it: whoever owns a function's schema can drop the function and create another one.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdcd.adapters.postgres.answers import translated
from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.publication import SCHEMA_SINCE, Candidate, PublishedTable, read_candidates
from cdcd.core.catalog.patterns import TableSelection, parse_pattern
from cdcd.core.errors import CdcdError
from cdcd.core.pasted import identifier, quoted

AT_ONCE: Final = 500
"""Tables in one statement. Each takes a lock until the statement ends, and a server has room for 6,400 by default."""

PASTED_MAX: Final = 50
"""Tables in one statement that a person pastes. The next ones are named when these are published."""

FUNCTION: Final = "cdcd.change_publication"
"""What deploy/sql/follow.sql creates. It takes the publication's name and the oids of tables to add and to drop."""


@dataclass(frozen=True, slots=True)
class Desired:
    """The tables that the configuration wants published.

    Attributes:
        tables: patterns of postgres.tables; None: every table.
        selection: `tables.include` and `tables.exclude`.
        drops: tables that are not wanted leave the publication. False: only those that postgres.tables does not name
            count as too many, because others may read by the publication.
    """

    tables: tuple[str, ...] | None
    selection: TableSelection
    drops: bool = False

    @property
    def is_stated(self) -> bool:
        """True if any key names tables. Otherwise the publication alone decides."""
        return self.tables is not None or self.selection.include is not None

    def wants(self) -> Callable[[PublishedTable], bool]:
        """A test whether a table is to be published. ConfigError: a pattern is malformed."""
        named, has = self._named(), self.selection.test()
        return lambda table: named(table) and has(table.qualified)

    def keeps(self) -> Callable[[PublishedTable], bool]:
        """A test whether a table that is published may stay so. ConfigError: a pattern is malformed."""
        return self.wants() if self.drops else self._named()

    def _named(self) -> Callable[[PublishedTable], bool]:
        if self.tables is None:
            return lambda _: True
        patterns = [parse_pattern(pattern) for pattern in self.tables]
        return lambda table: any(pattern.matches(table.schema, table.name) for pattern in patterns)

    def absent(self, candidates: Iterable[Candidate]) -> tuple[str, ...]:
        """Patterns of postgres.tables without wildcards that match no table."""
        names = [each.table for each in candidates]
        literal = [pattern for pattern in map(parse_pattern, self.tables or ()) if pattern.is_literal]
        return tuple(
            pattern.text
            for pattern in literal
            if not any(pattern.matches(table.schema, table.name) for table in names)
        )


@dataclass(frozen=True, slots=True)
class PublicationDifferences:
    """Differences between the tables of a publication and the desired tables.

    Attributes:
        lacking: tables to be added.
        extra: published tables that nothing names.
        absent: patterns without wildcards that no table matches.
    """

    lacking: tuple[PublishedTable, ...] = ()
    extra: tuple[PublishedTable, ...] = ()
    absent: tuple[str, ...] = ()


NO_DIFFERENCES: Final = PublicationDifferences()


@dataclass(frozen=True, slots=True)
class Listed:
    """What a publication lists itself, by oids of tables.

    Attributes:
        all_tables: the publication is FOR ALL TABLES.
        is_owned: this role may alter the publication.
        changes_rows: UPDATE or DELETE is published, which needs a replica identity.
        members: tables that are listed one by one.
        of_schemas: tables that are published with their schema.
        narrowed: tables that are listed with a column list or a row filter.
    """

    all_tables: bool
    is_owned: bool
    changes_rows: bool
    members: frozenset[int]
    of_schemas: frozenset[int]
    narrowed: frozenset[int] = frozenset()


def compare(
    desired: Desired, candidates: Sequence[Candidate], published: Collection[PublishedTable]
) -> PublicationDifferences:
    """Compare what is published with what is desired. If no table is desired, none is extra: the patterns are wrong.

    A partitioned table and its partitions are the same here: which of them a publication lists is a choice of its own.
    """
    above = {each.table.oid: {each.table.oid, *each.ancestors} for each in candidates}
    wants, keeps = desired.wants(), desired.keeps()
    wanted = {each.table.oid: each.table for each in candidates if wants(each.table)}
    kept = {each.table.oid for each in candidates if keeps(each.table)}
    listed = {table.oid: table for table in published}
    lacking = _apart(wanted, listed, above)
    whole = {table.oid for table in lacking}
    extra = _apart(listed, kept, above) if wanted else ()
    return PublicationDifferences(
        tuple([table for table in lacking if not (above[table.oid] - {table.oid}) & whole]),
        extra,
        desired.absent(candidates),
    )


def _apart(
    these: Mapping[int, PublishedTable], those: Collection[int], above: Mapping[int, set[int]]
) -> tuple[PublishedTable, ...]:
    """Those of these tables of whose partition trees none of the others is."""
    near = {each for oid in those for each in above.get(oid, {oid})}
    return tuple(
        [
            table
            for oid, table in these.items()
            if oid not in near and not above.get(oid, {oid}).intersection(those)
        ]
    )


def sql_name(table: PublishedTable) -> str:
    """Return the table's name, quoted for SQL."""
    return f"{quoted(table.schema)}.{quoted(table.name)}"


def alteration(publication: str, verb: str, tables: Sequence[PublishedTable]) -> str:
    """The statement that adds tables to the publication, or drops them. ONLY leaves out tables that inherit from them.

    Args:
        verb: ADD or DROP.
    """
    names = ", ".join(f"ONLY {sql_name(table)}" for table in tables)
    return f"ALTER PUBLICATION {quoted(publication)} {verb} TABLE {names};"


def full_identity(table: PublishedTable) -> str:
    """Return the statement by which PostgreSQL sends whole old rows of the table."""
    return f"ALTER TABLE {sql_name(table)} REPLICA IDENTITY FULL;"


def pasted(
    publication: str,
    add: Sequence[PublishedTable],
    drop: Sequence[PublishedTable],
    *,
    changes_rows: bool = True,
) -> str:
    """Return statements for a person: for the first `PASTED_MAX` tables to be added, and to be dropped.

    `changes_rows`: the publication has UPDATE or DELETE. PostgreSQL rejects both on a published table without a replica
    identity, so the statements first set the identity of such tables.
    """
    parts = [full_identity(table) for table in add[:PASTED_MAX] if changes_rows and not table.has_identity]
    parts += [
        alteration(publication, verb, tables[:PASTED_MAX])
        for verb, tables in (("ADD", add), ("DROP", drop))
        if tables
    ]
    return " ".join(parts)


_LISTED: Final = """
SELECT p.puballtables, pg_has_role(p.pubowner, 'USAGE'), p.pubupdate OR p.pubdelete,
       ARRAY(SELECT r.prrelid::int8 FROM pg_publication_rel r
              WHERE r.prpubid = p.oid AND to_jsonb(r) ->> 'prexcept' IS DISTINCT FROM 'true'),
       {of_schemas},
       ARRAY(SELECT r.prrelid::int8 FROM pg_publication_rel r
              WHERE r.prpubid = p.oid AND coalesce(to_jsonb(r) ->> 'prattrs', to_jsonb(r) ->> 'prqual') IS NOT NULL)
  FROM pg_publication p WHERE p.pubname = %s
"""

_OF_SCHEMAS: Final = """
       ARRAY(SELECT c.oid::int8 FROM pg_publication_namespace s JOIN pg_class c ON c.relnamespace = s.pnnspid
              WHERE s.pnpubid = p.oid AND c.relkind IN ('r', 'p'))
"""

# One row of three numbers, so that a look at 10,000 tables of which none is new costs a few milliseconds.
_DIGEST: Final = b"""
SELECT (SELECT concat_ws(' ', count(*), sum(hashtext(concat_ws(' ', oid, relnamespace, relname, relispartition,
                                                      relpersistence, relreplident))::int8))
          FROM pg_class WHERE relkind IN ('r', 'p')),
       (SELECT concat_ws(' ', count(*), sum(hashtext(concat_ws(' ', oid, nspname))::int8)) FROM pg_namespace
         WHERE nspname !~ '^pg_'),
       (SELECT concat_ws(' ', count(*), sum(r.oid::int8))
          FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid WHERE p.pubname = %s)
"""

# A table that is read is read by its partitions, which are asked for one by one.
_RIGHTS: Final = """
WITH RECURSIVE wanted(root, reader) AS (
    SELECT * FROM unnest(%s::oid[], %s::text[])
), tree(root, reader, oid) AS (
    SELECT root, reader, root FROM wanted
     UNION ALL
    SELECT tree.root, tree.reader, i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid
      JOIN pg_class c ON c.oid = tree.oid AND c.relkind = 'p'
)
SELECT tree.root::int8, pg_has_role(root.relowner, 'USAGE'),
       bool_and(CASE WHEN c.relkind <> 'r' OR r.rolname IS NULL THEN true
                     ELSE has_table_privilege(r.oid, c.oid, 'SELECT')
                          AND has_schema_privilege(r.oid, c.relnamespace, 'USAGE') END),
       CASE WHEN o.rolsuper OR o.rolname = current_user THEN '' ELSE o.rolname::text END
  FROM tree JOIN pg_class c ON c.oid = tree.oid JOIN pg_class root ON root.oid = tree.root
  JOIN pg_roles o ON o.oid = root.relowner
  LEFT JOIN pg_roles r ON r.rolname = coalesce(nullif(tree.reader, ''), current_user)
 GROUP BY tree.root, root.relowner, o.rolsuper, o.rolname
"""

_FUNCTION: Final = b"""
SELECT p.prosecdef AND coalesce(p.proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false),
       has_function_privilege(p.oid, 'EXECUTE') AND has_schema_privilege(n.oid, 'USAGE'),
       f.rolname::text, f.rolsuper OR f.rolname = current_user, s.rolname::text, s.rolsuper OR s.rolname = current_user
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
  JOIN pg_roles f ON f.oid = p.proowner JOIN pg_roles s ON s.oid = n.nspowner
 WHERE p.oid = to_regprocedure('cdcd.change_publication(pg_catalog.name, pg_catalog.oid[], pg_catalog.oid[])')
"""


async def digest(connection: Connection, publication: str) -> tuple[str, ...]:
    """A value that changes whenever tables or the publication's list change. TransientError, SourceError."""
    with translated("looking for new tables", {"publication": publication}):
        row: Any = await (await connection.execute(_DIGEST, (publication,))).fetchone()
    return tuple(row)


async def read_listed(connection: Connection, publication: str) -> Listed | None:
    """What the publication lists; None: there is no such publication. TransientError, SourceError."""
    has_schemas = connection.info.server_version >= SCHEMA_SINCE
    query = _LISTED.format(of_schemas=_OF_SCHEMAS if has_schemas else "ARRAY[]::int8[]").encode()
    with translated("reading the publication", {"publication": publication}):
        row: Any = await (await connection.execute(query, (publication,))).fetchone()
    if row is None:
        return None
    all_tables, is_owned, changes_rows, members, of_schemas, narrowed = row
    return Listed(
        all_tables, is_owned, changes_rows, frozenset(members), frozenset(of_schemas), frozenset(narrowed)
    )


async def read_differences(
    connection: Connection, publication: str, desired: Desired
) -> tuple[Listed, PublicationDifferences] | None:
    """Return the contents of the publication, and their differences from the desired tables.

    None: the publication does not exist. A publication FOR ALL TABLES has every table and lacks none.

    Raises:
        TransientError, SourceError: PostgreSQL does not answer, or refuses the query.
    """
    listed = await read_listed(connection, publication)
    if listed is None:
        return None
    candidates = await read_candidates(connection)
    has = listed.members | listed.of_schemas
    published = [each.table for each in candidates if listed.all_tables or each.table.oid in has]
    # The comparison of 10,000 tables takes tenths of a second. A thread makes it, so that the stream does not wait.
    return listed, await asyncio.to_thread(compare, desired, candidates, published)


@dataclass(frozen=True, slots=True)
class Rights:
    """What roles may do with a table that is to be published.

    Attributes:
        is_owned: cdcd's role owns the table, as ALTER PUBLICATION demands.
        is_readable: the role that will read the rows may do so.
        owner: the table's owner, whose code planning a query on the table may run; "": a superuser or cdcd's own role.
    """

    is_owned: bool
    is_readable: bool
    owner: str


async def read_rights(connection: Connection, readers: Mapping[int, str]) -> dict[int, Rights]:
    """Rights on tables.

    Args:
        readers: the role that reads each table, by the table's oid; "": cdcd's own role.

    Raises:
        TransientError, SourceError.
    """
    with translated("looking at rights on new tables", {}):
        cursor = await connection.execute(_RIGHTS.encode(), (list(readers), list(readers.values())))
        rows: Any = await cursor.fetchall()
    return {oid: Rights(*rights) for oid, *rights in rows}


async def check_function(connection: Connection, trusted: Collection[str]) -> str:
    """Why `FUNCTION` cannot be called; empty if it can. Raises TransientError and SourceError."""
    with translated(f"looking for the function {FUNCTION}", {}):
        row: Any = await (await connection.execute(_FUNCTION)).fetchone()
    if row is None:
        return f"there is no function {FUNCTION}(name, oid[], oid[])"
    is_closed, may_call, owner, owner_trusted, schema_owner, schema_trusted = row
    if not (owner_trusted or owner in trusted):
        return f"the function {FUNCTION} belongs to role {owner}, which postgres.trusted_owners does not name"
    if not (schema_trusted or schema_owner in trusted):
        return f"the schema of {FUNCTION} belongs to role {schema_owner}, which postgres.trusted_owners does not name"
    if not is_closed:
        return (
            f"the function {FUNCTION} is not SECURITY DEFINER with the search_path that follow.sql gives it"
        )
    return "" if may_call else f"this role may not call {FUNCTION}"


async def alter(
    connection: Connection,
    publication: str,
    verb: str,
    tables: Sequence[PublishedTable],
    *,
    by_function: bool,
) -> None:
    """Add these tables to the publication, or drop them, in one transaction. Raises TransientError and SourceError.

    Args:
        verb: ADD or DROP.
        by_function: a function that `check_function` has accepted does so, with the rights of its owner.
    """
    with translated(f"altering publication {publication}", {"publication": publication}):
        if not by_function:
            await connection.execute(alteration(publication, verb, tables).encode())
            return
        oids = [table.oid for table in tables]
        added, dropped = (oids, []) if verb == "ADD" else ([], oids)
        await connection.execute(
            b"SELECT cdcd.change_publication(%s::name, %s::oid[], %s::oid[])", (publication, added, dropped)
        )


def grant(table: PublishedTable, role: str) -> str:
    """The statements that let a role read the table."""
    return (
        f"GRANT USAGE ON SCHEMA {quoted(table.schema)} TO {identifier(role)}; "
        f"GRANT SELECT ON {sql_name(table)} TO {identifier(role)};"
    )


def is_refusal(error: CdcdError) -> bool:
    """Return whether PostgreSQL refused for lack of a right, rather than for one of the tables."""
    return getattr(error.__cause__, "sqlstate", "") == "42501"
