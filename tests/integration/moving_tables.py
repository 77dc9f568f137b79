"""Tables that are written to all the time, for whoever reads them meanwhile; a quarter of the rows is left alone."""

import random
import threading
from typing import Final, Self

import psycopg

from deploy.local import PostgresServer

ROWS: Final = 20_000
PACE_S: Final = 0.004
"""Between transactions of a session: a stream that is never caught up is another test's matter."""
QUIET: Final = 4
"""Rows of `items` whose id is a multiple of it are never written to."""

TABLES: Final = ["public.items", "public.parts_a", "public.parts_b", "public.odd", "public.nothing"]
SCHEMA: Final = """
CREATE TABLE items (id bigint PRIMARY KEY, note text, n int NOT NULL DEFAULT 0);
CREATE TABLE parts (id bigint, region text, note text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE parts_a PARTITION OF parts FOR VALUES IN ('a');
CREATE TABLE parts_b PARTITION OF parts FOR VALUES IN ('b');
CREATE TABLE odd (id int PRIMARY KEY, body text, flag bool, price numeric(10,2), at timestamptz, tags text[],
                  doc jsonb);
CREATE TABLE nothing (id int PRIMARY KEY);
INSERT INTO odd VALUES (1, E'tab\\there\\\\ and\\nline \\r\\x07 "q" ü', true, 1.50, '2020-02-03 04:05:06+02',
                        '{a,"b c"}', '{"k": [1]}'),
                       (2, NULL, NULL, NULL, NULL, NULL, NULL), (3, '\\N', false, 'NaN', 'infinity', '{}', 'null');
"""


def fill(server: PostgresServer, database: str, *, rows: int = ROWS, width: int = 50) -> None:
    """Create the tables with so many rows in `items`, of up to `width` characters each, and a tenth in `parts`."""
    for statement in SCHEMA.strip().removesuffix(";").split(";\n"):
        server.execute(statement, database)
    server.execute(
        f"INSERT INTO items SELECT g, repeat('r', g % {width}) FROM generate_series(0, {rows} - 1) g",
        database,
    )
    server.execute(
        "INSERT INTO parts SELECT g, CASE g % 2 WHEN 0 THEN 'a' ELSE 'b' END, 'p' "
        f"FROM generate_series(0, {rows} / 10) g",
        database,
    )


class Writers:
    """Sessions that change `items` and `parts` all the time, in transactions of their own; a context manager.

    Args:
        first: the number of the first session, by which they draw; no two that ever write to the same tables may
            have the same, since ids of rows that they insert rest on it.
    """

    def __init__(self, dsn: str, sessions: int = 2, *, rows: int = ROWS, first: int = 0) -> None:
        self._dsn = dsn
        self._rows = rows
        self._stop = threading.Event()
        numbers = range(first, first + sessions)
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in numbers]
        self.failures: list[Exception] = []
        self.commits = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.failures, self.failures

    def _write(self, number: int) -> None:
        dice = random.Random(number)
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                fresh = 1_000_000 * (number + 1)
                connection.execute(f"SET synchronous_commit = {'off' if number % 2 else 'on'}")
                while not self._stop.wait(PACE_S):
                    with connection.transaction():
                        for _ in range(dice.randint(1, 4)):
                            fresh += 1
                            self._change(connection, dice, fresh)
                    self.commits += 1
        except (psycopg.Error, AssertionError) as failure:
            self.failures.append(failure)

    def _change(self, connection: psycopg.Connection, dice: random.Random, fresh: int) -> None:
        some = dice.randrange(self._rows)
        if some % QUIET == 0:
            some += 1
        match dice.randrange(5):
            case 0:
                connection.execute("INSERT INTO items VALUES (%s, 'new')", (fresh,))
            case 1:
                connection.execute("DELETE FROM items WHERE id = %s", (some,))
            case 2:
                connection.execute("UPDATE items SET id = %s WHERE id = %s", (fresh, some))
            case 3:
                connection.execute("UPDATE parts SET note = 'x' WHERE id = %s", (some // 10,))
            case _:
                connection.execute(
                    "UPDATE items SET n = n + 1, note = repeat('y', n %% 90) WHERE id = %s", (some,)
                )
