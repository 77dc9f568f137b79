"""Runs the operator's heartbeat query for the engine. The stream continues whatever the result of the query is."""

import time
from typing import Final

from cdcd.adapters.postgres.connection import Dsn
from cdcd.adapters.postgres.heartbeat_query import HeartbeatQuery
from cdcd.adapters.postgres.kept_lock import KeptLock
from cdcd.config.loading import Config
from cdcd.core.errors import CdcdError
from cdcd.core.facts import Observer
from cdcd.core.facts_operation import HeartbeatQueryFailed, HeartbeatQueryRuns
from cdcd.telemetry.state import Telemetry

REPORT_S: Final = 60.0
"""Seconds between two reports of a failing query."""


class HeartbeatAction:
    """Connection and state of the query; `run` it when the engine requests it. The caller owes `close`."""

    def __init__(
        self,
        config: Config,
        query: str,
        *,
        dsn: Dsn,
        lock: KeptLock,
        telemetry: Telemetry,
        observe: Observer,
    ) -> None:
        self._config = config
        self._query = query
        self._dsn = dsn
        self._lock = lock
        self._telemetry = telemetry
        self._observe = observe
        self._connected: HeartbeatQuery | None = None
        self._failures = 0
        self._report_at = 0.0

    def close(self) -> None:
        """Close the connection."""
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    async def run(self) -> None:
        """Run the query once, unless the lock's lease has run out, because another instance may be active then."""
        if not self._is_active():
            return
        try:
            connected = await self._connect()
            # Connecting took time, so the lease is checked again.
            if not self._is_active():
                return
            await connected.run()
        except CdcdError as error:
            self._failed(error)
        except BaseException:
            self.close()
            raise
        else:
            self._succeeded()

    def _is_active(self) -> bool:
        return not self._lock.lapsed

    async def _connect(self) -> HeartbeatQuery:
        if self._connected is not None and not self._connected.is_lost:
            return self._connected
        self.close()
        config = self._config
        self._connected = await HeartbeatQuery.open(
            self._dsn,
            self._query,
            application_name=f"{config.name} heartbeat",
            connect_timeout_s=config.postgres.connect_timeout_s,
            timeout_s=config.heartbeat.action_timeout_s,
        )
        return self._connected

    def _failed(self, error: CdcdError) -> None:
        self._telemetry.heartbeat_queries["failed"] += 1
        self._failures += 1
        now = time.monotonic()
        if self._failures == 1 or now >= self._report_at:
            self._report_at = now + REPORT_S
            self._observe(
                HeartbeatQueryFailed(message=error.message, hint=error.hint or "", failures=self._failures)
            )

    def _succeeded(self) -> None:
        self._telemetry.heartbeat_queries["done"] += 1
        if self._failures:
            self._observe(HeartbeatQueryRuns(failures=self._failures))
        self._failures = 0
