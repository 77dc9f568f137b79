"""A small shop: customers sign up, order, pay, cancel; sometimes its catalog is imported, or stock is moved.

The two things that come now and then, each announced in `news`: an import, one transaction of some thousand rows with a
part rolled back, which PostgreSQL streams before it commits; and a stock transfer, prepared and decided seconds
later (two-phase commit), every other one to be rolled back.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg import ClientCursor, errors

SCHEMA: Final = """
    CREATE TYPE order_status AS ENUM ('open', 'paid', 'shipped');
    CREATE TABLE customers (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, email text NOT NULL UNIQUE,
        city text, signed_up timestamptz NOT NULL DEFAULT now());
    CREATE TABLE products (
        sku text PRIMARY KEY, title text NOT NULL, price numeric(10, 2) NOT NULL,
        stock int NOT NULL CHECK (stock >= 0), tags text[] NOT NULL DEFAULT '{}', description text);
    ALTER TABLE products ALTER description SET STORAGE EXTERNAL;
    CREATE TABLE orders (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer_id bigint NOT NULL REFERENCES customers,
        status order_status NOT NULL DEFAULT 'open', placed timestamptz NOT NULL DEFAULT now(), note jsonb);
    CREATE TABLE order_items (
        order_id bigint REFERENCES orders, line int, sku text NOT NULL REFERENCES products, quantity int NOT NULL,
        price numeric(10, 2) NOT NULL, PRIMARY KEY (order_id, line));
    CREATE INDEX ON order_items (sku);
    ALTER TABLE orders REPLICA IDENTITY FULL;
"""

TABLES: Final = ("public.customers", "public.products", "public.orders", "public.order_items")

SESSIONS: Final = 3
PRODUCTS: Final = 60
IMPORT_ROWS: Final = 4_000
IMPORT_EVERY_S: Final = 20.0
TRANSFER_EVERY_S: Final = 12.0
TRANSFER_OPEN_S: Final = 2.5

_NAMES: Final = ("Ada", "Grace", "Edsger", "Barbara", "Donald", "Zoë", "Jürgen", "Łukasz", "花子", "Niels")
_CITIES: Final = ("Berlin", "Zürich", "København", "Łódź", "東京", "São Paulo", None)
_THINGS: Final = ("Teapot", "Lamp", "Chair", "Kettle", "Clock", "Blanket", "Mirror", "Vase")


class Shop:
    """The shop's sessions, from `start` to `stop`. `error` is what ended one of them before its time."""

    def __init__(self, dsn: str, *, rate: float, seed: int = 1) -> None:
        """`rate`: transactions per second."""
        self.stats: Counter[str] = Counter()
        self.news = ""
        self.error: BaseException | None = None
        self._dsn = dsn
        self._rate = rate
        self._seed = seed
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()

    def create(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            connection.execute(SCHEMA)

    def start(self) -> None:
        """Fill the shelves and open."""
        with psycopg.connect(self._dsn, cursor_factory=ClientCursor) as connection:
            connection.execute(
                """INSERT INTO products SELECT 'P' || g, %s || ' ' || g, g %% 90 + 9.90, 200, ARRAY['new', 'n' || g],
                          CASE WHEN g %% 2 = 0 THEN repeat('fine ', 800) END FROM generate_series(1, %s) g""",
                ("Thing", PRODUCTS),
            )
        workers = [*(lambda n=n: self._serve(n) for n in range(SESSIONS)), self._import, self._transfer]
        for work in workers:
            thread = threading.Thread(target=self._guarded, args=(work,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, timeout_s: float = 30) -> None:
        """Close: what is begun is finished, what is prepared is decided. Raises what ended a session."""
        self._stop.set()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self.error is not None:
            raise self.error

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whoever stops us hears of it
            self.error = self.error or error

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(
            self._dsn,
            autocommit=True,
            cursor_factory=ClientCursor,
            application_name="shop",
            connect_timeout=5,
        )

    def _serve(self, number: int) -> None:
        dice = random.Random(f"{self._seed}.{number}")  # noqa: S311 - a shop, not a vault
        names, weights = list(_VISITS), [weight for _, weight in _VISITS.values()]
        interval = SESSIONS / self._rate
        due = time.monotonic() + interval * number / SESSIONS
        with self._connect() as connection:
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                name = dice.choices(names, weights)[0]
                try:
                    with connection.transaction():
                        _VISITS[name][0](connection, dice, self.stats)
                    self.stats[name] += 1
                except (errors.DeadlockDetected, errors.CheckViolation, errors.ForeignKeyViolation):
                    self.stats["rolled back"] += 1
                due = max(due + interval, time.monotonic() - 1)

    def _import(self) -> None:
        number = 0
        wait_s = 3.0
        with self._connect() as connection:
            while not self._stop.wait(wait_s):
                number += 1
                self.news = f"importing {IMPORT_ROWS} products in one transaction, which is streamed"
                with connection.transaction():
                    for part in range(4):
                        self._stop.wait(0.3)
                        connection.execute(_IMPORT, (number, part, IMPORT_ROWS // 4))
                        with connection.transaction(force_rollback=True):
                            connection.execute(_IMPORT, (number, f"{part}-void", 300))
                            connection.execute("UPDATE products SET stock = 0 WHERE sku LIKE 'I%%'", ())
                    connection.execute("UPDATE products SET price = price + 1 WHERE sku LIKE 'I%%'", ())
                with connection.transaction():
                    connection.execute("DELETE FROM products WHERE sku LIKE %s", (f"I{number - 1}-%",))
                self.stats["import"] += 1
                self.news = ""
                wait_s = IMPORT_EVERY_S

    def _transfer(self) -> None:
        number = 0
        wait_s = 1.5
        with self._connect() as connection:
            while not self._stop.wait(wait_s):
                number += 1
                gid = f"transfer-{number}"
                verdict = "COMMIT" if number % 2 else "ROLLBACK"
                connection.execute("BEGIN")
                # Products that nobody can order: what is prepared keeps its locks.
                connection.execute(
                    "INSERT INTO products SELECT %s || g, 'moved', 1, 5 FROM generate_series(1, 20) g",
                    (f"T{number}-",),
                )
                connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())
                self.news = f"{gid} is prepared"
                self._stop.wait(TRANSFER_OPEN_S)
                connection.execute(f"{verdict} PREPARED '{gid}'".encode())
                self.news = f"{verdict} PREPARED '{gid}'"
                self.stats[f"{verdict.lower()} prepared"] += 1
                wait_s = TRANSFER_EVERY_S


_IMPORT: Final = """
    INSERT INTO products SELECT 'I' || %s || '-' || %s || '-' || g, 'imported', g %% 50 + 1, 9, '{imported}',
           repeat(md5(g::text), 8)
      FROM generate_series(1, %s) g"""


def _sign_up(connection: psycopg.Connection, dice: random.Random, _: Counter[str]) -> None:
    name = dice.choice(_NAMES)
    email = f"{name.lower()}.{dice.getrandbits(48):x}@example.org"
    connection.execute(
        "INSERT INTO customers (name, email, city) VALUES (%s, %s, %s)", (name, email, dice.choice(_CITIES))
    )


def _order(connection: psycopg.Connection, dice: random.Random, stats: Counter[str]) -> None:
    """An order with its items; an item that is out of stock is rolled back to a savepoint."""
    row = connection.execute(
        """INSERT INTO orders (customer_id, note) SELECT id, %s FROM customers
           ORDER BY id DESC OFFSET %s LIMIT 1 RETURNING id""",
        (f'{{"gift": {"true" if dice.random() < 0.2 else "false"}}}', dice.randrange(20)),
    ).fetchone()
    if row is None:
        return
    for line in range(1, dice.randrange(2, 6)):
        try:
            with connection.transaction():
                sku, quantity = f"P{dice.randrange(1, PRODUCTS + 1)}", dice.randrange(1, 4)
                connection.execute(
                    """INSERT INTO order_items SELECT %s, %s, sku, %s, price FROM products WHERE sku = %s""",
                    (row[0], line, quantity, sku),
                )
                connection.execute("UPDATE products SET stock = stock - %s WHERE sku = %s", (quantity, sku))
        except errors.CheckViolation:
            stats["out of stock"] += 1


def _pay(connection: psycopg.Connection, dice: random.Random, _: Counter[str]) -> None:
    connection.execute(
        """UPDATE orders SET status = CASE status WHEN 'open' THEN 'paid' ELSE 'shipped' END::order_status WHERE id IN
           (SELECT id FROM orders WHERE status <> 'shipped' ORDER BY id OFFSET %s LIMIT 2 FOR UPDATE SKIP LOCKED)""",
        (dice.randrange(10),),
    )


def _cancel(connection: psycopg.Connection, _: random.Random, __: Counter[str]) -> None:
    row = connection.execute(
        "SELECT id FROM orders WHERE status = 'open' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"
    ).fetchone()
    if row is not None:
        connection.execute("DELETE FROM order_items WHERE order_id = %s", row)
        connection.execute("DELETE FROM orders WHERE id = %s", row)


def _restock(connection: psycopg.Connection, dice: random.Random, _: Counter[str]) -> None:
    connection.execute(
        "UPDATE products SET stock = stock + 50, price = price * %s WHERE sku = %s",
        (dice.choice(("0.95", "1", "1.07")), f"P{dice.randrange(1, PRODUCTS + 1)}"),
    )


def _move(connection: psycopg.Connection, dice: random.Random, _: Counter[str]) -> None:
    """A customer moves; now and then one asks to be forgotten."""
    if dice.random() < 0.3:
        connection.execute(
            """DELETE FROM customers c WHERE id = (SELECT min(id) FROM customers)
               AND NOT EXISTS (SELECT FROM orders WHERE customer_id = c.id)"""
        )
    else:
        connection.execute(
            "UPDATE customers SET city = %s WHERE id = (SELECT max(id) - %s FROM customers)",
            (dice.choice(_CITIES), dice.randrange(30)),
        )


def _leave(connection: psycopg.Connection, dice: random.Random, stats: Counter[str]) -> None:
    """A cart that is left standing: nothing of it may arrive."""
    _order(connection, dice, stats)
    raise psycopg.Rollback


_VISITS: Final[dict[str, tuple[Callable[[psycopg.Connection, random.Random, Counter[str]], None], int]]] = {
    "sign up": (_sign_up, 20),
    "order": (_order, 40),
    "pay": (_pay, 30),
    "cancel": (_cancel, 8),
    "restock": (_restock, 12),
    "move": (_move, 10),
    "left cart": (_leave, 6),
}
