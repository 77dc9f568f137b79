"""A table with values out of line, the sessions that write to it, and what may happen to it while it is read."""

import random
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Self

import psycopg

from deploy.local import PostgresServer

ROWS: Final = 4000
BIG: Final = "(SELECT string_agg(md5((g * 100 + k)::text), '') FROM generate_series(1, 90) k)"
"""2,880 characters that lie out of line: an update that leaves them alone does not send them."""


class Writers:
    """Sessions that change `docs` all the time, most of them without its large values; a context manager."""

    def __init__(self, dsn: str, sessions: int = 2) -> None:
        self._dsn = dsn
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(sessions)]
        self.failures: list[Exception] = []
        self.commits = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the sessions, each after a whole transaction. Idempotent."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.failures, self.failures

    def _write(self, number: int) -> None:
        dice = random.Random(number)
        fresh = 1_000_000 * (number + 1)
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                while not self._stop.wait(0.002):
                    fresh += 1
                    some = dice.randrange(ROWS)
                    match dice.randrange(10):
                        case 0:
                            sql = f"INSERT INTO docs (id, big) SELECT g, {BIG} FROM (VALUES ({fresh})) v(g)"
                        case 1:
                            sql = f"DELETE FROM docs WHERE id = {some}"
                        case 2:
                            sql = f"UPDATE docs SET id = {fresh}, big = big || 'x' WHERE id = {some}"
                        case 3:
                            sql = f"UPDATE docs SET big = big || 'y' WHERE id = {some}"
                        case _:
                            sql = f"UPDATE docs SET n = n + 1 WHERE id = {some}"
                    connection.execute(sql)
                    self.commits += 1
        except psycopg.Error as failure:
            self.failures.append(failure)


def fill(server: PostgresServer, database: str) -> None:
    """Create `docs` with its rows."""
    for statement in _DOCS:
        server.execute(statement, database)


_DOCS: Final = (
    "CREATE TABLE docs (id int PRIMARY KEY, big text, n int NOT NULL DEFAULT 0)",
    "ALTER TABLE docs ALTER big SET STORAGE EXTERNAL",
    f"INSERT INTO docs SELECT g, {BIG} FROM generate_series(0, {ROWS} - 1) g",
    "VACUUM docs",
)

_SECOND: Final = (
    "CREATE TABLE docs_new (id int PRIMARY KEY, big text, n int NOT NULL DEFAULT 5)",
    f"INSERT INTO docs_new SELECT g, {BIG} FROM generate_series(0, {ROWS} * 2) g",
)
SWAP: Final = (*_SECOND, "ALTER TABLE docs RENAME TO docs_old; ALTER TABLE docs_new RENAME TO docs")
"""Another table takes the name; the last command is one transaction."""

CHANGES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "vacuum_full": ("VACUUM FULL docs",),
        "cluster": ("CLUSTER docs USING docs_pkey",),
        "add_column": (
            "ALTER TABLE docs ADD COLUMN note text DEFAULT 'none'",
            "UPDATE docs SET note = 'new' WHERE id % 3 = 0",
        ),
        "rewrite": ("ALTER TABLE docs ALTER n TYPE bigint",),
        "replace_column": ("ALTER TABLE docs DROP COLUMN n, ADD COLUMN n int NOT NULL DEFAULT 7",),
        "truncate": ("TRUNCATE docs",),
    }
)
"""What may happen to `docs` while it is read and written to, by name: commands, each a transaction of its own."""
