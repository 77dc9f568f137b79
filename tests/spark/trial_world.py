"""A source that changes at random, by a seed: rows, columns, names of tables, topics, and the daemon itself.

It remembers its content after each transaction, so that a table can be compared with it at the LSN of any point.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from tests.integration.daemon import drop_slot
from tests.integration.forked import run_cdcd
from tests.spark.stage import Source

SETUP: Final = (
    "CREATE TABLE doc (id int PRIMARY KEY, n int, title text, body text)",
    "ALTER TABLE doc ALTER body SET STORAGE EXTERNAL",
    "CREATE TABLE red (id int PRIMARY KEY, a text, b text)",
    "CREATE TABLE blue (id int PRIMARY KEY, a text, b text)",
)
TABLES: Final = ("doc", "red", "blue")
PARTITIONS: Final = 3
KEYS: Final = 60
SKEWED: Final = 1500
"""Number of changes of one row. Their records lie in one partition, and are more than a batch takes."""

Content = tuple[tuple[str, ...], list[tuple[Any, ...]]]
"""The sorted names of a table's columns, and its sorted rows, which have the hash of each text."""


class Moment(NamedTuple):
    """The source after a transaction.

    Attributes:
        lsn: an LSN right before the commit of the transaction.
        doubtful: tables that the mirror cannot have as they were at this moment, because the daemon learns of their
            change only later. They are not compared at consistent points.
    """

    lsn: int
    content: dict[str, Content]
    doubtful: frozenset[str]


class World:
    """Changes the source at random, and remembers its content after each transaction."""

    def __init__(self, source: Source, dice: random.Random) -> None:
        self.moments: list[Moment] = []
        self.did: Counter[str] = Counter()
        self.is_mirrored = False
        self._source = source
        self._dice = dice
        self._connection = source.connect()
        self._doubtful: frozenset[str] = frozenset()
        self._added = 0
        self.commit(*(f"INSERT INTO {table} (id) SELECT generate_series(0, 9)" for table in TABLES))

    def close(self) -> None:
        self._connection.close()

    def commit(self, *statements: str) -> None:
        """Run the statements in one transaction, and remember the content of the source after it."""
        with self._connection.transaction():
            for statement in statements:
                self._connection.execute(statement.encode())
            found = self._connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        assert found is not None
        self.moments.append(Moment(int(found[0]), self.content(), self._doubtful))
        self.did["transactions"] += 1

    def told(self) -> str:
        """Returns how often each kind of event has happened so far, as text."""
        return ", ".join(f"{number} {what}" for what, number in self.did.items())

    def content(self) -> dict[str, Content]:
        """The present content of all tables."""
        return {table: self._content(table) for table in TABLES}

    def _content(self, table: str) -> Content:
        columns = self._connection.execute(
            "SELECT attname::text, atttypid = 'text'::regtype FROM pg_attribute"
            ' WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attname COLLATE "C"',
            (table,),
        ).fetchall()
        picked = ", ".join(f"md5({name})" if is_text else name for name, is_text in columns)
        rows = self._connection.execute(f"SELECT {picked} FROM {table}".encode()).fetchall()
        return tuple(name for name, _ in columns), sorted(rows, key=repr)

    def at(self, lsn: int) -> Moment:
        """The source as of an LSN."""
        return next(moment for moment in reversed(self.moments) if moment.lsn <= lsn)

    def change(self) -> None:
        """Do one of the kinds of changes."""
        kinds: Sequence[tuple[int, Callable[[], None]]] = (
            (12, self._rows),
            (2, self._skewed),
            (2, self._columns),
            (1, self._tables),
            # If a topic is deleted before the first mirror, no mirror can know the records that it had.
            (int(self.is_mirrored), self._topic),
            (2, self._killed),
            (2, self._away),
            (1, self._set_aside),
            (1, self._lost_slot),
        )
        (kind,) = self._dice.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])
        self.did[kind.__name__.strip("_")] += 1
        kind()

    # Kinds of changes.

    def _rows(self) -> None:
        for _ in range(self._dice.randrange(1, 6)):
            self.commit(*(self._row() for _ in range(self._dice.choice((1, 1, 3, 12)))))

    def _row(self) -> str:
        draw = self._dice
        key, other = draw.randrange(KEYS), draw.randrange(KEYS)
        side = draw.choice(("red", "blue"))
        letters = ", ".join(f"repeat('{draw.choice('abcdef')}', {draw.randrange(1, 9)})" for _ in range(2))
        statements = (
            (6, f"""INSERT INTO doc (id, n, body) VALUES ({key}, {other}, repeat(md5('{other}'), 200))
                    ON CONFLICT (id) DO UPDATE SET n = excluded.n"""),
            (4, f"UPDATE doc SET n = n + 1 WHERE id % 7 = {key % 7}"),
            (5, f"""UPDATE doc SET id = {other} WHERE id = {key}
                     AND NOT EXISTS (SELECT FROM doc WHERE id = {other})"""),
            (2, f"UPDATE doc SET body = repeat(md5('{key}{other}'), 150) WHERE id = {key}"),
            (2, f"DELETE FROM doc WHERE id IN ({key}, {other})"),
            (6, f"""INSERT INTO {side} VALUES ({key}, {letters})
                    ON CONFLICT (id) DO UPDATE SET a = excluded.a, b = NULL"""),
            (2, f"DELETE FROM {side} WHERE id = {key}"),
            (0.3, f"TRUNCATE {side}"),
        )  # fmt: skip
        return draw.choices([text for _, text in statements], [weight for weight, _ in statements])[0]

    def _skewed(self) -> None:
        self.commit("INSERT INTO doc VALUES (0, 0) ON CONFLICT (id) DO UPDATE SET n = 0")
        self.commit(
            f"DO $$ BEGIN FOR i IN 1..{SKEWED} LOOP UPDATE doc SET n = i WHERE id = 0; END LOOP; END $$"
        )
        self.commit(self._row())

    def _columns(self) -> None:
        # The daemon describes earlier rows by the present catalog, so it must have them before the change.
        self._source.deliver()
        self.commit(*self._alter()[1])

    def _alter(self) -> tuple[str, list[str]]:
        """A table, and statements that change its columns and insert a row, so that the daemon sees the change."""
        (columns, _) = self.content()["doc"]
        title = "title" if "title" in columns else "heading"
        renamed = "heading" if title == "title" else "title"
        side = self._dice.choice(("red", "blue"))
        swap = [f"ALTER TABLE {side} RENAME {names}" for names in ("a TO c", "b TO a", "c TO b")]
        return self._dice.choice(
            (
                ("doc", [f"ALTER TABLE doc RENAME {title} TO {renamed}", self._new_row("doc")]),
                (
                    "doc",
                    [f"ALTER TABLE doc ADD x{self._added} int DEFAULT {self._added}", self._new_row("doc")],
                ),
                (side, [*swap, self._new_row(side)]),
            )
        )

    def _tables(self) -> None:
        """Let two tables swap their names, and wait until the daemon has read both again."""
        self._source.deliver()
        daemon = self._source.daemon
        seen = len(daemon.events)
        with self._told_later("red", "blue"):
            swap = [
                f"ALTER TABLE {names}"
                for names in ("red RENAME TO t", "blue RENAME TO red", "t RENAME TO blue")
            ]
            self.commit(*swap, self._new_row("red"), self._new_row("blue"))
            for table in ("public.red", "public.blue"):
                daemon.await_event("table.read", after=seen, table=table)
            # This transaction commits after the daemon has read the tables, and the next point has its LSN.
            self.commit(
                "UPDATE doc SET n = n WHERE id = 0", "INSERT INTO doc VALUES (0) ON CONFLICT DO NOTHING"
            )
            self._source.deliver()

    def _topic(self) -> None:
        """Delete the topic of a table. The daemon makes it again."""
        table = self._dice.choice(TABLES)
        self._source.deliver()
        with self._told_later(table):
            assert self._source.daemon.stop() == 0
            self._source.delete_topics(table)
            self._start()
            self.commit(self._new_row(table))
            self._source.deliver()

    def _killed(self) -> None:
        """Kill the daemon while it works, and change rows before it starts again."""
        self._rows()
        self._source.daemon.kill()
        self._rows()
        self._start()

    def _away(self) -> None:
        """Change a table's columns while the daemon is stopped, and rows before and after that."""
        self._source.deliver()
        table, statements = self._alter()
        with self._told_later(table):
            assert self._source.daemon.stop() == 0
            self._rows()
            self.commit(*statements)
            self._rows()
            self._start()
            self._source.deliver()

    def _set_aside(self) -> None:
        """Let an operator stop a table, change rows, and let the table come back."""
        table = self._dice.choice(TABLES)
        self._source.deliver()
        with self._told_later(table):
            self._ask("stop", table, "table.aside")
            self._rows()
            self._source.deliver()
            self._ask("resume", table, "table.returned", "table.read")

    def _ask(self, verb: str, table: str, *answers: str) -> None:
        """Run `cdcd tables VERB`, and wait for these events of the table."""
        daemon, name = self._source.daemon, f"public.{table}"
        seen = len(daemon.events)
        done = run_cdcd("tables", verb, name, "--config", str(daemon.config_path))
        assert done.returncode == 0, done.stderr
        for answer in answers:
            daemon.await_event(answer, after=seen, table=name)

    def _lost_slot(self) -> None:
        """Drop the slot while the daemon is stopped, and change rows before the daemon heals the gap."""
        self._source.deliver()
        daemon = self._source.daemon
        with self._told_later(*TABLES):
            assert daemon.stop() == 0
            self._rows()
            drop_slot(self._source.dsn, f"cdcd_{self._source.name}")
            self._rows()
            daemon.config["snapshot"]["mode"] = "when_needed"
            seen = len(daemon.events)
            daemon.start()
            daemon.await_event("gap.healed", after=seen)
            daemon.await_streaming()
            self._source.deliver()

    def _new_row(self, table: str) -> str:
        """The statement for a row whose key no other one has."""
        self._added += 1
        return f"INSERT INTO {table} (id) VALUES ({1000 + self._added})"

    @contextmanager
    def _told_later(self, *tables: str) -> Iterator[None]:
        self._doubtful = frozenset(tables)
        yield
        self._doubtful = frozenset()

    def _start(self) -> None:
        self._source.daemon.start()
        self._source.daemon.await_streaming()
