"""Rows of a table by their pages, as `COPY` gives them, at a snapshot that is known.

Two kinds of snapshot: one that was exported with the slot, imported once and held by this connection's transaction for
all chunks; and one of its own for each chunk, of which is told what it sees (`Visibility`) and a place in the WAL that
lies behind everything it sees (the high watermark).

The table is locked (ACCESS SHARE) before the snapshot is taken or the rows are read, and its file looked at then: so
a rewrite that would hide rows or move them to other pages can not come between (ALTER TABLE is not MVCC-safe, as the
manual says under "Caveats"). A chunk is read whole or not at all, and kept as the lines that COPY sent.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

import psycopg
from psycopg import pq

from cdcd.errors import CdcdError, SourceError, TransientError
from cdcd.postgres.connection import Dsn, open_pgconn, simple_query
from cdcd.postgres.readiness import readable, writable
from cdcd.postgres.refusals import Answer, answer_of, answer_of_result, refused
from cdcd.postgres.replication import identifier, literal
from cdcd.protocol.lsn import Lsn
from cdcd.protocol.messages import Relation
from cdcd.snapshots.signals import WATERMARK
from cdcd.snapshots.visibility import Visibility

TID_RANGE_SINCE: Final = 140000
"""The server version that can go to a range of pages; before it, each place on them is named one by one."""

PLACES_PER_PAGE: Final = 291
"""The most rows on a page of 8 KiB (MaxHeapTuplesPerPage, htup_details.h)."""

_PLACES: Final = """\
ctid = ANY (ARRAY(
    SELECT format('(%s,%s)', page, place)::tid FROM generate_series({}, {}) page, generate_series(1, {}) place))"""

_WHERE_WE_ARE: Final = "pg_current_snapshot(), pg_current_wal_insert_lsn()"

_BUDGET_S: Final = 0.004
_DATA_ERRORS: Final = ("42", "22", "0A", "54")
"""Classes of SQLSTATE that say that the query does not fit the table (any more)."""

_TOO_OLD: Final = "72000"


class ChunkTooLargeError(Exception):
    """The rows of these pages are more bytes than may be kept."""


class TableChangedError(Exception):
    """The table is not what the query was made for: altered, rewritten or dropped. The text says how."""


@dataclass(frozen=True, slots=True)
class PageQuery:
    """Pages of a table to be read, and of which file they must be."""

    sql_name: str
    oid: int
    filenode: int
    begin: int
    end: int
    relation: Relation
    conditions: tuple[str, ...]
    """SQL: the publication's row filter, and a request's, which was examined (`tables.examine_condition`)."""

    def copy(self, server_version: int) -> str:
        """The COPY command."""
        if server_version >= TID_RANGE_SINCE:
            pages = f"ctid >= '({self.begin},0)'::tid AND ctid < '({self.end},0)'::tid"
        else:
            pages = _PLACES.format(self.begin, self.end - 1, PLACES_PER_PAGE)
        columns = ", ".join(identifier(column.name) for column in self.relation.columns)
        where = " AND ".join([pages, *(f"({condition}\n)" for condition in self.conditions if condition)])
        return f"COPY (SELECT {columns} FROM ONLY {self.sql_name} WHERE {where}) TO STDOUT"  # noqa: S608  see `conditions`


@dataclass(frozen=True, slots=True)
class Rows:
    """A chunk as it was read. `seen` and `after` are None with an exported snapshot."""

    lines: list[bytes]
    size: int
    seen: Visibility | None = None
    after: int | None = None
    """A place in the WAL behind the commit of every transaction that the snapshot sees."""


class SnapshotReader:
    """One connection that reads chunks, one at a time. After a TransientError or a cancellation: `close`."""

    def __init__(self, pgconn: pq.abc.PGconn, dsn: Dsn) -> None:
        self._pgconn = pgconn
        self._names = dict(dsn.names)
        self._imported = False

    @classmethod
    async def open(cls, dsn: Dsn, *, application_name: str, connect_timeout_s: float) -> Self:
        """Connect. Errors as `connection.open_pgconn`."""
        pgconn = await open_pgconn(
            dsn, application_name=application_name, connect_timeout_s=connect_timeout_s
        )
        reader = cls(pgconn, dsn)
        try:
            # A row that policies hide would be missing without a word: an error. Watermarks need our disk only.
            await reader._run("SET row_security = off; SET synchronous_commit = local", "preparing to read")
        except BaseException:
            pgconn.finish()
            raise
        return reader

    @property
    def server_version(self) -> int:
        return self._pgconn.server_version

    def close(self) -> None:
        """End the connection, and with it whatever it was reading. Idempotent."""
        self._pgconn.finish()

    async def import_snapshot(self, name: str) -> None:
        """Read at this exported snapshot from now on."""
        await self._run(
            f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {literal(name)}",
            "importing the slot's snapshot",
        )
        self._imported = True

    async def read(self, query: PageQuery, bytes_max: int) -> Rows:
        """The rows of these pages.

        Raises:
            ChunkTooLargeError: they are larger than `bytes_max`.
            TableChangedError: the table is another one, or none; the connection can be used on.
            TransientError, SourceError: as in `refusals`.
        """
        # Rolled back, not released: the lock goes with it, and who wants to alter the table waits for a chunk only.
        undo = "ROLLBACK TO chunk; RELEASE chunk" if self._imported else "ROLLBACK"
        begin, end = (
            ("SAVEPOINT chunk", undo)
            if self._imported
            else ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "COMMIT")
        )
        what = f"reading {query.sql_name}"
        command = "; ".join(
            [
                begin,
                f"LOCK TABLE ONLY {query.sql_name} IN ACCESS SHARE MODE",
                f"SELECT {_WHERE_WE_ARE}, coalesce(pg_relation_filenode({query.oid}), 0)",
                query.copy(self.server_version),
                end,
            ]
        )
        lines: list[bytes] = []
        try:
            size, told, failure = await self._collect(command, lines, bytes_max)
        except psycopg.Error as error:
            raise refused(what, answer_of(error), self._names) from None
        if failure is not None:
            await self._run(undo, what)
            raise self._failed(what, failure)
        if size > bytes_max:
            raise ChunkTooLargeError
        ((snapshot, after, filenode),) = told
        if filenode != str(query.filenode):
            raise TableChangedError("it was rewritten, or replaced")
        if self._imported:
            return Rows(lines, size)
        assert snapshot is not None
        assert after is not None
        return Rows(lines, size, Visibility.parse(snapshot), Lsn.parse(after))

    async def write_out(self) -> None:
        """Make the server write its WAL to disk, and so send it: everything that was committed so far.

        With synchronous_commit off a transaction is visible before that, and on an idle server may be for long.
        """
        await self._run(
            f"SELECT pg_logical_emit_message(true, {literal(WATERMARK)}, '')", "writing a watermark"
        )

    async def _run(self, command: str, what: str) -> list[tuple[str | None, ...]]:
        results = await simple_query(self._pgconn, command, what, self._names)
        return results[-1] if results else []

    def _failed(self, what: str, failure: Answer) -> CdcdError | Exception:
        if failure.sqlstate == _TOO_OLD:
            return TransientError(
                f"{what}: {failure.message} [SQLSTATE {_TOO_OLD}]",
                hint="The snapshot is older than old_snapshot_threshold. What is not read yet is read incrementally.",
            )
        error = refused(what, failure, self._names)
        if failure.sqlstate == "42501" or not failure.sqlstate.startswith(_DATA_ERRORS):
            if isinstance(error, SourceError):
                return SourceError(error.message, hint=error.hint or "GRANT SELECT on the table.")
            return error
        return TableChangedError(failure.message)

    async def _collect(
        self, command: str, lines: list[bytes], bytes_max: int
    ) -> tuple[int, list[tuple[str | None, ...]], Answer | None]:
        """Run the command; its rows by COPY go to `lines`, until they are too large: then the rest is thrown away."""
        pgconn = self._pgconn
        pgconn.send_query(command.encode())
        while pgconn.flush() == 1:
            await writable(pgconn.socket)
        told: list[tuple[str | None, ...]] = []
        failure: Answer | None = None
        size = 0
        while True:
            while pgconn.is_busy():
                await readable(pgconn.socket)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                return size, told, failure
            if result.status == pq.ExecStatus.FATAL_ERROR:
                failure = failure or answer_of_result(result)
            elif result.status == pq.ExecStatus.TUPLES_OK:
                told.extend(_texts(result))
            elif result.status == pq.ExecStatus.COPY_OUT:
                size = await self._copy(lines, bytes_max)

    async def _copy(self, lines: list[bytes], bytes_max: int) -> int:
        pgconn = self._pgconn
        get_copy_data = pgconn.get_copy_data
        append = lines.append
        size = 0
        deadline = time.monotonic() + _BUDGET_S
        while True:
            got, data = get_copy_data(1)
            if got > 0:
                size += got
                if size <= bytes_max:
                    append(data.tobytes())
                else:
                    # Thrown away to the end, not cancelled: a cancellation that comes late hits the next command.
                    lines.clear()
                if len(lines) % 64 == 0 and time.monotonic() > deadline:
                    await asyncio.sleep(0)
                    deadline = time.monotonic() + _BUDGET_S
            elif got == 0:
                await readable(pgconn.socket)
                pgconn.consume_input()
                deadline = time.monotonic() + _BUDGET_S
            else:
                return size


def _texts(result: pq.abc.PGresult) -> Iterator[tuple[str | None, ...]]:
    for row in range(result.ntuples):
        values = (result.get_value(row, column) for column in range(result.nfields))
        yield tuple(None if value is None else value.decode() for value in values)
