"""The tables that the randomized workload writes to, and what it does to each.

Every kind of replica identity, key, name and value that a topic has to carry. Statements are made from a seeded
random generator and look at no result, so that a seed gives the same statements whatever the server answers. All tables
start empty. What may happen to a row of each table is the list `TABLES` below.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from deploy.demo.dice import WORDS, Dice

SCHEMA: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'Sad', 'ok', 'hapπ')",
    "CREATE DOMAIN percent AS numeric(5, 2) CHECK (VALUE BETWEEN 0 AND 100)",
    'CREATE SCHEMA "Ünïcode Schema"',
    """CREATE TABLE events_log (
           session text, sequence bigint, attempt bigint NOT NULL, kind text NOT NULL, doomed boolean NOT NULL,
           changes int, messages int NOT NULL, standalone text[] NOT NULL, PRIMARY KEY (session, sequence))""",
    """CREATE TABLE plain (
           id bigint PRIMARY KEY, name text, amount numeric(12, 2), ratio double precision, flag boolean, day date,
           at timestamptz, stamp timestamp, note text, blob bytea)""",
    "ALTER TABLE plain ALTER note SET STORAGE EXTERNAL, ALTER blob SET STORAGE EXTERNAL",
    "CREATE TABLE whole (id int PRIMARY KEY, name text, mood mood, big text, doc jsonb)",
    "ALTER TABLE whole REPLICA IDENTITY FULL, ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE by_index (id int, code text NOT NULL, name varchar(50), note text)",
    "CREATE UNIQUE INDEX by_index_code ON by_index (code)",
    "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code, ALTER note SET STORAGE EXTERNAL",
    "CREATE TABLE blind (id bigint PRIMARY KEY, name text)",
    "ALTER TABLE blind REPLICA IDENTITY NOTHING",
    "CREATE TABLE heap (number int, name text)",
    "CREATE TABLE heap_full (number int, name text, big text)",
    "ALTER TABLE heap_full REPLICA IDENTITY FULL, ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE loose (code int UNIQUE, name text)",
    "ALTER TABLE loose REPLICA IDENTITY FULL",
    """CREATE TABLE composite (
           tenant uuid, item text, mood mood, tags text[], counts int[], data json, doc jsonb,
           PRIMARY KEY (tenant, item))""",
    """CREATE TABLE measure (day date, sensor int, value numeric, note text, PRIMARY KEY (day, sensor))
           PARTITION BY RANGE (day)""",
    "CREATE TABLE measure_2024 PARTITION OF measure FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')",
    "CREATE TABLE measure_2025 PARTITION OF measure FOR VALUES FROM ('2025-01-01') TO ('2026-01-01')",
    "CREATE TABLE measure_else PARTITION OF measure DEFAULT",
    'CREATE TABLE "Ünïcode Schema"."Größe.x" ("Größe" int PRIMARY KEY, "select" text, "a.b" text)',
    'CREATE TABLE "Mixed Case" ("Id" int, id text, "ID" boolean, PRIMARY KEY ("Id"))',
    """CREATE TABLE kinds (
           id int PRIMARY KEY, small smallint, single real, free numeric, share percent, clock time, span interval,
           host inet, network cidr, numbers int4range, fixed char(5), moods mood[], amounts numeric[], days date[],
           words text[], twice int GENERATED ALWAYS AS (id * 2) STORED)""",
    "CREATE TABLE shape (id int PRIMARY KEY, name text, touched int NOT NULL DEFAULT 0, number int)",
    "CREATE TABLE nothing ()",
)

ODD_SETTINGS: Final = {
    "datestyle": "German, DMY",
    "intervalstyle": "sql_standard",
    "timezone": "Asia/Kolkata",
    "bytea_output": "escape",
    "extra_float_digits": "-3",
}
"""Given to the database, so that a reader that does not pin its own shows itself."""


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL with psycopg's placeholders. `uncounted`: it may make another number of events than rows."""

    sql: str
    values: tuple[object, ...] = ()
    uncounted: bool = False


Maker = Callable[[Dice], Statement]


def _plain_insert(dice: Dice) -> Statement:
    return Statement(
        """INSERT INTO plain VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
           ON CONFLICT (id) DO UPDATE SET name = excluded.name, ratio = excluded.ratio, at = excluded.at""",
        (dice.key(), dice.word(), dice.number(), dice.ratio(), dice.chance(0.5), dice.day(), dice.moment(),
         dice.moment(), dice.big(), dice.bytes()),
    )  # fmt: skip


def _plain_update(dice: Dice) -> Statement:
    return Statement(
        "UPDATE plain SET name = %s, amount = %s WHERE id = %s", (dice.word(), dice.number(), dice.key())
    )


def _plain_toast(dice: Dice) -> Statement:
    return Statement(
        "UPDATE plain SET note = %s, blob = %s WHERE id = %s", (dice.big(), dice.bytes(), dice.key())
    )


def _plain_rekey(dice: Dice) -> Statement:
    return Statement(
        "UPDATE plain SET id = %s, name = %s WHERE id = %s", (dice.fresh(), dice.word(), dice.key())
    )


def _plain_many(dice: Dice) -> Statement:
    low = dice.key()
    return Statement(
        "UPDATE plain SET flag = NOT flag WHERE id BETWEEN %s AND %s", (low, low + dice.below(12))
    )


def _plain_delete(dice: Dice) -> Statement:
    return Statement("DELETE FROM plain WHERE id = %s", (dice.key(),))


def _plain_sweep(dice: Dice) -> Statement:
    """Rows whose key was changed are never drawn again; take some of them away."""
    low = dice.fresh()
    return Statement("DELETE FROM plain WHERE id BETWEEN %s AND %s", (low, low + 400_000_000))


def _whole_insert(dice: Dice) -> Statement:
    return Statement(
        "INSERT INTO whole VALUES (%s, %s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET name = excluded.name",
        (dice.key(), dice.word(), dice.mood(), dice.big(), dice.doc()),
    )


def _whole_update(dice: Dice) -> Statement:
    return Statement(
        "UPDATE whole SET name = %s, doc = %s WHERE id = %s", (dice.word(), dice.doc(), dice.key())
    )


def _whole_toast(dice: Dice) -> Statement:
    return Statement("UPDATE whole SET big = %s WHERE id = %s", (dice.big(), dice.key()))


def _whole_rekey(dice: Dice) -> Statement:
    return Statement(
        "UPDATE whole SET id = %s, mood = %s WHERE id = %s", (dice.fresh(), dice.mood(), dice.key())
    )


def _whole_delete(dice: Dice) -> Statement:
    low = dice.key()
    return Statement("DELETE FROM whole WHERE id BETWEEN %s AND %s", (low, low + dice.below(3)))


def _index_insert(dice: Dice) -> Statement:
    return Statement(
        """INSERT INTO by_index VALUES (%s, %s, %s, %s)
           ON CONFLICT (code) DO UPDATE SET id = excluded.id, name = excluded.name""",
        (dice.key(), f"ç{dice.key()}", dice.word(), dice.big()),
    )


def _index_update(dice: Dice) -> Statement:
    return Statement(
        "UPDATE by_index SET id = NULL, name = %s WHERE code = %s", (dice.word(), f"ç{dice.key()}")
    )


def _index_rekey(dice: Dice) -> Statement:
    return Statement("UPDATE by_index SET code = %s WHERE code = %s", (f"f{dice.fresh()}", f"ç{dice.key()}"))


def _index_delete(dice: Dice) -> Statement:
    return Statement("DELETE FROM by_index WHERE code = %s OR code < 'f5'", (f"ç{dice.key()}",))


def _blind_insert(dice: Dice) -> Statement:
    return Statement("INSERT INTO blind VALUES (%s, %s)", (dice.fresh(), dice.word()))


def _heap_insert(dice: Dice) -> Statement:
    return Statement(
        "INSERT INTO heap SELECT g %% 3, %s FROM generate_series(1, %s) g", (dice.word(), 1 + dice.below(6))
    )


def _heap_full_insert(dice: Dice) -> Statement:
    return Statement("INSERT INTO heap_full VALUES (%s, %s, %s)", (dice.key(), dice.word(), dice.big()))


def _heap_full_update(dice: Dice) -> Statement:
    return Statement("UPDATE heap_full SET name = %s WHERE number = %s", (dice.word(), dice.key()))


def _heap_full_delete(dice: Dice) -> Statement:
    return Statement("DELETE FROM heap_full WHERE number = %s", (dice.key(),))


def _loose_insert(dice: Dice) -> Statement:
    code = None if dice.chance(0.5) else dice.key()
    return Statement(
        "INSERT INTO loose VALUES (%s, %s) ON CONFLICT (code) DO UPDATE SET name = excluded.name",
        (code, dice.word()),
    )


def _loose_update(dice: Dice) -> Statement:
    return Statement(
        "UPDATE loose SET name = %s WHERE code = %s OR (code IS NULL AND name = %s)",
        (dice.word(), dice.key(), dice.word()),
    )


def _loose_null(dice: Dice) -> Statement:
    return Statement("UPDATE loose SET code = NULL WHERE code = %s", (dice.key(),))


def _loose_delete(dice: Dice) -> Statement:
    return Statement("DELETE FROM loose WHERE code = %s OR name = %s", (dice.key(), dice.word()))


def _tenant(dice: Dice) -> uuid.UUID:
    return uuid.UUID(
        int=(dice.key() % 5 + (1000 * dice.key() if dice.own else 0)) * 0x1234567890ABCDEF1234567890
    )


def _item(dice: Dice) -> str:
    return dice.random.choice(WORDS)


def _composite_insert(dice: Dice) -> Statement:
    return Statement(
        """INSERT INTO composite VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (tenant, item)
           DO UPDATE SET mood = excluded.mood, tags = excluded.tags, counts = excluded.counts""",
        (
            _tenant(dice),
            _item(dice),
            dice.mood(),
            dice.array(dice.word),
            dice.array(dice.key),
            dice.doc(),
            dice.doc(),
        ),
    )


def _composite_update(dice: Dice) -> Statement:
    return Statement(
        "UPDATE composite SET tags = %s, doc = %s WHERE tenant = %s",
        (dice.array(dice.word), dice.doc(), _tenant(dice)),
    )


def _composite_rekey(dice: Dice) -> Statement:
    return Statement(
        "UPDATE composite SET item = item || %s WHERE tenant = %s AND item = %s",
        (str(dice.fresh()), _tenant(dice), _item(dice)),
    )


def _composite_delete(dice: Dice) -> Statement:
    return Statement(
        "DELETE FROM composite WHERE tenant = %s AND (item = %s OR length(item) > 8)",
        (_tenant(dice), _item(dice)),
    )


def _measure_day(dice: Dice) -> date:
    return date(2023 + dice.below(4), 1 + dice.below(12), 1)


def _measure_insert(dice: Dice) -> Statement:
    # Before PostgreSQL 15 a row inserted on conflict cannot move, and one of its partition's rows is updated.
    return Statement(
        "INSERT INTO measure VALUES (%s, %s, %s, %s) ON CONFLICT (day, sensor) DO UPDATE SET value = excluded.value",
        (_measure_day(dice), dice.key(), dice.any_number(), dice.word()),
    )


def _measure_update(dice: Dice) -> Statement:
    return Statement(
        "UPDATE measure SET value = %s, note = %s WHERE sensor = %s",
        (dice.any_number(), dice.word(), dice.key()),
    )


def _measure_move(dice: Dice) -> Statement:
    return Statement(
        "UPDATE measure SET day = day + 366, sensor = %s WHERE day = %s AND sensor = %s",
        (dice.fresh(), _measure_day(dice), dice.key()),
        uncounted=True,
    )


def _measure_delete(dice: Dice) -> Statement:
    return Statement("DELETE FROM measure WHERE sensor = %s OR day > '2027-01-01'", (dice.key(),))


def _unicode_insert(dice: Dice) -> Statement:
    return Statement(
        """INSERT INTO "Ünïcode Schema"."Größe.x" VALUES (%s, %s, %s)
           ON CONFLICT ("Größe") DO UPDATE SET "a.b" = excluded."a.b" """,
        (dice.key(), dice.word(), dice.word()),
    )


def _unicode_rekey(dice: Dice) -> Statement:
    return Statement(
        'UPDATE "Ünïcode Schema"."Größe.x" SET "Größe" = %s WHERE "Größe" = %s', (dice.fresh(), dice.key())
    )


def _unicode_delete(dice: Dice) -> Statement:
    return Statement('DELETE FROM "Ünïcode Schema"."Größe.x" WHERE "Größe" = %s', (dice.key(),))


def _mixed_insert(dice: Dice) -> Statement:
    return Statement(
        'INSERT INTO "Mixed Case" VALUES (%s, %s, %s) ON CONFLICT ("Id") DO UPDATE SET id = excluded.id',
        (dice.key(), dice.word(), dice.chance(0.5)),
    )


def _mixed_update(dice: Dice) -> Statement:
    return Statement('UPDATE "Mixed Case" SET "ID" = NULL WHERE "Id" = %s', (dice.key(),))


def _kinds_insert(dice: Dice) -> Statement:
    choice = dice.random.choice
    return Statement(
        """INSERT INTO kinds VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::mood[], %s::numeric[],
           %s::date[], %s) ON CONFLICT (id) DO UPDATE SET free = excluded.free, span = excluded.span""",
        (
            dice.key(),
            choice((None, -32768, 0, 32767)),
            choice((None, "NaN", "1.1", "-Infinity", "3.4028235e38", "1e-45")),
            dice.any_number(),
            choice((None, "0", "99.995", "100", "12.5")),
            choice((None, "00:00:00", "23:59:59.999999", "24:00:00", "12:34:56.7")),
            choice(
                (
                    None,
                    "1 year 2 mons -3 days 04:05:06.7",
                    "-00:00:00.000001",
                    "0",
                    "178000000 years",
                    "1000:00:00",
                )
            ),
            choice((None, "10.0.0.1", "::1/64", "192.168.1.5/24")),
            choice((None, "10.0.0.0/8", "2001:db8::/32")),
            choice((None, "empty", "[1,5)", "(,7]", "(,)")),
            choice((None, "", "ab", "ßéxyz")),
            dice.array(dice.mood),
            dice.array(dice.any_number),
            choice((None, ["2024-02-29", None], [], [["2024-01-01", "0044-03-15 BC"], ["1970-01-01", None]])),
            dice.array(dice.word),
        ),
    )


def _kinds_delete(dice: Dice) -> Statement:
    return Statement("DELETE FROM kinds WHERE id = %s", (dice.key(),))


def _shape_insert(dice: Dice) -> Statement:
    return Statement(
        """INSERT INTO shape (id, name, number) VALUES (%s, %s, %s)
           ON CONFLICT (id) DO UPDATE SET number = excluded.number""",
        (dice.key(), dice.word(), dice.below(1000)),
    )


def _shape_update(dice: Dice) -> Statement:
    return Statement("UPDATE shape SET touched = touched + 1 WHERE id = %s", (dice.key(),))


def _shape_delete(dice: Dice) -> Statement:
    return Statement("DELETE FROM shape WHERE id = %s", (dice.key(),))


def _nothing_insert(_: Dice) -> Statement:
    return Statement("INSERT INTO nothing DEFAULT VALUES")


@dataclass(frozen=True, slots=True)
class Table:
    """What happens to a table, each with a weight."""

    name: str
    makers: Sequence[tuple[Maker, int]]
    weight: int = 10


TABLES: Final = (
    Table(
        "plain",
        ((_plain_insert, 8), (_plain_update, 6), (_plain_toast, 3), (_plain_rekey, 2), (_plain_many, 2),
         (_plain_delete, 2), (_plain_sweep, 1)),
        weight=25,
    ),
    Table(
        "whole",
        ((_whole_insert, 8), (_whole_update, 6), (_whole_toast, 3), (_whole_rekey, 2), (_whole_delete, 2)),
        weight=20,
    ),
    Table("by_index", ((_index_insert, 6), (_index_update, 4), (_index_rekey, 2), (_index_delete, 1))),
    Table("blind", ((_blind_insert, 1),), weight=5),
    Table("heap", ((_heap_insert, 1),), weight=5),
    Table("heap_full", ((_heap_full_insert, 4), (_heap_full_update, 2), (_heap_full_delete, 1))),
    Table("loose", ((_loose_insert, 4), (_loose_update, 2), (_loose_null, 1), (_loose_delete, 1))),
    Table("composite", ((_composite_insert, 4), (_composite_update, 2), (_composite_rekey, 1), (_composite_delete, 1))),
    Table("measure", ((_measure_insert, 6), (_measure_update, 2), (_measure_move, 2), (_measure_delete, 1))),
    Table("Größe.x", ((_unicode_insert, 4), (_unicode_rekey, 1), (_unicode_delete, 1)), weight=5),
    Table("Mixed Case", ((_mixed_insert, 2), (_mixed_update, 1)), weight=5),
    Table("kinds", ((_kinds_insert, 4), (_kinds_delete, 1))),
    Table("shape", ((_shape_insert, 4), (_shape_update, 2), (_shape_delete, 1))),
    Table("nothing", ((_nothing_insert, 1),), weight=1),
)  # fmt: skip


def statement(dice: Dice) -> Statement:
    """A random statement on a random table."""
    table = dice.random.choices(TABLES, [table.weight for table in TABLES])[0]
    makers, weights = zip(*table.makers, strict=True)
    maker: Maker = dice.random.choices(makers, weights)[0]
    return maker(dice)
