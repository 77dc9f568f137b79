"""Which changes a mirror is to have when another relation has its name."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from pyspark.sql import DataFrame, SparkSession

from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.stream.replaced import Part, Takeover, takeover
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from cdcd.mirror.targets.state import State
from tests.spark.topic_model import NEW, OLD

FORMER = Form(replace(OLD.schema, oid=1), OLD.rules)
NEXT = Form(replace(NEW.schema, oid=2), NEW.rules)


class Topic:
    """Changes (op, commit LSN, number) of the forms by their ids, all of them ahead."""

    def __init__(self, spark: SparkSession, **changes: Sequence[tuple[str, int, int]]) -> None:
        self._spark = spark
        self._changes = changes

    def part(self, form: Form) -> Part:
        changes = self._changes[form.schema.schema_id]
        return Part(form, self.ahead([form]), max((lsn, number) for _, lsn, number in changes))

    def ahead(self, forms: Sequence[Form]) -> DataFrame:
        rows = [change for form in forms for change in self._changes[form.schema.schema_id]]
        return self._spark.createDataFrame(rows, "op string, commit_lsn bigint, event_no bigint")


def never(_schema: TableSchema) -> None:
    """No relation had another name before."""


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdcd.mirror.stream.replaced.PATIENCE_S", 0.0)


def test_the_truncate_record_of_the_new_relation_ends_the_former_ones_rows(spark: SparkSession):
    topic = Topic(spark, old=[("c", 10, 1), ("t", 15, 1)], new=[("t", 20, 3), ("r", 21, 1), ("t", 30, 1)])
    former, new = topic.part(FORMER), topic.part(NEXT)
    # Both in one batch, for a mirror of the former, and for one that is not there yet.
    for has in (FORMER.schema, None):
        assert takeover([former, new], has, State(), topic.ahead, never) == Takeover((new,), (20, 3))
    # The new one's alone.
    assert takeover([new], FORMER.schema, State(), topic.ahead, never) == Takeover((new,), (20, 3))
    # What another partition still has of the former one, afterwards.
    ended = State(truncated=(20, 3))
    assert takeover([former], NEXT.schema, ended, topic.ahead, never) == Takeover(())
    assert takeover([former, new], NEXT.schema, ended, topic.ahead, never) == Takeover((new,))


def test_without_a_truncate_record_before_all_others_the_table_stops_with_a_way_on(spark: SparkSession):
    for changes in ([("c", 20, 1)], [("c", 20, 1), ("t", 20, 2)]):
        topic = Topic(spark, old=[("c", 10, 1)], new=changes)
        with pytest.raises(IncompatibleSchemaError, match="another table has this name now") as caught:
            takeover([topic.part(NEXT)], FORMER.schema, State(), topic.ahead, never)
        assert "--snapshot public.item" in caught.value.hint


def test_a_table_that_gets_its_name_back_begins_again(spark: SparkSession):
    topic = Topic(spark, old=[("c", 10, 1), ("t", 30, 1), ("r", 31, 1)], new=[("t", 20, 1), ("c", 20, 2)])
    former, other = topic.part(FORMER), topic.part(NEXT)
    assert takeover([former, other], FORMER.schema, State(), topic.ahead, never) == Takeover(
        (former,), (30, 1)
    )


def test_forms_of_one_relation_and_such_as_say_no_oid_are_one_tables(spark: SparkSession):
    topic = Topic(spark, old=[("c", 10, 1)], new=[("c", 20, 1)])
    old, new = topic.part(OLD), topic.part(NEXT)
    assert takeover([old, new], None, State(), topic.ahead, never) == Takeover((old, new))
    assert takeover([new], OLD.schema, State(), topic.ahead, never) == Takeover((new,))


def test_a_mirror_of_a_renamed_table_begins_with_a_truncate_record_or_stops_with_a_way_on(
    spark: SparkSession,
):
    def former(_schema: TableSchema) -> str:
        return "public.item_old"

    topic = Topic(spark, old=[("c", 10, 1)], new=[("t", 20, 1), ("c", 20, 2), ("r", 21, 1)])
    new = topic.part(NEXT)
    # GIVEN no mirror, THEN all of the table's rows come behind the record
    assert takeover([new], None, State(), topic.ahead, former) == Takeover((new,))
    # GIVEN a topic that begins with a change, THEN it lacks rows
    topic = Topic(spark, old=[("c", 10, 1)], new=[("c", 20, 1), ("r", 21, 1)])
    new = topic.part(NEXT)
    with pytest.raises(IncompatibleSchemaError, match=r"was called public\.item_old before") as caught:
        takeover([new], None, State(), topic.ahead, former)
    assert "--snapshot public.item" in caught.value.hint
    # A mirror that is there has them.
    assert takeover([new], NEXT.schema, State(), topic.ahead, former) == Takeover((new,))
