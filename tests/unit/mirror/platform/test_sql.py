from typing import Any

from pyspark.errors import PySparkException

from cdcd.mirror.platform.sql import condition


class OfSpark35(PySparkException):
    """Spark 3.5 has no `getCondition`."""

    def __getattribute__(self, name: str) -> Any:
        if name == "getCondition":
            raise AttributeError(name)
        if name == "getErrorClass":
            return lambda: "DELTA_TABLE_NOT_FOUND"
        return super().__getattribute__(name)


def test_an_errors_condition_has_its_name_in_each_version_of_spark():
    parameters = {"arg_name": "x", "arg_type": "int"}
    error = PySparkException(errorClass="NOT_BOOL", messageParameters=parameters)
    assert condition(error) == "NOT_BOOL"
    assert condition(OfSpark35("t")) == "DELTA_TABLE_NOT_FOUND"
    # An error without a condition is none of those that are looked for.
    assert condition(PySparkException("broken")) == ""
