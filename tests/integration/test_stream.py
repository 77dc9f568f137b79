"""`import cdcd`: committed transactions of real servers, in a program."""

import asyncio
import contextlib
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

import cdcd
from cdcd.core.protocol.versions import PROTOCOL_SINCE, STREAMING_PROTOCOL
from cdcd.stream.decoding import ChangeDecoder
from cdcd.stream.settings import StreamSettings
from cdcd.stream.stream import Stream
from tests.integration.conftest import Database
from tests.integration.daemon import await_released, until
from tests.integration.streams import (
    PUBLICATION,
    SMALL_WORK_MEM,
    confirmed,
    rows,
    slots,
    take,
)

pytestmark = pytest.mark.postgres(every=True)


def test_a_temporary_slot_has_what_is_committed_from_now_on_and_leaves_nothing(published: Database):
    database = published
    database.execute("INSERT INTO t VALUES (0, 'before')")
    database.execute("CREATE TABLE other (id int)")
    database.execute("ALTER TABLE other REPLICA IDENTITY FULL")
    big = "x" * 10_000
    database.execute("ALTER TABLE t ALTER note SET STORAGE EXTERNAL")

    async def read() -> list[tuple[cdcd.Transaction, list[cdcd.Change]]]:
        before = datetime.now(UTC)
        async with cdcd.connect(database.dsn(), publication=PUBLICATION) as stream:
            ((name, temporary, _),) = slots(database)
            assert (name, temporary, stream.slot_created) == (stream.slot, True, True)
            with database.connect(autocommit=False) as session:
                session.execute("INSERT INTO t VALUES (1, %s), (2, NULL)", (big,))
                session.execute("SAVEPOINT a")
                session.execute("INSERT INTO t VALUES (3, 'undone')")
                session.execute("ROLLBACK TO a")
                session.execute("UPDATE t SET id = 10 WHERE id = 1")
                session.commit()
                session.execute("INSERT INTO t VALUES (4, 'undone')")
                session.rollback()
            database.execute("INSERT INTO other VALUES (7)")
            database.execute("UPDATE other SET id = 8")
            database.execute("DELETE FROM t WHERE id = 2")
            database.execute("TRUNCATE t, other RESTART IDENTITY")
            found = await take(stream, 5)
        assert before <= found[0][0].commit_time <= datetime.now(UTC)
        return found

    found = asyncio.run(read())
    assert [[rows(change) for change in each] for _, each in found] == [
        [
            ("insert", {"id": 1, "note": big}),
            ("insert", {"id": 2, "note": None}),
            ("update", {"id": 1}, {"id": 10, "note": cdcd.UNCHANGED}),
        ],
        [("insert", {"id": 7})],
        [("update", {"id": 7}, {"id": 8})],
        [("delete", {"id": 2})],
        [("truncate", ["t", "other"])],
    ]
    (truncate,) = found[4][1]
    assert isinstance(truncate, cdcd.Truncate)
    assert (truncate.restart_identity, truncate.cascade) == (True, False)
    lsns = [transaction.commit_lsn for transaction, _ in found]
    assert lsns == sorted(set(lsns))
    assert all(change.lsn <= transaction.commit_lsn for transaction, each in found for change in each)
    until(lambda: True if not slots(database) else None, "the slot stayed")


def test_values_have_the_types_of_python(published: Database):
    database = published
    database.execute("CREATE DOMAIN amount AS numeric(12,2)")
    with_types = (
        "CREATE TYPE mood AS ENUM ('ok', 'sad');"
        "CREATE TABLE v (id bigint PRIMARY KEY, a amount, b bytea, d date, ts timestamptz, j jsonb, m mood, "
        "ms mood[], ns int[], f float8, ok boolean, u uuid);"
        "INSERT INTO v VALUES (1, 1.5, '\\x00ff', '2026-01-02', '2026-01-02 03:04:05.5+02', '{\"n\": 1.10}', 'sad', "
        "'{ok,sad}', '{1,NULL}', 'Infinity', true, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11');"
        "INSERT INTO v (id, d, ms) VALUES (2, 'infinity', '{}')"
    )

    async def read() -> list[cdcd.Change]:
        # GIVEN role settings that change how PostgreSQL writes values
        async with cdcd.connect(
            database.dsn(options="-c datestyle=SQL,DMY -c timezone=Asia/Kolkata -c bytea_output=escape"),
            publication=PUBLICATION,
        ) as stream:
            # WHEN types, table and rows come in one transaction
            with database.connect(autocommit=False) as session:
                session.execute(with_types)
                session.commit()
            return (await take(stream, 1))[0][1]

    first, second = asyncio.run(read())
    assert isinstance(first, cdcd.Insert)
    assert isinstance(second, cdcd.Insert)
    assert first.new == {
        "id": 1,
        "a": Decimal("1.50"),
        "b": b"\x00\xff",
        "d": date(2026, 1, 2),
        "ts": datetime(2026, 1, 2, 1, 4, 5, 500_000, tzinfo=UTC),
        "j": '{"n": 1.10}',
        "m": "sad",
        "ms": ["ok", "sad"],
        "ns": [1, None],
        "f": float("inf"),
        "ok": True,
        "u": UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    }
    assert (second.new["d"], second.new["ms"], second.new["a"]) == ("infinity", [], None)
    assert {each.name: each.type for each in first.table.columns}["a"] == "public.amount"
    assert (str(first.table), first.table.key, first.key) == ("public.v", ("id",), {"id": 1})


WAYS = [
    (protocol, mode)
    for protocol in PROTOCOL_SINCE
    for mode, least in STREAMING_PROTOCOL.items()
    if least <= protocol
]


def test_every_protocol_and_way_of_streaming_gives_the_same_transactions(published: Database):
    """Aborted parts of streamed transactions are invisible, and open transactions do not mix."""
    database = published
    ways = [
        (protocol, mode) for protocol, mode in WAYS if PROTOCOL_SINCE[protocol] <= database.version * 10_000
    ]
    expected = (
        [("insert", {"id": number, "note": "a" * 100}) for number in range(1, 2001)],
        [("insert", {"id": -1, "note": None})],
        [("insert", {"id": 10_000 + number, "note": "c"}) for number in range(3)],
    )

    async def read() -> list[Any]:
        async with contextlib.AsyncExitStack() as stack:
            streams = []
            for protocol, mode in ways:
                settings = StreamSettings(
                    database.dsn(options=SMALL_WORK_MEM),
                    PUBLICATION,
                    protocol=protocol,
                    streaming=mode.value,
                    spool_memory_bytes=50_000,
                )
                stream = Stream(settings, lambda _: ChangeDecoder())
                streams.append(await stack.enter_async_context(stream))
            with database.connect(autocommit=False) as large, database.connect(autocommit=False) as undone:
                large.execute("INSERT INTO t SELECT g, repeat('a', 100) FROM generate_series(1, 1000) g")
                undone.execute("INSERT INTO t SELECT -g, repeat('u', 100) FROM generate_series(2, 2000) g")
                large.execute("SAVEPOINT one")
                large.execute("INSERT INTO t SELECT g, repeat('b', 100) FROM generate_series(5001, 7000) g")
                large.execute("ROLLBACK TO one")
                large.execute("INSERT INTO t SELECT g, repeat('a', 100) FROM generate_series(1001, 2000) g")
                # In between, a small one
                database.execute("INSERT INTO t VALUES (-1)")
                undone.rollback()
                large.commit()
                database.execute("INSERT INTO t SELECT 10000 + g, 'c' FROM generate_series(0, 2) g")
            return [
                [(transaction.commit_lsn, transaction.xid, [rows(change) for change in each])
                 for transaction, each in await take(stream, 3)]
                for stream in streams
            ]  # fmt: skip

    found = asyncio.run(read())
    assert len(found) == len(ways)
    assert [each for _, _, each in found[0]] == [expected[1], expected[0], expected[2]]
    assert all(each == found[0] for each in found)


def test_a_prepared_transaction_comes_when_it_is_committed(published: Database, unique: str):
    read_prepared(published, unique, two_phase=False)


@pytest.mark.postgres(since=15)
def test_a_slot_with_two_phase_is_held_until_the_transaction_is_decided(published: Database, unique: str):
    read_prepared(published, unique, two_phase=True)


def read_prepared(database: Database, unique: str, *, two_phase: bool) -> None:
    flag = ", false, true" if two_phase else ""
    slot = unique[:60]
    database.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput'{flag})")

    def prepare(gid: str, number: int) -> None:
        with database.connect(autocommit=True) as session:
            session.execute("BEGIN")
            session.execute("INSERT INTO t VALUES (%s, 'prepared')", (number,))
            session.execute(f"PREPARE TRANSACTION '{gid}'")

    async def read() -> tuple[list[object], cdcd.Lsn]:
        async with cdcd.connect(database.dsn(), publication=PUBLICATION, slot=slot) as stream:
            before = confirmed(database, slot)
            prepare(f"{slot}_a", 1)
            prepare(f"{slot}_b", 2)
            database.execute("INSERT INTO t VALUES (3, 'meanwhile')")
            found = await take(stream, 1)
            database.execute(f"ROLLBACK PREPARED '{slot}_b'")
            database.execute("INSERT INTO t VALUES (4, 'later')")
            found += await take(stream, 1)
            if two_phase:
                # The slot would not send the first one again
                assert stream.confirmed_lsn <= before
            database.execute(f"COMMIT PREPARED '{slot}_a'")
            found += await take(stream, 1)
        return [rows(change) for _, each in found for change in each], found[-1][0].commit_lsn

    found, last = asyncio.run(read())
    assert found == [
        ("insert", {"id": 3, "note": "meanwhile"}),
        ("insert", {"id": 4, "note": "later"}),
        ("insert", {"id": 1, "note": "prepared"}),
    ]
    # The server has read what the stream told it last.
    await_released(database.dsn(), slot)
    assert confirmed(database, slot) > last


@pytest.mark.postgres(since=14)
def test_messages_come_where_they_are_asked_for(published: Database):
    database = published

    async def read(messages: bool, count: int) -> list[object]:
        async with cdcd.connect(database.dsn(), publication=PUBLICATION, messages=messages) as stream:
            with database.connect(autocommit=False) as session:
                session.execute("SELECT pg_logical_emit_message(false, 'p', 'alone')")
                session.execute("INSERT INTO t VALUES (1)")
                session.execute("SELECT pg_logical_emit_message(true, 'p', 'within')")
                session.commit()
            database.execute("DELETE FROM t")
            found = await take(stream, count)
        return [(transaction.xid == 0, [rows(change) for change in each]) for transaction, each in found]

    inserted, deleted = ("insert", {"id": 1, "note": None}), ("delete", {"id": 1})
    assert asyncio.run(read(True, 3)) == [
        (True, [("message", b"alone")]),
        (False, [inserted, ("message", b"within")]),
        (False, [deleted]),
    ]
    assert asyncio.run(read(False, 2)) == [(False, [inserted]), (False, [deleted])]
