"""Tables of every type, and ALTER statements of every kind over them, with rows between.

altered = Altered(connection, LIVE)
altered.insert("plain")
altered.step("plain", 0)
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import psycopg

LIVE, DOWN = "live", "down"
"""The halves: altered while the daemon runs, and while it is down."""

SETUP: Final = ("CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE DOMAIN price AS numeric(10, 2)")
"""What the tables need."""

DEFAULTS: Final = (
    ("smallint", "7"),
    ("bigint", "9007199254740993"),
    ("boolean", "true"),
    ("real", "0.1"),
    ("double precision", "'-Infinity'"),
    ("numeric", "'NaN'"),
    ("numeric(8,3)", "1.5"),
    ("money", "-1234.5"),
    ("text", "E'it''s \\\\ ${x} \"ä\"'"),
    ("char(4)", "'a'"),
    ("bytea", "'\\x00ff'"),
    ("bit(8)", "'10100101'"),
    ("bit(1)", "'1'"),
    ("bit varying(9)", "'10100101'"),
    ("bit varying", "''"),
    ("date", "'2024-02-29'"),
    ("date", "'infinity'"),
    ("time", "'09:00'"),
    ("time(3)", "'24:00'"),
    ("timetz", "'09:00+02'"),
    ("timestamp", "'infinity'"),
    ("timestamp(3)", "'2024-02-29 09:00:00.123'"),
    ("timestamptz", "'-infinity'"),
    ("timestamptz", "now()"),
    ("interval", "'1 mon 2 days 03:04:05.6'"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    ("json", "'{\"a\": [1]}'"),
    ("jsonb", "'{\"a\": [1]}'"),
    ("point", "'(1,2)'"),
    ("box", "'(3,4),(1,2)'"),
    ("inet", "'10.0.0.1/8'"),
    ("int4range", "'[1,5)'"),
    ("mood", "'sad'"),
    ("price", "1.5"),
    ("text[] NOT NULL", "'{}'"),
    ("text[]", "ARRAY['a', NULL, '\"b\"']"),
    ("int[][]", "'{{1,2},{3,4}}'"),
    ("numeric(9,2)[]", "'{1.5}'"),
    ("boolean[]", "'{t,f}'"),
    ("timestamptz[]", "'{infinity}'"),
)
"""Type and default; NaN in numeric(8,3) is NULL by rule, in a record as well."""


@dataclass(frozen=True, slots=True)
class Case:
    """A table and what happens to it. `{t}` is the table, `{s}` ends the names of its types.

    Attributes:
        first: statements before the table is made.
        then: statements after it is made.
        leaf: ends the name of the table that has the rows.
        steps: statements with semicolons between, without the words ALTER TABLE {t}.
    """

    columns: str
    steps: tuple[str, ...]
    first: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    tail: str = ""
    leaf: str = ""


EVERY: Final = tuple([(f"c{number}", type_, value) for number, (type_, value) in enumerate(DEFAULTS)])
HALF: Final = len(EVERY) // 2

FOLLOWED: Final = {
    "plain": Case(
        "id int PRIMARY KEY, n int DEFAULT 1, note text DEFAULT 'a', m int DEFAULT 2, o int DEFAULT 3",
        (
            "ADD a text; ADD b int NOT NULL DEFAULT 7; DROP note",
            "RENAME n TO p; ADD note text DEFAULT 'again'",
            "DROP a, ADD a int DEFAULT 3; RENAME m TO x; RENAME o TO m; RENAME x TO o",
            "DROP m; RENAME o TO m; ADD o int DEFAULT 9",
        ),
    ),
    "grown": Case(
        "id numeric(9,2) PRIMARY KEY, r real DEFAULT 0.1, p numeric(9,2) DEFAULT 1.5, s smallint DEFAULT 3,"
        " i int DEFAULT 4, c varchar(5) DEFAULT 'abc', u timestamp(3) DEFAULT '2024-02-29 01:02:03.456',"
        " z timestamptz(0) DEFAULT '2024-02-29 01:02:03+00', h time(3) DEFAULT '01:02:03.456',"
        " l varchar(3)[] DEFAULT '{a,NULL}', w numeric(50,2) DEFAULT 1.5, v bit varying(4) DEFAULT '101'",
        (
            "ALTER r TYPE double precision, ALTER p TYPE numeric(12,2), ALTER s TYPE int, ALTER i TYPE bigint",
            "ALTER c TYPE varchar(50), ALTER l TYPE text[], ALTER v TYPE bit varying(9), ALTER s TYPE bigint",
            "ALTER u TYPE timestamp, ALTER z TYPE timestamptz, ALTER h TYPE time, ALTER c TYPE text",
            "ALTER id TYPE numeric(12,2), ALTER c TYPE varchar, ALTER w TYPE numeric",
        ),
    ),
    "keys": Case(
        "a int, b text, at timestamptz, v int DEFAULT 0, PRIMARY KEY (b, at, a)",
        (
            "RENAME a TO c; RENAME at TO since",
            "REPLICA IDENTITY FULL",
            "ALTER c TYPE bigint",
            "REPLICA IDENTITY DEFAULT, ADD till timestamptz DEFAULT 'infinity'",
        ),
    ),
    "settings": Case(
        "id uuid PRIMARY KEY, n int DEFAULT 1, big text DEFAULT repeat('x', 9000)",
        (
            "ALTER n SET DEFAULT 5, ALTER n SET NOT NULL; ADD CONSTRAINT checked CHECK (n > 0) NOT VALID",
            "VALIDATE CONSTRAINT checked; RENAME CONSTRAINT checked TO check_n; RENAME big TO large",
            "DROP CONSTRAINT check_n, ALTER n DROP NOT NULL; ADD g int GENERATED ALWAYS AS (n * 2) STORED",
            "OWNER TO CURRENT_USER, DISABLE TRIGGER ALL, CLUSTER ON {t}_pkey; DROP g; RENAME id TO key",
        ),
        then=("ALTER TABLE {t} ALTER big SET STORAGE EXTERNAL",),
    ),
    "words": Case(
        "id int PRIMARY KEY, m mood{s} DEFAULT 'sad', l mood{s}[] DEFAULT '{sad}', p price{s} DEFAULT 1.5,"
        " k int[] DEFAULT '{1,NULL}'",
        (
            "ALTER TYPE mood{s} ADD VALUE 'great'",
            "ALTER TYPE mood{s} RENAME VALUE 'sad' TO 'blue'; ALTER DOMAIN price{s} ADD CHECK (VALUE > 0)",
            "ALTER TYPE mood{s} RENAME TO feeling{s}; ADD f feeling{s} DEFAULT 'great'",
            "ADD tags text[] NOT NULL DEFAULT '{}'; ADD u int[][] DEFAULT '{{1,2},{3,4}}'",
        ),
        first=("CREATE TYPE mood{s} AS ENUM ('sad', 'ok')", "CREATE DOMAIN price{s} AS numeric(10, 2)"),
    ),
    "every": Case(
        "id bigint PRIMARY KEY",
        (
            ", ".join([f"ADD {name} {type_} DEFAULT {value}" for name, type_, value in EVERY]),
            "; ".join([f"RENAME {name} TO d{name}" for name, *_ in EVERY[:HALF]]),
            ", ".join([f"DROP {name}" for name, type_, _ in EVERY[HALF:] if type_ != "int[][]"]),
        ),
    ),
    "nulls": Case(
        "id bigint PRIMARY KEY",
        (", ".join([f"ADD {name} {type_}" for name, type_, _ in EVERY]).replace(" NOT NULL", ""),),
    ),
    "parted": Case(
        "id smallint PRIMARY KEY, n int DEFAULT 1",
        (
            "ADD m int DEFAULT 4",
            "ATTACH PARTITION {t}_2 FOR VALUES FROM (1000) TO (2000)",
            "RENAME n TO o",
            "ADD n text DEFAULT 'n'",
        ),
        tail="PARTITION BY RANGE (id)",
        leaf="_1",
        then=(
            "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (1000)",
            "CREATE TABLE {t}_2 (id smallint PRIMARY KEY, m int, n int)",
        ),
    ),
    "bare": Case("n int DEFAULT 1", ("ADD m int DEFAULT 2", "ALTER n TYPE text", "RENAME n TO o", "DROP m")),
}  # fmt: skip
"""What a mirror follows."""

REFUSED: Final = {
    # By type of Spark, or by key.
    "texted": Case("id int PRIMARY KEY, v int DEFAULT 1", ("ALTER v TYPE text",)),
    "listed": Case("id int PRIMARY KEY, v int[] DEFAULT '{1}'", ("ALTER v TYPE bigint[]",)),
    "indexed": Case("id int PRIMARY KEY, v serial UNIQUE", ("REPLICA IDENTITY USING INDEX {t}_v_key",)),
    # One type in Spark, and other values in PostgreSQL.
    "rounded": Case(
        "id int PRIMARY KEY, v timestamp DEFAULT '2024-02-29 01:02:03.6', h time DEFAULT '01:02:03.6'",
        ("ALTER v TYPE timestamp(0), ALTER h TYPE time(0)",),
    ),
    "padded": Case("id int PRIMARY KEY, v char(3) DEFAULT 'a'", ("ALTER v TYPE char(6)",)),
    "trimmed": Case("id int PRIMARY KEY, v char(3) DEFAULT 'a'", ("ALTER v TYPE text",)),
    "normal": Case('id int PRIMARY KEY, v json DEFAULT \'{"b": 1,   "a": 2}\'', ("ALTER v TYPE jsonb",)),
    "hosts": Case("id int PRIMARY KEY, v cidr DEFAULT '10.0.0.1/32'", ("ALTER v TYPE inet",)),
    "scaled": Case("id int PRIMARY KEY, v numeric(50,2) DEFAULT 1.5", ("ALTER v TYPE numeric(50,4)",)),
    "unsigned": Case("id int PRIMARY KEY, v int DEFAULT -1", ("ALTER v DROP DEFAULT, ALTER v TYPE oid",)),
    "worded": Case(
        "id int PRIMARY KEY, m old{s} DEFAULT 'a'",
        ("ALTER m DROP DEFAULT, ALTER m TYPE new{s} USING (CASE m WHEN 'a' THEN 'b' END)::new{s}",),
        first=("CREATE TYPE old{s} AS ENUM ('a', 'b')", "CREATE TYPE new{s} AS ENUM ('a', 'b')"),
    ),
    # Values that were never sent.
    "expressed": Case(
        "id int PRIMARY KEY, n int DEFAULT 1, g int GENERATED ALWAYS AS (n * 2) STORED, z int DEFAULT 1",
        ("ALTER g DROP EXPRESSION",),
    ),
    # PostgreSQL has forgotten what older rows have, or never said it.
    "rewritten": Case("id int PRIMARY KEY, n int DEFAULT 1", ("ADD v int DEFAULT 7; ALTER n TYPE bigint",)),
    "renewed": Case(
        "id int PRIMARY KEY, n int DEFAULT 1", ("ADD g int GENERATED ALWAYS AS (n * 2) STORED; ADD v date",)
    ),
    "checked": Case(
        "id int PRIMARY KEY",
        ("ADD v cents{s} DEFAULT 2",),
        first=("CREATE DOMAIN cents{s} AS int CHECK (VALUE > 0)",),
    ),
    "volatile": Case("id int PRIMARY KEY", ("ADD v timestamptz DEFAULT clock_timestamp()",)),
    "counted": Case("id int PRIMARY KEY", ("ADD v int GENERATED BY DEFAULT AS IDENTITY",)),
}
"""What no target can follow: docs/mirror.md, "No dead ends"."""

UNSENT: Final = {
    "composed": Case(
        "id int PRIMARY KEY, v pair{s} DEFAULT '(1,2)'",
        ("ALTER TYPE pair{s} ADD ATTRIBUTE z int",),
        first=("CREATE TYPE pair{s} AS (x int, y int)",),
    ),
}
"""What PostgreSQL does not send: docs/mirror.md, "It does not promise"."""

CASES: Final = {**FOLLOWED, **REFUSED, **UNSENT}
STATEMENTS: Final = [
    statement for case in CASES.values() for step in case.steps for statement in step.split("; ")
]

_LITERALS: Final = {
    "uuid": "'00000000-0000-0000-0000-{:012d}'",
    "timestamp with time zone": "'2026-01-01 00:00:{:02d}+00'",
}


class Altered:
    """The tables of one half."""

    def __init__(self, connection: "psycopg.Connection[tuple[object, ...]]", half: str) -> None:
        self._connection = connection
        self.half = half
        self._rows = dict.fromkeys(CASES, 0)

    def name(self, case: str) -> str:
        return f"{case}_{self.half}"

    def run(self, case: str, statement: str) -> None:
        self._connection.execute(_filled(statement, case, self.half).encode())

    def step(self, case: str, number: int) -> None:
        """The case's step of that number, a new row, and an update of the first one."""
        for statement in CASES[case].steps[number].split("; "):
            whole = statement.startswith(("ALTER TYPE", "ALTER DOMAIN"))
            self.run(case, statement if whole else f"ALTER TABLE {{t}} {statement}")
        self.insert(case)
        self.update(case)

    def insert(self, case: str) -> None:
        self._rows[case] += 1
        values = self._key(case, self._rows[case])
        columns = (
            f"({', '.join(values)}) VALUES ({', '.join(values.values())})" if values else "DEFAULT VALUES"
        )
        self.run(case, f"INSERT INTO {{t}} {columns}")

    def update(self, case: str) -> None:
        values = self._key(case, 1)
        if values:
            sets = ", ".join(f"{name} = {name}" for name in values)
            self.run(case, f"UPDATE {{t}} SET {sets} WHERE {_where(values)}")

    def delete(self, case: str) -> None:
        values = self._key(case, 2)
        if values:
            self.run(case, f"DELETE FROM {{t}} WHERE {_where(values)}")

    def _key(self, case: str, number: int) -> dict[str, str]:
        """The columns of the primary key, and what the row of that number has in them."""
        found = self._connection.execute(
            """SELECT attname::text, format_type(atttypid, -1) FROM pg_index
                 JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
                WHERE indrelid = %s::regclass AND indisprimary""",
            (self.name(case),),
        ).fetchall()
        return {str(name): _LITERALS.get(str(type_), "'{}'").format(number) for name, type_ in found}


def _filled(statement: str, case: str, half: str) -> str:
    return statement.replace("{t}", f"{case}_{half}").replace("{s}", f"_{half}")


def _where(values: dict[str, str]) -> str:
    return " AND ".join(f"{name} = {value}" for name, value in values.items())


def created(half: str, cases: Mapping[str, Case]) -> Iterator[str]:
    """The statements that make the tables of a half."""
    for name, case in cases.items():
        table = f"CREATE TABLE {{t}} ({case.columns}) {case.tail}"
        for statement in (*case.first, table, *case.then):
            yield _filled(statement, name, half)
