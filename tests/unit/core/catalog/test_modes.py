"""A mode changes the logical type of a column; every format has what that becomes."""

from dataclasses import replace
from typing import get_args

import pytest

from cdcd.config.sections.format import FormatConfig
from cdcd.core.catalog.logical import logical_type
from cdcd.core.catalog.modes import ADDED, DEFAULTS, Modes, form_under, logical_type_under, under
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import BUILT_IN
from cdcd.core.records.debezium_json.connect_schema import SCHEMAS
from cdcd.core.records.debezium_json.converters import CONVERTERS

NUMERIC_10_2 = (10 << 16 | 2) + 4


def test_the_defaults_change_no_type():
    for row in BUILT_IN:
        logical = logical_type(row.oid, -1, {})
        assert under(DEFAULTS, logical) is logical


@pytest.mark.parametrize(
    ("modes", "oid", "modifier", "name", "form"),
    [
        (Modes(decimal="precise"), 1700, NUMERIC_10_2, "decimal_bytes", "decimal_bytes(10,2)"),
        (Modes(decimal="precise"), 1700, -1, "decimal_variable", "decimal_variable"),
        (Modes(decimal="precise"), 790, -1, "money_bytes", "decimal_bytes(19,2)"),
        (Modes(decimal="double"), 1700, NUMERIC_10_2, "decimal_double", "float64"),
        (Modes(time_precision="connect"), 1083, -1, "time_connect", "time_ms"),
        (Modes(time_precision="microseconds"), 1114, 0, "timestamp_micros", "timestamp_us"),
        (Modes(time_precision="nanoseconds"), 1082, -1, "date", "date"),
        (Modes(interval="numeric"), 1186, -1, "interval_micros", "int64"),
        (Modes(binary="hex"), 17, -1, "bytes_hex", "bytes_hex"),
        (Modes(time_precision="structured"), 1184, 3, "timestamptz_struct", "timestamptz_struct"),
        (
            Modes(time_precision="structured", interval="numeric"),
            1186,
            -1,
            "interval_struct",
            "interval_struct",
        ),
        (Modes(geometry="structured"), 603, -1, "box_struct", "object"),
    ],
)
def test_a_mode_chooses_the_logical_type(modes, oid, modifier, name, form):
    logical = logical_type_under(modes, oid, modifier, {})
    assert (logical.name, logical.form) == (name, form)
    assert form_under(modes, oid, modifier, {}) == form
    assert logical.read is logical_type(oid, modifier, {}).read


def test_a_mode_reaches_the_elements_of_an_array_and_a_domains_base_type():
    array = logical_type_under(Modes(decimal="precise"), 1231, NUMERIC_10_2, {})
    assert array.element is not None
    assert (array.name, array.element.name, array.form) == ("array", "decimal_bytes", "decimal_bytes(10,2)")
    assert form_under(Modes(decimal="precise"), 1231, NUMERIC_10_2, {}) == "decimal_bytes(10,2)[]"
    price = {70_000: TypeDescription(70_000, "public", "price", "d", "N", 0, 1700, NUMERIC_10_2)}
    assert form_under(Modes(decimal="precise"), 70_000, -1, price) == "decimal_bytes(10,2)"


def test_types_that_are_nested_without_an_end_are_text():
    circle = {70_000: TypeDescription(70_000, "public", "self", "d", "N", 0, 70_000, -1)}
    assert form_under(DEFAULTS, 70_000, -1, circle) == "text"


def test_every_value_of_the_configuration_is_known_and_every_type_has_converter_and_schema():
    names = {
        "decimal": "decimal_handling_mode", "time_precision": "time_precision_mode",
        "interval": "interval_handling_mode", "binary": "binary_handling_mode", "hstore": "hstore_handling_mode",
        "geometry": "geometry_handling_mode",
    }  # fmt: skip
    found = set()
    for field, key in names.items():
        for value in get_args(FormatConfig.model_fields[key].annotation):
            modes = replace(DEFAULTS, **{field: value})
            for row in BUILT_IN:
                for modifier in (-1, 3, NUMERIC_10_2):
                    found.add(logical_type_under(modes, row.oid, modifier, {}).name)
    assert set(ADDED) - {"hstore_map", "geometry_struct"} <= found
    assert set(ADDED) <= CONVERTERS.keys()
    assert set(ADDED) <= SCHEMAS.keys()
