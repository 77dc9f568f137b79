"""The statement that creates the log."""

from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.log.table import COLUMNS, LogPlace, create


@pytest.mark.parametrize(
    ("table_format", "ours"), [(ICEBERG, "write.distribution-mode"), (DELTA, "delta.logRetentionDuration")]
)
def test_the_log_gets_the_properties_of_the_configuration_which_win(table_format: str, ours: str):
    statements: list[str] = []
    spark: Any = SimpleNamespace(
        sql=statements.append, table=lambda _: SimpleNamespace(columns=list(COLUMNS))
    )
    create(spark, LogPlace("lake.log", table_format, "/c", {ours: "theirs", "note": "it's mine"}), 7200)
    made = statements[-1]
    assert made.startswith("CREATE TABLE IF NOT EXISTS lake.log (")
    assert made.count(ours) == 1
    assert f"'{ours}' = 'theirs'" in made
    assert r"'note' = 'it\'s mine'" in made
    create(spark, LogPlace("lake.log", table_format, "/c"), 7200)
    assert f"'{ours}' = 'theirs'" not in statements[-1]
    assert f"'{ours}' = '" in statements[-1]
