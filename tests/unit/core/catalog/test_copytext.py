import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.copytext import NULL, escape, split_row, unescape, value_in
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ProtocolError
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.debezium_json.converter import QUOTED
from cdcd.core.records.debezium_json.row_layout import DescribedTable, Layouts
from cdcd.core.records.debezium_json.snapshot_rows import convert_rows, explain_row
from cdcd.core.records.debezium_json.table_fragments import TableFragments, Tally
from cdcd.core.records.encoder import EncoderSettings

COLUMNS = (("id", 23), ("note", 25), ("price", 1700), ("ratio", 701), ("flag", 16), ("at", 1114))


def table(*columns: tuple[str, int]) -> TableFragments:
    relation = Relation(None, 1, "public", "t", "d", tuple(Column(0, name, oid, -1) for name, oid in columns))
    return TableFragments(
        DescribedTable(relation, TableDescription(), BUILTIN_TYPES),
        Layouts(EncoderSettings("1", "p", "d", unavailable="?")),
        topic="p.t",
        tally=Tally(),
    )


def json_of(lines: list[bytes], *columns: tuple[str, int]) -> list[bytes]:
    """Each row as an object."""
    fragments = table(*columns)
    quoted = [
        [value if whole or mode not in QUOTED else b'"%b"' % value for value in values]
        for (values, whole), mode in zip(
            convert_rows(lines, fragments.converters), fragments.modes, strict=True
        )
    ]
    rows = zip(*quoted, strict=True) if quoted else [()] * len(lines)
    return [
        b"{%b}" % b",".join(b"%b:%b" % pair for pair in zip(fragments.names, row, strict=True))
        for row in rows
    ]


def converted(line: bytes, *columns: tuple[str, int]) -> bytes:
    (row,) = json_of([line], *columns)
    return row


def test_rows_are_converted_together_as_each_would_be_alone():
    lines = [
        b"1\tplain\t1.50\t2.5\tt\t2020-01-01 00:00:00\n",
        b'2\tsaid "hi"\tNaN\t2\tf\tinfinity\n',
        b"\t".join([b"3", rb"\\N", NULL, NULL, NULL, NULL]) + b"\n",
        b"\t".join([b"4", rb"a\\b\tc", b"-0.00", b"NaN", b"t", b"2020-01-01 00:00:00 BC"]) + b"\n",
        "5\tü%\t1\t1e30\tf\t2020-01-01 00:00:00.5\n".encode(),
    ]
    for some in (lines, lines[:2], lines[3:], lines[::-1]):
        assert json_of(some, *COLUMNS) == [converted(line, *COLUMNS) for line in some]


def test_a_row_becomes_the_json_that_its_change_has():
    line = b'7\tsaid "hi"\t1.50\t2\tf\t2020-01-01 00:00:00\n'
    assert converted(line, *COLUMNS) == (
        b'{"id":7,"note":"said \\"hi\\"","price":"1.50","ratio":2.0,"flag":false,"at":1577836800000000}'
    )


def test_null_is_not_the_text_of_it():
    line = rb"\N" + b"\t" + rb"\\N" + b"\t" + b"\t".join([NULL] * 4) + b"\n"
    assert converted(line, *COLUMNS) == (
        b'{"id":null,"note":"\\\\N","price":null,"ratio":null,"flag":null,"at":null}'
    )


def test_what_is_escaped_in_a_field_comes_out_as_it_was():
    assert converted(rb"a\tb\\c\nd\r\b\f\v" + b"\n", ("note", 25)) == (
        b'{"note":"a\\tb\\\\c\\nd\\r\\b\\f\\u000b"}'
    )


def test_a_row_without_columns_is_an_empty_line():
    assert split_row(b"\n") == []
    assert converted(b"\n") == b"{}"
    assert converted(b"\n", ("note", 25)) == b'{"note":""}'


@given(st.lists(st.binary(min_size=0, max_size=20), min_size=1, max_size=5))
def test_values_come_back_through_escapes_and_tabs(values: list[bytes]):
    line = b"\t".join(escape(value) for value in values) + b"\n"
    assert line.count(b"\n") == 1
    if line != b"\n":
        assert [unescape(field) for field in split_row(line)] == values


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"7\n", "has 1 columns, but 2 were asked for"),
        (b"7\ta\tb\n", "has 3 columns"),
        (b"a\t\xff\n", "column 'ratio' of type 701: a text of 1 bytes is not of its type's form"),
        (b"a\tfast\n", "column 'ratio' of type 701: a text of 4 bytes is not of its type's form"),
    ],
)
def test_a_row_that_is_malformed_is_explained_without_its_values(line: bytes, says: str):
    fragments = table(("note", 25), ("ratio", 701))
    error = explain_row(line, fragments.relation, fragments.converters)
    assert isinstance(error, ProtocolError)
    assert says in error.message
    assert "fast" not in error.message


@given(st.binary(max_size=30))
def test_a_value_is_at_the_end_of_what_is_found(value: bytes):
    for each in (value, b"\\x" + value.hex().encode()):
        found, at = value_in(escape(each))
        assert found[at:] == unescape(escape(each)) == each


def test_a_bytea_is_not_copied():
    field = escape(b"\\xff00")
    found, at = value_in(field)
    assert found is field
    assert at == 1
