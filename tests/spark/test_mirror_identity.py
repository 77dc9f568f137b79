"""What a column, a table, a topic and a label of an enum are: a mirror is equal, or stopped by name with a way on."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from cdcd.core.errors import CdcdError
from cdcd.mirror.records.types import table_schema
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, plan
from cdcd.mirror.watching.progress import BatchDone, TableReloaded
from deploy.demo.mirrored import compare
from tests.integration.daemon import until
from tests.spark.jobs import Job
from tests.spark.stage import Source, Stage


class Mirrored:
    """Mirrors of one source in this process, each run a new one."""

    def __init__(self, spark: SparkSession, source: Source, table_format: str, folder: Path) -> None:
        self.job = Job(spark, source, folder, table_format)
        self._source = source

    def once(self, **sections: Any) -> dict[str, CdcdError]:
        """Bring the tables to where the topics are. Return the errors of what stopped, by name."""
        return self.job.once(tables={"on_incompatible": "stop"}, **sections)

    def load(self, table: str) -> None:
        """Read a table by Spark, as `cdcd mirror --snapshot` does."""
        self.job.load([f"public.{table}"])

    def drop(self, table: str) -> None:
        """Drop a target table, as an operator does."""
        self.job.drop(self._source, table)

    def different(self, *tables: str) -> list[str]:
        """The verdicts on those `tables` that differ from the source."""
        named = [f"public.{table}" for table in tables]
        verdicts = compare(self._source.dsn, self.job.spark, self.job.target, named)
        return [str(verdict) for verdict in verdicts if not verdict.equal]


@pytest.fixture
def source_name(request: pytest.FixtureRequest) -> str:
    """Of a database and a pipeline that no other test has."""
    return f"i{abs(hash(request.node.nodeid)) % 10**8}"


COLUMNS = {
    # Columns that were dropped before: attribute numbers have a gap, so places do not tell.
    "renamed": (
        "CREATE TABLE renamed (id int PRIMARY KEY, gone int, v text); ALTER TABLE renamed DROP gone",
        "ALTER TABLE renamed RENAME v TO w",
    ),
    "renamed_and_added": (
        "CREATE TABLE renamed_and_added (id int PRIMARY KEY, v text)",
        "ALTER TABLE renamed_and_added RENAME v TO w; ALTER TABLE renamed_and_added ADD x text DEFAULT 'new'",
    ),
    "swapped": (
        "CREATE TABLE swapped (id int PRIMARY KEY, v text, u text)",
        "ALTER TABLE swapped RENAME v TO t; ALTER TABLE swapped RENAME u TO v; ALTER TABLE swapped RENAME t TO u",
    ),
    "swapped_and_added": (
        (
            "CREATE TABLE swapped_and_added (id int PRIMARY KEY, gone int, v text, u text);"
            " ALTER TABLE swapped_and_added DROP gone"
        ),
        (
            "ALTER TABLE swapped_and_added RENAME v TO t; ALTER TABLE swapped_and_added RENAME u TO v;"
            " ALTER TABLE swapped_and_added RENAME t TO u; ALTER TABLE swapped_and_added ADD x int"
        ),
    ),
    "renamed_and_dropped": (
        "CREATE TABLE renamed_and_dropped (id int PRIMARY KEY, v text, u text, z text)",
        "ALTER TABLE renamed_and_dropped DROP v; ALTER TABLE renamed_and_dropped RENAME u TO v",
    ),
}
"""Tables, and what becomes of their columns while the daemon is away."""


@pytest.mark.timeout(2400)
def test_columns_that_are_renamed_while_the_daemon_is_away_keep_their_values(
    stage: Stage, spark: SparkSession, source_name: str, table_format: str, tmp_path: Path
) -> None:
    with stage.source(source_name, *[table for table, _ in COLUMNS.values()]) as source:
        mirrored = Mirrored(spark, source, table_format, tmp_path)
        # GIVEN rows in a mirror
        for table in COLUMNS:
            source.execute(f"INSERT INTO {table} (id, v) SELECT g, 'v' || g FROM generate_series(1, 3) g")
        source.deliver()
        assert mirrored.once() == {}
        # AND a daemon that is away while rows come, columns get other names, and rows come again
        assert source.daemon.stop() == 0
        for table, (_, alter) in COLUMNS.items():
            source.execute(f"INSERT INTO {table} (id, v) VALUES (4, 'v4')")
            source.execute(alter)
        source.daemon.start()
        source.daemon.await_streaming()
        source.deliver()

        # WHEN the mirror has read rows of the old form that were described by today's catalog
        assert mirrored.once() == {}
        for table in COLUMNS:
            column = "w" if table in {"renamed", "renamed_and_added"} else "v"
            source.execute(f"INSERT INTO {table} (id, {column}) VALUES (5, 'after')")
        source.deliver()
        assert mirrored.once() == {}

        # THEN every table equals its source
        assert mirrored.different(*COLUMNS) == []


def test_a_column_that_was_dropped_and_added_again_is_not_taken_for_the_same_where_its_place_tells(
    stage: Stage, source_name: str
) -> None:
    # Without a mirror: what a mirror does with it, other tests show.
    with stage.source(
        source_name, "CREATE TABLE unseen (id int PRIMARY KEY, a text, b text)", partitions=1
    ) as source:
        # GIVEN a table of which the daemon never described anything, because it had no row
        assert source.daemon.stop() == 0
        # WHEN it gets one, and a column is dropped and added again, all while the daemon is away
        source.execute("INSERT INTO unseen VALUES (1, 'gone', 'stays')")
        source.execute("ALTER TABLE unseen DROP a; ALTER TABLE unseen ADD a text")
        source.execute("INSERT INTO unseen (id) VALUES (2)")
        source.daemon.start()
        source.daemon.await_streaming()
        source.deliver()
        # THEN the mirror does not keep the value that the source has not any more
        old, new = [table_schema(form.fingerprint, form) for form in source.descriptions("public.unseen")]
        assert [column.name for column in old.columns] == ["id", "a", "b"]
        with pytest.raises(IncompatibleSchemaError, match="columns b, a are not all the former columns"):
            plan(old, new)


@pytest.mark.timeout(2400)
def test_another_table_under_a_name_becomes_the_mirror_or_stops_with_a_way_on(
    stage: Stage, spark: SparkSession, source_name: str, table_format: str, tmp_path: Path
) -> None:
    tables = ("made_again", "swapped", "other_columns", "untold")
    with stage.source(
        source_name,
        *[f"CREATE TABLE {table} (id int PRIMARY KEY, n int, v text)" for table in tables],
        "CREATE TABLE green (id int PRIMARY KEY, n int, v text)",
    ) as source:
        mirrored = Mirrored(spark, source, table_format, tmp_path)
        # GIVEN mirrors with rows
        for table in tables:
            source.execute(f"INSERT INTO {table} SELECT g, g, 'old' FROM generate_series(1, 10) g")
        source.execute("INSERT INTO green SELECT g, g * 100, 'green' FROM generate_series(1, 3) g")
        source.deliver()
        assert mirrored.once() == {}

        # WHEN other tables get the names: made again, swapped, with other columns and another key
        source.execute("DROP TABLE made_again; CREATE TABLE made_again (id int PRIMARY KEY, n int, v text)")
        source.execute("INSERT INTO made_again VALUES (7, 7, 'new')")
        source.execute("ALTER TABLE swapped RENAME TO blue; ALTER TABLE green RENAME TO swapped")
        source.execute("INSERT INTO swapped VALUES (50, 50, 'swapped')")
        source.execute("DROP TABLE other_columns")
        source.execute("CREATE TABLE other_columns (v int, code text PRIMARY KEY, id date)")
        source.execute("INSERT INTO other_columns VALUES (1, 'a', '2020-02-02')")
        for table in ("made_again", "swapped", "other_columns"):
            replaced = source.daemon.await_event("table.replaced", table=f"public.{table}")
            source.daemon.await_event(
                "table.read", after=source.daemon.events.index(replaced), table=f"public.{table}"
            )
        # AND one while the daemon does not tell the end of the former rows
        assert source.daemon.stop() == 0
        source.daemon.config["topics"]["truncate"] = False
        source.execute("DROP TABLE untold; CREATE TABLE untold (id int PRIMARY KEY, n int, v text)")
        source.execute("INSERT INTO untold VALUES (3, 3, 'new')")
        source.daemon.start()
        source.daemon.await_event("table.replaced", table="public.untold")
        source.deliver()

        # THEN the first three are the new tables, and the last is stopped by name
        stopped = mirrored.once()
        assert list(stopped) == ["public.untold"], [error.message for error in stopped.values()]
        assert "another table has this name now" in stopped["public.untold"].message
        assert mirrored.different("made_again", "swapped", "other_columns") == []
        # AND what the message says is a way on
        assert "tables stop public.untold" in stopped["public.untold"].hint
        mirrored.drop("untold")
        mirrored.load("untold")
        source.execute("INSERT INTO untold VALUES (4, 4, 'later')")
        source.execute("INSERT INTO made_again VALUES (8, 8, 'later')")
        source.deliver()
        assert mirrored.once() == {}
        assert mirrored.different(*tables) == []


@pytest.mark.timeout(2400)
def test_a_table_has_its_rows_under_its_new_name_or_stops_with_a_way_on(
    stage: Stage, spark: SparkSession, source_name: str, table_format: str, tmp_path: Path
) -> None:
    kept = ("item", "item_prev", "alone_now")
    told = (*kept, "untold_prev", "untold_now")
    with stage.source(
        source_name,
        *[
            f"CREATE TABLE {table} (id int PRIMARY KEY, n int); INSERT INTO {table}"
            f" SELECT g, g * {count} FROM generate_series(1, {count}) g"
            for table, count in (("item", 10), ("item_next", 3), ("alone", 20), ("untold", 5), ("moved", 6))
        ],
    ) as source:
        mirrored = Mirrored(spark, source, table_format, tmp_path)
        source.deliver()
        assert mirrored.once() == {}
        # WHEN names are exchanged (one table gets changes under its new name, one does not), and a name is a fresh one
        source.execute("ALTER TABLE item RENAME TO item_prev; ALTER TABLE item_next RENAME TO item")
        source.execute("INSERT INTO item_prev VALUES (11, 11); DELETE FROM item_prev WHERE id = 1")
        source.execute("ALTER TABLE alone RENAME TO alone_now")
        for table in kept:
            replaced = source.daemon.await_event("table.replaced", table=f"public.{table}")
            source.daemon.await_event(
                "table.read", after=source.daemon.events.index(replaced), table=f"public.{table}"
            )
        # AND tables are renamed while the daemon does not tell that it reads their rows
        assert source.daemon.stop() == 0
        source.daemon.config["topics"]["truncate"] = False
        source.execute("ALTER TABLE untold RENAME TO untold_prev; ALTER TABLE moved RENAME TO untold_now")
        source.execute("INSERT INTO untold_prev VALUES (6, 6)")
        source.daemon.start()
        source.daemon.await_streaming()
        for table in ("untold_prev", "untold_now"):
            source.daemon.await_event("table.read", table=f"public.{table}")
        source.deliver()

        # THEN the first have all of their rows, and the others are stopped by name
        stopped = mirrored.once()
        assert mirrored.different(*kept) == []
        assert sorted(stopped) == ["public.untold_now", "public.untold_prev"]
        assert "or it was called public.untold before" in stopped["public.untold_prev"].message
        assert "or it was called public.moved before" in stopped["public.untold_now"].message
        # AND what the messages say is a way on
        for table, error in stopped.items():
            assert f"tables stop {table}" in error.hint
            mirrored.load(table.removeprefix("public."))
        for table in told:
            source.execute(f"INSERT INTO {table} VALUES (40, 40)")
        source.deliver()
        assert mirrored.once() == {}
        assert mirrored.different(*told) == []


@pytest.mark.timeout(2400)
def test_a_topic_that_was_made_anew_stops_its_table_whatever_its_length_and_no_other(
    stage: Stage, spark: SparkSession, source_name: str, table_format: str, tmp_path: Path
) -> None:
    tables = ("longer", "shorter", "gone", "other")
    created = [f"CREATE TABLE {table} (id int PRIMARY KEY)" for table in tables]
    with stage.source(source_name, *created, partitions=1) as source:
        mirrored = Mirrored(spark, source, table_format, tmp_path)
        # GIVEN a mirror with some rows
        for table in tables:
            source.execute(f"INSERT INTO {table} SELECT generate_series(1, 5)")
        source.deliver()
        assert mirrored.once() == {}
        # WHEN three topics are deleted, and come back with more records than before, with fewer, and not at all
        assert source.daemon.stop() == 0
        source.delete_topics("longer", "shorter", "gone")
        source.daemon.start()
        source.daemon.await_streaming()
        source.execute("INSERT INTO longer SELECT generate_series(6, 40)")
        source.execute("INSERT INTO shorter VALUES (6)")
        source.execute("INSERT INTO other VALUES (6)")
        source.deliver()

        # THEN their tables are stopped by name, and the fourth table goes on
        stopped = mirrored.once()
        assert sorted(stopped) == ["public.gone", "public.longer", "public.shorter"]
        assert "was deleted" in stopped.pop("public.gone").message
        for error in stopped.values():
            assert "deleted, and made again under its name" in error.message
        assert mirrored.different("other") == []
        # AND each later run says the same, though nothing was written
        again = mirrored.once()
        assert sorted(again) == ["public.gone", "public.longer", "public.shorter"]
        assert "was deleted" in again["public.gone"].message
        # AND what the messages say is a way on
        for table, error in stopped.items():
            assert f"tables stop {table}" in error.hint
            mirrored.load(table.removeprefix("public."))
        source.execute("INSERT INTO longer SELECT generate_series(41, 45)")
        source.execute("INSERT INTO shorter SELECT generate_series(7, 9)")
        source.execute("INSERT INTO gone VALUES (6)")
        source.deliver()
        stopped = mirrored.once()
        assert list(stopped) == ["public.gone"], [error.message for error in stopped.values()]
        mirrored.load("gone")
        assert mirrored.once() == {}
        assert mirrored.different(*tables) == []


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("reloads", [False, True])
def test_records_that_retention_removed_unread_stop_their_table_or_have_it_read_again(
    stage: Stage, spark: SparkSession, source_name: str, tmp_path: Path, *, reloads: bool
) -> None:
    tables = ("lost", "other")
    created = [f"CREATE TABLE {table} (id int PRIMARY KEY, n int)" for table in tables]
    with stage.source(source_name, *created, partitions=1) as source:
        job = Job(spark, source, tmp_path)
        sections = {"tables": {"on_incompatible": "reload" if reloads else "stop"}}
        # GIVEN a mirror that ended. Then records were added, and Kafka has removed all of them except the last one
        for table in tables:
            source.execute(f"INSERT INTO {table} SELECT g, g FROM generate_series(1, 5) g")
        source.deliver()
        assert job.once(**sections) == {}
        for table in tables:
            source.execute(f"INSERT INTO {table} SELECT g, g FROM generate_series(6, 9) g")
        source.deliver()
        topic = f"{source.name}.public.lost"
        end = source.records("public.lost")[-1].offset
        admin = AdminClient({"bootstrap.servers": source.servers})
        for removed in admin.delete_records([TopicPartition(topic, 0, end)]).values():
            removed.result()
        # WHEN the mirror goes on
        stopped = job.once(**sections)
        # THEN the other table has everything
        assert job.rows(source, "other") == [(n, n) for n in range(1, 10)]
        # AND the table that lacks records is read again, or keeps its rows and says what to do
        if reloads:
            assert stopped == {}
            assert [fact.table for fact in job.all(TableReloaded)] == ["public.lost"]
            assert job.rows(source, "lost") == [(n, n) for n in range(1, 10)]
        else:
            assert list(stopped) == ["public.lost"]
            assert "are gone" in stopped["public.lost"].message
            assert "tables stop public.lost" in stopped["public.lost"].hint
            assert job.rows(source, "lost") == [(n, n) for n in range(1, 6)]


@pytest.mark.timeout(2400)
def test_a_topic_that_is_made_anew_while_the_mirror_runs_is_noticed_whatever_its_length(
    stage: Stage, spark: SparkSession, source_name: str, tmp_path: Path
) -> None:
    tables = ("longer", "shorter")
    created = [f"CREATE TABLE {table} (id int PRIMARY KEY, n int)" for table in tables]
    with stage.source(source_name, *created, partitions=2) as source:
        job = Job(spark, source, tmp_path)
        mirror, stop = job.mirror(tables={"on_incompatible": "reload"}), threading.Event()
        running = threading.Thread(target=partial(mirror.run, once=False, stop=stop))

        def equal(table: str) -> bool | None:
            with source.connect() as connection:
                rows = connection.execute(f"SELECT id, n FROM {table} ORDER BY id").fetchall()
            there = job.spark.catalog.tableExists(f"lake.{source.name}.public_{table}")
            return (there and job.rows(source, table) == rows) or None

        # GIVEN a mirror that runs
        for table in tables:
            source.execute(f"INSERT INTO {table} SELECT g, g FROM generate_series(1, 20) g")
        source.deliver()
        running.start()
        try:
            until(lambda: len(job.all(BatchDone)) or None, "a batch")
            for table in tables:
                until(partial(equal, table), f"{table} in the mirror")
            # WHEN topics are made again
            assert source.daemon.stop() == 0
            source.delete_topics(*tables)
            source.daemon.start()
            source.daemon.await_streaming()
            source.execute("INSERT INTO longer SELECT g, g FROM generate_series(21, 90) g")
            source.execute("UPDATE shorter SET n = 0 WHERE id < 4")
            source.deliver()
            # THEN their tables are read again, and go on
            for table in tables:
                until(partial(equal, table), f"{table} in the mirror again", 300)
            source.execute("UPDATE shorter SET n = 1 WHERE id < 9")
            source.deliver()
            until(partial(equal, "shorter"), "a change of the new topic")
        finally:
            stop.set()
            running.join()
        assert {fact.table for fact in job.all(TableReloaded)} == {"public.longer", "public.shorter"}
        assert mirror.stopped == {}


@pytest.mark.timeout(2400)
def test_a_label_that_is_renamed_is_renamed_in_the_rows_that_are_there(
    stage: Stage, spark: SparkSession, source_name: str, table_format: str, tmp_path: Path
) -> None:
    with stage.source(
        source_name,
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN feeling AS mood",
        "CREATE TYPE size AS ENUM ('s', 'm')",
        "CREATE TABLE moods (id int PRIMARY KEY, one mood, many mood[], felt feeling)",
        "CREATE TABLE away (id int PRIMARY KEY, one size)",
        "CREATE TABLE taken (id int PRIMARY KEY, one size)",
    ) as source:
        mirrored = Mirrored(spark, source, table_format, tmp_path)
        # GIVEN a mirror of rows with labels
        source.execute("INSERT INTO moods VALUES (1, 'sad', '{sad,ok,NULL}', 'sad'), (2, 'ok', '{}', NULL)")
        source.execute("INSERT INTO away VALUES (1, 's'), (2, 'm')")
        source.execute("INSERT INTO taken VALUES (1, 's'), (2, 'm')")
        source.deliver()
        assert mirrored.once() == {}

        # WHEN a label gets another word, and no row changes
        described = len(source.descriptions("public.moods"))
        source.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
        until(lambda: source.descriptions("public.moods")[described:] or None, "the new labels")
        # THEN the rows have it
        assert mirrored.once() == {}
        assert mirrored.different("moods") == []

        # WHEN it happens while the daemon is away, between rows, and a label is added
        assert source.daemon.stop() == 0
        source.execute("INSERT INTO away VALUES (3, 's')")
        source.execute("ALTER TYPE size RENAME VALUE 's' TO 'small'")
        source.execute("ALTER TYPE size ADD VALUE 'l'")
        source.execute("INSERT INTO away VALUES (4, 'small'), (5, 'l')")
        source.daemon.start()
        source.daemon.await_streaming()
        source.deliver()
        # THEN old words in the stream are the new ones too
        assert mirrored.once() == {}
        assert mirrored.different("moods", "away") == []

        # WHEN two labels change their words, so that nobody can tell what a row has
        with source.connect() as connection, connection.transaction():
            for before, after in (("small", "x"), ("m", "small"), ("x", "m")):
                connection.execute(f"ALTER TYPE size RENAME VALUE '{before}' TO '{after}'".encode())
        for table in ("public.away", "public.taken"):
            until(partial(swapped, source, table), f"the labels of {table}")
        # THEN the tables are stopped by name, and what the message says is a way on
        stopped = mirrored.once()
        assert sorted(stopped) == ["public.away", "public.taken"]
        for table, error in stopped.items():
            assert f"tables stop {table}" in error.hint
            mirrored.drop(table.removeprefix("public."))
            mirrored.load(table.removeprefix("public."))
        assert mirrored.once() == {}
        assert mirrored.different("moods", "away", "taken") == []


def swapped(source: Source, table: str) -> bool | None:
    """Whether the last description has the labels of a size the other way round."""
    column = source.descriptions(table)[-1].columns[1]
    return [label for _, label in column.labels] == ["m", "small", "l"] or None
