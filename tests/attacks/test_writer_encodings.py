"""Bytes that are no text, and characters that UTF-8 lacks, in every encoding that a database can have.

Whoever may write a row can write such a value. It must cost that value only: null with the header `cdcd.unwritable`
stands for it, also after a restart, and in the snapshot as in the stream.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

import cdcd
from cdcd.config.loading import load_config
from cdcd.tools.verify.report import EQUAL
from cdcd.tools.verify.topics import ComparisonOptions, TopicsTarget
from deploy.demo.fold import await_flushed
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker, PostgresServer
from tests.attacks.checkpoints import cases
from tests.integration.daemon import Daemon, configuration
from tests.integration.visible_records import await_decided

attack = pytest.mark.attack(gains="the end of the pipeline, by one value", before="failed")
withstood = pytest.mark.attack(gains="the end of the pipeline, by one value", before="withstood")

SINGLE: Final = (
    *(f"LATIN{number}" for number in range(1, 11)),
    *(f"ISO_8859_{number}" for number in range(5, 9)),
    *(f"WIN125{number}" for number in range(9)),
    *("WIN866", "WIN874", "KOI8R", "KOI8U"),
)
MULTIPLE: Final = ("EUC_CN", "EUC_JP", "EUC_JIS_2004", "EUC_KR", "EUC_TW")

BYTES: Final[dict[str, list[bytes]]] = {
    # valid, and without UTF-8: cut off, overlong, a surrogate, beyond U+10FFFF, alone
    "SQL_ASCII": [
        b"\xc3\xa4",
        b"\xe9",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xc3",
        b"a\x80b",
    ],
    "EUC_CN": [b"\xb0\xa1", b"\xaa\xa1", b"\xfe\xfe"],
    "EUC_JP": [b"\xa4\xa2", b"\xa4\xa2\xfe\xfe", b"\x8e\xb1", b"\x8f\xa1\xa1"],
    "EUC_JIS_2004": [b"\xa4\xa2", b"\xa4\xf7", b"\xa9\xa1", b"\x8f\xa1\xa1"],
    "EUC_KR": [b"\xb0\xa1", b"\xc9\xa1", b"\xfe\xfe"],
    "MULE_INTERNAL": [b"\x81\xe9", b"\x92\xa4\xa2"],
    "EUC_TW": [b"\xc4\xa3", b"\x8e\xa2\xa1\xa1", b"\x8e\xb0\xa1\xa1", b"\xfe\xfe"],
}
"""Values of a text column, beside every byte of the encodings with one byte for each character."""


@contextmanager
def encoded(server: PostgresServer, name: str, encoding: str) -> Iterator[str]:
    """The DSN of a new database with this encoding."""
    server.execute(
        f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    try:
        yield server.dsn(name, client_encoding="LATIN1" if encoding == "MULE_INTERNAL" else "UTF8")
    finally:
        server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        with psycopg.connect(server.dsn(), autocommit=True) as sql:
            sql.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                "WHERE database = %s AND NOT active",
                (name,),
            )


def values_of(encoding: str) -> list[bytes]:
    if encoding in SINGLE:
        return [bytes([byte]) for byte in range(0x80, 0x100)]
    return BYTES[encoding]


def as_sql(value: bytes) -> str:
    return "E'" + "".join(f"\\x{byte:02x}" for byte in value) + "'"


def converted(dsn: str, table: str = "t") -> dict[int, str | None]:
    """What PostgreSQL itself makes of each value in UTF-8; None: nothing."""
    found: dict[int, str | None] = {}
    sql: psycopg.Connection[Any]
    with psycopg.connect(dsn, autocommit=True) as sql:
        for (row,) in sql.execute(f"SELECT id FROM {table}".encode()).fetchall():
            try:
                (found[row],) = (
                    sql.execute(f"SELECT note FROM {table} WHERE id = {row}".encode()).fetchone() or ()
                )
            except (psycopg.errors.CharacterNotInRepertoire, psycopg.errors.UntranslatableCharacter):
                found[row] = None
    return found


@dataclass(frozen=True)
class Got:
    """A record of a row: its operation, its `after`, and the columns that its header says are unwritable."""

    op: str
    after: dict[str, Any] | None
    unwritable: list[str]


def records(servers: str, name: str, table: str = "t") -> dict[int, Got]:
    found: dict[int, Got] = {}
    with Reader(servers, name) as reader:
        for each in reader.read_all():
            if each.topic != f"{name}.{table if '.' in table else f'public.{table}'}" or each.value is None:
                continue
            record = json.loads(each.value)
            if record["after"] is None:
                continue
            headers = dict(each.headers or ())
            names = json.loads(headers["cdcd.unwritable"]) if "cdcd.unwritable" in headers else []
            found[record["after"]["id"]] = Got(record["op"], record["after"], names)
    return found


SAME_AS_BEFORE: Final = {
    *("EUC_JIS_2004", "LATIN1", "LATIN2", "ISO_8859_5", "WIN866", "WIN1256", "KOI8R", "KOI8U"),
    *(f"LATIN{number}" for number in range(4, 11)),
}
"""Encodings in which PostgreSQL converts each of these values to UTF-8, so that 99c61843 read them."""

CASES: Final = [
    pytest.param(
        encoding,
        id=encoding,
        marks=[
            withstood if encoding in SAME_AS_BEFORE else attack,
            *([pytest.mark.worst] if encoding == "SQL_ASCII" else []),
        ],
    )
    for encoding in ("SQL_ASCII", "MULE_INTERNAL", *MULTIPLE, *SINGLE)
]


@pytest.mark.postgres(only=[13, 18])
@pytest.mark.parametrize("encoding", CASES)
def test_every_value_is_what_postgresql_makes_of_it_or_null_with_a_header(
    encoding: str,
    postgres: PostgresServer,
    broker: KafkaBroker,
    daemon: Callable[..., Daemon],
    unique: str,
):
    # GIVEN a table with every odd value that the encoding takes, read by the first snapshot
    servers = broker.bootstrap_servers
    with encoded(postgres, unique, encoding) as dsn:
        values, taken = values_of(encoding), []
        with psycopg.connect(dsn, autocommit=True, client_encoding="SQL_ASCII") as sql:
            sql.execute("CREATE TABLE t (id int PRIMARY KEY, note text, notes text[], other text)")
            for number, value in enumerate(values):
                text = as_sql(value)
                row = f"({number}, {text}, ARRAY['a', {text}], 'sound')"
                try:
                    sql.execute(f"INSERT INTO t VALUES {row}".encode())
                    taken.append(row)
                except psycopg.DataError:
                    continue
            assert taken
            running = daemon(configuration(unique, dsn, servers, snapshot={"mode": "initial"}))
            running.await_streaming()
            running.await_event("snapshot.finished")
            # WHEN the same values are written behind it, and the daemon is killed between two of them
            half = max(1, len(taken) // 2)
            shifted = [row.replace("(", "(1000 + ", 1) for row in taken]
            sql.execute(f"INSERT INTO t VALUES {', '.join(shifted[:half])}".encode())
            await_flushed(dsn, f"cdcd_{unique}")
            running.kill()
            running.start()
            running.await_streaming()
            if shifted[half:]:
                sql.execute(f"INSERT INTO t VALUES {', '.join(shifted[half:])}".encode())
            sql.execute("INSERT INTO t VALUES (5000, 'the end', NULL, NULL)")
        await_flushed(dsn, f"cdcd_{unique}")
        assert running.stop() == 0
        await_decided(servers, f"{unique}.public.t")
        # PostgreSQL has no way from MULE_INTERNAL to UTF-8, and takes no session that asks for one.
        expected = converted(dsn) if encoding != "MULE_INTERNAL" else dict.fromkeys(records(servers, unique))
        # THEN each is there, as PostgreSQL itself converts it; what it cannot convert is null, and is named
        found = records(servers, unique)
        assert found.keys() == expected.keys()
        for number, note in expected.items():
            got = found[number]
            assert got.op == ("r" if number < 1000 else "c")
            if number == 5000:
                continue
            assert got.after == {
                "id": number,
                "note": note,
                "notes": None if note is None else ["a", note],
                "other": "sound",
            }
            assert got.unwritable == ([] if note is not None else ["note", "notes"])


CHARS: Final = [
    pytest.param(encoding, id=encoding, marks=[withstood if encoding == "LATIN1" else attack])
    for encoding in ("UTF8", "SQL_ASCII", "LATIN1", "EUC_JP")
]


@pytest.mark.postgres(only=[13, 18])
@pytest.mark.parametrize("encoding", CHARS)
def test_every_byte_of_the_type_char_is_the_same_in_stream_and_snapshot(
    encoding: str,
    postgres: PostgresServer,
    broker: KafkaBroker,
    daemon: Callable[..., Daemon],
    unique: str,
):
    servers = broker.bootstrap_servers
    with encoded(postgres, unique, encoding) as dsn:
        with psycopg.connect(dsn, autocommit=True) as sql:
            sql.execute('CREATE TABLE t (id int PRIMARY KEY, note "char", notes "char"[])')
            rows = (
                """SELECT {0} + n, (n - 256)::"char", ARRAY['a', (n - 256)::"char"]::"char"[] """
                "FROM generate_series(128, 255) n"
            )
            sql.execute(f"INSERT INTO t {rows.format(0)}".encode())
            running = daemon(configuration(unique, dsn, servers, snapshot={"mode": "initial"}))
            running.await_event("snapshot.finished")
            sql.execute(f"INSERT INTO t {rows.format(1000)}".encode())
        await_flushed(dsn, f"cdcd_{unique}")
        assert running.stop() == 0
        await_decided(servers, f"{unique}.public.t")
        found = records(servers, unique)
    assert len(found) == 256
    for number in range(128, 256):
        read, streamed = found[number], found[1000 + number]
        assert (read.op, streamed.op) == ("r", "c")
        assert read.unwritable == streamed.unwritable
        assert {**(read.after or {}), "id": 0} == {**(streamed.after or {}), "id": 0}
        written = (read.after or {})["note"]
        if postgres.version >= 16:
            # charout writes an octal escape.
            assert (written, read.unwritable) == (f"\\{number:03o}", [])
        elif encoding == "LATIN1":
            assert (written, read.unwritable) == (chr(number), [])
        else:
            assert (written, read.unwritable) == (None, ["note", "notes"])


KEYS: Final = [
    ("SQL_ASCII", b"\xe9"),
    ("EUC_KR", b"\xc9\xa1"),
    ("EUC_TW", b"\x8e\xa7\xfe\xfe"),
    ("WIN1253", b"\xaa"),
]


@attack
@pytest.mark.postgres(only=[13, 18])
@pytest.mark.parametrize("first", ["stream", "snapshot"])
@pytest.mark.parametrize(("encoding", "value"), KEYS)
def test_a_key_that_cannot_be_decoded_ends_the_daemon_by_name_and_the_table_can_be_left_out(
    encoding: str,
    value: bytes,
    first: str,
    postgres: PostgresServer,
    broker: KafkaBroker,
    daemon: Callable[..., Daemon],
    unique: str,
):
    servers = broker.bootstrap_servers
    with encoded(postgres, unique, encoding) as dsn:
        with psycopg.connect(dsn, autocommit=True) as sql:
            sql.execute("CREATE TABLE t (id int, name text PRIMARY KEY, note text)")
            sql.execute("CREATE TABLE other (id int PRIMARY KEY)")
            insert = f"INSERT INTO t VALUES (1, {as_sql(value)}, 'secret')"
            if first == "snapshot":
                sql.execute(insert.encode())
            sections: dict[str, Any] = {"snapshot": {"mode": "initial"}}
            running = daemon(configuration(unique, dsn, servers, **sections))
            if first == "stream":
                running.await_streaming()
                sql.execute(insert.encode())
            # THEN the daemon says which column of which table it is, where, and what to do, and no value
            assert running.wait() == 3
            words = running.last_words()
            assert "public.t" in words
            assert "column name" in words
            assert "tables.exclude" in words
            assert "secret" not in words
            # WHEN the table is left out, THEN everything else goes on
            running = daemon(
                configuration(unique, dsn, servers, tables={"exclude": ["public.t"]}, **sections)
            )
            running.await_streaming()
            sql.execute("INSERT INTO other VALUES (7)")
        await_flushed(dsn, f"cdcd_{unique}")
        assert running.stop() == 0
        await_decided(servers, f"{unique}.public.other")
        assert records(servers, unique, "other").keys() == {7}


@attack
@pytest.mark.postgres(only=[13, 18])
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "EUC_KR"])
def test_a_program_goes_on_behind_a_value_that_cannot_be_decoded(
    encoding: str, postgres: PostgresServer, unique: str
):
    value = {"SQL_ASCII": b"\xe9", "EUC_KR": b"\xc9\xa1"}[encoding]

    async def read(dsn: str) -> list[cdcd.Change]:
        async with cdcd.connect(dsn, publication="all_of_it") as stream:
            with psycopg.connect(dsn, autocommit=True) as sql:
                sql.execute(f"INSERT INTO t VALUES (1, {as_sql(value)}, ARRAY[{as_sql(value)}])".encode())
                sql.execute(b"UPDATE t SET note = 'sound' WHERE id = 1")
            found: list[cdcd.Change] = []
            async for transaction in stream:
                found += [change async for change in transaction]
                if len(found) == 2:
                    return found
        return found

    with encoded(postgres, unique, encoding) as dsn:
        with psycopg.connect(dsn, autocommit=True) as sql:
            sql.execute("CREATE TABLE t (id int PRIMARY KEY, note text, notes text[])")
            sql.execute("ALTER TABLE t REPLICA IDENTITY FULL")
            sql.execute("CREATE PUBLICATION all_of_it FOR ALL TABLES")
        inserted, updated = asyncio.run(read(dsn))
    assert isinstance(inserted, cdcd.Insert)
    assert isinstance(updated, cdcd.Update)
    assert inserted.new == {"id": 1, "note": None, "notes": None}
    assert inserted.unwritable == ("note", "notes")
    assert updated.new == {"id": 1, "note": "sound", "notes": None}
    assert updated.unwritable == ("notes", "note")


@attack
@pytest.mark.postgres(only=[13, 18])
@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "EUC_KR"])
def test_a_text_within_another_type_costs_that_value_only(
    encoding: str,
    binary: bool,
    postgres: PostgresServer,
    broker: KafkaBroker,
    daemon: Callable[..., Daemon],
    unique: str,
):
    if binary and postgres.version < 14:
        pytest.skip("binary transfer needs PostgreSQL 14")
    servers = broker.bootstrap_servers
    value = {"SQL_ASCII": b"\xe9", "EUC_KR": b"\xc9\xa1"}[encoding]
    odd = as_sql(value)
    document = as_sql(b'{"k": "' + value + b'"}')
    with encoded(postgres, unique, encoding) as dsn:
        with psycopg.connect(dsn, autocommit=True, client_encoding="SQL_ASCII") as sql:
            for statement in (
                "CREATE EXTENSION citext",
                "CREATE DOMAIN mail AS text",
                "CREATE TYPE pair AS (a text, b int)",
                "CREATE TABLE t (id int PRIMARY KEY, j json, jb jsonb, d mail, ds mail[], p pair, c citext)",
                "ALTER TABLE t ADD v varchar(9), ADD b char(4), ADD js jsonb[], ADD cs citext[], ADD other text",
            ):
                sql.execute(statement.encode())
            row = (
                f"{document}, {document}, {odd}, ARRAY[{odd}]::mail[], ROW({odd}, 1)::pair, {odd}, {odd}, {odd}, "
                f"ARRAY[{document}]::jsonb[], ARRAY[{odd}]::citext[], 'sound'"
            )
            sql.execute(f"INSERT INTO t VALUES (1, {row})".encode())
            running = daemon(
                configuration(unique, dsn, servers, postgres={"binary": binary}, snapshot={"mode": "initial"})
            )
            running.await_event("snapshot.finished")
            running.await_streaming()
            sql.execute(f"INSERT INTO t VALUES (1001, {row})".encode())
            sql.execute(b"INSERT INTO t (id, other) VALUES (5000, 'the end')")
        await_flushed(dsn, f"cdcd_{unique}")
        assert running.stop() == 0
        await_decided(servers, f"{unique}.public.t")
        found = records(servers, unique)
    assert found.keys() == {1, 1001, 5000}
    names = ["j", "jb", "d", "ds", "p", "c", "v", "b", "js", "cs"]
    for number in (1, 1001):
        assert found[number].unwritable == names
        assert found[number].after == {"id": number, **dict.fromkeys(names), "other": "sound"}


@pytest.mark.postgres(only=[18])
@pytest.mark.parametrize(
    "kind",
    cases(
        {kind: kind for kind in ("prefix", "content", "gid")},
        "the end of the pipeline, by one logical message",
        failed={"prefix", "gid"},
    ),
)
def test_messages_and_prepared_transactions_with_bytes_that_are_no_text_end_nothing(
    kind: str, postgres: PostgresServer, broker: KafkaBroker, daemon: Callable[..., Daemon], unique: str
):
    servers = broker.bootstrap_servers
    with encoded(postgres, unique, "SQL_ASCII") as dsn:
        with psycopg.connect(dsn, autocommit=True) as sql:
            sql.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
            running = daemon(
                configuration(unique, dsn, servers, postgres={"messages": True, "two_phase": True})
            )
            running.await_streaming()
            statements = {
                "prefix": "SELECT pg_logical_emit_message(true, E'p\\xe9', 'x')",
                "content": "SELECT pg_logical_emit_message(true, 'p', E'\\xe9')",
                "gid": f"BEGIN; INSERT INTO t VALUES (2); PREPARE TRANSACTION E'{unique}\\xe9'",
            }
            sql.execute(statements[kind].encode())
            if kind == "gid":
                sql.execute(f"COMMIT PREPARED E'{unique}\\xe9'".encode())
            sql.execute("INSERT INTO t VALUES (7, 'behind it')")
        await_flushed(dsn, f"cdcd_{unique}")
        assert running.stop() == 0
        await_decided(servers, f"{unique}.public.t")
        assert records(servers, unique).keys() == ({2, 7} if kind == "gid" else {7})


@pytest.mark.attack(gains="a comparison that ends, or that calls other values equal", before="failed")
@pytest.mark.postgres(only=[18])
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "EUC_JP"])
def test_verify_compares_such_values(
    encoding: str,
    postgres: PostgresServer,
    broker: KafkaBroker,
    daemon: Callable[..., Daemon],
    unique: str,
    tmp_path: Path,
):
    servers = broker.bootstrap_servers
    with encoded(postgres, unique, encoding) as dsn:
        with psycopg.connect(dsn, autocommit=True) as sql:
            sql.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
            for number, value in enumerate(values_of(encoding)):
                with suppress(psycopg.DataError):
                    sql.execute(f"INSERT INTO t VALUES ({number}, {as_sql(value)})".encode())
            running = daemon(configuration(unique, dsn, servers, snapshot={"mode": "initial"}))
            running.await_event("snapshot.finished")
            sql.execute("INSERT INTO t SELECT id + 1000, note FROM t")
        await_flushed(dsn, f"cdcd_{unique}")
        with closing(
            TopicsTarget(
                load_config(running.config_path, {}), ComparisonOptions(timeout_s=120), tmp_path, print
            )
        ) as target:
            report = asyncio.run(target.verify())
        assert report.verdict == EQUAL
        assert running.stop() == 0
