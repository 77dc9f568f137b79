from typing import Any

from pyspark.errors import PySparkException

from cdcd.mirror.platform.sql import condition


class FormerSparkError(Exception):
    """Spark 3.5 has no `getCondition`."""

    def getErrorClass(self) -> str:  # noqa: N802  PySpark's name
        return "DELTA_TABLE_NOT_FOUND"


def test_an_errors_condition_has_its_name_in_each_version_of_spark():
    parameters = {"arg_name": "x", "arg_type": "int"}
    error = PySparkException(errorClass="NOT_BOOL", messageParameters=parameters)
    assert condition(error) == "NOT_BOOL"
    former: Any = FormerSparkError()
    assert condition(former) == "DELTA_TABLE_NOT_FOUND"
    # An error without a condition is none of those that are looked for.
    assert condition(PySparkException("broken")) == ""
