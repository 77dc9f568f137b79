"""A randomized workload of several sessions, for the demo's checks and the tests that kill things.

Every transaction adds a row to `events_log`, with which the topics alone show that each was delivered once, whole
and in order:

- `(session, sequence)`: each session counts its committed transactions from 1 without gaps. A transaction that fails,
  for whatever reason, leaves its number to the next attempt; `attempt` is never used twice.
- `doomed`: true in everything that is going to be rolled back, so that no reader may ever see it.
- `changes`: how many events the transaction has without this row's own, null where that cannot be told.
- `messages`: how many transactional messages it has, whose content is `session sequence attempt n`.
- `standalone`: contents of the non-transactional messages that precede it in the WAL, as is certain once it is
  committed.

A prepared transaction is decided later, by its session or after its end by `stop`, and in no particular order: it is a
session of its own, with the one sequence 1.

Sessions live through the loss of their connection. Whether a commit took place whose answer was lost is asked of
`events_log`, and the primary key makes a number impossible to use twice even when that commit is still under way. All
of one seed's choices come from one generator per session; what differs between two runs is how they interleave.
"""

import contextlib
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from deploy.demo.session import Session
from deploy.demo.transactions import KINDS, NEEDS, RUN
from deploy.demo.workload_tables import ODD_SETTINGS, SCHEMA


@dataclass(frozen=True, slots=True)
class Features:
    """What the workload may do. `for_server` leaves out what the server lacks."""

    ddl: bool = True
    truncate: bool = True
    large: bool = True
    messages: bool = True
    prepared: bool = True
    new_tables: bool = True
    """Tables are created as it runs: the publication must be one FOR ALL TABLES."""
    odd_settings: bool = True
    """The database gets settings that make text come out otherwise (datestyle and so on)."""

    def for_server(self, connection: psycopg.Connection) -> "Features":
        found = connection.execute("SELECT current_setting('max_prepared_transactions')::int > 0").fetchone()
        return replace(
            self,
            messages=self.messages and connection.info.server_version >= 140000,
            prepared=self.prepared and found is not None and bool(found[0]),
        )


class Workload:
    """Sessions that write until `stop`. `create` its tables once, before or after the slot is made.

    As a context manager it starts and stops. The topics can equal the tables only if the slot is made before
    `start`. A bug in a session is raised by `stop`.
    """

    def __init__(
        self,
        dsn: str,
        seed: int,
        features: Features | None = None,
        *,
        sessions: int = 4,
        rate: float | None = None,
        kinds: dict[str, int] | None = None,
    ) -> None:
        """`rate`: transactions per second of all sessions together; `kinds`: weights over `KINDS`'."""
        self.dsn = dsn
        self.seed = seed
        self.features = features or Features()
        self.stats: Counter[str] = Counter()
        self._rate = rate
        self._kinds = {**KINDS, **(kinds or {})}
        self._sessions = sessions
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._errors: list[BaseException] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def create(self) -> None:
        """Create schema, types and tables; an empty database is expected."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            if self.features.odd_settings:
                name = sql.Identifier(connection.info.dbname)
                for setting, value in ODD_SETTINGS.items():
                    alter = sql.SQL("ALTER DATABASE {} SET {} = {}")
                    connection.execute(alter.format(name, sql.Identifier(setting), sql.Literal(value)))
            with connection.transaction():
                for statement_text in SCHEMA:
                    connection.execute(statement_text)

    def start(self) -> None:
        with psycopg.connect(self.dsn) as connection:
            features = self.features.for_server(connection)
        self._stop.clear()
        kinds = {
            name: weight
            for name, weight in self._kinds.items()
            if name not in NEEDS or getattr(features, NEEDS[name])
        }
        for number in range(self._sessions):
            session = Session(
                self.dsn,
                f"{self.seed}.{number}",
                number,
                self.stats,
                messages=features.messages,
                large=features.large,
                new_tables=features.new_tables,
            )
            arguments = (session, list(kinds), list(kinds.values()))
            thread = threading.Thread(target=self._run, args=arguments, name=session.name, daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def stop(self, timeout_s: float = 60) -> None:
        """End all sessions at the end of their transactions, and decide what is prepared.

        Waits for a server that is away. TimeoutError when that takes too long; a session's bug is raised here.
        """
        self._stop.set()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self.running:
            raise TimeoutError(f"The workload's sessions did not end within {timeout_s:.0f} s.")
        self._threads.clear()
        if self._errors:
            raise self._errors.pop()

    def _run(self, session: Session, kinds: list[str], weights: list[int]) -> None:
        interval = self._sessions / self._rate if self._rate else 0.0
        due = time.monotonic()
        try:
            with contextlib.closing(session):
                while not self._stop.wait(max(0.0, due - time.monotonic())):
                    kind = session.dice.random.choices(kinds, weights)[0]
                    session.run(kind, RUN[kind])
                    due = max(due + interval, time.monotonic() - 1)
                session.finish()
        except Exception as error:  # noqa: BLE001 - handed to whoever stops us
            self._errors.append(error)
