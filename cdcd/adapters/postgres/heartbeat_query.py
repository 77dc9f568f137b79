"""Connection for the operator's heartbeat query, which can be run or only planned.

The statement is sent by the extended protocol, in which a server accepts one statement at a time. So `plan`
examines everything that `run` runs. `statement_timeout` and `lock_timeout` on the server limit the cost of the
query, and a timeout covers a server that does not answer. Rows are discarded on arrival.
"""

import asyncio
from typing import Final, Self

from psycopg import pq

from cdcd.adapters.postgres.answers import Answer, refused
from cdcd.adapters.postgres.connection import Dsn, open_session
from cdcd.adapters.postgres.session import Session
from cdcd.core.errors import SourceError, TransientError

WHAT: Final = "heartbeat.action_query"

MARGIN_S: Final = 5.0
"""Seconds after `statement_timeout` within which a working server has answered."""

_MS_PER_S: Final = 1000
_LOCK_SHARE: Final = 2

_SYNTAX: Final = "42601"

_HINTS: Final = {
    "3F000": "Correct the name of the schema.",
    "42P01": "Write the table with its schema, as public.heartbeat, because search_path is empty. Or create the table.",
    "42883": "Write the function with its schema, as public.beat(), because search_path is empty. Or create it.",
    "42601": "Correct the statement. It must be one statement of SQL.",
    "42501": "Grant the role of postgres.dsn what the statement needs, as GRANT INSERT, UPDATE, SELECT ON the table.",
    "25006": "The server is read-only. The query runs on the primary.",
    "57014": "The statement took longer than heartbeat.action_timeout_s. Make the statement faster, or raise this "
    "limit.",
    "55P03": "Another session held a lock for half of heartbeat.action_timeout_s. pg_locks says which.",
}
"""Hints by SQLSTATE."""


class HeartbeatQuery:
    """A connection for the heartbeat query.

    `open` the connection, `run` or `plan` the query, and `close` the connection.

    After an error, `is_lost` says if the connection is still usable.
    """

    def __init__(self, session: Session, query: str, timeout_s: float) -> None:
        self._session = session
        self._query = query.encode()
        self._timeout_s = timeout_s

    @classmethod
    async def open(
        cls, dsn: Dsn, query: str, *, application_name: str, connect_timeout_s: float, timeout_s: float
    ) -> Self:
        """Connect and set the timeouts. Errors as `open_session`."""
        session = await open_session(
            dsn, application_name=application_name, connect_timeout_s=connect_timeout_s
        )
        opened = cls(session, query, timeout_s)
        ms = round(timeout_s * _MS_PER_S)
        try:
            async with asyncio.timeout(MARGIN_S):
                await session.query(
                    f"SET statement_timeout = {ms}; SET lock_timeout = {max(1, ms // _LOCK_SHARE)}", WHAT
                )
        except TimeoutError:
            session.close()
            raise _silent(MARGIN_S) from None
        except BaseException:
            session.close()
            raise
        return opened

    @property
    def is_lost(self) -> bool:
        """True if the connection is lost or closed."""
        return self._session.is_lost

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._session.close()

    async def run(self) -> None:
        """Run the query.

        Raises:
            SourceError, TransientError: the server refuses the query or does not answer.
        """
        refusal = await self._bounded(self._query)
        if refusal is not None:
            raise self._error(refusal)
        if self._session.pgconn.transaction_status != pq.TransactionStatus.IDLE:
            self.close()
            raise SourceError(
                f"{WHAT}: the statement leaves a transaction or a COPY open, so its connection was closed.",
                hint="Write one statement that is complete in itself, such as INSERT or UPDATE.",
            )

    async def plan(self) -> bool:
        """Let the server plan the query in a read-only transaction, which is rolled back.

        Returns:
            True: the server planned the query. False: the server accepts the statement, but a statement of this
                kind (CALL) has no plan, so the role's privileges were not checked.

        Raises:
            SourceError, TransientError: the server would refuse the query.
        """
        await self._simple("BEGIN READ ONLY")
        if (refusal := await self._bounded(self._query, parse=True)) is not None:
            raise self._error(refusal)
        refusal = await self._bounded(b"EXPLAIN " + self._query)
        if refusal is not None and refusal.sqlstate != _SYNTAX:
            raise self._error(refusal)
        await self._simple("ROLLBACK")
        return refusal is None

    async def _simple(self, command: str) -> None:
        try:
            async with asyncio.timeout(MARGIN_S):
                await self._session.query(command, WHAT)
        except TimeoutError:
            self.close()
            raise _silent(MARGIN_S) from None

    async def _bounded(self, command: bytes, *, parse: bool = False) -> Answer | None:
        """Send the command, and return the server's refusal, or None if the command succeeds.

        If this call is cancelled, the caller owes `close`.
        """
        patience_s = self._timeout_s + MARGIN_S
        try:
            async with asyncio.timeout(patience_s):
                outcome = await (
                    self._session.parse(command) if parse else self._session.run_without_rows(command)
                )
        except TimeoutError:
            # The statement may still be running, so this connection is unusable for another statement.
            self.close()
            raise _silent(patience_s) from None
        return outcome.errors[0] if outcome.errors else None

    def _error(self, answer: Answer) -> SourceError | TransientError:
        hint = _HINTS.get(answer.sqlstate)
        if hint is not None:
            return SourceError(f"{WHAT}: {answer.message}", hint=hint)
        error = refused(WHAT, answer, self._session.names)
        kind = TransientError if isinstance(error, TransientError) else SourceError
        return kind(error.message, hint=error.hint)


def _silent(seconds: float) -> TransientError:
    return TransientError(
        f"{WHAT}: the server did not answer in {seconds:g} s.",
        hint="Find out whether PostgreSQL's machine is overloaded, suspended or cut off. The query is run again.",
    )
