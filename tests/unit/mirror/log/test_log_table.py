"""The statement that creates the log."""

from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.core.errors import ConfigError
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.log.table import ADDED, COLUMNS, LogPlace, create


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


def test_a_log_from_before_the_header_gets_its_column_and_an_older_one_is_refused():
    statements: list[str] = []
    has = [column for column in COLUMNS if column != ADDED]
    spark: Any = SimpleNamespace(sql=statements.append, table=lambda _: SimpleNamespace(columns=has))
    create(spark, LogPlace("lake.log", ICEBERG, "/c"), 7200)
    assert statements[-1] == "ALTER TABLE lake.log ADD COLUMNS (change string)"
    has.remove("day")
    with pytest.raises(ConfigError, match=r"The log lake\.log lacks the columns change, day"):
        create(spark, LogPlace("lake.log", ICEBERG, "/c"), 7200)
