"""A new type is one row in the table of types, and one converter in a format if its logical type is new there too."""

import ast
import json
from pathlib import Path

import pytest

from cdcd.core.catalog import logical, types
from cdcd.core.catalog.modes import ADDED
from cdcd.core.catalog.relations import CatalogColumn, TableDescription, TypeDescription
from cdcd.core.catalog.types import BUILT_IN, EXTENSIONS, Extension
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Binary, Column, Insert, Relation
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.debezium_json import converters
from cdcd.core.records.debezium_json.converter import Converter
from cdcd.core.records.debezium_json.converters import CONVERTERS
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition

OID, FRACTION = 16_384, 70_000


def fraction_text(data: bytes) -> str:
    return f"{data[0]}/{data[1]}"


class Fraction(Converter):
    def json(self, text: str) -> str:
        over, _, under = text.partition("/")
        return f"[{int(over)},{int(under)}]"

    def binary(self, data: bytes) -> str:
        return self.json(fraction_text(data))


@pytest.mark.skipif(
    not logical.__file__.endswith(".py"), reason="the tables of compiled modules are what they are"
)
def test_a_new_type_is_a_row_and_a_converter(monkeypatch):
    row = Extension("fraction", fraction_text, form="fraction")
    monkeypatch.setattr(logical, "EXTENSIONS", {**EXTENSIONS, "fraction": row})
    monkeypatch.setattr(types, "EXTENSIONS", {**EXTENSIONS, "fraction": row})
    monkeypatch.setattr(converters, "CONVERTERS", {**CONVERTERS, "fraction": lambda _: Fraction()})
    described = {
        FRACTION: TypeDescription(FRACTION, "ours", "fraction", "b", "U", 0, 0, -1),
        FRACTION + 1: TypeDescription(FRACTION + 1, "ours", "_fraction", "b", "A", FRACTION, 0, -1),
    }
    columns = (Column(1, "one", FRACTION, -1), Column(0, "many", FRACTION + 1, -1))
    known = TableDescription(
        ("one",),
        columns=(
            CatalogColumn("one", 1, "ours.fraction", FRACTION, 0, "1/2"),
            CatalogColumn("many", 2, "ours.fraction[]", FRACTION + 1, 1, None),
        ),
    )
    encoder = record_stream(EncoderSettings("1", "p", "d", schemas_topic="p.schemas"), True)
    encoder.define(Relation(None, OID, "public", "t", "d", columns), known, described)
    encoder.begin(1, 2, 3, None)

    out: list[Record] = []
    array = bytes([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 3, 4])
    for values in ((b"1/2", b"{3/4}"), (Binary(b"\1\2"), Binary(array))):
        message = write_message(Insert(None, OID, values))
        encoder.encode(write_frame(XLogData(5, 5, 0, message)), False, 0, out)
    encoder.encode_rows(OID, [b"1/2\t{3/4}\n"], SnapshotPosition(1, 2, "true", "last", "true"), 0, out, set())

    (description, *records) = out
    assert [
        (column["form"], column["default"]) for column in json.loads(description[2] or b"")["columns"]
    ] == [
        ("fraction", [1, 2]),
        ("fraction[]", None),
    ]
    assert len(records) == 3
    for _, key, value, _ in records:
        assert json.loads(key or b"") == {"one": [1, 2]}
        assert json.loads(value or b"")["after"] == {"one": [1, 2], "many": [[3, 4]]}


def test_every_logical_type_of_the_table_has_a_converter_and_none_has_more():
    named = (
        {row.logical for row in BUILT_IN} | {row.logical for row in EXTENSIONS.values()} | {"array", "enum"}
    )
    assert named.isdisjoint(ADDED)
    assert named | set(ADDED) == CONVERTERS.keys()
    # A compiled module has no docstring.
    source = Path(__file__).parents[5] / "cdcd/core/catalog/types.py"
    described = ast.get_docstring(ast.parse(source.read_text())) or ""
    for name in named - {"array"}:
        assert f"`{name}`" in described
