"""Reads rows of a table by COPY, selected by their pages or by their keys, at a known snapshot.

There are two kinds of snapshot. The snapshot that the slot exported is imported once, and this connection's transaction
holds it for all queries. Without it, each query takes its own snapshot. Its answer says what the snapshot sees
(`Rows.seen`), and names an LSN behind the commit of everything that the snapshot sees (`Rows.after`). The reader writes
a logical message behind that LSN, so that the stream reaches the LSN even on an idle server, or after commits with
synchronous_commit = off.

One transaction locks the table (ACCESS SHARE), checks it, and reads it. So nothing can come between: no rewrite that
hides rows or moves them to other pages (ALTER TABLE is not MVCC-safe, see the manual under "Caveats"), no other name,
no other columns. The transaction is READ ONLY, and is rolled back, so that settings that a condition changed are
restored.

An error that the condition of a request causes is the answer `Refused`. A TransientError is raised only if the
connection is lost, or for a reason that passes by itself.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Self

from psycopg import pq

from cdcd.errors import TransientError
from cdcd.postgres import snapshot_queries
from cdcd.postgres.connection import Dsn, open_session
from cdcd.postgres.refusals import UNKNOWN, Answer, TableBusyError, find_refusal, refused
from cdcd.postgres.replication import identifier, literal
from cdcd.postgres.session import Session, rows_of
from cdcd.postgres.snapshot_queries import Equality, unwritable
from cdcd.protocol.lsn import Lsn
from cdcd.snapshots import reading
from cdcd.snapshots.reading import Changed, KeyQuery, PageQuery, Refused, Rows, SourceTable, TooLarge
from cdcd.snapshots.signals import WATERMARK
from cdcd.snapshots.visibility import Visibility

LOCK_TIMEOUT_S: Final = 5.0
"""Default for the seconds that a query waits for a lock."""

CONDITION_TIMEOUT_S: Final = 60.0
"""Default for the seconds that a query with somebody's condition may take: what the condition calls may sleep."""

_CHANGED: Final = "changed"
_BUSY: Final = "busy"
_AGAIN: Final = "again"
_REFUSED: Final = "refused"

_KINDS: Final[tuple[tuple[str, str, str], ...]] = (
    ("42P01", "", _CHANGED),  # undefined_table
    ("3F000", "", _CHANGED),  # invalid_schema_name
    ("42703", "", _CHANGED),  # undefined_column
    ("42704", "", _CHANGED),  # undefined_object: a type
    ("42809", "", _CHANGED),  # wrong_object_type: a view has the name now
    ("XX000", "could not open relation", _CHANGED),
    ("XX000", "cache lookup failed", _CHANGED),
    ("55P03", "", _BUSY),  # lock_not_available
    ("08", "", _AGAIN),  # connection_exception
    ("40", "", _AGAIN),  # deadlock_detected and its kin
    ("53", "", _AGAIN),  # insufficient_resources
    ("57", "", _AGAIN),  # operator_intervention
    ("58", "", _AGAIN),  # system_error
    ("72000", "", _AGAIN),  # snapshot_too_old, before 17
)
"""(SQLSTATE or its beginning, part of an untranslated message, what it means). Any other error is `Refused`.

The condition of a request can raise any of these errors. In the step that evaluates it, every error is `Refused`.
"""

Mark = Callable[[], Awaitable[None]]
"""Writes a watermark."""

_CANCELED: Final = "57014"
_SYNTAX_ERROR: Final = "42601"

_BUILTIN_BEFORE: Final = 10000
"""FirstGenbkiObjectId (transam.h). A type with a smaller oid is not a domain. For a domain, a result names the base
type."""

_EXTENSION_FROM: Final = 16384
"""FirstNormalObjectId (transam.h): types from here on were created by users or extensions."""

_VALUES_MAX: Final = 60_000
"""Parameters that cdcd sends with one command. The protocol counts them in an Int16, so 65,535 is the limit."""

_EQUALITIES: Final = """
SELECT t.oid::int8, coalesce(equal.operator, '='),
       CASE WHEN t.typtype = 'c' THEN format('::%I.%I', n.nspname, t.typname) ELSE '' END
  FROM unnest({oids}::oid[]) AS wanted(oid) JOIN pg_type t USING (oid) JOIN pg_namespace n ON n.oid = t.typnamespace
  LEFT JOIN LATERAL (
      SELECT format('OPERATOR(%I.%s)', m.nspname, o.oprname) AS operator
        FROM pg_opclass c
        JOIN pg_am am ON am.oid = c.opcmethod AND am.amname = 'btree'
        JOIN pg_amop a ON a.amopfamily = c.opcfamily AND a.amopstrategy = 3
                      AND a.amoplefttype = c.opcintype AND a.amoprighttype = c.opcintype
        JOIN pg_operator o ON o.oid = a.amopopr JOIN pg_namespace m ON m.oid = o.oprnamespace
       WHERE c.opcdefault AND c.opcintype = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
  ) equal ON true
"""


class SnapshotReader:
    """One connection, which answers one query at a time. After a TransientError or a cancellation, call `close`."""

    def __init__(
        self,
        session: Session,
        *,
        block_size: int,
        has_timeout: bool,
        condition_timeout_s: float,
        mark: Mark | None = None,
    ) -> None:
        self._session = session
        self._mark = mark
        self._block_size = block_size
        self._has_timeout = has_timeout
        self._condition_timeout_s = condition_timeout_s
        self._imported = False
        self._equalities: dict[int, Equality] = {}

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
    ) -> Self:
        """Connect. Raises what `connection.open_session` raises. The caller owes `close`.

        Args:
            lock_timeout_s: seconds that a query waits for the lock of the table; 0: without limit.
            statement_timeout_s: seconds that the server may work on a query; 0: without limit.
            condition_timeout_s: the same for a query with a request's condition; the shorter limit counts.
            mark: writes the watermark behind the rows, on a session of another role; None: this session writes it.
        """
        session = await open_session(
            dsn, application_name=application_name, connect_timeout_s=connect_timeout_s
        )
        try:
            # row_security: rows that a policy hides would be missing in silence, so they raise an error.
            # synchronous_commit: a watermark need not wait for standbys.
            *_, ((block_size,),) = await session.query(
                "SET row_security = off; SET synchronous_commit = local; "
                f"SET lock_timeout = {round(lock_timeout_s * 1000)}; "
                f"SET statement_timeout = {round(statement_timeout_s * 1000)}; SHOW block_size",
                "preparing to read",
            )
        except BaseException:
            session.close()
            raise
        limits = [limit for limit in (statement_timeout_s, condition_timeout_s) if limit > 0]
        return cls(
            session,
            block_size=int(block_size or 0),
            has_timeout=statement_timeout_s > 0,
            condition_timeout_s=min(limits, default=0.0),
            mark=mark,
        )

    @property
    def server_version(self) -> int:
        """`server_version_num`, e.g. 180001."""
        return self._session.server_version

    def close(self) -> None:
        """Close the connection, which also ends a query that is running. Idempotent."""
        self._session.close()

    async def import_snapshot(self, name: str) -> None:
        """Read at this exported snapshot from now on. TransientError: the snapshot has ended."""
        await self._session.query(
            f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {literal(name)}",
            "importing the slot's snapshot",
        )
        self._imported = True

    async def export_snapshot(self) -> str:
        """The name of the imported snapshot for other sessions, of any role. It lasts as long as this session."""
        *_, ((name,),) = await self._session.query("SELECT pg_export_snapshot()", "exporting the snapshot")
        assert name is not None
        return name

    async def read(self, query: PageQuery | KeyQuery, bytes_max: int) -> reading.Answer:
        """Read the rows that the query selects, or find out why that is impossible.

        Args:
            bytes_max: bytes of all rows together; the answer to more is `TooLarge`.

        Raises:
            TableBusyError: somebody has locked the table. Try again later; this connection can still be used.
            TransientError: the connection is lost, or the query failed for a reason that passes by itself.
        """
        if problem := _unwritable(query):
            return Refused(problem, hint=_CORRECT)
        if isinstance(query, PageQuery):
            copy = snapshot_queries.copy_pages(query, self.server_version, self._block_size)
            return await self._read(query, copy, bytes_max)
        if self._imported:
            await self._session.query(_SAVEPOINT, _what(query))
        keys = await self._texts(query)
        if isinstance(keys, Answer):
            return await self._failed(query, "keys", keys)
        copy = snapshot_queries.copy_keys(query, keys, await self._compare(query))
        if self._imported:
            await self._session.query("RELEASE chunk", _what(query))
        return await self._read(query, copy, bytes_max)

    async def _read(self, query: PageQuery | KeyQuery, copy: str, bytes_max: int) -> reading.Answer:
        steps = {
            "begin": _SAVEPOINT if self._imported else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            "lock": f"LOCK TABLE {snapshot_queries.relation_of(query)} IN ACCESS SHARE MODE",
            "check": snapshot_queries.check(query),
            **({"limit": self._limit} if _has_request(query) else {}),
            **({"describe": snapshot_queries.description(query.table)} if self._imported else {}),
            "rows": copy,
            "names": snapshot_queries.names(query),
            "end": self._undo,
            **({} if self._imported or self._mark is not None else {"watermark": _WATERMARK}),
        }
        command = "; ".join(steps.values())
        outcome = await self._session.run(command.encode("utf-8", "surrogateescape"), bytes_max)
        # COPY gives one more result without rows, so each step that succeeded has one result.
        done = dict(zip(steps, outcome.results, strict=False))
        changed = self._changed(query, done)
        if outcome.errors:
            step = list(steps)[len(outcome.results)]
            return await self._failed(query, step, outcome.errors[0], changed)
        if changed:
            return Changed(changed)
        if outcome.size > bytes_max:
            return TooLarge()
        if self._imported:
            return Rows(outcome.lines, outcome.size)
        ((snapshot, after, *_),) = rows_of(done["check"])
        assert snapshot is not None
        assert after is not None
        if self._mark is not None:
            await self._mark()
        return Rows(outcome.lines, outcome.size, Visibility.parse(snapshot), Lsn.parse(after))

    @property
    def _undo(self) -> str:
        # ROLLBACK TO releases the table's lock, which RELEASE alone does not. ALTER TABLE waits for one query at most.
        return "ROLLBACK TO chunk; RELEASE chunk" if self._imported else "ROLLBACK"

    @property
    def _limit(self) -> str:
        """The timeout of a query with a condition; the settings of the session come back with the end."""
        return f"SET LOCAL statement_timeout = {round(self._condition_timeout_s * 1000)}"

    def _changed(self, query: PageQuery | KeyQuery, done: Mapping[str, pq.abc.PGresult]) -> str:
        """How the table differs from the plan of the query, as far as steps succeeded; empty if it does not differ."""
        if "check" not in done:
            return ""
        table = query.table
        part_oid = query.oid if isinstance(query, PageQuery) else table.oid
        ((_, _, part, filenode, named, columns),) = rows_of(done["check"])
        names = [(part, named), *(rows_of(done["names"]) if "names" in done else ())]
        if any(None in each for each in names):
            return "the table was dropped or renamed"
        if any(found != (str(part_oid), str(table.oid)) for found in names):
            return "another table has taken its name"
        if isinstance(query, PageQuery) and filenode != str(query.filenode):
            return "the table was rewritten (TRUNCATE, VACUUM FULL, CLUSTER or ALTER TABLE)"
        if not self._imported:
            return "" if columns == table.columns else _ALTERED
        if "describe" not in done:
            return ""
        return "" if _fits(done["describe"], table) else _ALTERED

    async def _failed(
        self, query: PageQuery | KeyQuery, step: str, answer: Answer, changed: str = ""
    ) -> Changed | Refused:
        """What a failure of one step means. The connection can still be used, unless TransientError is raised."""
        what = _what(query)
        if self._session.is_lost:
            raise _transient(what, answer)
        if step in ("end", "watermark"):
            raise refused(f"{what}: ending it", answer, self._session.names)
        await self._session.query(self._undo, what)
        if changed:
            return Changed(changed)
        # PostgreSQL parses the whole command before its first step, so a syntax error in the condition shows up there.
        if _has_request(query) and (step == "rows" or answer.sqlstate == _SYNTAX_ERROR):
            return Refused(f"the condition fails: {_said(answer)}", hint=_CORRECT)
        kind = _kind(answer)
        if answer.sqlstate == _CANCELED and self._has_timeout:
            return Refused(
                _said(answer),
                hint="Raise the statement timeout of snapshots, or find out what slows the server down.",
            )
        if kind == _BUSY:
            raise TableBusyError(f"{query.table.name} is locked: {_said(answer)}")
        if kind == _AGAIN:
            raise _transient(what, answer)
        return (
            Changed(_said(answer))
            if kind == _CHANGED
            else Refused(_said(answer), hint=self._hint(query, answer))
        )

    def _hint(self, query: PageQuery | KeyQuery, answer: Answer) -> str:
        role = self._session.names.get("role", "<role>")
        if answer.sqlstate == "42501":
            return (
                f"Grant the rights: GRANT USAGE ON SCHEMA {identifier(query.table.relation.namespace)} TO "
                f"{identifier(role)}; GRANT SELECT ON {_sql_name(query)} TO {identifier(role)}. If the table has "
                f"row-level security, also: ALTER ROLE {identifier(role)} BYPASSRLS."
            )
        row = find_refusal(answer)
        return "See PostgreSQL's log." if row is UNKNOWN else row.hint

    async def _texts(self, query: KeyQuery) -> list[list[str]] | Answer:
        """The keys as text; the server converts those that it sent in binary form. An `Answer` if the
        server refuses.
        """
        types = {column.name: column.type_oid for column in query.table.relation.columns}
        flat = [
            (value, types.get(name, 0))
            for key in query.keys
            for name, value in zip(query.key_columns, key, strict=True)
        ]
        texts = [value.decode("utf-8", "surrogateescape") for (_, value), _ in flat]
        binary = [place for place, ((is_binary, _), _) in enumerate(flat) if is_binary]
        for begin in range(0, len(binary), _VALUES_MAX):
            places = binary[begin : begin + _VALUES_MAX]
            formats = ", ".join(f"format('%s', ${number})" for number in range(1, len(places) + 1))
            outcome = await self._session.run_with(
                f"SELECT unnest(ARRAY[{formats}])".encode(),
                [flat[place][0][1] for place in places],
                [flat[place][1] for place in places],
                binary=True,
            )
            if outcome.errors:
                return outcome.errors[0]
            for place, (text,) in zip(places, rows_of(outcome.results[0]), strict=True):
                texts[place] = text or ""
        width = len(query.key_columns)
        return [texts[begin : begin + width] for begin in range(0, len(texts), width)]

    async def _compare(self, query: KeyQuery) -> dict[str, Equality]:
        """The equality operators of the key columns whose types are not built-in types."""
        types = {
            column.name: column.type_oid
            for column in query.table.relation.columns
            if column.name in query.key_columns and column.type_oid >= _EXTENSION_FROM
        }
        if missing := set(types.values()) - self._equalities.keys():
            oids = literal("{" + ",".join(map(str, missing)) + "}")
            *_, rows = await self._session.query(_EQUALITIES.replace("{oids}", oids), _what(query))
            self._equalities |= {oid: Equality() for oid in missing}
            self._equalities |= {
                int(oid or 0): Equality(operator or "=", cast or "") for oid, operator, cast in rows
            }
        return {name: self._equalities[oid] for name, oid in types.items()}


_SAVEPOINT: Final = "SAVEPOINT chunk"
_WATERMARK: Final = f"SELECT pg_logical_emit_message(true, {literal(WATERMARK)}, '')"
_ALTERED: Final = "its columns were altered"
_CORRECT: Final = "Correct the condition of the request, and send the request again."


def _what(query: PageQuery | KeyQuery) -> str:
    return f"reading {_sql_name(query)}"


def _sql_name(query: PageQuery | KeyQuery) -> str:
    return query.sql_name if isinstance(query, PageQuery) else query.table.sql_name


def _unwritable(query: PageQuery | KeyQuery) -> str:
    """Why the conditions cannot be sent at all; empty if they can."""
    for condition in query.conditions:
        if problem := unwritable(condition):
            return problem
    return ""


def _has_request(query: PageQuery | KeyQuery) -> bool:
    """Whether the query has the condition of a request. PostgreSQL allows only harmless row filters in a
    publication.
    """
    return any(condition and condition != query.table.row_filter for condition in query.conditions)


def _fits(described: pq.abc.PGresult, table: SourceTable) -> bool:
    """Whether the columns of now are those of the plan. A column that was added since does not count: it has no values
    at the snapshot.
    """
    planned = {attnum: (name, oid, modifier) for attnum, name, oid, modifier in json.loads(table.columns)}
    for place in range(described.nfields):
        name, type_oid, modifier = planned.get(described.ftablecol(place), ("", 0, 0))
        if (described.fname(place) or b"").decode() != name:
            return False
        now = described.ftype(place), described.fmod(place)
        if type_oid < _BUILTIN_BEFORE and now != (type_oid, modifier):
            return False
    return True


def _kind(answer: Answer) -> str:
    for sqlstate, fragment, kind in _KINDS:
        if answer.sqlstate.startswith(sqlstate) and fragment in answer.message:
            return kind
    return _REFUSED


def _said(answer: Answer) -> str:
    text = " ".join(f"{answer.message} {answer.detail}".split())
    return f"{text} [SQLSTATE {answer.sqlstate}]"


def _transient(what: str, answer: Answer) -> TransientError:
    """The error as a transient one. If a person must act, the next connection finds that out."""
    error = refused(what, answer, {})
    return error if isinstance(error, TransientError) else TransientError(error.message, hint=error.hint)
