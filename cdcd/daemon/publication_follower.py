"""The publication of a running pipeline follows the configuration (`postgres.publication_changes`).

`follow` is called before each listing of the publication, every 5 s, so a table that it adds is in that same listing.
A look at an unchanged catalog costs one query with one row. Only if the catalog has changed, or a table still waits,
all tables are listed and compared (`following.compare`). The connection that alters is opened for the statements and
closed after them.

A table that cannot be published holds up no other one. `follow` never ends a session: its failure is told, and tried
again.
"""

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cdcd.adapters.postgres import following
from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.following import Desired, Listed, PublicationDifferences
from cdcd.adapters.postgres.publication import PublishedTable
from cdcd.adapters.postgres.snapshot_catalog import SnapshotCatalog
from cdcd.adapters.postgres.tables import locked_tables
from cdcd.core.errors import FatalError, TransientError
from cdcd.core.facts import Observer
from cdcd.core.facts.operation import TableLocked
from cdcd.core.facts.tables import PublicationChanged, PublicationDiffers

Mode = Literal["never", "owner", "function"]

PENDING_S: Final = 30.0
"""Seconds between two comparisons while a table cannot be published, if the catalog does not change."""

LOCKED_S: Final = 5.0
"""The same while somebody has locked a table that is to be published."""

NAMED_MAX: Final = 10

_NO_IDENTITY: Final = "PostgreSQL rejects UPDATE and DELETE on a published table without a replica identity"

_UNTRUSTED: Final = (
    "security.strict: postgres.readers and postgres.trusted_owners lack the owner of these tables"
)

_NARROWED: Final = (
    "the publication had these tables with a column list or a row filter until somebody took them out, which the owner "
    "of a table does by DROP COLUMN with CASCADE. Add each table by hand, with its list and its filter"
)

Reason = tuple[str, str]
"""Why tables are not published, and the statement that helps before they can be; "": none but ALTER PUBLICATION."""


@dataclass(frozen=True, slots=True)
class OwnerTrust:
    """Which owners of tables cdcd trusts.

    Attributes:
        owners: `postgres.trusted_owners`.
        strict: `security.strict`: tables of other owners are read by a reader of `postgres.readers` only.
    """

    owners: Collection[str]
    strict: bool


class PublicationFollower:
    """Alters the publication where cdcd may, and says what to run where it may not.

    Args:
        catalog: of the publication.
        mode: `postgres.publication_changes`.
        reader_of: the role that reads the rows of a table; "": cdcd's own role, None: no rows are read.
        connect: opens a connection of cdcd's role, which is used for one change.
    """

    def __init__(
        self,
        desired: Desired,
        catalog: SnapshotCatalog,
        mode: Mode,
        trust: OwnerTrust,
        *,
        reader_of: Callable[[PublishedTable], str | None],
        connect: Callable[[], Awaitable[Connection]],
        observe: Observer,
    ) -> None:
        self._desired = desired
        self._publication = catalog.publication
        self._catalog = catalog
        self._mode = mode
        self._reader_of = reader_of
        self._trusted = trust.owners
        self._strict = trust.strict
        self._connect = connect
        self._observe = observe
        self._changes_rows = True
        """True if the publication has UPDATE or DELETE."""
        self._narrowed: set[int] = set()
        """Tables that the publication has or had with a column list or a row filter, by oid."""
        self._digest: tuple[str, ...] = ()
        self._again_at: float | None = None
        self._told: set[tuple[str, frozenset[int]]] = set()
        """The reason and tables of each report so far; each is reported once in a session."""

    async def follow(self) -> None:
        """Compare, alter and tell. A failure is told once, and tried again later; it ends no session."""
        if not self._desired.is_stated:
            return
        now = time.monotonic()
        try:
            await self._follow(now)
        except (FatalError, TransientError) as error:
            self._wait(now, PENDING_S)
            if (error.message, frozenset[int]()) not in self._told:
                self._told.add((error.message, frozenset[int]()))
                self._tell_of(error.message, (), (), error.hint)

    async def _follow(self, now: float) -> None:
        digest = await self._catalog.publication_digest()
        if digest == self._digest and (self._again_at is None or now < self._again_at):
            return
        self._digest, self._again_at = digest, None
        found = await self._catalog.publication_differences(self._desired)
        if found is None or found[0].all_tables:
            return
        listed, differences = found
        self._changes_rows = listed.changes_rows
        self._narrowed |= listed.narrowed
        if differences.lacking or differences.extra:
            self._wait(now, PENDING_S)
            await self._act(listed, differences)

    def _wait(self, now: float, seconds: float) -> None:
        self._again_at = min(now + seconds, now + PENDING_S if self._again_at is None else self._again_at)

    async def _act(self, listed: Listed, differences: PublicationDifferences) -> None:
        extra = [table for table in differences.extra if table.oid in listed.members]
        if self._mode == "never":
            self._tell("postgres.publication_changes is never", differences.lacking, extra)
            return
        if self._mode == "owner" and not listed.is_owned:
            self._tell("the role of postgres.dsn does not own the publication", differences.lacking, extra)
            return
        connection = await self._connect()
        try:
            if self._mode == "function" and (
                reason := await following.check_function(connection, self._trusted)
            ):
                self._tell(reason, differences.lacking, extra)
                return
            free = await self._publishable(connection, listed, differences.lacking)
            added = await self._alter(connection, "ADD", free)
            dropped = await self._alter(connection, "DROP", extra)
        finally:
            await connection.close()
        if added or dropped:
            self._observe(
                PublicationChanged(
                    publication=self._publication,
                    added=[table.qualified for table in added[:NAMED_MAX]],
                    added_count=len(added),
                    dropped=[table.qualified for table in dropped[:NAMED_MAX]],
                    dropped_count=len(dropped),
                )
            )

    async def _publishable(
        self, connection: Connection, listed: Listed, lacking: Sequence[PublishedTable]
    ) -> list[PublishedTable]:
        """Those of the tables that can be published now. The others are told."""
        if not lacking:
            return []
        readers = {table.oid: self._reader_of(table) for table in lacking}
        rights = await following.read_rights(connection, {oid: role or "" for oid, role in readers.items()})
        locked = await locked_tables(connection, [table.oid for table in lacking])
        role = connection.info.user
        free: list[PublishedTable] = []
        withheld: dict[str, list[tuple[PublishedTable, str]]] = {}
        for table in lacking:
            right = rights.get(table.oid)
            if right is None:
                # The table is gone since it was listed.
                continue
            reason, first = self._hindrance(table, right, listed, readers[table.oid], role)
            if reason:
                withheld.setdefault(reason, []).append((table, first))
            elif table.oid in locked:
                self._wait(time.monotonic(), LOCKED_S)
                self._tell_locked(table, locked[table.oid])
            else:
                free.append(table)
        for reason, found in withheld.items():
            tables = [table for table, _ in found]
            self._tell(
                reason, tables, (), first=[statement for _, statement in found[: following.PASTED_MAX]]
            )
        return free

    def _hindrance(
        self, table: PublishedTable, right: following.Rights, listed: Listed, reader: str | None, role: str
    ) -> Reason:
        if table.oid in self._narrowed:
            return _NARROWED, ""
        if listed.changes_rows and not table.has_identity:
            return _NO_IDENTITY, ""
        if self._mode == "owner" and not right.is_owned:
            return "the role of postgres.dsn does not own these tables", ""
        if self._strict and reader == "" and right.owner and right.owner not in self._trusted:
            return f"{_UNTRUSTED}: role {right.owner}", ""
        if reader is not None and not right.is_readable:
            return "the role that reads rows has no right to read these tables", following.grant(
                table, reader or role
            )
        return "", ""

    async def _alter(
        self, connection: Connection, verb: str, tables: Sequence[PublishedTable]
    ) -> list[PublishedTable]:
        """Add or drop these tables, as many at once as PostgreSQL takes; those for which it succeeded."""
        done: list[PublishedTable] = []
        for begin in range(0, len(tables), following.AT_ONCE):
            several = tables[begin : begin + following.AT_ONCE]
            refused = await self._try(connection, verb, several)
            if refused is None:
                done += several
                continue
            if following.is_refusal(refused):
                self._tell_refused(refused, verb, several)
                continue
            # One of them was dropped, renamed or locked meanwhile. The others do not wait for it.
            for table in several:
                refused = await self._try(connection, verb, (table,))
                if refused is None:
                    done.append(table)
                else:
                    self._tell_refused(refused, verb, (table,))
        return done

    async def _try(
        self, connection: Connection, verb: str, tables: Sequence[PublishedTable]
    ) -> FatalError | TransientError | None:
        by_function = self._mode == "function"
        try:
            await following.alter(connection, self._publication, verb, tables, by_function=by_function)
        except (FatalError, TransientError) as error:
            if connection.closed:
                raise
            return error
        return None

    def _tell_refused(
        self, error: FatalError | TransientError, verb: str, tables: Sequence[PublishedTable]
    ) -> None:
        self._wait(time.monotonic(), LOCKED_S if isinstance(error, TransientError) else PENDING_S)
        self._tell(error.message, tables if verb == "ADD" else (), tables if verb == "DROP" else ())

    def _tell_locked(self, table: PublishedTable, holder: str) -> None:
        key = (holder, frozenset({table.oid}))
        if key not in self._told:
            self._told.add(key)
            purpose = f"its addition to publication {self._publication}"
            self._observe(TableLocked(table=table.qualified, holder=holder, purpose=purpose))

    def _tell(
        self,
        reason: str,
        lacking: Sequence[PublishedTable],
        extra: Sequence[PublishedTable],
        *,
        first: Sequence[str] = (),
    ) -> None:
        """Tell once why these tables are not added or dropped. `first`: statements that are needed before."""
        key = (reason, frozenset(table.oid for table in (*lacking, *extra)))
        if key in self._told or not key[1]:
            return
        self._told.add(key)
        statements = ""
        if reason != _NARROWED:
            statements = following.pasted(self._publication, lacking, extra, changes_rows=self._changes_rows)
        self._tell_of(
            reason,
            lacking,
            extra,
            " ".join([*filter(None, first), statements]),
        )

    def _tell_of(
        self, reason: str, lacking: Sequence[PublishedTable], extra: Sequence[PublishedTable], command: str
    ) -> None:
        self._observe(
            PublicationDiffers(
                publication=self._publication,
                lacking=[table.qualified for table in lacking[:NAMED_MAX]],
                lacking_count=len(lacking),
                extra=[table.qualified for table in extra[:NAMED_MAX]],
                extra_count=len(extra),
                reason=reason,
                command=command,
            )
        )
