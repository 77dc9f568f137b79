"""The owner renames, swaps, drops and adds columns and tables, so that a protected value would be in a topic in clear.

Each attack is a list of transactions on tables that the rules of `columns` protect. Afterwards a row of another table
shows that the daemon has passed the attack, or the daemon has stopped with the table's name. In both cases the secret
is looked for in all topics, the spool, the log and the pages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.forked import run_cdcd
from tests.integration.test_columns import everything
from tests.integration.test_snapshot_requests import ask

StartDaemon = Callable[[dict[str, Any]], Daemon]

GAINS: Final = (
    "the values of a column that the operator hashes, encrypts, masks or excludes, in clear in a topic"
)
MARKER: Final = "s3cr3t"
HASH_KEY: Final = "correct horse battery staple"
DONE: Final = "attack-has-passed"

FOLLOWED: Final = "followed"
"""The daemon goes on, and protects the column."""
WITHHELD: Final = "withheld"
"""The daemon stops with exit code 2 and names the table."""

_TABLE: Final = "CREATE TABLE t (id int PRIMARY KEY, ssn text, note text)"


def secret(number: int, columns: str = "id, ssn, note", table: str = "t") -> str:
    """An INSERT whose second column holds the secret."""
    return f"INSERT INTO {table} ({columns}) VALUES ({number}, '{MARKER}-{number}', 'plain-{number}')"


@dataclass(frozen=True, slots=True)
class Attack:
    """What the owner does.

    Attributes:
        transactions: statements, a list for each transaction.
        before: statements before the daemon's first start.
        rules: the section `columns`, without keys.
        outcome: FOLLOWED or WITHHELD.
        fell: commit 99c61843 fell to it.
        withheld: the rule that the error names, if the outcome is WITHHELD.
        as_a_whole: rows of partitions are published as rows of the partitioned table.
    """

    transactions: Sequence[Sequence[str]]
    before: Sequence[str] = (_TABLE,)
    rules: dict[str, Any] = field(default_factory=lambda: {"hash": ["public.t.ssn"]})
    outcome: str = FOLLOWED
    fell: bool = True
    withheld: str = "columns.hash (public.t.ssn)"
    as_a_whole: bool = False


_INHERITED: Final = (
    "CREATE TABLE t (id int, ssn text, note text) PARTITION BY RANGE (id)",
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (100)",
    "ALTER TABLE t ADD PRIMARY KEY (id)",
)
_OPEN: Final = "CREATE TABLE open (id int PRIMARY KEY, ssn text, note text) PARTITION BY RANGE (id)"
_OTHER_ORDER: Final = (
    "CREATE TABLE t_2 (note text, gone int, ssn text, id int PRIMARY KEY)",
    "ALTER TABLE t_2 DROP COLUMN gone",
    "ALTER TABLE t ATTACH PARTITION t_2 FOR VALUES FROM (100) TO (200)",
)

RUNNING: Final[dict[str, Attack]] = {
    "rename the column": Attack(
        [["ALTER TABLE t RENAME COLUMN ssn TO ssn2"], [secret(1, "id, ssn2, note")]],
    ),
    "rename the column twice": Attack(
        [
            ["ALTER TABLE t RENAME COLUMN ssn TO a"],
            [secret(1, "id, a, note")],
            ["ALTER TABLE t RENAME COLUMN a TO b"],
            [secret(2, "id, b, note")],
        ],
    ),
    "rename in the transaction of the row": Attack(
        [["ALTER TABLE t RENAME COLUMN ssn TO ssn2", secret(1, "id, ssn2, note")]],
    ),
    "rename, write, rename back": Attack(
        [
            [
                "ALTER TABLE t RENAME COLUMN ssn TO x",
                secret(1, "id, x, note"),
                "ALTER TABLE t RENAME COLUMN x TO ssn",
            ],
        ],
    ),
    "change the case of the name": Attack(
        [['ALTER TABLE t RENAME COLUMN ssn TO "SSN"'], [secret(1, 'id, "SSN", note')]],
    ),
    "quoted name with a dot and a quote": Attack(
        [['ALTER TABLE t RENAME COLUMN ssn TO "s.s""n"'], [secret(1, 'id, "s.s""n", note')]],
    ),
    "rename the table": Attack(
        [["ALTER TABLE t RENAME TO u"], [secret(1, table="u")]],
    ),
    "change the case of the table's name": Attack(
        [['ALTER TABLE t RENAME TO "T"'], [secret(1, table='"T"')]],
    ),
    "move the table to another schema": Attack(
        [["CREATE SCHEMA elsewhere", "ALTER TABLE t SET SCHEMA elsewhere"], [secret(1, table="elsewhere.t")]],
    ),
    "rename the schema": Attack(
        [["ALTER SCHEMA own RENAME TO gone"], [secret(1, table="gone.t")]],
        before=("CREATE SCHEMA own", "CREATE TABLE own.t (id int PRIMARY KEY, ssn text, note text)"),
        rules={"hash": ["own.t.ssn"]},
    ),
    "rename table and column": Attack(
        [
            ["ALTER TABLE t RENAME TO u", "ALTER TABLE u RENAME COLUMN ssn TO x"],
            [secret(1, "id, x, note", table="u")],
        ],
    ),
    "swap the names of two columns": Attack(
        [
            [
                "ALTER TABLE t RENAME COLUMN ssn TO tmp",
                "ALTER TABLE t RENAME COLUMN note TO ssn",
                "ALTER TABLE t RENAME COLUMN tmp TO note",
            ],
            [secret(1, "id, note, ssn")],
        ],
    ),
    "swap names, write, swap back, in one transaction": Attack(
        [
            [
                "ALTER TABLE t RENAME COLUMN ssn TO tmp",
                "ALTER TABLE t RENAME COLUMN note TO ssn",
                "ALTER TABLE t RENAME COLUMN tmp TO note",
                secret(1, "id, note, ssn"),
                "ALTER TABLE t RENAME COLUMN ssn TO tmp",
                "ALTER TABLE t RENAME COLUMN note TO ssn",
                "ALTER TABLE t RENAME COLUMN tmp TO note",
            ],
        ],
    ),
    "turn the names of three columns": Attack(
        [
            [
                "ALTER TABLE t ADD COLUMN more text",
                "ALTER TABLE t RENAME COLUMN ssn TO tmp",
                "ALTER TABLE t RENAME COLUMN note TO ssn",
                "ALTER TABLE t RENAME COLUMN more TO note",
                "ALTER TABLE t RENAME COLUMN tmp TO more",
                secret(1, "id, more, note"),
            ],
        ],
    ),
    "swap the names of two tables": Attack(
        [
            ["ALTER TABLE t RENAME TO tmp", "ALTER TABLE u RENAME TO t", "ALTER TABLE tmp RENAME TO u"],
            [secret(1, table="u"), secret(1, table="t")],
        ],
        before=(_TABLE, "CREATE TABLE u (id int PRIMARY KEY, ssn text, note text)"),
    ),
    "rename another table to the protected name": Attack(
        [["DROP TABLE t", "ALTER TABLE u RENAME TO t"], [secret(1)]],
        before=(_TABLE, "CREATE TABLE u (id int PRIMARY KEY, ssn text, note text)"),
        fell=False,
    ),
    "drop and create the table with other columns": Attack(
        [["DROP TABLE t", "CREATE TABLE t (note text, id int PRIMARY KEY, ssn text)"], [secret(1)]],
        fell=False,
    ),
    "create the table again without the column": Attack(
        [
            ["DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, ssn2 text, note text)"],
            [secret(1, "id, ssn2, note")],
        ],
        outcome=WITHHELD,
    ),
    "drop the column and add another one under its name": Attack(
        [["ALTER TABLE t DROP COLUMN ssn", "ALTER TABLE t ADD COLUMN ssn text"], [secret(1)]],
        fell=False,
    ),
    "give the name to a new column": Attack(
        [
            ["ALTER TABLE t RENAME COLUMN ssn TO old", "ALTER TABLE t ADD COLUMN ssn text"],
            [secret(1, "id, old, note"), secret(2)],
        ],
    ),
    "rename, write, drop, add in one transaction": Attack(
        [
            [
                "ALTER TABLE t RENAME COLUMN ssn TO x",
                secret(1, "id, x, note"),
                "ALTER TABLE t DROP COLUMN x",
                "ALTER TABLE t ADD COLUMN x text",
            ],
        ],
    ),
    "move all names by one, then drop and add": Attack(
        [
            [
                "ALTER TABLE t DROP COLUMN a",
                "ALTER TABLE t RENAME COLUMN ssn TO a",
                "ALTER TABLE t RENAME COLUMN note TO ssn",
                "ALTER TABLE t ADD COLUMN note text",
                secret(1, "id, a, note"),
            ],
        ],
        before=("CREATE TABLE t (id int PRIMARY KEY, a text, ssn text, note text)",),
        outcome=WITHHELD,
    ),
    "change the type": Attack(
        [
            ["ALTER TABLE t ALTER COLUMN ssn TYPE varchar(99)", "ALTER TABLE t RENAME COLUMN ssn TO x"],
            [secret(1, "id, x, note")],
        ],
    ),
    "rewrite the table": Attack(
        [["ALTER TABLE t RENAME COLUMN ssn TO x"], ["TRUNCATE t", secret(1, "id, x, note")]],
    ),
    "former values of REPLICA IDENTITY FULL": Attack(
        [
            [secret(1)],
            ["ALTER TABLE t REPLICA IDENTITY FULL", "ALTER TABLE t RENAME COLUMN ssn TO x"],
            ["UPDATE t SET note = 'y'"],
            ["DELETE FROM t"],
        ],
    ),
    "rename a column of the key": Attack(
        [
            ["ALTER TABLE t RENAME COLUMN ssn TO x"],
            [f"INSERT INTO t VALUES ('{MARKER}-1', 'plain')", f"UPDATE t SET x = '{MARKER}-2'"],
        ],
        before=("CREATE TABLE t (ssn text PRIMARY KEY, note text)",),
    ),
    "a default of the renamed column": Attack(
        [
            [
                f"ALTER TABLE t ADD COLUMN ssn text DEFAULT '{MARKER}-default'",
                "INSERT INTO t (id) VALUES (1)",
            ],
            ["ALTER TABLE t RENAME COLUMN ssn TO x"],
            ["INSERT INTO t (id) VALUES (2)"],
        ],
        before=("CREATE TABLE t (id int PRIMARY KEY, note text)",),
        rules={"hash": ["public.*.ssn"]},
    ),
    "a pattern whose table is renamed": Attack(
        [["ALTER TABLE customers RENAME TO c"], [secret(1, table="c")]],
        before=("CREATE TABLE customers (id int PRIMARY KEY, ssn text, note text)",),
        rules={"hash": ["public.customer*.ssn"]},
    ),
    "a new table of the pattern, renamed after its first row": Attack(
        [
            ["CREATE TABLE people (id int PRIMARY KEY, ssn text, note text)", secret(1, table="people")],
            ["ALTER TABLE people RENAME COLUMN ssn TO x"],
            [secret(2, "id, x, note", table="people")],
        ],
        before=(),
        rules={"hash": ["*.*.ssn"]},
    ),
    "an excluded column": Attack(
        [["ALTER TABLE t RENAME COLUMN ssn TO x"], [secret(1, "id, x, note")]],
        rules={"exclude": ["public.t.ssn"]},
    ),
    "a column that columns.include does not name": Attack(
        [
            ["ALTER TABLE t RENAME COLUMN note TO x", "ALTER TABLE t RENAME COLUMN ssn TO note"],
            [secret(1, "id, note, x")],
            ["ALTER TABLE t RENAME TO u", "ALTER TABLE u ADD COLUMN more text"],
            [f"INSERT INTO u (id, more) VALUES (2, '{MARKER}-2')"],
        ],
        rules={"include": ["public.t.id", "public.t.note"]},
    ),
    "a masked column": Attack(
        [["ALTER TABLE t RENAME COLUMN ssn TO x"], [secret(1, "id, x, note")]],
        rules={"mask": {"public.t.ssn": "***"}},
    ),
    "an encrypted column": Attack(
        [["ALTER TABLE t RENAME COLUMN ssn TO x"], [secret(1, "id, x, note")]],
        rules={"encrypt": ["public.t.ssn"], "encryption_key": "QUFB" * 10 + "QUE="},
    ),
    "a partition with other attribute numbers": Attack(
        [
            _OTHER_ORDER,
            ["ALTER TABLE t RENAME COLUMN ssn TO x"],
            [secret(1, "id, x, note"), secret(101, "id, x, note")],
        ],
        before=_INHERITED,
    ),
    "rename and attach a table that has only columns of columns.include": Attack(
        [
            ["ALTER TABLE t RENAME TO u"],
            ["ALTER TABLE open ATTACH PARTITION u FOR VALUES FROM (0) TO (100)", secret(1, table="open")],
        ],
        before=(_TABLE, _OPEN),
        rules={"include": ["public.t.id", "public.t.note"]},
        as_a_whole=True,
    ),
    "a partition with other attribute numbers, published as a whole": Attack(
        [
            _OTHER_ORDER,
            ["ALTER TABLE t RENAME COLUMN ssn TO x"],
            [secret(1, "id, x, note"), secret(101, "id, x, note")],
        ],
        before=_INHERITED,
        as_a_whole=True,
    ),
    "a partition that is detached": Attack(
        [
            ["ALTER TABLE t DETACH PARTITION t_1", "ALTER TABLE t_1 RENAME COLUMN ssn TO x"],
            [secret(1, "id, x, note", table="t_1")],
        ],
        before=_INHERITED,
        rules={"hash": ["public.t.ssn"]},
    ),
    "attach the table to another one that nothing protects": Attack(
        [
            ["ALTER TABLE open ATTACH PARTITION t FOR VALUES FROM (0) TO (100)"],
            [secret(1, table="open")],
        ],
        before=(_TABLE, _OPEN),
        as_a_whole=True,
    ),
    "rename table and column, and attach the table to another one that nothing protects": Attack(
        [
            ["ALTER TABLE t RENAME TO u", "ALTER TABLE u RENAME COLUMN ssn TO x"],
            [
                "ALTER TABLE open RENAME COLUMN ssn TO x",
                "ALTER TABLE open ATTACH PARTITION u FOR VALUES FROM (0) TO (100)",
                secret(1, "id, x, note", table="open"),
            ],
            [secret(2, "id, x, note", table="u")],
        ],
        before=(_TABLE, _OPEN),
        as_a_whole=True,
    ),
    "rename in a subtransaction that is rolled back": Attack(
        [
            [
                "SAVEPOINT s",
                "ALTER TABLE t RENAME COLUMN ssn TO x",
                secret(1, "id, x, note"),
                "ROLLBACK TO s",
                secret(2),
                "SAVEPOINT s",
                "ALTER TABLE t RENAME COLUMN ssn TO x",
                "RELEASE s",
                secret(3, "id, x, note"),
            ]
        ],
    ),
    "rename in a transaction that is rolled back": Attack(
        [
            ["ALTER TABLE t RENAME COLUMN ssn TO x", secret(1, "id, x, note"), "ROLLBACK"],
            [secret(2)],
            ["ALTER TABLE t RENAME COLUMN ssn TO x"],
            [secret(3, "id, x, note")],
        ],
    ),
    "swap the names of two tables and of their columns in one transaction": Attack(
        [
            [
                secret(1),
                "ALTER TABLE t RENAME TO tmp",
                "ALTER TABLE u RENAME TO t",
                "ALTER TABLE tmp RENAME TO u",
                "ALTER TABLE u RENAME COLUMN ssn TO tmp",
                "ALTER TABLE u RENAME COLUMN note TO ssn",
                "ALTER TABLE u RENAME COLUMN tmp TO note",
                secret(2, "id, note, ssn", table="u"),
                secret(2, table="t"),
            ],
        ],
        before=(_TABLE, "CREATE TABLE u (id int PRIMARY KEY, ssn text, note text)"),
    ),
    "rename the root of partitions, and its column": Attack(
        [
            ["ALTER TABLE t RENAME TO u", "ALTER TABLE u RENAME COLUMN ssn TO x"],
            [secret(1, "id, x, note", table="u")],
            ["ALTER TABLE t_1 RENAME TO v", secret(2, "id, x, note", table="v")],
        ],
        before=_INHERITED,
    ),
    "a child of a child, renamed": Attack(
        [
            ["CREATE TABLE child () INHERITS (t)", "CREATE TABLE grandchild () INHERITS (child)"],
            ["ALTER TABLE t RENAME COLUMN ssn TO x"],
            [secret(1, "id, x, note", table="grandchild")],
        ],
    ),
    "a type that is no text any more": Attack(
        [
            [
                "ALTER TABLE t ALTER COLUMN ssn TYPE jsonb USING to_jsonb(ssn)",
                "ALTER TABLE t RENAME COLUMN ssn TO x",
                f"INSERT INTO t VALUES (1, to_jsonb('{MARKER}-1'::text), 'plain')",
            ],
            [
                "ALTER TABLE t ALTER COLUMN x TYPE text[] USING ARRAY[x::text]",
                f"INSERT INTO t VALUES (2, ARRAY['{MARKER}-2'], 'plain')",
            ],
            [
                "ALTER TABLE t ALTER COLUMN x TYPE bytea USING x[1]::bytea",
                f"INSERT INTO t VALUES (3, '{MARKER}-3'::bytea, 'plain')",
            ],
        ],
    ),
    "a child of a protected table": Attack(
        [["CREATE TABLE child () INHERITS (t)"], [secret(1, table="child")]],
    ),
}

_PEOPLE: Final = "CREATE TABLE people (id int PRIMARY KEY, a text, ssn text, note text)"
_ANY_SSN: Final = {"hash": ["*.*.ssn"]}

NEW: Final[dict[str, Attack]] = {
    "renamed after its first row": Attack(
        [
            [
                _PEOPLE,
                secret(1, table="people"),
                "ALTER TABLE people RENAME COLUMN ssn TO x",
                secret(2, "id, x, note", table="people"),
            ]
        ],
        before=(),
        rules=_ANY_SSN,
    ),
    "two columns renamed after its first row": Attack(
        [
            [
                _PEOPLE,
                secret(1, table="people"),
                "ALTER TABLE people RENAME COLUMN ssn TO x",
                "ALTER TABLE people RENAME COLUMN note TO y",
                secret(2, "id, x, y", table="people"),
            ]
        ],
        before=(),
        rules=_ANY_SSN,
    ),
    "the name is given to a column that is added": Attack(
        [
            [
                _PEOPLE,
                secret(1, table="people"),
                "ALTER TABLE people RENAME COLUMN ssn TO x",
                secret(2, "id, x, note", table="people"),
                "ALTER TABLE people DROP COLUMN a",
                "ALTER TABLE people ADD COLUMN ssn text",
                secret(3, "id, x, note", table="people"),
            ]
        ],
        before=(),
        rules=_ANY_SSN,
        outcome=WITHHELD,
        withheld="columns.hash (*.*.ssn)",
    ),
    "dropped in the end": Attack(
        [
            [
                _PEOPLE,
                secret(1, table="people"),
                "ALTER TABLE people RENAME COLUMN ssn TO x",
                secret(2, "id, x, note", table="people"),
            ],
            ["DROP TABLE people"],
        ],
        before=(),
        rules=_ANY_SSN,
        outcome=WITHHELD,
        withheld="columns.hash (*.*.ssn)",
    ),
    "swapped and dropped in the end": Attack(
        [
            [
                _PEOPLE,
                secret(1, table="people"),
                "ALTER TABLE people RENAME COLUMN ssn TO x",
                "ALTER TABLE people RENAME COLUMN note TO ssn",
                secret(2, "id, x, ssn", table="people"),
            ],
            ["DROP TABLE people"],
        ],
        before=(),
        rules=_ANY_SSN,
        outcome=WITHHELD,
        withheld="columns.hash (*.*.ssn)",
    ),
    "with a column that was added later": Attack(
        [
            [_PEOPLE, secret(1, table="people")],
            ["ALTER TABLE people ADD COLUMN more text", "ALTER TABLE people ADD COLUMN ever text"],
            [secret(2, table="people")],
        ],
        before=(),
        rules=_ANY_SSN,
        fell=False,
    ),
}
"""Attacks on tables that are created, written and altered before the daemon reads their columns from the catalog."""

DOWN: Final[dict[str, Attack]] = {
    name: RUNNING[name]
    for name in (
        "rename the column",
        "rename the table",
        "swap the names of two columns",
        "swap names, write, swap back, in one transaction",
        "rename, write, drop, add in one transaction",
        "former values of REPLICA IDENTITY FULL",
        "a pattern whose table is renamed",
        "an excluded column",
        "rename the schema",
        "rename, write, rename back",
        "turn the names of three columns",
        "drop the column and add another one under its name",
        "move all names by one, then drop and add",
        "rename in a subtransaction that is rolled back",
        "swap the names of two tables and of their columns in one transaction",
        "a child of a child, renamed",
        "a column that columns.include does not name",
    )
}


_PARTITION: Final = "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (100) TO (200)"

LEFT: Final[dict[str, Attack]] = {
    "a partition that is detached": Attack(
        [[_PARTITION, secret(101)], ["ALTER TABLE t DETACH PARTITION t_2"]], before=_INHERITED
    ),
    "a partition that is detached and renamed": Attack(
        [[_PARTITION], [secret(101)], ["ALTER TABLE t DETACH PARTITION t_2", "ALTER TABLE t_2 RENAME TO x"]],
        before=_INHERITED,
    ),
    "a partition that is detached and altered, like its parent": Attack(
        [
            [_PARTITION, secret(101)],
            [
                "ALTER TABLE t DETACH PARTITION t_2",
                "ALTER TABLE t_2 RENAME TO x",
                "ALTER TABLE x ADD COLUMN more text",
                "ALTER TABLE t ADD COLUMN other text",
            ],
            [secret(102, table="x")],
        ],
        before=_INHERITED,
    ),
    "a partition that is dropped": Attack([[_PARTITION, secret(101)], ["DROP TABLE t_2"]], before=_INHERITED),
    "a known partition that is dropped": Attack([[secret(1)], ["DROP TABLE t_1"]], before=_INHERITED),
    "a table that was attached, written and detached": Attack(
        [
            ["CREATE TABLE x (id int PRIMARY KEY, ssn text, note text)"],
            ["ALTER TABLE t ATTACH PARTITION x FOR VALUES FROM (100) TO (200)", secret(101)],
            ["ALTER TABLE t DETACH PARTITION x"],
        ],
        before=_INHERITED,
    ),
    "a child that inherits no longer": Attack(
        [["CREATE TABLE x () INHERITS (t)"], [secret(1, table="x")], ["ALTER TABLE x NO INHERIT t"]],
    ),
    "a child that is dropped": Attack(
        [["CREATE TABLE x () INHERITS (t)", secret(1, table="x")], ["DROP TABLE x"]],
    ),
    "a detached partition of a table with columns.include": Attack(
        [[_PARTITION, secret(101)], ["ALTER TABLE t DETACH PARTITION t_2", "ALTER TABLE t_2 RENAME TO x"]],
        before=_INHERITED,
        rules={"include": ["public.t.id", "public.t.note"]},
    ),
}
"""Tables that were partitions or children when rows were written, and are not when the daemon reads their columns."""


def start(
    daemon: StartDaemon, database: Database, broker: KafkaBroker, unique: str, attack: Attack
) -> Daemon:
    """A daemon that has seen the tables as they were before the attack."""
    for statement in (*attack.before, "CREATE TABLE done (id int PRIMARY KEY, note text)"):
        database.execute(statement)
    if attack.as_a_whole:
        database.execute(
            f"CREATE PUBLICATION cdcd_{unique} FOR ALL TABLES WITH (publish_via_partition_root = true)"
        )
    process = daemon(
        configuration(
            unique,
            database.dsn(options="-c logical_decoding_work_mem=64kB"),
            broker.bootstrap_servers,
            columns={"hash_key": HASH_KEY, **attack.rules},
            log={"level": "debug"},
        )
    )
    process.await_streaming()
    return process


def carry_out(database: Database, transactions: Sequence[Sequence[str]]) -> None:
    for statements in transactions:
        with database.connect(autocommit=False) as connection:
            for statement in statements:
                connection.execute(statement.encode())


def await_outcome(
    process: Daemon, database: Database, broker: KafkaBroker, unique: str, attack: Attack
) -> list[bytes]:
    """Wait until the daemon has passed the attack or has stopped; return the records of all topics."""
    database.execute(f"INSERT INTO done VALUES (1, '{DONE}')")
    if attack.outcome == WITHHELD:
        assert process.wait() == 2
        said = process.output(all_lives=True)
        assert attack.withheld in said
        return list(everything(broker, unique))
    return await_passed(process, broker, unique)


def await_passed(process: Daemon, broker: KafkaBroker, unique: str) -> list[bytes]:
    """Wait until the row of `done` is delivered; return the records of all topics."""

    def passed() -> list[bytes] | None:
        assert process.is_running(), process.output()[-3000:]
        records = list(everything(broker, unique))
        return records if any(DONE.encode() in record for record in records) else None

    return until(passed, "the daemon has not passed the attack")


def assert_hidden(process: Daemon, records: Sequence[bytes]) -> None:
    """No record, page or line of the log has the secret."""
    for record in records:
        assert MARKER.encode() not in record, record
    if process.is_running():
        for page in ("/", "/v1/status", "/metrics"):
            assert MARKER not in process.page(page)
        assert process.stop() == 0
    assert MARKER not in process.output(all_lives=True)


def _marked(attacks: dict[str, Attack], worst: Sequence[str] = ()) -> list[Any]:
    found: list[Any] = []
    for name, attack in attacks.items():
        marks = [pytest.mark.attack(gains=GAINS, before="failed" if attack.fell else "withstood")]
        if name in worst:
            marks.append(pytest.mark.worst)
        found.append(pytest.param(attack, id=name, marks=marks))
    return found


@pytest.mark.parametrize(
    "attack",
    _marked(RUNNING, worst=["rename the column", "swap names, write, swap back, in one transaction"]),
)
def test_a_value_stays_protected_while_the_daemon_runs(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, attack: Attack
):
    process = start(daemon, database, broker, unique, attack)
    carry_out(database, attack.transactions)
    assert_hidden(process, await_outcome(process, database, broker, unique, attack))


@pytest.mark.parametrize("attack", _marked(DOWN))
def test_a_value_stays_protected_while_the_daemon_is_down(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, attack: Attack
):
    process = start(daemon, database, broker, unique, attack)
    assert process.stop() == 0
    carry_out(database, attack.transactions)
    process.start()
    assert_hidden(process, await_outcome(process, database, broker, unique, attack))


@pytest.mark.parametrize(
    "attack",
    _marked(
        {
            name: NEW[name]
            for name in ("renamed after its first row", "the name is given to a column that is added")
        }
    ),
)
def test_a_value_of_a_table_that_is_new_stays_protected_while_the_daemon_runs(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, attack: Attack
):
    process = start(daemon, database, broker, unique, attack)
    carry_out(database, attack.transactions)
    assert_hidden(process, await_outcome(process, database, broker, unique, attack))


@pytest.mark.parametrize("attack", _marked(NEW | LEFT))
def test_a_value_of_a_table_that_is_new_stays_protected(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, attack: Attack
):
    process = start(daemon, database, broker, unique, attack)
    assert process.stop() == 0
    carry_out(database, attack.transactions)
    process.start()
    assert_hidden(process, await_outcome(process, database, broker, unique, attack))


@pytest.mark.attack(gains=GAINS, before="failed")
@pytest.mark.postgres(since=18)
@pytest.mark.parametrize("when", ["running", "down", "first"])
def test_a_column_that_is_generated_from_a_protected_one_shows_no_value(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, when: str
):
    database.execute(
        f"CREATE PUBLICATION cdcd_{unique} FOR ALL TABLES WITH (publish_generated_columns = stored)"
    )
    generated = ["ALTER TABLE t ADD COLUMN shown text GENERATED ALWAYS AS (ssn || '') STORED", secret(1)]
    if when == "first":
        carry_out(database, [[_TABLE, *generated]])
        config = configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            columns={"hash_key": HASH_KEY, "hash": ["public.t.ssn"]},
            snapshot={"mode": "initial"},
        )
        process = daemon(config)
        assert process.wait() == 2
        assert_hidden(process, list(everything(broker, unique)))
    else:
        attack = Attack([generated], outcome=WITHHELD)
        process = start(daemon, database, broker, unique, attack)
        if when == "down":
            assert process.stop() == 0
        carry_out(database, attack.transactions)
        if when == "down":
            process.start()
        assert_hidden(process, await_outcome(process, database, broker, unique, attack))
    assert "public.t.shown is generated from column ssn" in process.output(all_lives=True)


@pytest.mark.attack(gains=GAINS, before="failed")
def test_a_value_stays_protected_after_a_kill_before_any_row(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    attack = RUNNING["a pattern whose table is renamed"]
    process = start(daemon, database, broker, unique, attack)
    until(
        lambda: any(b'"bindings"' in record for record in everything(broker, unique)) or None,
        "the checkpoint has no bindings",
    )
    process.kill()
    carry_out(
        database, [["ALTER TABLE customers RENAME COLUMN ssn TO x"], [secret(1, "id, x, note", "customers")]]
    )
    process.start()
    assert_hidden(process, await_outcome(process, database, broker, unique, attack))


@pytest.mark.attack(gains=GAINS, before="failed")
@pytest.mark.parametrize("known", ["before the first start", "before a restart"])
def test_a_value_stays_protected_after_a_kill_before_the_first_batch(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, known: str
):
    table = "CREATE TABLE customers (id int PRIMARY KEY, ssn text, note text)"
    attack = Attack([], before=(), rules={"hash": ["public.customer*.ssn"]})
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            # cdcd writes a checkpoint without records only after this interval.
            postgres={"status_interval_s": 25},
            columns={"hash_key": HASH_KEY, **attack.rules},
        )
    )
    database.execute("CREATE TABLE done (id int PRIMARY KEY, note text)")
    if known == "before a restart":
        process.await_streaming()
        assert process.stop() == 0
        database.execute(table)
        process.start()
    else:
        process.kill()
        database.execute(table)
        process.start()
    process.await_event("stream.started")
    process.kill()
    carry_out(
        database, [["ALTER TABLE customers RENAME COLUMN ssn TO x"], [secret(1, "id, x, note", "customers")]]
    )
    process.config["postgres"]["status_interval_s"] = 0.2
    process.start()
    assert_hidden(process, await_outcome(process, database, broker, unique, attack))


@pytest.mark.postgres(since=14)
@pytest.mark.attack(gains=GAINS, before="failed")
@pytest.mark.parametrize("names", ["rename", "swap", "swap and back"])
def test_a_value_stays_protected_in_a_streamed_transaction(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, names: str
):
    attack = RUNNING["rename the column"]
    swap = [
        "ALTER TABLE t RENAME COLUMN ssn TO tmp",
        "ALTER TABLE t RENAME COLUMN note TO ssn",
        "ALTER TABLE t RENAME COLUMN tmp TO note",
    ]
    rows = f"INSERT INTO t SELECT g, '{MARKER}-' || g, 'plain' FROM generate_series(%d, %d) g"
    statements = [rows % (1, 3000)]
    if names == "rename":
        statements += ["ALTER TABLE t RENAME COLUMN ssn TO x", rows % (3001, 6000)]
    else:
        statements += [*swap, rows % (3001, 6000)]
    if names == "swap and back":
        statements += [*swap, rows % (6001, 9000)]
    process = start(daemon, database, broker, unique, attack)
    carry_out(database, [statements])
    assert_hidden(process, await_outcome(process, database, broker, unique, attack))


@pytest.mark.postgres(since=14)
@pytest.mark.attack(gains=GAINS, before="failed")
def test_a_value_stays_protected_in_a_snapshot_after_a_rename(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    attack = RUNNING["rename the column"]
    process = start(daemon, database, broker, unique, attack)
    carry_out(database, [["ALTER TABLE t RENAME COLUMN ssn TO x"], ["ALTER TABLE t RENAME TO u"]])
    assert process.stop() == 0
    carry_out(database, [[secret(1, "id, x, note", "u")]])
    process.start()
    ask(database, action="start", tables=["public.u"])
    process.await_event("table.read")
    assert_hidden(process, await_outcome(process, database, broker, unique, attack))


@pytest.mark.attack(gains=GAINS, before="failed")
def test_a_start_refuses_a_rule_whose_column_has_another_name(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # WHEN the column is renamed before the pipeline knows it
    database.execute("CREATE TABLE t (id int PRIMARY KEY, ssn2 text, note text)")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            columns={"hash_key": HASH_KEY, "hash": ["public.t.ssn"]},
        )
    )
    # THEN nothing is delivered
    assert process.wait() == 2
    assert "columns.hash (public.t.ssn) names a column that public.t does not have" in process.output()


@pytest.mark.attack(gains=GAINS, before="failed")
def test_a_rule_that_the_operator_changes_begins_with_the_names_of_now(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    """This is no attack, but its absence would let a withheld table never come back."""
    attack = RUNNING["create the table again without the column"]
    process = start(daemon, database, broker, unique, attack)
    carry_out(database, attack.transactions)
    await_outcome(process, database, broker, unique, attack)
    changed = Attack([], rules={"hash": ["public.t.ssn2"]})
    process.config["columns"] = {"hash_key": HASH_KEY, **changed.rules}
    process.start()
    assert_hidden(process, await_passed(process, broker, unique))


_TELL: Final = """
CREATE FUNCTION tell(v text) RETURNS bool LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION '%', v USING ERRCODE = '42501'; END $$
"""
_TELL_BY_NAME: Final = """
CREATE FUNCTION tell_by_name(v text) RETURNS bool LANGUAGE plpgsql AS
$$ DECLARE b bool; BEGIN EXECUTE format('SELECT %I', v) INTO b; RETURN b; END $$
"""


@pytest.mark.postgres(since=14)
@pytest.mark.attack(gains="a value of a protected column, in the text of an error", before="failed")
@pytest.mark.parametrize("condition", ["ssn::int > 0", "tell(ssn)", "tell_by_name(ssn)"])
def test_a_condition_shows_no_value_in_an_error(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, condition: str
):
    for statement in (
        _TABLE,
        secret(1),
        _TELL,
        _TELL_BY_NAME,
    ):
        database.execute(statement)
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            columns={"hash_key": HASH_KEY, "hash": ["public.t.ssn"]},
            snapshot={"mode": "never", "signals": "all"},
            log={"level": "debug"},
        )
    )
    process.await_streaming()
    asked = run_cdcd(
        *("snapshot", "start", "--config", str(process.config_path)),
        *("--table", "public.t", "--where", condition, "--wait"),
    )
    assert "SQLSTATE" in asked.stderr
    assert MARKER not in asked.stdout + asked.stderr
    assert_hidden(process, list(everything(broker, unique)))
