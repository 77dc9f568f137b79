"""Reports of the sessions that lock the tables for which another session waits.

A thread with its own connection reads the locks.

A session that waits for the lock of a table, such as a Spark task's, gets no answer until it has the lock.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Final, Self

from cdcd.adapters.postgres.connection import Dsn, connect
from cdcd.adapters.postgres.tables import locked_tables, published_tables
from cdcd.core.errors import CdcdError

LOOK_S: Final = 4.0
"""Seconds between two checks. A lock is reported at its second sighting, so that short locks are not reported."""

APPLICATION: Final = "cdcd lock watch"

Tell = Callable[[str, str, float], None]
"""Callback with the table, a description of the lock's holder, and the seconds since the lock was seen first."""


class LockWatch:
    """Checks the locks while the `with` block runs. The thread calls `tell` again at each check.

    Args:
        publication: name of the publication of the tables.
        tables: names as `schema.table`.
    """

    def __init__(
        self,
        dsn: Dsn,
        publication: str,
        tables: Collection[str],
        tell: Tell,
        *,
        connect_timeout_s: float = 10.0,
    ) -> None:
        self._dsn = dsn
        self._publication = publication
        self._tables = frozenset(tables)
        self._tell = tell
        self._connect_timeout_s = connect_timeout_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lock watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except (CdcdError, OSError):
            # The reader of the tables meets the same failure and reports it.
            return

    async def _watch(self) -> None:
        connection = await connect(
            self._dsn, application_name=APPLICATION, connect_timeout_s=self._connect_timeout_s
        )
        try:
            published = await published_tables(connection, self._publication)
            names = {oid: name for oid, name in published.items() if name in self._tables}
            since: dict[int, float] = {}
            while not self._stop.is_set():
                locked, now = await locked_tables(connection, names), time.monotonic()
                for oid, who in locked.items():
                    if oid in since:
                        self._tell(names[oid], who, now - since[oid])
                since = {oid: since.get(oid, now) for oid in locked}
                await asyncio.to_thread(self._stop.wait, LOOK_S)
        finally:
            await connection.close()
