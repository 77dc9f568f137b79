from pyspark.sql.types import IntegerType, LongType

from cdcd.mirror.targets.upgrading import together
from tests.unit.mirror.targets.test_evolution import ID, column, table

NUMBER = table(ID, column("v", 2, IntegerType()))
WIDE = table(ID, column("v", 2, LongType()))
NAMED = table(ID, column("w", 2, LongType()))
TEXT = table(ID, column("w", 2))


def test_forms_that_can_be_brought_to_the_newest_are_together():
    assert together([NUMBER, WIDE], NAMED) == [[NUMBER, WIDE, NAMED]]


def test_forms_are_cut_where_a_column_gets_a_type_that_does_not_hold_its_values():
    assert together([NUMBER, WIDE, TEXT], TEXT) == [[NUMBER, WIDE], [TEXT, TEXT]]


def test_a_batch_of_a_former_type_keeps_it_though_the_table_has_another_by_now():
    assert together([NUMBER, NAMED], TEXT) == [[NUMBER, NAMED]]


def test_a_batch_without_changes_has_the_newest_form():
    assert together([], TEXT) == [[TEXT]]
