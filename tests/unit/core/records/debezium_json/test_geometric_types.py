"""Geometric types as objects, beside what `test_debezium_modes.py` compares with a real Debezium."""

import json
from base64 import b64decode
from struct import pack, unpack
from typing import Any

import pytest

from cdcd.core.catalog.logical import LogicalType
from cdcd.core.catalog.modes import Modes, under
from cdcd.core.records.debezium_json.connect_schema import schema_of
from cdcd.core.records.debezium_json.converters import converter_for, converter_of

MODES = Modes(geometry="structured")
LSEG, PATH, BOX, POLYGON, LINE, CIRCLE = 601, 602, 603, 604, 628, 718


def made(oid: int, text: str) -> Any:
    return json.loads(converter_for(oid, -1, {}, MODES).json(text))


def test_a_path_of_many_points_is_a_line_of_them_all():
    text = f"[{','.join([f'({number},-{number})' for number in range(5000)])}]"
    wkb = b64decode(made(PATH, text)["wkb"])
    assert unpack("<BII", wkb[:9]) == (1, 2, 5000)
    assert unpack("<2d", wkb[-16:]) == (4999.0, -4999.0)


def test_a_polygon_ends_with_its_first_point_once():
    rings = [b64decode(made(POLYGON, text)["wkb"]) for text in ("((0,0),(1,1))", "((0,0),(1,1),(0,0))")]
    assert rings[0] == rings[1]
    assert unpack("<BIII", rings[0][:13]) == (1, 3, 1, 3)


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (BOX, "(1,1)"), (BOX, "(1,1),(0,0),(2,2)"), (BOX, "(1,1);(0,0)"), (BOX, "(1,x),(0,0)"), (BOX, "(1,1),"),
        (LSEG, "((0,0),(1,1))"), (LSEG, "[(0,0)]"), (PATH, "(0,0)"), (PATH, "()"), (PATH, "[(0,0))"),
        (POLYGON, "[(0,0)]"), (POLYGON, "((0,0)(1,1))"), (LINE, "{1,2}"), (LINE, "{1,2,x}"), (CIRCLE, "<(0,0)>"),
        (CIRCLE, "<0,0,1>"), (CIRCLE, ""),
    ],
)  # fmt: skip
def test_a_text_of_another_form_is_refused(oid, text):
    with pytest.raises(ValueError, match=r"."):
        made(oid, text)


def test_binary_transfer_gives_the_same_objects():
    converter = converter_for(BOX, -1, {}, MODES)
    assert converter.binary(pack("!4d", 3, 4, 1, 2)) == converter.json("(3,4),(1,2)")


def test_a_value_that_was_not_sent_has_the_bytes_of_the_placeholder():
    found = json.loads(converter_for(POLYGON, -1, {}, MODES).unchanged("gone"))
    assert found == {"wkb": "Z29uZQ==", "srid": None, "extensions": None}


def test_postgis_geometry_has_the_schema_and_the_fields_of_the_others():
    logical = under(MODES, LogicalType("geometry"))
    box = under(MODES, LogicalType("box"))
    assert schema_of(logical) == schema_of(box)
    point = pack("<BIIdd", 1, 0x20000001, 4326, 1, 2)
    assert json.loads(converter_of(logical).json(point.hex())) == {
        **json.loads(converter_of(LogicalType("geometry")).json(point.hex())),
        "extensions": None,
    }
    assert under(MODES, LogicalType("geography")).name == "geography"
