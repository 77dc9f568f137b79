"""`--snapshot` of a folded table: Spark reads the table, and folds continue after the snapshot."""

from functools import partial
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from cdcd.cli.mirror_parts import load_folded, load_tables, settings_of
from cdcd.config.mirror import MirrorConfig, parse_mirror
from cdcd.core.errors import SinkError, SourceError
from cdcd.mirror.base.formats import base_of
from cdcd.mirror.base.load import read_again
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.snapshot.reading import Loaded, Snapshot, SnapshotSource
from cdcd.mirror.watching.progress import Replayed, TableLoaded, TableReloaded, TableReloading
from tests.spark.folding import Folds
from tests.spark.stage import Source, Stage

TABLES = (
    "CREATE TABLE item (id int PRIMARY KEY, n int, what text)",
    "INSERT INTO item SELECT g, g, 'first' FROM generate_series(1, 300) g",
)


def configured(folds: Folds, source: Source, table_format: str) -> tuple[MirrorConfig, SnapshotSource]:
    """The configuration of a mirror over the tables of `folds`, and the database that it reads."""
    place = {"catalog": "lake", "namespace": source.name} if table_format == ICEBERG else {}
    target = {"format": table_format, "location": str(folds.folder), **place}
    given = {"name": source.name, "kafka": {"bootstrap_servers": source.servers}, "target": target}
    slot = f"cdcd_{source.name}"
    database = SnapshotSource(source.dsn, slot, slot, source.name, KafkaSource(source.servers))
    return parse_mirror(yaml.safe_dump(given), {}), database


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_table_that_spark_reads_again_equals_its_source_and_folds_continue(
    stage: Stage, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    with stage.source(f"load_{table_format}", *TABLES) as source:
        folds = Folds(spark, source, tmp_path, table_format)
        config, database = configured(folds, source, table_format)
        settings, own = settings_of(config), folds.spark
        source.deliver()
        assert folds.once() == {}
        # GIVEN a table that somebody else has changed, and a column whose type folds cannot follow
        name = folds.name("item")
        folds.spark.sql(f"DELETE FROM {name} WHERE id < 10")
        folds.spark.sql(f"UPDATE {name} SET what = 'wrong' WHERE id = 20")
        source.execute("ALTER TABLE item ALTER n TYPE text; UPDATE item SET n = 'text' WHERE id = 30")
        source.deliver()
        assert list(folds.once()) == ["public.item"]
        # WHEN Spark reads the table, while changes are under way
        source.execute("DELETE FROM item WHERE id = 40; UPDATE item SET id = 1000 WHERE id = 41")
        snapshots: list[Snapshot] = []
        load_folded_one = load_folded(own, config, settings)

        def load_one(snapshot: Snapshot, table: str) -> Loaded:
            snapshots.append(snapshot)
            done = load_folded_one(snapshot, table)
            source.execute("INSERT INTO item VALUES (2000, 'later', 'later'); DELETE FROM item WHERE id = 50")
            return done

        load_tables(own, database, ["public.item"], folds.facts.append, load_one)
        # THEN it has the rows of the snapshot
        loaded = folds.facts[-1]
        assert isinstance(loaded, TableLoaded)
        assert (loaded.table, loaded.rows) == ("public.item", 299)
        assert folds.table(source, "item").count() == 299
        position = base_of(table_format).version(folds.spark, name).position
        assert position is not None
        assert (position.clean, position.lsn) == (True, snapshots[0].commit_lsn)
        # AND the next fold adds what came later
        source.deliver()
        assert folds.once() == {}
        assert folds.different("item") == []
        # WHEN folds may read a table again that cannot follow its source
        folds.read_again = partial(read_again, own, database, load_folded_one, folds.facts.append)
        source.execute("ALTER TABLE item ALTER what TYPE int USING length(what); UPDATE item SET what = 9")
        source.deliver()
        folds.facts.clear()
        assert folds.once(reload=True) == {}
        # THEN it is read again
        (reloading,) = [fact for fact in folds.facts if isinstance(fact, TableReloading)]
        assert "what changed from text to integer" in reloading.message
        (reloaded,) = [fact for fact in folds.facts if isinstance(fact, TableReloaded)]
        assert (reloaded.table, reloaded.rows) == ("public.item", 299)
        assert folds.different("item") == []
        # AND folds continue
        source.execute("DELETE FROM item WHERE id = 60; INSERT INTO item VALUES (3000, 'later', 3)")
        source.deliver()
        assert folds.once(reload=True) == {}
        assert folds.different("item") == []
        # WHEN records were in quarantine, and can be read by now
        source.execute("INSERT INTO item VALUES (4000, 'late', 4); UPDATE item SET n = 'late' WHERE id = 70")
        source.execute("DELETE FROM item WHERE id = 71; UPDATE item SET what = 5 WHERE id = 4000")
        source.deliver()
        folds.append()
        quarantined = "kind = 'change' AND CAST(value AS string) LIKE '%late%'"
        folds.spark.sql(
            f"UPDATE {folds.place.name} SET kind = 'unreadable', reason = 'no', lsn = NULL WHERE {quarantined}"
        )
        assert folds.once() == {}
        assert folds.different("item") != []
        assert folds.once(replays=True) == {}
        # THEN the table has them
        (replayed,) = [fact for fact in folds.facts if isinstance(fact, Replayed)]
        assert (replayed.table, replayed.replayed, replayed.left, replayed.gone) == ("public.item", 3, 0, 0)
        assert folds.different("item") == []
        # AND they are changes of the log
        assert folds.spark.table(folds.place.name).filter("kind = 'unreadable'").count() == 0


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_rows_that_satisfy_a_condition_are_read_again_and_all_others_stay(
    stage: Stage, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    with stage.source(f"where_{table_format}", *TABLES) as source:
        folds = Folds(spark, source, tmp_path, table_format)
        config, database = configured(folds, source, table_format)
        own, name = folds.spark, folds.name("item")

        def load(where: str) -> None:
            load_one = load_folded(own, config, settings_of(config), where)
            load_tables(own, database, ["public.item"], folds.facts.append, load_one)

        # GIVEN a table that is not there yet, THEN no rows are added to it
        source.deliver()
        with pytest.raises(SinkError, match="only to a table that is folded"):
            load("id < 10")
        assert folds.once() == {}
        # GIVEN rows that somebody else has changed and removed, and changes that no fold has brought in
        folds.spark.sql(f"UPDATE {name} SET what = 'wrong' WHERE id BETWEEN 11 AND 30")
        folds.spark.sql(f"DELETE FROM {name} WHERE id BETWEEN 15 AND 25")
        source.execute("UPDATE item SET n = -n WHERE id = 12; DELETE FROM item WHERE id = 13")
        source.execute("UPDATE item SET id = 400 WHERE id = 14; INSERT INTO item VALUES (500, 1, 'new')")
        source.execute("DELETE FROM item WHERE id = 500; UPDATE item SET n = 0 WHERE id = 200")
        # WHEN a part of the table is read again
        load("id BETWEEN 11 AND 20 OR what = 'new'")
        # THEN it has the rows that satisfy the condition, and the others are as they were
        found = {row["id"]: (row["n"], row["what"]) for row in folds.table(source, "item").collect()}
        assert [found[id_] for id_ in (11, 12, 16, 30, 200)] == [
            (11, "first"),
            (-12, "first"),
            (16, "first"),
            (30, "wrong"),
            (200, "first"),
        ]
        assert 22 not in found
        # AND the folds bring in what came before and after it, each once
        source.execute("DELETE FROM item WHERE id = 16; UPDATE item SET n = 7 WHERE id = 17")
        source.deliver()
        assert folds.once() == {}
        load("id BETWEEN 21 AND 30")
        assert folds.different("item") == []
        source.execute("UPDATE item SET n = 8 WHERE id = 22")
        source.deliver()
        assert folds.once() == {}
        assert folds.different("item") == []
        # WHEN the text is no condition, or the source has another column, THEN the command ends, and no row changes
        with pytest.raises(SourceError, match="the condition fails"):
            load("nowhere = 1")
        source.execute("ALTER TABLE item ADD more int")
        with pytest.raises(SinkError, match="has the columns of its source now"):
            load("id = 1")
