import pytest
from pyspark.sql import Row

from cdcd.mirror.log.batches import named

FIELDS = [{"name": "records", "type": "long"}, {"name": "lsn", "type": "long"}]


@pytest.mark.parametrize(
    "figures",
    [
        Row(records=6, lsn=28867103),
        {"records": 6, "lsn": 28867103},
        Row(values=[6, 28867103], schema={"type": "struct", "fields": FIELDS}),
    ],
    ids=["a session of its own", "Spark 3.5", "Spark Connect"],
)
def test_the_figures_of_a_batch_have_their_names_whatever_session_gives_them(figures):
    assert named(figures) == {"records": 6, "lsn": 28867103}


def test_a_figure_that_is_null_is_null_or_missing():
    assert named(Row(values=[0, None], schema={"fields": FIELDS})).get("lsn") is None
    assert named({"records": 0}).get("lsn") is None
