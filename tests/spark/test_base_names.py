"""Names that tables exchange by renames, while the mirror is stopped: folded tables stay equal to their source."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.tools.verify.report import EQUAL, VerifyReport
from tests.integration.daemon import until
from tests.spark.folding import Folds
from tests.spark.stage import Stage
from tests.spark.test_verify_mirror import verify

TABLES = ("public.a", "public.b", "public.c", "other.a")

CREATED = [
    "CREATE SCHEMA other",
    *[
        f"CREATE TABLE {table} (id int PRIMARY KEY, what text);"
        f" INSERT INTO {table} SELECT g, '{table}' FROM generate_series(1, {10 * count}) g"
        for count, table in enumerate(TABLES, 1)
    ],
]

CYCLE = "ALTER TABLE a RENAME TO x; ALTER TABLE b RENAME TO a; ALTER TABLE c RENAME TO b; ALTER TABLE x RENAME TO c"
ACROSS = (
    "ALTER TABLE other.a SET SCHEMA public_next; ALTER TABLE a SET SCHEMA other; "
    "ALTER TABLE public_next.a SET SCHEMA public"
)
EXCHANGES = {
    "a cycle of three": (CYCLE,),
    "a cycle of three, twice, with changes in between": (
        CYCLE,
        "UPDATE a SET what = 'between' WHERE id = 3",
        CYCLE,
    ),
    "across schemas, and a cycle": (ACROSS, CYCLE),
}


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_tables_that_exchange_names_while_the_mirror_is_stopped_stay_equal(
    stage: Stage, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    with stage.source(f"names_{table_format}", *CREATED, "CREATE SCHEMA public_next") as source:
        folds = Folds(spark, source, tmp_path, table_format)
        config = {
            "name": source.name,
            "kafka": {"bootstrap_servers": source.servers},
            "target": {"format": table_format, "location": str(folds.folder)},
            "change_log": "fold",
        }

        reports: list[VerifyReport] = []

        def look() -> bool | None:
            source.deliver()
            assert {name: error.message for name, error in folds.once().items()} == {}
            # `verify` counts rows that the daemon is still reading as missing, and not as different. A longer wait for
            # tables that lack changes has no use, because no fold runs meanwhile.
            report = verify(folds.spark, source, config, folds.target, *TABLES, timeout_s=1)
            assert report.differences == 0, report
            reports.append(report)
            verdicts = {table.name: table.verdict for table in report.tables}
            return True if verdicts == dict.fromkeys(TABLES, EQUAL) else None

        def await_equal(when: str) -> None:
            try:
                until(look, f"equal {when}", 900)
            except AssertionError as error:
                error.add_note(f"{len(reports)} reports, the last one: {reports[-1]}")
                raise

        await_equal("at first")
        for name, statements in EXCHANGES.items():
            # WHEN names are exchanged, and rows of the tables change under their new names
            for statement in statements:
                source.execute(statement)
            for number, table in enumerate(TABLES, 1):
                source.execute(f"UPDATE {table} SET what = '{name}' WHERE id = {number}")
                source.execute(f"INSERT INTO {table} SELECT max(id) + 1, 'new' FROM {table}")
            # THEN each table has the rows of the table that has its name now
            await_equal(f"after {name}")
