"""Definitions that change while others write: columns come, go and change name and type, tables are born.

Columns of `shape` get names that are never used twice, so that a row which was not sent since a column came lacks
it, rather than having an older column's value. A column that changes name or type has all rows
touched in the same transaction, because nothing else tells a reader of the topics what old rows look like now.
"""

from typing import Any, Final

import psycopg
from psycopg import sql

from deploy.demo.dice import Dice
from deploy.demo.workload_tables import Statement

COLUMNS_MAX: Final = 6
TABLES_MAX: Final = 5


def change(dice: Dice, connection: psycopg.Connection, *, new_tables: bool) -> list[Statement]:
    """Statements that change a definition; what is possible is looked up first."""
    columns = [name for (name,) in _rows(connection, _COLUMNS)]
    tables = [name for (name,) in _rows(connection, _BORN)]
    choice = dice.random.random()
    if choice < 0.15:
        return [
            _statement("ALTER TABLE {} REPLICA IDENTITY " + dice.random.choice(("FULL", "DEFAULT")), "plain")
        ]
    if choice < 0.25:
        kind = dice.random.choice(("int", "bigint", "text"))
        return [_statement(f"ALTER TABLE shape ALTER number TYPE {kind} USING number::{kind}"), _TOUCH_ALL]
    if choice < 0.4 and new_tables:
        return _born(dice, tables)
    if not columns or (choice < 0.7 and len(columns) < COLUMNS_MAX):
        return _added(dice)
    chosen = dice.random.choice(columns)
    if choice < 0.85:
        return [_statement("ALTER TABLE shape DROP {}", chosen)]
    return [
        _statement("ALTER TABLE shape RENAME {} TO {}", chosen, _new_name(dice)),
        _TOUCH_ALL,
    ]


_TOUCH_ALL: Final = Statement("UPDATE shape SET touched = touched + 1")

_COLUMNS: Final = """SELECT attname FROM pg_attribute
    WHERE attrelid = 'shape'::regclass AND attname LIKE 'x\\_%%' AND NOT attisdropped ORDER BY attname"""

_BORN: Final = (
    "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^(born|made)_' ORDER BY relname"
)


def _added(dice: Dice) -> list[Statement]:
    name = _new_name(dice)
    kind = dice.random.choice(
        ("int", "text", "int DEFAULT 42", "text DEFAULT 'dëfault'", "mood DEFAULT 'ok'")
    )
    used = _statement("UPDATE shape SET {} = NULL, touched = touched + 1 WHERE id %% 3 = 0", name)
    return [_statement(f"ALTER TABLE shape ADD {{}} {kind}", name), *([used] if dice.chance(0.5) else [])]


def _born(dice: Dice, tables: list[str]) -> list[Statement]:
    """A table is created and used in one transaction, or, when there are many, dropped after a last write."""
    if len(tables) >= TABLES_MAX:
        table = dice.random.choice(tables)
        return [_statement("INSERT INTO {} VALUES (99, 'last')", table), _statement("DROP TABLE {}", table)]
    if dice.chance(0.3):
        made = _statement(
            "CREATE TABLE {} AS SELECT g AS id, 'as' AS name FROM generate_series(1, 5) g",
            f"made_{dice.fresh()}",
        )
        return [made]
    table = f"born_{dice.fresh()}"
    return [
        _statement("CREATE TABLE {} (id int PRIMARY KEY, name text)", table),
        _statement("INSERT INTO {} SELECT g, 'born' FROM generate_series(1, 3) g", table),
        _statement("UPDATE {} SET name = 'grown' WHERE id = 2", table),
    ]


def _new_name(dice: Dice) -> str:
    return f"x_{dice.fresh()}"


def _statement(text: str, *names: str) -> Statement:
    return Statement(sql.SQL(text).format(*map(sql.Identifier, names)).as_string(None))


def _rows(connection: psycopg.Connection, query: str) -> list[tuple[Any, ...]]:
    return connection.execute(query, ()).fetchall()
