from contextlib import suppress

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.targets.small import interpreted

SHUFFLE, WHOLE = "spark.sql.shuffle.partitions", "spark.sql.codegen.wholeStage"


def test_the_settings_of_the_session_are_afterwards_what_they_were(spark: SparkSession):
    session = spark.newSession()
    session.conf.set(SHUFFLE, "7")
    rows = session.range(3).groupBy("id").agg(sf.max_by("id", "id"))
    with suppress(ValueError), interpreted(session, is_small=True):
        assert (session.conf.get(SHUFFLE), session.conf.get(WHOLE)) == ("1", "false")
        assert sorted(rows.collect()) == [(0, 0), (1, 1), (2, 2)]
        raise ValueError
    assert (session.conf.get(SHUFFLE), session.conf.get(WHOLE)) == ("7", "true")
    with interpreted(session, is_small=False):
        assert (session.conf.get(SHUFFLE), session.conf.get(WHOLE)) == ("7", "true")
