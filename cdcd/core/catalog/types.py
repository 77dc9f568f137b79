"""The table of types: PostgreSQL's name of a type, the reader of its binary form, and its logical type.

A new type is a row in this table. Every format has one converter for each logical type (`records/`), for text and
binary form, stream and COPY alike; a row with a logical type that the formats support needs nothing else.

| logical type | values |
|---|---|
| `boolean`, `int16`, `int32`, `int64`, `oid`, `float32`, `float64` | as they are called; `oid` has 32 bits, no sign |
| `decimal`, `money` | numbers with a point; the modifier of money is how many digits stand behind it (`money.py`) |
| `bytes`, `bits` | bytea; bit strings, whose declared length is the modifier |
| `date`, `time`, `timetz`, `timestamp`, `timestamptz`, `interval` | the declared precision is the modifier |
| `uuid`, `xml`, `json`, `jsonb`, `enum`, `ltree`, `tsvector` | texts with rules of their own |
| `point`, `geometry`, `geography`, `vector`, `halfvec`, `sparsevec`, `hstore` | structures |
| `box`, `circle`, `line`, `lseg`, `path`, `polygon` | their text, or objects by a mode |
| `array` | values of another logical type |
| `text` | everything else: what PostgreSQL writes |

`form` is the form of the values in JSON (`records/schemas.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cdcd.core.catalog import binary
from cdcd.core.catalog.binary import cube_text, hstore_text
from cdcd.core.catalog.binary_text import (
    Reader,
    boolean_text,
    box_text,
    bytea_text,
    char_text,
    circle_text,
    date_text,
    inet_text,
    int2_text,
    int2vector_text,
    int4_text,
    int8_text,
    interval_text,
    line_text,
    lseg_text,
    lsn_text,
    macaddr8_text,
    macaddr_text,
    money_text,
    oidvector_text,
    path_text,
    plain,
    polygon_text,
    snapshot_text,
    tid_text,
    time_text,
    timestamp_text,
    timestamptz_text,
    timetz_text,
    tsquery_text,
    tsvector_text,
    uint4_text,
    uint8_text,
    versioned,
)
from cdcd.core.catalog.relations import TypeDescription

NESTING_MAX: Final = 64
"""Maximum depth of types within types, beyond which they are considered a cycle."""

Form = str | Callable[[int], str]
"""Form of values in JSON; for types with parameters, a function of the column's modifier (`atttypmod`)."""


def _time_form(modifier: int) -> str:
    return "time_ms" if 0 <= modifier <= 3 else "time"


def _timestamp_form(modifier: int) -> str:
    return "timestamp_ms" if 0 <= modifier <= 3 else "timestamp"


def _bit_form(modifier: int) -> str:
    return "boolean" if modifier == 1 else "bits"


def _varbit_form(modifier: int) -> str:
    # With one bit the type is a boolean, with none an empty text.
    return "text" if modifier == 1 else "bits"


def _decimal_form(modifier: int) -> str:
    size = decimal_size(modifier)
    return "decimal" if size is None else f"decimal({size[0]},{size[1]})"


def decimal_size(modifier: int) -> tuple[int, int] | None:
    """Return precision and scale of a numeric's declaration; None without them."""
    if modifier < 4:
        return None
    packed = modifier - 4
    # numeric.c, make_numeric_typmod: since 15 the scale has 11 bits and a sign.
    return packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024


BYTEA: Final = 17
"""The oid of the type bytea."""

MONEY: Final = 790
"""The oid of the type money."""


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A type that every database has.

    Attributes:
        oid, name, kind, category, delimiter, parts, sends: as in `TypeDescription`.
        array_oid: oid of the type of its arrays; 0: none.
        logical: logical type.
        read: reads its binary form as text; None: the binary form is unreadable, or does not determine the text.
    """

    oid: int
    name: str
    kind: str
    category: str
    array_oid: int
    logical: str
    read: Reader | None
    form: Form = "text"
    delimiter: str = ","
    parts: tuple[int, ...] = ()
    sends: bool = True


@dataclass(frozen=True, slots=True)
class Extension:
    """A base type of an extension. Its oid differs between databases, so it is identified by its name."""

    logical: str
    read: Reader | None
    form: Form = "text"


# Based on PostgreSQL 18's pg_type, of which those of 13 to 17 are subsets, and verified against real servers by
# tests/integration/test_types.py. Left out: pseudo-types, which no column has, and row types of system catalogs. The
# element of the vectors is left out because their text is not an array's: `1 2 3`. `parts` are the subtype of a range
# and the range of a multirange (pg_range). Only box has another delimiter, because its text contains commas. The reg*
# types have no reader because their binary form is an oid, and only the catalog has the name that is their text;
# pg_node_tree and the statistics types have none because no table contains values of them.
BUILT_IN: Final[tuple[BuiltIn, ...]] = (
    BuiltIn(16, "bool", "b", "B", 1000, "boolean", boolean_text, form="boolean"),
    BuiltIn(BYTEA, "bytea", "b", "U", 1001, "bytes", bytea_text, form="bytes"),
    BuiltIn(18, "char", "b", "Z", 1002, "text", char_text),
    BuiltIn(19, "name", "b", "S", 1003, "text", plain),
    BuiltIn(20, "int8", "b", "N", 1016, "int64", int8_text, form="int64"),
    BuiltIn(21, "int2", "b", "N", 1005, "int16", int2_text, form="int16"),
    BuiltIn(22, "int2vector", "b", "A", 1006, "text", int2vector_text),
    BuiltIn(23, "int4", "b", "N", 1007, "int32", int4_text, form="int32"),
    BuiltIn(24, "regproc", "b", "N", 1008, "text", None),
    BuiltIn(25, "text", "b", "S", 1009, "text", plain),
    BuiltIn(26, "oid", "b", "N", 1028, "oid", uint4_text, form="int64"),
    BuiltIn(27, "tid", "b", "U", 1010, "text", tid_text),
    BuiltIn(28, "xid", "b", "U", 1011, "text", uint4_text),
    BuiltIn(29, "cid", "b", "U", 1012, "text", uint4_text),
    BuiltIn(30, "oidvector", "b", "A", 1013, "text", oidvector_text),
    BuiltIn(114, "json", "b", "U", 199, "json", plain, form="json"),
    BuiltIn(142, "xml", "b", "U", 143, "xml", plain),
    BuiltIn(194, "pg_node_tree", "b", "Z", 0, "text", None),
    BuiltIn(600, "point", "b", "G", 1017, "point", binary.point_text, form="point"),
    BuiltIn(601, "lseg", "b", "G", 1018, "lseg", lseg_text),
    BuiltIn(602, "path", "b", "G", 1019, "path", path_text),
    BuiltIn(603, "box", "b", "G", 1020, "box", box_text, delimiter=";"),
    BuiltIn(604, "polygon", "b", "G", 1027, "polygon", polygon_text),
    BuiltIn(628, "line", "b", "G", 629, "line", line_text),
    BuiltIn(650, "cidr", "b", "I", 651, "text", inet_text),
    BuiltIn(700, "float4", "b", "N", 1021, "float32", binary.float4_text, form="float32"),
    BuiltIn(701, "float8", "b", "N", 1022, "float64", binary.float8_text, form="float64"),
    BuiltIn(718, "circle", "b", "G", 719, "circle", circle_text),
    BuiltIn(774, "macaddr8", "b", "U", 775, "text", macaddr8_text),
    BuiltIn(MONEY, "money", "b", "N", 791, "money", money_text, form="decimal(19,2)"),
    BuiltIn(829, "macaddr", "b", "U", 1040, "text", macaddr_text),
    BuiltIn(869, "inet", "b", "I", 1041, "text", inet_text),
    BuiltIn(1033, "aclitem", "b", "U", 1034, "text", None, sends=False),
    BuiltIn(1042, "bpchar", "b", "S", 1014, "text", plain),
    BuiltIn(1043, "varchar", "b", "S", 1015, "text", plain),
    BuiltIn(1082, "date", "b", "D", 1182, "date", date_text, form="date"),
    BuiltIn(1083, "time", "b", "D", 1183, "time", time_text, form=_time_form),
    BuiltIn(1114, "timestamp", "b", "D", 1115, "timestamp", timestamp_text, form=_timestamp_form),
    BuiltIn(1184, "timestamptz", "b", "D", 1185, "timestamptz", timestamptz_text, form="timestamptz"),
    BuiltIn(1186, "interval", "b", "T", 1187, "interval", interval_text),
    BuiltIn(1266, "timetz", "b", "D", 1270, "timetz", timetz_text),
    BuiltIn(1560, "bit", "b", "V", 1561, "bits", binary.bits_text, form=_bit_form),
    BuiltIn(1562, "varbit", "b", "V", 1563, "bits", binary.bits_text, form=_varbit_form),
    BuiltIn(1700, "numeric", "b", "N", 1231, "decimal", binary.numeric_text, form=_decimal_form),
    BuiltIn(1790, "refcursor", "b", "U", 2201, "text", plain),
    BuiltIn(2202, "regprocedure", "b", "N", 2207, "text", None),
    BuiltIn(2203, "regoper", "b", "N", 2208, "text", None),
    BuiltIn(2204, "regoperator", "b", "N", 2209, "text", None),
    BuiltIn(2205, "regclass", "b", "N", 2210, "text", None),
    BuiltIn(2206, "regtype", "b", "N", 2211, "text", None),
    BuiltIn(2950, "uuid", "b", "U", 2951, "uuid", binary.uuid_text),
    BuiltIn(2970, "txid_snapshot", "b", "U", 2949, "text", snapshot_text),
    BuiltIn(3220, "pg_lsn", "b", "U", 3221, "text", lsn_text),
    BuiltIn(3361, "pg_ndistinct", "b", "Z", 0, "text", None),
    BuiltIn(3402, "pg_dependencies", "b", "Z", 0, "text", None),
    BuiltIn(3614, "tsvector", "b", "U", 3643, "tsvector", tsvector_text),
    BuiltIn(3615, "tsquery", "b", "U", 3645, "text", tsquery_text),
    BuiltIn(3642, "gtsvector", "b", "U", 3644, "text", None, sends=False),
    BuiltIn(3734, "regconfig", "b", "N", 3735, "text", None),
    BuiltIn(3769, "regdictionary", "b", "N", 3770, "text", None),
    BuiltIn(3802, "jsonb", "b", "U", 3807, "jsonb", versioned, form="json"),
    BuiltIn(3904, "int4range", "r", "R", 3905, "text", None, parts=(23,)),
    BuiltIn(3906, "numrange", "r", "R", 3907, "text", None, parts=(1700,)),
    BuiltIn(3908, "tsrange", "r", "R", 3909, "text", None, parts=(1114,)),
    BuiltIn(3910, "tstzrange", "r", "R", 3911, "text", None, parts=(1184,)),
    BuiltIn(3912, "daterange", "r", "R", 3913, "text", None, parts=(1082,)),
    BuiltIn(3926, "int8range", "r", "R", 3927, "text", None, parts=(20,)),
    BuiltIn(4072, "jsonpath", "b", "U", 4073, "text", versioned),
    BuiltIn(4089, "regnamespace", "b", "N", 4090, "text", None),
    BuiltIn(4096, "regrole", "b", "N", 4097, "text", None),
    BuiltIn(4191, "regcollation", "b", "N", 4192, "text", None),
    BuiltIn(4451, "int4multirange", "m", "R", 6150, "text", None, parts=(3904,)),
    BuiltIn(4532, "nummultirange", "m", "R", 6151, "text", None, parts=(3906,)),
    BuiltIn(4533, "tsmultirange", "m", "R", 6152, "text", None, parts=(3908,)),
    BuiltIn(4534, "tstzmultirange", "m", "R", 6153, "text", None, parts=(3910,)),
    BuiltIn(4535, "datemultirange", "m", "R", 6155, "text", None, parts=(3912,)),
    BuiltIn(4536, "int8multirange", "m", "R", 6157, "text", None, parts=(3926,)),
    BuiltIn(4600, "pg_brin_bloom_summary", "b", "Z", 0, "text", None),
    BuiltIn(4601, "pg_brin_minmax_multi_summary", "b", "Z", 0, "text", None),
    BuiltIn(5017, "pg_mcv_list", "b", "Z", 0, "text", None),
    BuiltIn(5038, "pg_snapshot", "b", "U", 5039, "text", snapshot_text),
    BuiltIn(5069, "xid8", "b", "U", 271, "text", uint8_text),
)

GEOMETRIC: Final = ("box", "circle", "line", "lseg", "path", "polygon")
"""Logical types of values that are their text, but for a mode (`modes.py`)."""

EXTENSIONS: Final[Mapping[str, Extension]] = {
    "citext": Extension("text", plain),
    "cube": Extension("text", cube_text),
    "geography": Extension("geography", None, "object"),
    "geometry": Extension("geometry", None, "object"),
    "halfvec": Extension("halfvec", None, "float64[]"),
    "hstore": Extension("hstore", hstore_text, "json"),
    "lquery": Extension("text", versioned),
    "ltree": Extension("ltree", versioned),
    "ltxtquery": Extension("text", versioned),
    "sparsevec": Extension("sparsevec", None, "object"),
    "vector": Extension("vector", None, "float64[]"),
}


def _descriptions() -> dict[int, TypeDescription]:
    types: dict[int, TypeDescription] = {}
    for row in BUILT_IN:
        types[row.oid] = TypeDescription(
            row.oid,
            "pg_catalog",
            row.name,
            row.kind,
            row.category,
            0,
            0,
            -1,
            row.delimiter,
            row.parts,
            row.sends,
        )
        if row.array_oid:
            types[row.array_oid] = TypeDescription(
                row.array_oid, "pg_catalog", f"_{row.name}", "b", "A", row.oid, 0, -1, row.delimiter
            )
    return types


BUILTIN_TYPES: Final[Mapping[int, TypeDescription]] = _descriptions()
"""Every type below oid 12000 that a column can have, by oid, including arrays, ranges and multiranges."""

ROWS: Final[Mapping[int, BuiltIn]] = {row.oid: row for row in BUILT_IN}

READERS: Final[Mapping[int, Reader]] = {row.oid: row.read for row in BUILT_IN if row.read is not None}
"""Readers of binary forms by oid. Arrays, composites and ranges have composed readers (`binary_compound.py`)."""
