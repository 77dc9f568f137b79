"""A mirror's values do not depend on the mode in which the daemon writes them."""

from typing import Any

import pytest
from pyspark.sql import functions as sf
from pyspark.sql.types import StructField, StructType

from cdcd.core.catalog.modes import DEFAULTS, Modes, form_under
from cdcd.core.catalog.wiretext import to_bytes, wire
from cdcd.core.records.debezium_json.converters import converter_for
from cdcd.mirror.records.types import rule_for

NUMERIC_18 = (18 << 16) + 4
NUMERIC_12_3, NUMERIC_4_2 = (12 << 16 | 3) + 4, (4 << 16 | -2 & 0x7FF) + 4
TIMES = [
    Modes(time_precision=each)
    for each in ("adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds")
]
PRECISE = [Modes(decimal="precise")]
BINARY = [Modes(binary=each) for each in ("base64", "base64-url-safe", "hex")]
CASES: list[tuple[int, int, list[Modes], list[str]]] = [
    (
        1700,
        NUMERIC_12_3,
        PRECISE,
        ["0", "-1.5", "127.000", "-128", "-0.001", "999999999.999", "-999999999.999"],
    ),
    (
        1700,
        NUMERIC_18,
        PRECISE,
        ["9" * 18, "-" + "9" * 18, "-1"],
    ),
    (1700, NUMERIC_4_2, PRECISE, ["1200", "-100", "0"]),
    (17, -1, BINARY, ["\\x", "\\xfbff00", "\\xfffefdfc61"]),
    (1082, -1, TIMES, ["2024-01-31", "0044-03-15 BC", "infinity", "-infinity", "10000-01-01"]),
    (1083, -1, TIMES, ["00:00:00", "24:00:00", "12:34:56.789"]),
    (1114, -1, TIMES, ["2024-01-31 12:34:56.789", "2024-01-31 12:34:00", "infinity", "-infinity"]),
    (1114, -1, TIMES[:4], ["0044-03-15 12:00:00.5 BC", "10000-01-01 00:00:00"]),
    (1114, 3, TIMES, ["2024-01-31 12:34:56.789", "infinity"]),
]
"""Type, modifier, modes and values."""


def read(spark: Any, modes: Modes, oid: int, modifier: int, values: list[str]) -> list[Any]:
    """What the mirror makes of the records of values, as text, and whether one of them is refused."""
    converter = converter_for(oid, modifier, {}, modes)
    rule = rule_for(form_under(modes, oid, modifier, {}))
    rows = [(f'{{"v":{to_bytes(converter.json(wire(text))).decode()}}}',) for text in values]
    parsed = sf.from_json("json", StructType([StructField("v", rule.wire)]))["v"]
    fails = rule.fails(parsed)
    value = sf.hex(rule.value(parsed)) if oid == 17 else rule.value(parsed).cast("string")
    frame = spark.createDataFrame(rows, "json string").coalesce(1)
    return [tuple(row) for row in frame.select(value, sf.lit(False) if fails is None else fails).collect()]


@pytest.mark.parametrize(("oid", "modifier", "modes", "values"), CASES)
def test_each_mode_gives_the_values_of_the_default_one(
    spark: Any, oid: int, modifier: int, modes: list[Modes], values: list[str]
):
    expected = read(spark, DEFAULTS, oid, modifier, values)
    assert all(text is not None and not failed for text, failed in expected)
    for one in modes:
        assert read(spark, one, oid, modifier, values) == expected, one
