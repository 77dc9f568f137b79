"""Random changes of a few tables, by a seed: every kind of change, in transactions of every size; and of the tables."""

import random
from collections.abc import Callable
from typing import Any, Final

import psycopg

TABLES: Final = (
    """CREATE TABLE account (id int PRIMARY KEY, balance numeric(12, 2), note text, big text, flags int[], day date,
                             at timestamptz NOT NULL DEFAULT now(), stamp timestamp, doc jsonb, raw bytea,
                             open boolean)""",
    "ALTER TABLE account ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE pair (a int, b text, value bigint, tags text[], PRIMARY KEY (a, b))",
    "CREATE TABLE whole (id bigint PRIMARY KEY, price numeric, big text, span interval, took time)",
    "ALTER TABLE whole REPLICA IDENTITY FULL, ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE log (at timestamptz DEFAULT now(), what text)",
)
MIRRORED: Final = ("public.account", "public.pair", "public.whole")

DEFINITIONS: Final = (
    "ALTER TABLE account ALTER id TYPE bigint",
    "ALTER TABLE account ADD points int DEFAULT 7",
    "ALTER TABLE account RENAME note TO remark",
    "ALTER TABLE pair ADD extra text",
    "ALTER TABLE account DROP flags",
    "ALTER TABLE whole ADD since date DEFAULT '2020-02-29'",
    "ALTER TABLE account DROP points, ADD points text DEFAULT 'new'",
    "ALTER TABLE pair RENAME extra TO more",
)
"""All of them can be followed; each comes once, in this order. The one that writes the table again is the first: it
would take from the catalog what older rows hold of a column that came before it.
"""

TOUCH: Final = (
    "INSERT INTO account (id, balance) VALUES (-1, 0)",
    "INSERT INTO pair (a, b) VALUES (-1, '')",
    "INSERT INTO whole (id) VALUES (-1)",
)
"""A row for each table: a new definition is heard of with the next row."""

KEYS: Final = 200


class Workload:
    """Transactions on one connection; the same seed, the same changes.

    Args:
        settle: called before a table is changed; returns when the daemon has all that was before. It asks the catalog
            as of now, so what it is behind of it may take for what it is not (docs/mirror.md).
    """

    def __init__(
        self, connection: "psycopg.Connection[tuple[Any, ...]]", seed: int, settle: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._settle = settle
        self._random = random.Random(seed)
        self._definitions = list(DEFINITIONS)

    def run(self, transactions: int, *, definitions: int = 0) -> None:
        """So many transactions, and among them the next `definitions` changes of tables, as far as there are any."""
        places = self._random.sample(range(transactions), min(definitions, len(self._definitions)))
        for number in range(transactions):
            if number in places:
                self._settle()
                self._connection.execute(self._definitions.pop(0))
            with self._connection.transaction():
                for _ in range(self._random.choice((1, 1, 2, 5, 40))):
                    self._change()
            if self._random.random() < 0.05:
                with self._connection.transaction(force_rollback=True):
                    self._change()

    def _change(self) -> None:
        draw = self._random
        key = draw.randrange(KEYS)
        big = f"repeat('{draw.choice('abcdef')}', {draw.randrange(3000, 9000)})"
        statements = (
            (8, f"""INSERT INTO account (id, balance, big, day, stamp, doc, raw, open)
                    VALUES ({key}, {draw.randrange(10**8)} / 100.0, {big},
                            date '0044-03-15 BC' + {draw.randrange(9 * 10**5)},
                            timestamp '1999-12-31 23:59:59.999999' + {key} * interval '1 day', '{{"k": [{key}, null]}}',
                            '\\x00ff{key:04x}', {draw.choice(("true", "false", "NULL"))})
                    ON CONFLICT (id) DO UPDATE SET balance = excluded.balance + 1, open = excluded.open"""),
            (6, f"UPDATE account SET balance = balance + {draw.randrange(100)} WHERE id % 17 = {key % 17}"),
            (2, f"UPDATE account SET big = {big} WHERE id = {key}"),
            (2, f"""UPDATE account SET id = {draw.randrange(KEYS, 2 * KEYS)}
                     WHERE id = {key} AND NOT EXISTS (SELECT FROM account WHERE id >= {KEYS})"""),
            (2, f"DELETE FROM account WHERE id IN ({key}, {key + 1}) OR id >= {KEYS}"),
            (5, f"""INSERT INTO pair (a, b, value, tags) VALUES ({key % 9}, 'ä"{key % 31}', {key}, '{{x,"y,z",NULL}}')
                    ON CONFLICT (a, b) DO UPDATE SET value = pair.value + 1"""),
            (1, f"DELETE FROM pair WHERE a = {key % 9}"),
            (4, f"""INSERT INTO whole VALUES ({key}, {draw.choice(("1.50", "'NaN'", "12345678901234567890.123456789"))},
                    {big}, interval '1 year 2 days 03:04:05.6', time '12:34:56.789') ON CONFLICT (id) DO NOTHING"""),
            (4, f"UPDATE whole SET price = price * 2 WHERE id BETWEEN {key} AND {key + 9} AND price < 1000000"),
            (1, f"DELETE FROM whole WHERE id = {key}"),
            (0.2, draw.choice(("TRUNCATE pair", "TRUNCATE whole, pair"))),
            (2, "INSERT INTO log (what) VALUES ('something')"),
        )  # fmt: skip
        statement = draw.choices([text for _, text in statements], [weight for weight, _ in statements])[0]
        self._connection.execute(statement)
