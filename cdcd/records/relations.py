"""What a table's columns are: types and keys, as the catalog describes them.

A Relation message names its columns' types by oid only, and says which columns are the replica identity, not which
are the key that consumers should see. The rest comes from the catalog (`cdcd.postgres.catalog`), for built-in types
from the table below.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cdcd.protocol.messages import Relation

Labels = tuple[tuple[int, str], ...]
"""The labels of an enum by `pg_enum.oid`, which a label keeps when it is renamed."""


@dataclass(frozen=True, slots=True)
class TypeDescription:
    """A row of pg_type.

    Attributes:
        kind: `typtype`: b base (and true array), c composite, d domain, e enum, r range, m multirange.
        category: `typcategory`; A for arrays.
        element_oid: `typelem` where values are arrays in array_out's form, else 0.
        base_oid: `typbasetype`, 0 but for domains.
        base_modifier: `typtypmod`, the modifier that a domain gives its base type, -1 for none.
        delimiter: `typdelim`, what stands between two values of this type in an array.
        parts: oids of the types that values hold: a composite's attributes, a range's subtype, a multirange's range.
        sends: the type has a send function, so that its values come in binary form where that is asked for.
        labels: of an enum, in no order that means something.
    """

    oid: int
    namespace: str
    name: str
    kind: str
    category: str
    element_oid: int
    base_oid: int
    base_modifier: int
    delimiter: str = ","
    parts: tuple[int, ...] = ()
    sends: bool = True
    labels: Labels = ()

    @property
    def is_array(self) -> bool:
        return self.element_oid != 0 and self.category == "A" and self.kind == "b"


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """A row of pg_attribute.

    Attributes:
        id: `attnum`.
        type: `format_type`, such as `numeric(12,2)`.
        dimensions: `attndims`, declared and not enforced.
        missing: `attmissingval` as text: what rows hold that are older than the column.
    """

    name: str
    id: int
    type: str
    type_oid: int
    dimensions: int
    missing: str | None


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """A column as it is described in the schemas topic; the head of `schemas.py` says what the fields hold."""

    name: str
    id: int | None
    type: str
    type_oid: int
    modifier: int
    form: str
    missing: str | None = None
    labels: Labels = ()
    default: str | None = None
    """The JSON text of the description's `default`."""
    protected: str | None = None
    """What becomes of the column's values, if they are not as in the table: an action of `protection.py`."""


@dataclass(frozen=True, slots=True)
class TableDescription:
    """What the catalog knows of a table: its keys, as names of columns, () for none; and its columns.

    All of these empty: the catalog does not know the table any more.

    Attributes:
        former: the columns of former descriptions of this relation, the newest first. They number columns that the
            catalog has under other names by now (`numbering.py`).
    """

    primary_key: tuple[str, ...] = ()
    unique_key: tuple[str, ...] = ()
    columns: tuple[CatalogColumn, ...] = ()
    former: tuple[tuple[ColumnForm, ...], ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the catalog knows the table."""
        return bool(self.primary_key or self.unique_key or self.columns)

    def has_columns_of(self, relation: Relation) -> bool:
        """Whether each column of a Relation message is in the catalog under its name and with its type."""
        known = {(column.name, column.type_oid) for column in self.columns}
        return known.issuperset([(column.name, column.type_oid) for column in relation.columns])


def key_columns(relation: Relation, table: TableDescription) -> tuple[str, ...]:
    """The columns that make the record's key, in the relation's order; () for a table without one.

    With REPLICA IDENTITY DEFAULT and USING INDEX they are the columns that the server flags, since an old key holds
    just those. FULL flags all columns and NOTHING none, so there it is the primary key, else the unique key, if the
    publication has all of its columns. The order is the columns' and not the index's, which the server does not tell:
    so a key has the same bytes whatever the replica identity is.
    """
    if relation.replica_identity in ("d", "i"):
        return tuple([column.name for column in relation.columns if column.is_key])
    published = {column.name for column in relation.columns}
    for key in (table.primary_key, table.unique_key):
        if key and published.issuperset(key):
            return tuple([column.name for column in relation.columns if column.name in key])
    return ()


def types_of(relation: Relation, types: Mapping[int, TypeDescription]) -> tuple[TypeDescription, ...]:
    """The descriptions of the columns' types, and of what those are made of; without those that are not known."""
    found: dict[int, TypeDescription] = {}
    wanted = [column.type_oid for column in relation.columns]
    while wanted:
        oid = wanted.pop()
        if oid in types and oid not in found:
            found[oid] = types[oid]
            wanted += (found[oid].element_oid, found[oid].base_oid, *found[oid].parts)
    return tuple(found.values())


# (oid, name, kind, category, oid of the array type or 0). Written from PostgreSQL 18's pg_type, of which those of 13
# to 17 are subsets, and checked against real servers by tests/integration/test_types.py. Left out: pseudo-types,
# which no column has, and row types of system catalogs. The vectors' element is not named because their text is not
# an array's: `1 2 3`.
_ROWS: Final[tuple[tuple[int, str, str, str, int], ...]] = (
    (16, "bool", "b", "B", 1000),
    (17, "bytea", "b", "U", 1001),
    (18, "char", "b", "Z", 1002),
    (19, "name", "b", "S", 1003),
    (20, "int8", "b", "N", 1016),
    (21, "int2", "b", "N", 1005),
    (22, "int2vector", "b", "A", 1006),
    (23, "int4", "b", "N", 1007),
    (24, "regproc", "b", "N", 1008),
    (25, "text", "b", "S", 1009),
    (26, "oid", "b", "N", 1028),
    (27, "tid", "b", "U", 1010),
    (28, "xid", "b", "U", 1011),
    (29, "cid", "b", "U", 1012),
    (30, "oidvector", "b", "A", 1013),
    (114, "json", "b", "U", 199),
    (142, "xml", "b", "U", 143),
    (194, "pg_node_tree", "b", "Z", 0),
    (600, "point", "b", "G", 1017),
    (601, "lseg", "b", "G", 1018),
    (602, "path", "b", "G", 1019),
    (603, "box", "b", "G", 1020),
    (604, "polygon", "b", "G", 1027),
    (628, "line", "b", "G", 629),
    (650, "cidr", "b", "I", 651),
    (700, "float4", "b", "N", 1021),
    (701, "float8", "b", "N", 1022),
    (718, "circle", "b", "G", 719),
    (774, "macaddr8", "b", "U", 775),
    (790, "money", "b", "N", 791),
    (829, "macaddr", "b", "U", 1040),
    (869, "inet", "b", "I", 1041),
    (1033, "aclitem", "b", "U", 1034),
    (1042, "bpchar", "b", "S", 1014),
    (1043, "varchar", "b", "S", 1015),
    (1082, "date", "b", "D", 1182),
    (1083, "time", "b", "D", 1183),
    (1114, "timestamp", "b", "D", 1115),
    (1184, "timestamptz", "b", "D", 1185),
    (1186, "interval", "b", "T", 1187),
    (1266, "timetz", "b", "D", 1270),
    (1560, "bit", "b", "V", 1561),
    (1562, "varbit", "b", "V", 1563),
    (1700, "numeric", "b", "N", 1231),
    (1790, "refcursor", "b", "U", 2201),
    (2202, "regprocedure", "b", "N", 2207),
    (2203, "regoper", "b", "N", 2208),
    (2204, "regoperator", "b", "N", 2209),
    (2205, "regclass", "b", "N", 2210),
    (2206, "regtype", "b", "N", 2211),
    (2950, "uuid", "b", "U", 2951),
    (2970, "txid_snapshot", "b", "U", 2949),
    (3220, "pg_lsn", "b", "U", 3221),
    (3361, "pg_ndistinct", "b", "Z", 0),
    (3402, "pg_dependencies", "b", "Z", 0),
    (3614, "tsvector", "b", "U", 3643),
    (3615, "tsquery", "b", "U", 3645),
    (3642, "gtsvector", "b", "U", 3644),
    (3734, "regconfig", "b", "N", 3735),
    (3769, "regdictionary", "b", "N", 3770),
    (3802, "jsonb", "b", "U", 3807),
    (3904, "int4range", "r", "R", 3905),
    (3906, "numrange", "r", "R", 3907),
    (3908, "tsrange", "r", "R", 3909),
    (3910, "tstzrange", "r", "R", 3911),
    (3912, "daterange", "r", "R", 3913),
    (3926, "int8range", "r", "R", 3927),
    (4072, "jsonpath", "b", "U", 4073),
    (4089, "regnamespace", "b", "N", 4090),
    (4096, "regrole", "b", "N", 4097),
    (4191, "regcollation", "b", "N", 4192),
    (4451, "int4multirange", "m", "R", 6150),
    (4532, "nummultirange", "m", "R", 6151),
    (4533, "tsmultirange", "m", "R", 6152),
    (4534, "tstzmultirange", "m", "R", 6153),
    (4535, "datemultirange", "m", "R", 6155),
    (4536, "int8multirange", "m", "R", 6157),
    (4600, "pg_brin_bloom_summary", "b", "Z", 0),
    (4601, "pg_brin_minmax_multi_summary", "b", "Z", 0),
    (5017, "pg_mcv_list", "b", "Z", 0),
    (5038, "pg_snapshot", "b", "U", 5039),
    (5069, "xid8", "b", "U", 271),
)

_DELIMITERS: Final[Mapping[int, str]] = {603: ";"}
"""box, whose text is full of commas, is the only built-in type with another delimiter."""

_PARTS: Final[Mapping[int, tuple[int, ...]]] = {
    3904: (23,),
    3906: (1700,),
    3908: (1114,),
    3910: (1184,),
    3912: (1082,),
    3926: (20,),
    4451: (3904,),
    4532: (3906,),
    4533: (3908,),
    4534: (3910,),
    4535: (3912,),
    4536: (3926,),
}
"""Of ranges the subtype, of multiranges the range (pg_range)."""

_WITHOUT_SEND: Final = (1033, 3642)
"""aclitem and gtsvector: they have no send function."""


def _builtin_types() -> dict[int, TypeDescription]:
    types: dict[int, TypeDescription] = {}
    for oid, name, kind, category, array_oid in _ROWS:
        delimiter = _DELIMITERS.get(oid, ",")
        parts = _PARTS.get(oid, ())
        types[oid] = TypeDescription(
            oid, "pg_catalog", name, kind, category, 0, 0, -1, delimiter, parts, oid not in _WITHOUT_SEND
        )
        if array_oid:
            types[array_oid] = TypeDescription(
                array_oid, "pg_catalog", f"_{name}", "b", "A", oid, 0, -1, delimiter
            )
    return types


BUILTIN_TYPES: Final[Mapping[int, TypeDescription]] = _builtin_types()
"""Every type below oid 12000 that a column can have, by oid, with arrays, ranges and multiranges."""
