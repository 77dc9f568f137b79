from typing import Any, cast

from pyspark.sql import SparkSession

from cdcd.mirror.stream.forms import runs
from cdcd.mirror.stream.replaced import Part


def test_a_form_that_comes_back_is_taken_in_runs(spark: SparkSession):
    # Two forms, of which the first one comes back; changes of one transaction may be of both.
    at = "commit_lsn bigint, event_no bigint, name string"
    one = spark.createDataFrame([(10, 1, "a"), (10, 2, "b"), (30, 1, "f"), (30, 1, "g")], at)
    two = spark.createDataFrame([(10, 3, "c"), (20, None, "d"), (20, 1, "e")], at)
    forms: list[Any] = ["one", "two"]
    found = runs([Part(forms[1], two, (20, 1)), Part(forms[0], one, (30, 1))])
    assert [(cast("Any", part.form), part.last) for part in found] == [
        ("one", (10, 2)), ("two", (20, 1)), ("one", (30, 1)),
    ]  # fmt: skip
    names = [sorted(row["name"] for row in part.changes.collect()) for part in found]
    assert names == [["a", "b"], ["c", "d", "e"], ["f", "g"]]
