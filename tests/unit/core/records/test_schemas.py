import json
from dataclasses import replace

import pytest

from cdcd.core.catalog.logical import form_of
from cdcd.core.catalog.relations import CatalogColumn, ColumnForm, TableDescription, TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.debezium_json.converters import converter_for
from cdcd.core.records.schemas import (
    WRITTEN_BYTES_MAX,
    TableForm,
    is_default_lost,
    read_form,
    require_writable,
    table_form,
)

RELATION = Relation(
    None,
    16384,
    "public",
    "orders",
    "d",
    (
        Column(1, "id", 20, -1),
        Column(0, "price", 1700, ((12 << 16) | 2) + 4),
        Column(0, "note", 25, -1),
    ),
)
CATALOG = TableDescription(
    primary_key=("id",),
    columns=(
        CatalogColumn("id", 1, "bigint", 20, 0, None),
        CatalogColumn("price", 4, "numeric(12,2)", 1700, 0, None),
        CatalogColumn("note", 5, "text", 25, 0, "none"),
    ),
)

PRICE = TypeDescription(90_001, "public", "price", "d", "N", 0, 1700, ((10 << 16) | 2) + 4)
PRICES = TypeDescription(90_002, "public", "_price", "b", "A", 90_001, 0, -1)
MOOD = TypeDescription(90_003, "public", "mood", "e", "E", 0, 0, -1)
HSTORE = TypeDescription(90_004, "extra", "hstore", "b", "U", 0, 0, -1)
PAIR = TypeDescription(90_005, "public", "pair", "c", "C", 0, 0, -1)
ENDLESS = TypeDescription(90_006, "public", "endless", "d", "N", 0, 90_006, -1)
TYPES = {kind.oid: kind for kind in (PRICE, PRICES, MOOD, HSTORE, PAIR, ENDLESS)}


def described(table: TableDescription = CATALOG, relation: Relation = RELATION) -> TableForm:
    return table_form(relation, table, TYPES, "shop.public.orders")


def test_operations_that_have_no_records_are_in_the_description():
    relation = Relation(None, 1, "public", "t", "d", (Column(1, "a", 23, -1),))
    whole = table_form(relation, TableDescription(), {}, "t")
    less = table_form(relation, TableDescription(), {}, "t", skipped=("d",))
    assert b"skipped" not in whole.record()[1]
    assert less.fingerprint != whole.fingerprint
    assert read_form(less.record()[1]) == (less.fingerprint, less)


def test_that_records_of_a_key_may_lie_in_several_partitions_is_in_the_description():
    relation = Relation(None, 1, "public", "t", "f", (Column(1, "a", 23, -1),))
    moving = table_form(relation, TableDescription(), {}, "t", moves=True)
    assert b"moves" not in table_form(relation, TableDescription(), {}, "t").record()[1]
    assert read_form(moving.record()[1]) == (moving.fingerprint, moving)


def test_topics_that_rows_are_routed_to_are_in_the_description():
    relation = Relation(None, 1, "public", "t", "d", (Column(1, "a", 23, -1),))
    plain = table_form(relation, TableDescription(), {}, "t")
    routed = table_form(relation, TableDescription(), {}, "t", routes=("t", "t-eu", "t-us", "t-eu"))
    assert b"routes" not in plain.record()[1]
    assert routed.routes == ("t-eu", "t-us")
    assert routed.fingerprint != plain.fingerprint
    assert read_form(routed.record()[1]) == (routed.fingerprint, routed)


def test_a_table_is_described_with_keys_types_and_forms():
    form = described()
    assert form.key == ("id",)
    assert form.columns == (
        ColumnForm("id", 1, "bigint", 20, -1, "int64"),
        ColumnForm("price", 4, "numeric(12,2)", 1700, 786438, "decimal(12,2)"),
        ColumnForm("note", 5, "text", 25, -1, "text", default='"none"'),
    )


def test_a_description_reads_back_as_it_was_written():
    form = described()
    key, value = form.record()
    assert json.loads(key) == {"table": "public.orders", "schema": form.fingerprint}
    assert read_form(value) == (form.fingerprint, form)


def test_the_fingerprint_is_the_same_each_time_and_another_for_another_description():
    assert described().fingerprint == described().fingerprint == "cd07593645a37ced"
    renamed = replace(RELATION, columns=(*RELATION.columns[:2], Column(0, "remark", 25, -1)))
    assert described(relation=renamed).fingerprint != described().fingerprint


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'"x"', b'{"schema":"a","table":"b","topic":"c","key":[]}']
)
def test_what_is_no_description_is_refused(value: bytes):
    with pytest.raises(ValueError, match=r"not the description|Expecting"):
        read_form(value)


def test_a_column_that_the_catalog_has_no_more_has_no_number():
    now = replace(CATALOG, columns=CATALOG.columns[:2])
    assert [(column.id, column.type) for column in described(now).columns] == [
        (1, "bigint"),
        (4, "numeric(12,2)"),
        (None, "text"),
    ]


def test_a_column_renamed_since_is_known_by_its_place_where_none_came_or_went():
    now = [replace(column, id=number) for number, column in enumerate(CATALOG.columns, 1)]
    now[2] = replace(now[2], name="remark")
    assert [column.id for column in described(replace(CATALOG, columns=tuple(now), last_id=3)).columns] == [
        1,
        2,
        3,
    ]
    gap = replace(now[2], id=4)
    assert [
        column.id for column in described(replace(CATALOG, columns=(*now[:2], gap), last_id=4)).columns
    ] == [
        1,
        2,
        None,
    ]


@pytest.mark.parametrize(
    ("oid", "modifier", "form"),
    [
        (16, -1, "boolean"),
        (26, -1, "int64"),
        (1700, -1, "decimal"),
        (1700, ((3 << 16) | (-2 & 0x7FF)) + 4, "decimal(3,-2)"),
        (1231, ((9 << 16) | 2) + 4, "decimal(9,2)[]"),
        (1083, 3, "time_ms"),
        (1083, 4, "time"),
        (1114, 0, "timestamp_ms"),
        (1114, -1, "timestamp"),
        (1115, 3, "timestamp_ms[]"),
        (1184, 3, "timestamptz"),
        (1560, 1, "boolean"),
        (1560, 8, "bits"),
        (1562, 1, "text"),
        (1562, -1, "bits"),
        (3802, -1, "json"),
        (2950, -1, "text"),
        (22, -1, "text"),
        (90_001, -1, "decimal(10,2)"),
        (90_002, -1, "decimal(10,2)[]"),
        (90_003, -1, "text"),
        (90_004, -1, "json"),
        (90_005, -1, "text"),
        (90_006, -1, "text"),
        (99_999, -1, "text"),
    ],
)
def test_the_form_follows_type_and_modifier(oid: int, modifier: int, form: str):
    assert form_of(oid, modifier, TYPES) == form


def test_an_array_has_as_many_dimensions_as_are_declared():
    assert form_of(1007, -1, TYPES, dimensions=2) == "int32[][]"
    assert form_of(1007, -1, TYPES, dimensions=0) == "int32[]"
    assert form_of(1082, -1, TYPES, dimensions=3) == "date"


SAMPLES = {
    "boolean": "t", "int16": "1", "int32": "1", "int64": "1", "float32": "1.5", "float64": "1.5", "decimal": "1.5",
    "decimal(19,2)": "$1.50", "bytes": "\\x00", "bits": "101", "date": "2024-01-31", "time": "12:00:00",
    "timestamp": "2024-01-31 12:00:00", "timestamptz": "2024-01-31 12:00:00+00", "point": "(1,2)", "json": "{}",
}  # fmt: skip
WRITTEN = {
    "boolean": bool, "int16": int, "int32": int, "int64": int, "float32": float, "float64": float, "date": int,
    "time": int, "timestamp": int, "point": dict,
}  # fmt: skip


@pytest.mark.parametrize("oid", [oid for oid, kind in BUILTIN_TYPES.items() if not kind.is_array])
def test_every_built_in_type_is_written_in_the_form_that_is_told(oid: int):
    form = form_of(oid, -1, TYPES)
    sample = {1186: "1 day", 1266: "12:00:00+00"}.get(oid) or SAMPLES.get(form, "some text")
    assert isinstance(json.loads(converter_for(oid, -1, {}).json(sample)), WRITTEN.get(form, str))


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "json_"),
    [
        (23, -1, "7", "7"),
        (25, -1, "it's \\ ä", '"it\'s \\\\ ä"'),
        (1560, 8, "10100101", '"pQ=="'),
        (1562, -1, "10100101", '"pQ=="'),
        (1083, -1, "09:00:00", "32400000000"),
        (790, -1, "$1,234.50", '"1234.50"'),
        (1184, -1, "infinity", '"infinity"'),
        (1186, -1, "1 day 02:03:00", '"P0Y0M1DT2H3M0S"'),
        (1700, -1, "NaN", '"NAN"'),
        (701, -1, "-0", "-0.0"),
        (1009, -1, "{}", "[]"),
        (1007, -1, "{1,NULL}", "[1,null]"),
        (HSTORE.oid, -1, '"a"=>"1"', '"{\\"a\\":\\"1\\"}"'),
        (PRICE.oid, -1, "1.50", '"1.50"'),
        (MOOD.oid, -1, "sad", '"sad"'),
    ],
)
def test_a_default_is_described_as_a_record_would_have_it(oid: int, modifier: int, text: str, json_: str):
    relation = replace(RELATION, columns=(Column(0, "a", oid, modifier),))
    now = TableDescription(columns=(CatalogColumn("a", 1, "x", oid, 1, text),))
    form = described(now, relation)
    assert (form.columns[0].default, form.columns[0].missing) == (json_, None)
    assert read_form(form.record()[1]) == (form.fingerprint, form)


def test_a_default_that_is_of_another_type_than_the_column_had_is_not_its_default():
    relation = replace(RELATION, columns=(Column(0, "a", 23, -1),))
    now = TableDescription(columns=(CatalogColumn("b", 1, "text", 25, 0, "abc"),), last_id=1)
    assert described(now, relation).columns[0] == ColumnForm("a", 1, "int4", 23, -1, "int32")


def test_a_description_of_an_older_daemon_still_reads():
    older = json.loads(described().record()[1])
    for column in older["columns"]:
        del column["default"]
        column["missing"] = "none"
    _, form = read_form(json.dumps(older).encode())
    assert {(column.missing, column.default) for column in form.columns} == {("none", None)}


@pytest.mark.parametrize(
    ("last_id", "rewritten", "lost"),
    [
        (5, 0, False),
        (9, 0, False),
        (4, 77, False),
        # The table was written again when the column was there, or when nobody knows.
        (5, 77, True),
        (9, 77, True),
        (None, None, False),
    ],
)
def test_a_default_may_be_lost_if_the_table_was_written_anew_since(
    last_id: int | None, rewritten: int | None, lost: bool
):
    found = described(
        replace(CATALOG, columns=(*CATALOG.columns[:2], CatalogColumn("note", 5, "text", 25, 0, None)))
    )
    form = replace(found, last_id=last_id, rewritten=rewritten)
    assert is_default_lost(form.columns[2], form) == lost
    # Without its number, the catalog does not tell its default.
    unnumbered = replace(form.columns[2], id=None)
    assert is_default_lost(unnumbered, form) == (rewritten is not None)
    # What has a default, has not lost it.
    assert not is_default_lost(described().columns[2], form)


def test_rewrites_are_in_the_description_and_not_in_its_fingerprint():
    before = described(replace(CATALOG, last_id=5))
    after = described(replace(CATALOG, last_id=7, rewritten=99))
    assert after.fingerprint == before.fingerprint
    assert read_form(after.record()[1]) == (after.fingerprint, after)
    assert (after.last_id, after.rewritten) == (7, 99)
    gone = described(TableDescription())
    assert (gone.last_id, gone.rewritten) == (None, None)


def of_enums(labels: int, columns: int, letter: str = "x") -> TableForm:
    """A table whose columns have an enum with so many labels of 63 bytes."""
    form = described()
    words = tuple([(90_000 + number, f"{number:05}".ljust(63, letter)) for number in range(labels)])
    enums = [
        ColumnForm(f"c{at}", at, "public.mood", 90_003, -1, "enum", None, words) for at in range(columns)
    ]
    return replace(form, columns=tuple(enums))


def test_a_description_that_is_too_large_for_its_topic_is_refused_by_the_name_of_the_table():
    large = of_enums(14_000, 1)
    assert len(large.record()[1]) > WRITTEN_BYTES_MAX
    with pytest.raises(ConfigError, match=r"public\.orders .* with 14000 labels") as refused:
        require_writable(large)
    assert "columns.exclude" in refused.value.hint
    with pytest.raises(ConfigError):
        require_writable(of_enums(200, 80))
    with pytest.raises(ConfigError):
        require_writable(of_enums(5_000, 1, "\x01"))


def test_long_defaults_of_many_columns_are_as_large():
    columns = [
        ColumnForm(f"c{at}", at, "text", 25, -1, "string", default=json.dumps("d" * 7000))
        for at in range(150)
    ]
    with pytest.raises(ConfigError, match="7002 characters of its default") as refused:
        require_writable(replace(described(), columns=tuple(columns)))
    assert "ddd" not in str(refused.value)


def test_a_description_of_1600_columns_and_one_with_thousands_of_labels_are_written():
    require_writable(of_enums(0, 1600))
    require_writable(of_enums(10_000, 1))
    require_writable(of_enums(100, 100))
