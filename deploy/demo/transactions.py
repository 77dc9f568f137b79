"""The kinds of transactions of the workload, small to large, committed, rolled back or prepared."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Final

import psycopg
from psycopg import sql

from deploy.demo import workload_ddl
from deploy.demo.session import Prepared, RolledBackError, Session
from deploy.demo.workload_tables import Statement, statement

Kind = Callable[[Session, psycopg.Connection], None]


def _prepare(session: Session, connection: psycopg.Connection) -> None:
    free = [gid for gid in (f"{session.name}/{n}" for n in range(3)) if gid not in session.prepared]
    if not free:
        raise RolledBackError
    gid = free[0]
    dice, attempt = session.dice, session.attempt
    prepared = Prepared(f"{session.name}/{attempt.number}", 0, commit=dice.chance(0.7))
    prepared.due = session.attempts + dice.random.choice((0, 1, 5, 20, 100))
    attempt.session, attempt.sequence = prepared.session, 1
    # Only its own rows: others would have to wait for it as long as it is undecided.
    dice.own = True
    try:
        connection.execute("BEGIN")
        if dice.chance(0.15):
            # PostgreSQL 15 to 17 decode no PREPARE of such a transaction, but its end.
            connection.execute("SELECT 1 FROM plain WHERE id > %s LIMIT 3 FOR KEY SHARE", (dice.below(400),))
        else:
            _change(session, connection, doomed=not prepared.commit)
        # Noted before it is asked for: after a loss of the connection the server says whether it exists.
        session.prepared[gid] = prepared
        connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(gid)))
    except psycopg.Error:
        if not connection.closed:
            session.prepared.pop(gid, None)
        raise
    finally:
        dice.own = False


def _change(session: Session, connection: psycopg.Connection, *, doomed: bool) -> None:
    dice = session.dice
    with session.doomed() if doomed else contextlib.nullcontext():
        session.some(connection, 1, 4)
        if dice.chance(0.5):
            session.nested(connection, 2, lambda: session.some(connection, 0, 2))
        if session.large and dice.chance(0.4):
            session.wide(connection)
        session.log(connection)


def _single(session: Session, connection: psycopg.Connection) -> None:
    """One statement without a transaction block."""
    if session.dice.chance(0.5):
        session.log(connection)
    else:
        chosen = statement(session.dice)
        session.attempt.changes = None
        attempt = session.attempt
        log = "WITH logged AS (INSERT INTO events_log VALUES (%s, %s, %s, 'single', false, NULL, 0, %s)) "
        values = (attempt.session, attempt.sequence, attempt.number, session.standalone)
        connection.execute(log + chosen.sql, (*values, *chosen.values))
    session.committed()


def _small(session: Session, connection: psycopg.Connection) -> None:
    connection.execute("BEGIN")
    session.some(connection, 1, 5)
    session.commit(connection)


def _aborted(session: Session, connection: psycopg.Connection) -> None:
    connection.execute("BEGIN")
    with session.doomed():
        session.some(connection, 1, 5)
        session.log(connection)
    connection.execute("ROLLBACK")
    raise RolledBackError


def _many_rows(session: Session, connection: psycopg.Connection) -> None:
    connection.execute("BEGIN")
    rows = [(session.dice.fresh(), session.dice.word()) for _ in range(session.dice.below(40))]
    with connection.cursor().copy("COPY blind FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
    assert session.attempt.changes is not None
    session.attempt.changes += len(rows)
    session.execute(
        connection,
        Statement("UPDATE plain SET amount = amount + 1 WHERE id %% 7 = %s", (session.dice.below(7),)),
    )
    session.commit(connection)


def _savepoints(session: Session, connection: psycopg.Connection) -> None:
    connection.execute("BEGIN")
    session.nested(connection, 0, lambda: session.some(connection, 0, 2))
    session.commit(connection)


def _large(session: Session, connection: psycopg.Connection) -> None:
    connection.execute("BEGIN")
    session.wide(connection)
    session.nested(connection, 1, lambda: _large_step(session, connection))
    session.wide(connection)
    session.commit(connection)


def _large_aborted(session: Session, connection: psycopg.Connection) -> None:
    connection.execute("BEGIN")
    with session.doomed():
        session.wide(connection)
        session.nested(connection, 2, lambda: _large_step(session, connection))
        session.log(connection)
    connection.execute("ROLLBACK")
    raise RolledBackError


def _large_step(session: Session, connection: psycopg.Connection) -> None:
    (session.wide if session.dice.chance(0.6) else lambda c: session.some(c, 1, 3))(connection)


def _truncate(session: Session, connection: psycopg.Connection) -> None:
    connection.execute("BEGIN")
    session.some(connection, 0, 2)
    connection.execute(session.dice.random.choice(_TRUNCATES))
    if session.attempt.changes is not None:
        session.attempt.changes += 1
    session.some(connection, 0, 2)
    session.commit(connection)


def _definitions(session: Session, connection: psycopg.Connection) -> None:
    connection.execute("BEGIN")
    session.some(connection, 0, 1)
    chosen = workload_ddl.change(session.dice, connection, new_tables=session.new_tables)
    if session.dice.chance(0.3):
        connection.execute("SAVEPOINT definitions")
        with session.doomed():
            for each in workload_ddl.change(session.dice, connection, new_tables=session.new_tables):
                session.execute(connection, each)
            session.some(connection, 0, 2)
        connection.execute("ROLLBACK TO definitions")
    for each in chosen:
        session.execute(connection, each)
    session.some(connection, 0, 2)
    session.commit(connection)


def _empty(_: Session, connection: psycopg.Connection) -> None:
    """Locks and an xid, and nothing to send."""
    connection.execute("BEGIN")
    connection.execute(
        "SELECT txid_current(), (SELECT count(*) FROM (SELECT 1 FROM plain LIMIT 3 FOR UPDATE) x)"
    )
    connection.execute("COMMIT")


_TRUNCATES: Final = (
    "TRUNCATE whole",
    "TRUNCATE heap, nothing",
    "TRUNCATE by_index, blind, composite",
    "TRUNCATE measure",
    "TRUNCATE measure_2024 RESTART IDENTITY",
    "TRUNCATE shape, heap_full CASCADE",
)

KINDS: Final = {
    "single": 30,
    "small": 40,
    "many rows": 5,
    "savepoints": 12,
    "aborted": 6,
    "large": 6,
    "large aborted": 3,
    "prepared": 8,
    "truncate": 1,
    "definitions": 4,
    "empty": 2,
}
"""The kinds of transactions and how often each comes."""

NEEDS: Final = {
    "large": "large",
    "large aborted": "large",
    "prepared": "prepared",
    "truncate": "truncate",
    "definitions": "ddl",
}

RUN: Final[Mapping[str, Kind]] = {
    "single": _single,
    "small": _small,
    "many rows": _many_rows,
    "savepoints": _savepoints,
    "aborted": _aborted,
    "large": _large,
    "large aborted": _large_aborted,
    "prepared": _prepare,
    "truncate": _truncate,
    "definitions": _definitions,
    "empty": _empty,
}
