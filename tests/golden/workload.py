"""What the captured servers lived through: every message in every form that pgoutput can give it.

Steps are run one after the other by two sessions, so that transactions interleave. `PAUSE` waits until the
walsenders have sent what is in the WAL: without it a rollback would be known before anything was streamed.
The WAL is read by all modes at once, so a table that all of them publish tells the same story in each.

Wide rows are `repeat('x', …)`: 40 of them fill `logical_decoding_work_mem` and gzip makes nothing of them.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Step:
    """A session runs a statement; `copy` is what COPY FROM STDIN reads."""

    session: str
    sql: str
    copy: str = ""


PAUSE: Final = Step("", "")


def a(*statements: str) -> list[Step]:
    return [Step("a", sql) for sql in statements]


def b(*statements: str) -> list[Step]:
    return [Step("b", sql) for sql in statements]


# An aclitem has no binary form, so that it is text in binary mode too.
SCHEMA: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')",
    "CREATE DOMAIN mail AS text CHECK (VALUE LIKE '%@%')",
    "CREATE DOMAIN mood_of_day AS mood",
    "CREATE TYPE address AS (street text, number int)",
    'CREATE SCHEMA "Ünïcode Schema"',
    """CREATE TABLE person (
           id int PRIMARY KEY, name text, mood mood, today mood_of_day, mail mail, home address, tags text[],
           paid numeric(10, 2), born timestamptz, photo bytea, note text,
           grants aclitem, twice int GENERATED ALWAYS AS (id * 2) STORED)""",
    "ALTER TABLE person ALTER note SET STORAGE EXTERNAL",
    "CREATE TABLE whole (id int PRIMARY KEY, name text, note text)",
    "ALTER TABLE whole REPLICA IDENTITY FULL",
    "ALTER TABLE whole ALTER note SET STORAGE EXTERNAL",
    "CREATE TABLE by_index (id int, code text NOT NULL, name text)",
    "CREATE UNIQUE INDEX by_index_code ON by_index (code)",
    "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code",
    "CREATE TABLE blind (id int PRIMARY KEY, name text)",
    "ALTER TABLE blind REPLICA IDENTITY NOTHING",
    "CREATE TABLE no_columns ()",
    'CREATE TABLE "Ünïcode Schema"."Größe.x" ("Größe" int PRIMARY KEY, "select" text, "a.b" text)',
    "CREATE TABLE customer (id serial PRIMARY KEY, name text)",
    "CREATE TABLE purchase (id serial PRIMARY KEY, customer int REFERENCES customer, item text)",
    "CREATE TABLE measure (day date, value int, PRIMARY KEY (day, value)) PARTITION BY RANGE (day)",
    "CREATE TABLE measure_2024 PARTITION OF measure FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')",
    "CREATE TABLE wide (id int PRIMARY KEY, filler text, mood mood)",
    "SELECT pg_replication_origin_create('upstream')",
    "CREATE PUBLICATION golden FOR ALL TABLES",
)

ROWS: Final = [
    *a(
        """INSERT INTO person (id, name, mood, today, mail, home, tags, paid, born, photo, note, grants) VALUES
           (1, 'Ada', 'happy', 'ok', 'ada@example.org', ('Main Street', 7), '{x,"y z",NULL}', 12.50,
            '1815-12-10 12:00:00+00', '\\x00ff10', repeat('z', 3000),
            makeaclitem(10, 10, 'SELECT', false)),
           (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
           (3, '', 'sad', 'sad', '@', (NULL, NULL), '{}', 'NaN', 'infinity', '',
            E'tab\\tline\\nend', NULL)""",
        "UPDATE person SET name = 'Ada Lovelace' WHERE id = 1",
        "UPDATE person SET id = 20 WHERE id = 2",
        "UPDATE person SET id = 10, note = repeat('y', 3000) WHERE id = 1",
        "UPDATE person SET id = 11 WHERE id = 10",
        "DELETE FROM person WHERE id = 3",
        "INSERT INTO whole VALUES (1, 'one', repeat('z', 3000)), (2, NULL, NULL)",
        "UPDATE whole SET name = 'uno' WHERE id = 1",
        "UPDATE whole SET id = 3, note = '' WHERE id = 2",
        "DELETE FROM whole WHERE id = 1",
        "INSERT INTO by_index VALUES (1, 'a', 'first'), (NULL, 'b', NULL)",
        "UPDATE by_index SET name = 'changed' WHERE code = 'a'",
        "UPDATE by_index SET code = 'c' WHERE code = 'b'",
        "DELETE FROM by_index WHERE code = 'a'",
        "INSERT INTO blind VALUES (1, 'insert only')",
        "INSERT INTO no_columns DEFAULT VALUES",
        """INSERT INTO "Ünïcode Schema"."Größe.x" VALUES (1, 'Straße', '日本語 🐘')""",
        "INSERT INTO measure VALUES ('2024-02-29', 1)",
    ),
    # One multi-insert record: its rows share an LSN.
    Step("a", "COPY whole FROM STDIN", "100\tcopied\t\\N\n101\tcopied\t\\N\n102\tcopied\t\\N\n"),
    *a(
        "INSERT INTO person (id, name) VALUES (11, 'again') ON CONFLICT (id) DO UPDATE SET name = excluded.name",
        "BEGIN",
        "INSERT INTO whole VALUES (200, 'kept', NULL)",
        "SAVEPOINT s",
        "INSERT INTO whole VALUES (201, 'rolled back', NULL)",
        "ROLLBACK TO s",
        "INSERT INTO whole VALUES (202, 'kept', NULL)",
        "SAVEPOINT t",
        "DELETE FROM whole WHERE id = 100",
        "RELEASE t",
        "COMMIT",
        "BEGIN",
        "INSERT INTO whole VALUES (203, 'rolled back', NULL)",
        "ROLLBACK",
    ),
]

DEFINITIONS: Final = [
    *a(
        "ALTER TABLE by_index ADD added int DEFAULT 5",
        "INSERT INTO by_index VALUES (5, 'e', 'after add')",
        "ALTER TABLE by_index DROP name",
        "INSERT INTO by_index VALUES (6, 'f')",
        "ALTER TABLE by_index RENAME code TO kode",
        "INSERT INTO by_index VALUES (7, 'g')",
        "ALTER TABLE by_index REPLICA IDENTITY FULL",
        "UPDATE by_index SET id = 8 WHERE kode = 'g'",
        "BEGIN",
        "INSERT INTO by_index VALUES (9, 'h')",
        "ALTER TABLE by_index ADD late text",
        "INSERT INTO by_index VALUES (10, 'i', 1, 'late')",
        "COMMIT",
        "CREATE TABLE born_later (id int PRIMARY KEY)",
        "INSERT INTO born_later VALUES (1)",
        "DROP TABLE born_later",
    ),
]

TRUNCATES: Final = [
    *a(
        "INSERT INTO customer (name) VALUES ('c')",
        "INSERT INTO purchase (customer, item) VALUES (1, 'i')",
        "TRUNCATE whole",
        "TRUNCATE by_index, blind, no_columns",
        "TRUNCATE purchase RESTART IDENTITY",
        "TRUNCATE customer CASCADE",
        "TRUNCATE customer, purchase RESTART IDENTITY CASCADE",
        "TRUNCATE measure",
    ),
]

MESSAGES: Final = [
    *a(
        "SELECT pg_logical_emit_message(true, 'alone', 'transactional')",
        "SELECT pg_logical_emit_message(false, 'alone', 'not transactional')",
        "SELECT pg_logical_emit_message(true, 'bytes', '\\x00ff'::bytea)",
        "SELECT pg_logical_emit_message(false, 'ünï', '')",
        "BEGIN",
        "INSERT INTO blind VALUES (2, 'with messages')",
        "SELECT pg_logical_emit_message(true, 'within', 'transactional')",
        "SELECT pg_logical_emit_message(false, 'within', 'not transactional')",
        "COMMIT",
        "BEGIN",
        "INSERT INTO blind VALUES (3, 'rolled back')",
        "SELECT pg_logical_emit_message(true, 'rolled back', 'transactional')",
        "SELECT pg_logical_emit_message(false, 'rolled back', 'not transactional')",
        "ROLLBACK",
    ),
]

ORIGIN_SETUP: Final = "SELECT pg_replication_origin_session_setup('upstream')"
ORIGIN_RESET: Final = "SELECT pg_replication_origin_session_reset()"

ORIGINS: Final = [
    *a(
        ORIGIN_SETUP,
        "BEGIN",
        "SELECT pg_replication_origin_xact_setup('A/BC', '2024-01-01 00:00:00+00')",
        "INSERT INTO blind VALUES (4, 'from upstream')",
        "COMMIT",
        ORIGIN_RESET,
        "INSERT INTO blind VALUES (5, 'from here')",
    ),
]

# Two transactions are streamed at once, with a small one in between; subtransactions of the first are rolled
# back after they were streamed, nested ones too.
STREAMED: Final = [
    *a(
        "BEGIN",
        "INSERT INTO wide SELECT g, repeat('x', 1600), 'ok' FROM generate_series(1, 50) g",
        "SELECT pg_logical_emit_message(true, 'streamed', 'kept')",
    ),
    PAUSE,
    *b(
        "BEGIN",
        "INSERT INTO wide SELECT g, repeat('y', 1600), 'sad' FROM generate_series(1001, 1050) g",
    ),
    PAUSE,
    *a(
        "SAVEPOINT outer_one",
        "INSERT INTO wide SELECT g, repeat('o', 1600) FROM generate_series(101, 150) g",
        "SAVEPOINT inner_one",
        "SELECT pg_logical_emit_message(true, 'streamed', 'in a subtransaction, rolled back')",
        "INSERT INTO wide SELECT g, repeat('i', 1600) FROM generate_series(201, 250) g",
        "SELECT pg_logical_emit_message(false, 'streamed', 'not transactional')",
        "UPDATE wide SET mood = 'happy' WHERE id = 201",
    ),
    PAUSE,
    *a(
        "ROLLBACK TO inner_one",
        "INSERT INTO wide SELECT g, repeat('j', 1600) FROM generate_series(301, 350) g",
    ),
    PAUSE,
    *a(
        "ROLLBACK TO outer_one",
        "SAVEPOINT released",
        "INSERT INTO wide SELECT g, repeat('r', 1600) FROM generate_series(401, 450) g",
        "RELEASE released",
        "SAVEPOINT other",
        "ALTER TABLE whole ADD rolled_back int",
        "INSERT INTO whole SELECT g, 's', repeat('s', 1600), 5 FROM generate_series(501, 550) g",
    ),
    PAUSE,
    *b(
        "INSERT INTO wide SELECT g, repeat('y', 1600), 'sad' FROM generate_series(1101, 1150) g",
    ),
    *a(
        "ROLLBACK TO other",
        "INSERT INTO whole VALUES (601, 'as before', NULL)",
        "CREATE TYPE colour AS ENUM ('red')",
        "ALTER TABLE person ADD colour colour DEFAULT 'red'",
        "INSERT INTO person (id, note) SELECT g, repeat('p', 3000) FROM generate_series(1000, 1020) g",
        "UPDATE person SET name = 'toast unchanged' WHERE id = 1000",
        "UPDATE person SET id = 999 WHERE id = 1001",
        "DELETE FROM person WHERE id = 1002",
        "INSERT INTO customer (name) VALUES ('c')",
        "TRUNCATE customer, purchase RESTART IDENTITY CASCADE",
        "INSERT INTO whole SELECT g, 'n', repeat('w', 1600) FROM generate_series(1, 40) g",
        "UPDATE whole SET name = NULL WHERE id = 1",
        "DELETE FROM whole WHERE id = 2",
    ),
    PAUSE,
    Step("b", "SELECT pg_logical_emit_message(true, 'streamed', 'another')"),
    *a("COMMIT"),
    PAUSE,
    # Its second half comes in blocks after the definition of a table that it uses was changed by others.
    *b(
        "INSERT INTO person (id, note) SELECT g, repeat('q', 1500) FROM generate_series(2000, 2050) g",
        "COMMIT",
    ),
    # All of it rolled back.
    *a(
        "BEGIN",
        "INSERT INTO wide SELECT g, repeat('a', 1600) FROM generate_series(2001, 2050) g",
        "SAVEPOINT s",
        "INSERT INTO wide SELECT g, repeat('a', 1600) FROM generate_series(2101, 2150) g",
    ),
    PAUSE,
    *a("ROLLBACK"),
    # From another server.
    *a(
        ORIGIN_SETUP,
        "BEGIN",
        "SELECT pg_replication_origin_xact_setup('A/BD', '2024-01-01 00:00:00+00')",
        "INSERT INTO wide SELECT g, repeat('o', 1600) FROM generate_series(3001, 3100) g",
        "COMMIT",
        ORIGIN_RESET,
    ),
    PAUSE,
]

TWO_PHASE: Final = [
    *a(
        "BEGIN",
        "INSERT INTO blind VALUES (10, 'prepared')",
        "SAVEPOINT s",
        "INSERT INTO blind VALUES (11, 'prepared, rolled back')",
        "ROLLBACK TO s",
        "SELECT pg_logical_emit_message(true, 'prepared', 'transactional')",
        "PREPARE TRANSACTION 'gid one'",
        "INSERT INTO blind VALUES (12, 'committed meanwhile')",
    ),
    PAUSE,
    *a("COMMIT PREPARED 'gid one'"),
    *a(
        "BEGIN",
        "INSERT INTO blind VALUES (13, 'prepared, rolled back')",
        "PREPARE TRANSACTION 'gid one'",
    ),
    PAUSE,
    *b("ROLLBACK PREPARED 'gid one'"),
    *a(
        "BEGIN",
        "INSERT INTO wide SELECT g, repeat('p', 1600) FROM generate_series(4001, 4050) g",
        "SAVEPOINT s",
        "INSERT INTO wide SELECT g, repeat('p', 1600) FROM generate_series(4101, 4150) g",
    ),
    PAUSE,
    *a(
        "ROLLBACK TO s",
        "INSERT INTO wide SELECT g, repeat('p', 1600) FROM generate_series(4201, 4250) g",
        "PREPARE TRANSACTION 'größer'",
    ),
    *b(
        "BEGIN",
        "INSERT INTO wide SELECT g, repeat('q', 1600) FROM generate_series(5001, 5100) g",
        "PREPARE TRANSACTION 'streamed, rolled back'",
    ),
    PAUSE,
    *b("ROLLBACK PREPARED 'streamed, rolled back'", "COMMIT PREPARED 'größer'"),
    *a(
        ORIGIN_SETUP,
        "BEGIN",
        "INSERT INTO blind VALUES (14, 'prepared, from upstream')",
        "SELECT pg_replication_origin_xact_setup('A/BE', '2024-01-01 00:00:00+00')",
        "PREPARE TRANSACTION 'from upstream'",
        "SELECT pg_replication_origin_xact_setup('A/BF', '2024-01-01 00:00:00+00')",
        "COMMIT PREPARED 'from upstream'",
        ORIGIN_RESET,
        # Nothing in it is published. 15 and up leave out such a transaction, but not when it is prepared.
        "BEGIN",
        "CREATE TABLE unused (id int)",
        "PREPARE TRANSACTION 'empty'",
        "COMMIT PREPARED 'empty'",
    ),
    PAUSE,
]

STEPS: Final = [*ROWS, *DEFINITIONS, *TRUNCATES, *MESSAGES, *ORIGINS, *STREAMED, *TWO_PHASE]
