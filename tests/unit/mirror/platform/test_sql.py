from typing import Any

import pytest
from pyspark.errors import PySparkException

from cdcd.mirror.platform.sql import catalog_of, condition, parts


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


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("`lake`.`public`.`orders`", ["lake", "public", "orders"]),
        # As SHOW NAMESPACES gives names, whose parts have quotes only where they need them.
        ("lake.`a.b`.public", ["lake", "a.b", "public"]),
        ("`it``s`.x", ["it`s", "x"]),
        ("orders", ["orders"]),
    ],
)
def test_a_name_has_its_parts_with_and_without_quotes(name: str, found: list[str]):
    assert parts(name) == found
    assert catalog_of(name) in (found[0], f"`{found[0].replace('`', '``')}`")
