"""Reads rows of a table by COPY, selected by their pages or by their keys, at a known snapshot.

There are two kinds of snapshot. A snapshot that the slot exported is imported once, or a snapshot is taken once
(`take_snapshot`), and this connection's transaction holds it for all queries. Else each query takes its own snapshot.
Its answer says what the snapshot sees (`Rows.seen`), and names an LSN behind the commit of everything that the snapshot
sees (`Rows.after`). The reader writes a logical message behind that LSN, so that the stream reaches the LSN even on an
idle server, or after commits with synchronous_commit = off.

One transaction locks the table (ACCESS SHARE), checks it, and reads it. So nothing can come between: no rewrite that
hides rows or moves them to other pages (ALTER TABLE is not MVCC-safe, see the manual under "Caveats"), no other name,
no other columns. The transaction is READ ONLY, and is rolled back, so that settings that a condition changed are
restored.

An error that the condition of a request causes is the answer `Refused`. A TransientError is raised only if the
connection is lost, or for a reason that passes by itself.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Self

from psycopg import pq

from cdcd.adapters.postgres import snapshot_queries
from cdcd.adapters.postgres.answers import Answer, find_refusal, refused
from cdcd.adapters.postgres.chunk_queries import (
    AGAIN,
    BUSY,
    CHANGED,
    EQUALITIES,
    EXTENSION_FROM,
    WITHOUT_READER,
    as_transient,
    fits_plan,
    granted_columns,
    has_request,
    key_texts,
    kind_of,
    locked_oid,
    other_names,
    reading_what,
    sql_name_of,
    untrusted,
    unwritable_condition,
    words_of_condition,
)
from cdcd.adapters.postgres.connection import Dsn, open_session
from cdcd.adapters.postgres.conversion import Conversion, server_encoding
from cdcd.adapters.postgres.quoting import identifier, literal
from cdcd.adapters.postgres.refusals import UNKNOWN, TableBusyError
from cdcd.adapters.postgres.server_names import RAW
from cdcd.adapters.postgres.session import Session, rows_of
from cdcd.adapters.postgres.snapshot_queries import Checked, Equality
from cdcd.core.catalog.binary_text import WithoutReaderError
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.snapshot import reading
from cdcd.core.snapshot.reading import (
    Changed,
    KeyQuery,
    PageQuery,
    Refused,
    Rows,
    SourceTable,
    TooLarge,
    Visibility,
)
from cdcd.core.snapshot.signals import WATERMARK

LOCK_TIMEOUT_S: Final = 5.0
"""Default for the seconds that a query waits for a lock."""

CONDITION_TIMEOUT_S: Final = 60.0
"""Default for the seconds that a query with a request's condition may take, because the condition may call
pg_sleep."""


Mark = Callable[[], Awaitable[None]]
"""Function that writes a watermark."""

_CANCELED: Final = "57014"
_NO_RIGHT: Final = "42501"
_RESTRICTED: Final = "55000"
"""SQLSTATE of PostgreSQL's restrict_nonsystem_relation_kind for a view with the table's name."""
_SYNTAX_ERROR: Final = "42601"


class SnapshotReader:
    """One connection, which answers one query at a time. After a TransientError or a cancellation, call `close`."""

    def __init__(
        self,
        session: Session,
        *,
        block_size: int,
        has_timeout: bool,
        condition_timeout_s: float,
        types: Mapping[int, TypeDescription] = BUILTIN_TYPES,
        mark: Mark | None = None,
        queries: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._queries = queries
        self._judged: dict[tuple[str, str], str] = {}
        """Why a table's query does not fit its columns, by table and `SourceTable.columns`; "": it fits."""
        self._session = session
        self._types = types
        self._mark = mark
        self._block_size = block_size
        self._has_timeout = has_timeout
        self._condition_timeout_s = condition_timeout_s
        self._conversion: Conversion | None = None
        self._trusted: Sequence[str] | None = None
        self._imported = False
        self._equalities: dict[int, Equality] = {}
        self._by_parsing: set[int] = set()
        """Oids of relations with SELECT on single columns only, for which LOCK TABLE is refused."""

    @classmethod
    async def open(
        cls,
        dsn: Dsn,
        *,
        application_name: str,
        connect_timeout_s: float = 10.0,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        statement_timeout_s: float = 0.0,
        condition_timeout_s: float = CONDITION_TIMEOUT_S,
        mark: Mark | None = None,
        types: Mapping[int, TypeDescription] = BUILTIN_TYPES,
        queries: Mapping[str, str] = MappingProxyType({}),
        trusted: Sequence[str] | None = None,
    ) -> Self:
        """Connect. Raises what `connection.open_session` raises. The caller owes `close`.

        Args:
            lock_timeout_s: seconds that a query waits for the lock of the table; 0: no limit.
            statement_timeout_s: seconds that the server may work on a query; 0: no limit.
            condition_timeout_s: the same limit for a query with a request's condition; the shorter limit counts.
            mark: writes the watermark after the rows, on a session of another role; None: this session writes it.
            types: descriptions of the types of key columns with values in binary form.
            queries: queries of tables by `schema.table` (`snapshot.queries`).
            trusted: roles whose tables are read, besides superusers and the session's role; None: of all owners.
        """
        session = await open_session(
            dsn, application_name=application_name, connect_timeout_s=connect_timeout_s
        )
        try:
            # synchronous_commit: a watermark need not wait for standbys.
            *_, ((block_size,),) = await session.query(
                f"{snapshot_queries.SETTINGS}; SET synchronous_commit = local; "
                f"SET lock_timeout = {round(lock_timeout_s * 1000)}; "
                f"SET statement_timeout = {round(statement_timeout_s * 1000)}; SHOW block_size",
                "preparing to read",
            )
            encoding, conversion = server_encoding(session), None
            if encoding != "UTF8":
                conversion = await Conversion.open(
                    dsn, encoding, application_name=application_name, connect_timeout_s=connect_timeout_s
                )
        except BaseException:
            session.close()
            raise
        limits = [limit for limit in (statement_timeout_s, condition_timeout_s) if limit > 0]
        reader = cls(
            session,
            block_size=int(block_size or 0),
            has_timeout=statement_timeout_s > 0,
            condition_timeout_s=min(limits, default=0.0),
            mark=mark,
            types=types,
            queries=queries,
        )
        reader._conversion = conversion
        reader._trusted = trusted
        return reader

    @property
    def server_version(self) -> int:
        """`server_version_num`, e.g. 180001."""
        return self._session.server_version

    def close(self) -> None:
        """Close the connection, which also ends a query that is running. Idempotent."""
        self._session.close()
        if self._conversion is not None:
            self._conversion.close()

    async def import_snapshot(self, name: str) -> None:
        """Read at this exported snapshot from now on. TransientError: the snapshot has ended."""
        await self._session.query(
            f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {literal(name)}",
            "importing the slot's snapshot",
        )
        self._imported = True

    async def take_snapshot(self) -> tuple[Visibility, Lsn]:
        """Take a snapshot, and read at it from now on.

        Returns:
            What the snapshot sees, and an LSN behind the commit of everything that it sees.

        Raises:
            TransientError: the connection is lost.
        """
        *_, ((seen, after),) = await self._session.query(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; "
            "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text",
            "taking a snapshot",
        )
        self._imported = True
        return Visibility.parse(seen or ""), Lsn.parse(after or "")

    async def export_snapshot(self) -> str:
        """Export the imported snapshot for sessions of any role, and return its name.

        The exported snapshot lasts as long as this session.
        """
        *_, ((name,),) = await self._session.query("SELECT pg_export_snapshot()", "exporting the snapshot")
        assert name is not None
        return name

    async def read(self, query: PageQuery | KeyQuery, bytes_max: int) -> reading.Answer:
        """Read the rows that the query selects, or return the reason why that is impossible.

        Args:
            bytes_max: bytes of all rows together; the answer to more is `TooLarge`.

        Raises:
            TableBusyError: another session has locked the table. Try again later; this connection can still be
                used.
            TransientError: the connection is lost, or the query failed for a reason that passes by itself.
        """
        if problem := unwritable_condition(query):
            return Refused(problem, hint=_CORRECT)
        found = await self._lock_and_check(query)
        if not isinstance(found, Checked):
            return found
        chosen = self._queries.get(query.table.name, "")
        if chosen and (problem := await self._judge(query.table, chosen)):
            await self._session.query(self._undo, reading_what(query))
            return Refused(problem, hint=CORRECT_QUERY)
        if isinstance(query, PageQuery):
            # Rows of an old snapshot are on the planned pages, rows of a new snapshot on the current pages.
            fits = self._imported or found.pages <= query.end
            if fits and not found.generated and not chosen and snapshot_queries.is_whole(query):
                copy = snapshot_queries.copy_table(query)
            else:
                copy = snapshot_queries.copy_pages(query, self.server_version, self._block_size, chosen)
        else:
            try:
                keys = key_texts(query, self._types)
            except WithoutReaderError as error:
                await self._session.query(self._undo, reading_what(query))
                return Refused(str(error))
            copy = snapshot_queries.copy_keys(query, keys, await self._compare(query), found.leaves, chosen)
        return await self._copy(query, copy, found, bytes_max)

    async def _judge(self, table: SourceTable, chosen: str) -> str:
        """Return why the table's query does not fit the table; "" if it fits. Raises what `read` raises."""
        place = (table.name, table.columns)
        if place not in self._judged:
            self._judged[place] = await self._misfit(table, chosen)
        return self._judged[place]

    async def _misfit(self, table: SourceTable, chosen: str) -> str:
        """Compare the query's columns with the table's. The server neither plans nor runs the query."""
        plain = snapshot_queries.description(table)
        described = []
        for select in (
            plain,
            snapshot_queries.by_query(plain, table, chosen),
            snapshot_queries.all_columns(table, chosen),
        ):
            outcome = await self._session.run_in_one_trip([], select.encode("utf-8", "surrogateescape"))
            if outcome.errors:
                answer, what = outcome.errors[0], f"reading {table.name}"
                if self._session.is_lost or kind_of(answer) == AGAIN:
                    raise as_transient(what, answer)
                if kind_of(answer) == BUSY:
                    await self._session.query(self._undo, what)
                    raise TableBusyError(f"{table.name} is locked: {answer.text_of_rows}")
                return f"the query in snapshot.queries fails: {answer.text_of_rows}"
            described.append(outcome.results[-1])
        ours, theirs, everything = described
        for place, column in enumerate(table.relation.columns):
            types = [(each.ftype(place), each.fmod(place)) for each in (ours, theirs)]
            if types[0] != types[1]:
                (oid, modifier), (other, other_modifier) = types
                *_, ((wanted, given),) = await self._session.query(
                    f"SELECT format_type({oid}, {modifier}), format_type({other}, {other_modifier})",
                    f"reading {table.name}",
                )
                return (
                    f"the query in snapshot.queries gives {column.name} the type {given}, and the column has "
                    f"{wanted}"
                )
        names = [everything.fname(place) for place in range(everything.nfields)]
        known = {ours.fname(place) for place in range(ours.nfields)}
        if more := [(name or b"").decode(errors="replace") for name in names if name not in known]:
            return f"the query in snapshot.queries returns {', '.join(more)}, which is no published column of the table"
        return ""

    async def _lock_and_check(self, query: PageQuery | KeyQuery) -> Checked | Changed | Refused:
        """Begin the transaction, lock the table, and check that it is still the table of the plan.

        If it is not, end the transaction.
        """
        by_parsing = locked_oid(query) in self._by_parsing
        lock = snapshot_queries.lock(query, by_parsing=by_parsing)
        steps = {
            "begin": _SAVEPOINT if self._imported else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            **{f"prepare {number}": command for number, command in enumerate(lock[:-1])},
            "lock": lock[-1],
            **({"limit": self._limit} if has_request(query) else {}),
            "check": snapshot_queries.check(query, self._trusted),
        }
        if self._imported or by_parsing:
            # Planning evaluates expressions of the owner, so the current columns are read without planning.
            commands = [step.encode() for step in steps.values()]
            described = snapshot_queries.description(query.table).encode()
            outcome = await self._session.run_in_one_trip(commands, described)
        else:
            outcome = await self._session.run("; ".join(steps.values()).encode())
        done = dict(zip((*steps, "describe"), outcome.results, strict=False))
        if outcome.errors:
            step, answer = (*steps, "describe")[len(outcome.results)], outcome.errors[0]
            refused_table = step == "lock" and answer.sqlstate == _NO_RIGHT and not by_parsing
            if refused_table and not self._session.is_lost:
                self._by_parsing.add(locked_oid(query))
                await self._session.query(self._undo, reading_what(query))
                return await self._lock_and_check(query)
            if by_parsing and step == "lock" and answer.sqlstate == _RESTRICTED:
                await self._session.query(self._undo, reading_what(query))
                return Changed("it is not a table any more")
            return await self._failed(query, step, answer)
        found = Checked.of(rows_of(done["check"])[0])
        if changed := self._changed(query, found, done.get("describe")):
            await self._session.query(self._undo, reading_what(query))
            return Changed(changed)
        if found.untrusted:
            await self._session.query(self._undo, reading_what(query))
            return Refused(untrusted(found.untrusted), hint=WITHOUT_READER)
        return found

    async def _copy(
        self, query: PageQuery | KeyQuery, copy: str, found: Checked, bytes_max: int
    ) -> reading.Answer:
        """Read the rows of the locked and checked table, and end the transaction."""
        by_parsing = locked_oid(query) in self._by_parsing
        steps = {
            # A single text that PostgreSQL cannot convert to UTF-8 would abort reading the table.
            "rows": copy if self._conversion is None else f"{copy} (ENCODING '{RAW}')",
            "names": snapshot_queries.names(query),
            **({"rewritten": snapshot_queries.rewritten(query)} if by_parsing else {}),
            "end": self._undo,
            **({} if self._imported or self._mark is not None else {"watermark": _WATERMARK}),
        }
        command = "; ".join(steps.values())
        outcome = await self._session.run(command.encode("utf-8", "surrogateescape"), bytes_max)
        if outcome.errors:
            # COPY gives an additional result without rows, so each successful step has one result.
            return await self._failed(query, list(steps)[len(outcome.results)], outcome.errors[0])
        # ALTER SCHEMA RENAME waits for no lock of a table, so COPY may have read another table.
        if changed := other_names(query, rows_of(outcome.results[1])[0]):
            return Changed(changed)
        if by_parsing and rows_of(outcome.results[2])[0][0] != "0":
            return Changed("the table was rewritten (TRUNCATE, VACUUM FULL, CLUSTER or ALTER TABLE)")
        if outcome.size > bytes_max:
            return TooLarge()
        lines = outcome.lines
        if self._conversion is not None:
            lines = await self._conversion.lines(lines)
        if self._imported:
            return Rows(lines, outcome.size)
        if self._mark is not None:
            await self._mark()
        return Rows(lines, outcome.size, Visibility.parse(found.snapshot), Lsn.parse(found.after))

    @property
    def _undo(self) -> str:
        # ROLLBACK TO releases the table's lock, which RELEASE alone does not. ALTER TABLE waits for one query at most.
        return "ROLLBACK TO chunk; RELEASE chunk" if self._imported else "ROLLBACK"

    @property
    def _limit(self) -> str:
        """Command for the timeout of a query with a condition; the end of the transaction restores the setting."""
        return f"SET LOCAL statement_timeout = {round(self._condition_timeout_s * 1000)}"

    def _changed(self, query: PageQuery | KeyQuery, found: Checked, described: pq.abc.PGresult | None) -> str:
        """Return how the table differs from the plan of the query; empty if it does not differ."""
        table = query.table
        if problem := other_names(query, (found.part, found.table)):
            return problem
        if not found.is_table:
            return "it is not a table any more"
        if isinstance(query, PageQuery) and found.filenode != str(query.filenode):
            return "the table was rewritten (TRUNCATE, VACUUM FULL, CLUSTER or ALTER TABLE)"
        if not self._imported and found.columns != table.columns:
            return _ALTERED
        return "" if described is None or fits_plan(described, table) else _ALTERED

    async def _failed(self, query: PageQuery | KeyQuery, step: str, answer: Answer) -> Changed | Refused:
        """Return the meaning of a step's failure. The connection can still be used, unless TransientError is raised."""
        what = reading_what(query)
        if self._session.is_lost:
            raise as_transient(what, answer)
        if step in ("end", "watermark"):
            raise refused(f"{what}: ending it", answer, self._session.names)
        await self._session.query(self._undo, what)
        if step == "rows" and query.table.name in self._queries and kind_of(answer) not in (BUSY, AGAIN):
            reads_rows = isinstance(query, PageQuery) or bool(query.keys)
            words = words_of_condition(step, answer) if reads_rows else answer.text_of_rows
            return Refused(f"the query in snapshot.queries fails: {words}", hint=CORRECT_QUERY)
        # PostgreSQL parses the whole command before its first step, so a syntax error in the condition shows up there.
        if has_request(query) and (step == "rows" or answer.sqlstate == _SYNTAX_ERROR):
            return Refused(f"the condition fails: {words_of_condition(step, answer)}", hint=_CORRECT)
        kind = kind_of(answer)
        if answer.sqlstate == _CANCELED and self._has_timeout:
            return Refused(
                answer.text_of_rows,
                hint="Raise the statement timeout of snapshots, or find out what slows the server down.",
            )
        if kind == BUSY:
            raise TableBusyError(f"{query.table.name} is locked: {answer.text_of_rows}")
        if kind == AGAIN:
            raise as_transient(what, answer)
        return (
            Changed(answer.text_of_rows)
            if kind == CHANGED
            else Refused(answer.text_of_rows, hint=self._hint(query, answer))
        )

    def _hint(self, query: PageQuery | KeyQuery, answer: Answer) -> str:
        role = self._session.names.get("role", "<role>")
        if answer.sqlstate == _NO_RIGHT:
            if "row-level security" in answer.text_of_rows:
                # In another language (lc_messages), the hint below has this statement too.
                return f"ALTER ROLE {identifier(role)} BYPASSRLS; or leave the table's rows out (snapshot.exclude)."
            schema, name = identifier(query.table.relation.namespace), sql_name_of(query)
            return (
                f"Grant the rights: GRANT USAGE ON SCHEMA {schema} TO {identifier(role)}; "
                f"GRANT SELECT{granted_columns(query.table)} ON {name} TO {identifier(role)}. If the table has "
                f"row-level security, also: ALTER ROLE {identifier(role)} BYPASSRLS."
            )
        row = find_refusal(answer)
        return "See PostgreSQL's log." if row is UNKNOWN else row.hint

    async def _compare(self, query: KeyQuery) -> dict[str, Equality]:
        """Return the comparisons of the key columns whose types are not built in."""
        types = {
            column.name: column.type_oid
            for column in query.table.relation.columns
            if column.name in query.key_columns and column.type_oid >= EXTENSION_FROM
        }
        if missing := set(types.values()) - self._equalities.keys():
            oids = literal("{" + ",".join(map(str, missing)) + "}")
            asked = EQUALITIES.replace("{oids}", oids).replace("{builtin}", str(EXTENSION_FROM))
            *_, rows = await self._session.query(asked, reading_what(query))
            # An old snapshot does not see a type that was created later.
            self._equalities |= {oid: Equality(by_text=True) for oid in missing}
            self._equalities |= {
                int(oid or 0): Equality(base or "", operator) for oid, base, operator in rows if operator
            }
        return {name: self._equalities[oid] for name, oid in types.items()}


_SAVEPOINT: Final = "SAVEPOINT chunk"
_WATERMARK: Final = f"SELECT pg_logical_emit_message(true, {literal(WATERMARK)}, '')"
_ALTERED: Final = "its columns were altered"
CORRECT_QUERY: Final = (
    "Correct the table's query in snapshot.queries: it returns all columns of the table and no others, with their "
    "names and types, writes names of functions and of other tables with their schemas, and neither changes nor locks "
    "rows (FOR UPDATE)."
)
_CORRECT: Final = "Correct the condition of the request, and send the request again."
