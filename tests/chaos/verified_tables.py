"""The tables of `tests/chaos/verified.py`, and who writes to them: kinds of tables that differ in keys and types.

Each row is made of one number, `{g}` in the SQL below: a table is filled by `generate_series`, and a writer finds a row
by the number, inserts it again, changes its key or deletes it. The last `ASIDE` numbers of each table are rows that no
writer touches.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.local import PostgresServer
from tests.pgbench import pgbench

ASIDE: Final = 2

BEFORE: Final = "CREATE TYPE mood AS ENUM ('low', 'mid', 'high')"


@dataclass(frozen=True, slots=True)
class Kind:
    """A form of tables.

    Attributes:
        columns: as in CREATE TABLE; each table has a column `note` besides.
        values: of the columns, in SQL.
        row: the condition that finds the row.
        change: what an update sets.
        move: what a change of the key sets, and the condition that finds the row that has the new key; () for none.
        after: statements on the table `{t}`.
    """

    columns: str
    values: str
    row: str
    change: str
    move: tuple[str, str] | tuple[()] = ()
    after: tuple[str, ...] = ()


KINDS: Final[dict[str, Kind]] = {
    "plain": Kind(
        "id bigint PRIMARY KEY, n int NOT NULL",
        "{g}, {g} % 1000",
        "id = {g}",
        "n = n + 1",
        ("id = -id", "id = -{g}"),
    ),
    "pair": Kind(
        "a int, b text, amount numeric(12,2), ratio float8, PRIMARY KEY (a, b)",
        "{g} / 100, 'b ' || {g} % 100, {g} % 9973 * 1.10, {g} / 7.0",
        "a = {g} / 100 AND b = 'b ' || {g} % 100",
        "ratio = random(), amount = amount + 0.01",
    ),
    "named": Kind(
        "name text PRIMARY KEY, doc jsonb, said json",
        "'Straße \"' || {g} || '\"', jsonb_build_object('n', {g}, 'list', jsonb_build_array({g}, NULL, 'x')), "
        "json_build_object('said', {g} / 3.0)",
        "name = 'Straße \"' || {g} || '\"'",
        "doc = doc || jsonb_build_object('changed', random())",
    ),
    "toasted": Kind(
        "id int PRIMARY KEY, n int, big text",
        "{g}, 0, CASE {g} % 50 WHEN 0 THEN repeat(md5(({g})::text), 100) ELSE md5(({g})::text) END",
        "id = {g}",
        "n = n + 1",
        ("id = -id", "id = -{g}"),
        ("ALTER TABLE {t} ALTER COLUMN big SET STORAGE EXTERNAL",),
    ),
    "numbers": Kind(
        "id bigint PRIMARY KEY, exact numeric, single real, twice float8, small smallint, price money",
        "{g}, CASE {g} % 97 WHEN 0 THEN 'NaN' ELSE {g} * 1.000000000000000000001 END, "
        "CASE {g} % 89 WHEN 0 THEN '-Infinity' ELSE {g} / 3.0 END, {g} / 9.0, {g} % 1000, ({g} % 1000)::money",
        "id = {g}",
        "exact = -exact, twice = random()",
    ),
    "times": Kind(
        "id int PRIMARY KEY, day date, at timestamptz, at_local timestamp, span interval, clock time",
        "{g}, CASE {g} % 83 WHEN 0 THEN 'infinity' ELSE date '2000-01-01' + ({g} % 10000)::int END, "
        "timestamptz '2020-01-01 UTC' + {g} * interval '1.000001 s', timestamp '2020-01-01' - {g} * interval '1 h', "
        "{g} * interval '1 min', time '00:00' + {g} % 80000 * interval '1 s'",
        "id = {g}",
        "at = clock_timestamp(), span = span + interval '1 day'",
    ),
    "lists": Kind(
        "id int PRIMARY KEY, tags text[], grid int[]",
        "{g}, ARRAY['a', 'tag ' || {g}, NULL], ARRAY[ARRAY[{g}, 1], ARRAY[2, 3]]::int[]",
        "id = {g}",
        "grid = ARRAY[ARRAY[(random() * 1000)::int, 1], ARRAY[2, 3]]",
    ),
    "mixed": Kind(
        "id uuid PRIMARY KEY, state mood, flag boolean, raw bytea, net inet",
        "md5(({g})::text)::uuid, (ARRAY['low', 'mid', 'high'])[{g} % 3 + 1]::mood, {g} % 2 = 0, "
        "decode(md5(({g})::text), 'hex'), '10.0.0.0'::inet + {g}",
        "id = md5(({g})::text)::uuid",
        "flag = NOT flag, state = 'high'",
    ),
    "loose": Kind(
        "n int, amount numeric",
        "{g}, {g} % 100",
        "n = {g}",
        "amount = amount + 1",
        after=("CREATE INDEX ON {t} (n)", "ALTER TABLE {t} REPLICA IDENTITY FULL"),
    ),
    "chosen": Kind(
        "code text NOT NULL, part int NOT NULL, span int4range, sizes int8range",
        "'c' || {g} / 10, {g} % 10, int4range(0, {g}::int), int8range({g}, NULL)",
        "code = 'c' || {g} / 10 AND part = {g} % 10",
        "span = int4range(0, (random() * 1000)::int)",
        ("part = -1 - part", "code = 'c' || {g} / 10 AND part = -1 - {g} % 10"),
        (
            "CREATE UNIQUE INDEX {t}_code_part ON {t} (code, part)",
            "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_code_part",
        ),
    ),
}

WITHOUT_KEY: Final = frozenset({"loose"})


@dataclass(frozen=True, slots=True)
class Table:
    """One table, with the rows of the numbers 1 to `rows`, and those that no writer touches behind them."""

    name: str
    kind: Kind
    rows: int
    has_key: bool

    def create(self) -> Iterator[str]:
        """The statements that make the table and fill it."""
        yield f"CREATE TABLE {self.name} ({self.kind.columns}, note text)"
        yield from (each.format(t=self.name) for each in self.kind.after)
        values = self.kind.values.format(g="g")
        yield (
            f"INSERT INTO {self.name} SELECT {values}, 'note ' || g FROM "
            f"generate_series(1::bigint, {self.rows + ASIDE}) g"
        )

    def aside(self) -> str:
        """The condition that finds the rows that no writer touches."""
        numbers = range(self.rows + 1, self.rows + ASIDE + 1)
        return " OR ".join(f"({self.kind.row.format(g=number)})" for number in numbers)

    def script(self) -> str:
        """A transaction of a writer: an update, and something else.

        The second row is behind the first one in the order of the numbers, so that no two transactions wait for each
        other.
        """
        name, kind = self.name, self.kind
        one, two = (kind.row.format(g=f":{which}::bigint") for which in ("one", "two"))
        update = f"UPDATE {name} SET {kind.change} WHERE"
        moved = f"{update} {two};"
        if kind.move:
            key, there = (each.format(g=":two::bigint") for each in kind.move)
            moved = f"UPDATE {name} SET {key} WHERE {two} AND NOT EXISTS (SELECT FROM {name} WHERE {there});"
        inserted = f"{kind.values.format(g=':two::bigint')}, 'again'"
        return "\n".join(
            [
                f"\\set one random(1, {self.rows // 2})",
                f"\\set two random({self.rows // 2 + 1}, {self.rows})",
                "\\set what random(1, 6)",
                "BEGIN;",
                f"{update} {one};",
                "\\if :what = 1",
                f"DELETE FROM {name} WHERE {two};",
                "\\elif :what = 2",
                f"INSERT INTO {name} SELECT {inserted} ON CONFLICT DO NOTHING;",
                "\\elif :what = 3",
                moved,
                "\\else",
                f"{update} {two};",
                "\\endif",
                "COMMIT;",
                "",
            ]
        )


def tables(count: int, rows: int) -> list[Table]:
    """Make `count` tables that have `rows` rows together. The kinds take turns."""
    kinds = list(KINDS.items())
    found = []
    for number in range(count):
        name, kind = kinds[number % len(kinds)]
        each = rows // count - ASIDE
        found.append(Table(f"{name}_{number // len(kinds)}", kind, each, name not in WITHOUT_KEY))
    return found


def writing(
    server: PostgresServer, database: str, meant: Sequence[Table], rate: float, seed: int, folder: Path
) -> AbstractContextManager[None]:
    """Transactions on the tables at this rate until the block ends."""
    options: list[str | Path] = ["--random-seed", str(seed)]
    for table in meant:
        script = folder / f"{table.name}.sql"
        script.write_text(table.script())
        options += ["--file", script]
    return pgbench(server, database, rate, options, folder / "pgbench.log")
