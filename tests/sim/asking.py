"""Carries out the engine's questions about tables against the simulated server, as `daemon/snapshot_driver.py` does.

Nothing here decides anything. Each look at the server is of one moment; between two of them, and before an answer
arrives, anything else may happen.
"""

from collections.abc import Callable, Generator, Mapping
from random import Random
from typing import Any, ClassVar, Final

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.engine.actions import (
    Answer,
    Busy,
    Compare,
    FindWriters,
    Gone,
    LetGo,
    ListPublished,
    Look,
    Looked,
    Lost,
    NextDifferences,
    NotComparable,
    Published,
    Question,
    Read,
    Taken,
    TakeSnapshot,
    Writers,
)
from cdcd.core.errors import TransientError
from cdcd.core.snapshot.reading import Rows, Visibility
from tests.sim.catalog import SCHEMA
from tests.sim.client import TYPES, Client
from tests.sim.comparing import Comparer
from tests.sim.postgres import ConnectionLostError, Postgres
from tests.sim.requests import PARTITIONED
from tests.sim.settings import Settings

P_NOT_COMPARABLE: Final = 0.15

WATERMARK: Final = "cdcd.watermark"

Asking = Generator[None, None, Answer]


class Asker:
    """The connections of one session beside the stream."""

    clients: ClassVar[type[Client]] = Client

    def __init__(self, settings: Settings, rng: Random, postgres: Postgres) -> None:
        self.settings = settings
        self.rng = rng
        self.postgres = postgres
        self.client = self.clients(postgres.wal, postgres.workload)
        self.healthy = False
        self.comparer: Comparer | None = None
        self.kept: dict[int, Visibility] = {}
        """Snapshots that sessions beside the stream keep, by their numbers."""

    def close(self) -> None:
        """The sessions have ended."""
        for number in list(self.kept):
            self._forget(number)

    def _forget(self, number: int) -> None:
        seen = self.kept.pop(number, None)
        if seen is not None:
            self.client.database.kept.remove(seen)

    def ask(self, question: Question) -> Asking:
        """The answer; `Lost` and `Busy` are drawn too."""
        try:
            yield from self.delay()
            answer = yield from QUESTIONS[type(question)](self, question)
            yield from self.delay()
        except ConnectionLostError:
            if isinstance(question, Read):
                self._forget(question.kept)
            return Lost(TransientError("The connection for snapshots is lost."))
        return answer

    def has(self, name: str) -> bool:
        """Whether the pipeline has the table `schema.table`."""
        return name.partition(".")[2] not in self.settings.left_out

    def published(self) -> dict[int, str]:
        """The published tables that the pipeline has, by oid."""
        return {oid: name for oid, name in self.client.published().items() if self.has(name)}

    def delay(self) -> Generator[None, None, None]:
        """The way to the server or back, on which the connection may be lost."""
        settings, rng = self.settings, self.rng
        if not self.healthy and rng.random() < settings.p_lost:
            raise ConnectionLostError
        for _ in range(int(rng.random() * settings.ask_ticks_max)):
            yield
        self.postgres.must_be_up()

    def _locked(self, is_locked: Callable[[], bool]) -> Generator[None, None, bool]:
        """Wait for a lock; whether it was not to be had in time."""
        waited = 0
        while is_locked():
            waited += 1
            if waited > self.settings.lock_ticks:
                return True
            yield
            self.postgres.must_be_up()
        return False

    def _look(self, question: Look) -> Asking:
        client = self.client
        oid = question.oid
        if not oid:
            oid = next((each for each, name in client.published().items() if name == question.name), 0)
            if not oid and self.settings.partitioned and question.name == f"{SCHEMA}.{PARTITIONED}":
                seen = client.visibility()
                return Looked(None, TableDescription(), {}, "", seen, client.published())
            yield from self.delay()
        if (yield from self._locked(lambda: client.is_locked([oid]))):
            return Busy("canceling statement due to lock timeout")
        tables, seen = client.look([oid])
        if not tables or not self.has(tables[0].name):
            return Looked(None, TableDescription(), {}, "it is left out" if tables else "", seen)
        (table,) = tables
        yield from self.delay()
        description = client.describe([oid])[oid]
        yield from self.delay()
        problem = client.examine(table, question.where) if question.where else ""
        return Looked(table, description, TYPES, problem, seen)

    def _find_writers(self, question: FindWriters) -> Asking:
        names, seen = self.client.writers(question.oids)
        yield from ()
        return Writers(names, seen)

    def _read(self, question: Read) -> Asking:
        client, database = self.client, self.client.database
        if question.exported and database.held is None:
            raise ConnectionLostError
        if (yield from self._locked(lambda: client.locks(question.query))):
            return Busy("canceling statement due to lock timeout")
        if question.exported and database.held is None:
            raise ConnectionLostError
        snapshot = database.held if question.exported else None
        if question.kept:
            snapshot = self.kept.get(question.kept)
            if snapshot is None:
                raise ConnectionLostError
        answer = client.read(question.query, snapshot, question.bytes_max)
        if isinstance(answer, Rows) and snapshot is None:
            # The server writes out its WAL up to what was seen.
            yield from self.delay()
            self.postgres.workload.watermark(WATERMARK)
        return answer

    def _take(self, question: TakeSnapshot) -> Asking:
        client = self.client
        seen = client.visibility()
        self.kept[question.number] = seen
        client.database.kept.append(seen)
        after = self.postgres.wal.end
        yield from self.delay()
        self.postgres.workload.watermark(WATERMARK)
        return Taken(seen, after)

    def _let_go(self, question: LetGo) -> Asking:
        self._forget(question.number)
        yield from ()
        return Gone()

    def _compare(self, question: Compare) -> Asking:
        held, fold = self.client.database.held, self.postgres.oracle.fold
        assert fold is not None
        if held is None:
            raise ConnectionLostError
        self.comparer = Comparer(self.settings, self.client, fold)
        yield from self.delay()
        if self.rng.random() < P_NOT_COMPARABLE:
            return NotComparable("records are not in the partitions of their keys")
        return self.comparer.compare(question.table, held)

    def _next(self, _question: NextDifferences) -> Asking:
        assert self.comparer is not None
        yield from ()
        return self.comparer.next()

    def _list(self, question: ListPublished) -> Asking:
        tables = self.published()
        dropped = tuple(sorted(question.bound - self.client.database.definitions.keys()))
        yield from self.delay()
        estimates = {oid: 7 for oid in tables if oid not in question.known}
        return Published(tables, self.postgres.wal.end, estimates, dropped=dropped)


QUESTIONS: Final[Mapping[type[Question], Callable[[Asker, Any], Asking]]] = {
    Look: Asker._look,
    FindWriters: Asker._find_writers,
    Read: Asker._read,
    TakeSnapshot: Asker._take,
    LetGo: Asker._let_go,
    ListPublished: Asker._list,
    Compare: Asker._compare,
    NextDifferences: Asker._next,
}
