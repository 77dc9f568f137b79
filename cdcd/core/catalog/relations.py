"""What a table's columns are: types and keys, as the catalog describes them.

A Relation message names its columns' types by oid only, and says which columns are the replica identity, not which
are the key that consumers should see. The rest comes from the catalog (`cdcd.adapters.postgres.catalog`), for built-in
types from the table of types (`types.py`).

Two descriptions of a table are compared by columns, key, name and replica identity. The rule: a column is its attribute
number, so a column with the same number and another name was renamed, and one with another number and the same name is
another column. Where a number is not known (`attribute_numbers.py`), the name counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cdcd.core.protocol.messages import Relation
from cdcd.core.table_names import table_text

Labels = tuple[tuple[int, str], ...]
"""Labels of an enum by `pg_enum.oid`, which a label keeps when it is renamed."""


@dataclass(frozen=True, slots=True)
class TypeDescription:
    """A row of pg_type.

    Attributes:
        kind: `typtype`: b base (and true array), c composite, d domain, e enum, r range, m multirange.
        category: `typcategory`; A for arrays.
        element_oid: `typelem` if values are arrays in array_out's form, else 0.
        base_oid: `typbasetype`; 0 except for domains.
        base_modifier: `typtypmod`, the modifier that a domain gives its base type; -1 for none.
        delimiter: `typdelim`, the separator of two values of this type in an array.
        parts: oids of the component types: a composite's attributes, a range's subtype, a multirange's range.
        sends: True if the type has a send function, so that its values can be sent in binary form.
        labels: labels of an enum, in arbitrary order.
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
        missing: `attmissingval` as text: the value of rows that are older than the column.
        stamp: `xmin` of the row of pg_attribute, which differs after each change of the column.
        generated: True if PostgreSQL computes the values, so that a publication may leave the column out.
        reads: attribute numbers of the columns from which PostgreSQL computes the values.
    """

    name: str
    id: int
    type: str
    type_oid: int
    dimensions: int
    missing: str | None
    stamp: int = field(default=0, compare=False)
    generated: bool = field(default=False, compare=False)
    reads: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Kin:
    """The table itself, a table that it inherits from, or a partition of it, in the present catalog.

    Attributes:
        columns: number and name of each column; empty for the table itself.
        is_part: True for a partition of the table, whose columns have the same names.
        is_former: True for a table with partitions or children that the table may have been one of, before all its
            columns were altered at once or before it was dropped.
    """

    oid: int
    schema: str
    name: str
    columns: tuple[tuple[int, str], ...] = ()
    is_part: bool = False
    is_former: bool = False


UNKNOWN_PLACE: Final = -1
"""`TableDescription.at` of a relation that is described again without changes."""

TENTATIVE: Final = -2
"""`TableDescription.at` of a relation whose transaction may never commit."""


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """A column in the schemas topic's description; the head of `records/schemas.py` defines the fields."""

    name: str
    id: int | None
    type: str
    type_oid: int
    modifier: int
    form: str
    missing: str | None = None
    labels: Labels = ()
    default: str | None = None
    """JSON text of the description's `default`."""
    protected: str | None = None
    """Action of `protection.py` that replaces the column's values; None: unchanged values."""
    column: str | None = None
    """Name of the column in PostgreSQL, if the field has another one (`field_names.py`)."""


@dataclass(frozen=True, slots=True)
class TableDescription:
    """What the catalog knows of a table: its keys, as names of columns, () for none; and its columns.

    All of these empty: the catalog does not know the table any more.

    Attributes:
        former: the columns of former descriptions of this relation, the newest first. They number columns that the
            catalog has under other names by now (`attribute_numbers.py`).
        chosen_key: the columns that the configuration makes the key; () if it leaves that to the table
            (`table_rules.py`).
        repeats: several rows may have the same chosen key.
        bare_key: the key of a record is the bare value of its one column.
        key_constants: fields with one text that follow the columns in each key, as pairs (name, text).
        is_partitioned: its rows are in partitions, each with a replica identity of its own.
        last_id: the highest attribute number that a column of the table ever had (`pg_class.relnatts`).
        rewritten: 0 if the table is in the file that it was created with; else a number that is another one after
            PostgreSQL has written the table again. Only a rewritten table loses the values of `CatalogColumn.missing`.
        kin: the table itself first, then the tables that it inherits from, and its partitions. A rule that matches a
            column of one of them holds for the column of that name. Empty if that was not asked.
        listed: a publication may leave out columns of the table.
        seen: an LSN behind the commits of all transactions that the look-up saw; 0 if that was not asked.
        at: where in the stream the Relation message stands: the commit LSN of its transaction, UNKNOWN_PLACE or
            TENTATIVE.
        numbers: the attribute numbers of the relation's columns, if the table was looked up as a whole; () if the
            relation comes from the stream.
        unsent: of a partitioned table, the columns of which a partition does not send former values, each with the name
            of such a partition (`replica_identity.py`).
    """

    primary_key: tuple[str, ...] = ()
    unique_key: tuple[str, ...] = ()
    columns: tuple[CatalogColumn, ...] = ()
    former: tuple[tuple[ColumnForm, ...], ...] = ()
    chosen_key: tuple[str, ...] = ()
    repeats: bool = False
    bare_key: bool = False
    key_constants: tuple[tuple[str, str], ...] = ()
    is_partitioned: bool = False
    last_id: int = 0
    rewritten: int = 0
    unsent: tuple[tuple[str, str], ...] = ()
    # Only rules that protect columns use these.
    kin: tuple[Kin, ...] = field(default=(), compare=False)
    listed: bool = field(default=False, compare=False)
    seen: int = field(default=0, compare=False)
    at: int = field(default=UNKNOWN_PLACE, compare=False)
    numbers: tuple[int, ...] = field(default=(), compare=False)

    @property
    def has_key(self) -> bool:
        """True if a key of the catalog or the configuration identifies rows, whatever the replica identity."""
        return bool(self.chosen_key or self.primary_key or self.unique_key)

    @property
    def is_known(self) -> bool:
        """True if the catalog has the table."""
        return bool(self.primary_key or self.unique_key or self.columns)

    def has_columns_of(self, relation: Relation) -> bool:
        """Return True if the catalog has each column of a Relation message with its name and type."""
        known = {(column.name, column.type_oid) for column in self.columns}
        return known.issuperset([(column.name, column.type_oid) for column in relation.columns])


def key_columns(relation: Relation, table: TableDescription) -> tuple[str, ...]:
    """Return the columns of the record's key, in the relation's order; () for a table without key.

    If a key is configured, it is used.

    With REPLICA IDENTITY DEFAULT and USING INDEX the key is the columns that the server flags, because an old key
    contains just these. FULL flags all columns and NOTHING none, so the key is then the primary key, or else the
    unique key, if the publication has all of its columns. The order is that of the columns and not of the index,
    which the server does not send; so a key has the same bytes with every replica identity.
    """
    if table.chosen_key:
        return tuple([column.name for column in relation.columns if column.name in table.chosen_key])
    if relation.replica_identity in ("d", "i"):
        return tuple([column.name for column in relation.columns if column.is_key])
    published = {column.name for column in relation.columns}
    for key in (table.primary_key, table.unique_key):
        if key and published.issuperset(key):
            return tuple([column.name for column in relation.columns if column.name in key])
    return ()


def types_of(relation: Relation, types: Mapping[int, TypeDescription]) -> tuple[TypeDescription, ...]:
    """Return the descriptions of the columns' types and their components, without unknown types."""
    found: dict[int, TypeDescription] = {}
    wanted = [column.type_oid for column in relation.columns]
    while wanted:
        oid = wanted.pop()
        if oid in types and oid not in found:
            found[oid] = types[oid]
            wanted += (found[oid].element_oid, found[oid].base_oid, *found[oid].parts)
    return tuple(found.values())


IDENTITIES: Final = {"d": "default", "n": "nothing", "f": "full", "i": "index"}
"""Names of the values of `pg_class.relreplident`."""


@dataclass(frozen=True, slots=True)
class DescribedRelation:
    """A table's description at one position of the stream: the message, its columns, and the key of its records."""

    relation: Relation
    columns: tuple[ColumnForm, ...]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RelationDifferences:
    """Differences between two descriptions. All fields are empty without a difference.

    Attributes:
        added, dropped: names of columns, with their types.
        renamed: the new name of a column by its former one.
        retyped: `<former type> -> <new type>` by the column's new name.
        key: columns of the record's key, by their new names; None: unchanged.
        former_name: former `schema.table`; "": unchanged.
        replica_identity: default, nothing, full or index; "": unchanged.
    """

    added: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    retyped: dict[str, str] = field(default_factory=dict)
    key: list[str] | None = None
    former_name: str = ""
    replica_identity: str = ""

    @property
    def is_empty(self) -> bool:
        """True if there is no difference."""
        some = self.added or self.dropped or self.renamed or self.retyped
        return not (some or self.key is not None or self.former_name or self.replica_identity)


def differences(before: DescribedRelation, after: DescribedRelation) -> RelationDifferences:
    """Return the differences of `after` from `before`, two descriptions of one table."""
    former = _partners(after.columns, before.columns)
    renamed, retyped = {}, {}
    for column, old in zip(after.columns, former, strict=True):
        if old is None:
            continue
        if old.name != column.name:
            renamed[old.name] = column.name
        if (old.type_oid, old.modifier) != (column.type_oid, column.modifier):
            retyped[column.name] = f"{old.type} -> {column.type}"
    kept = [old for old in former if old is not None]
    key = [renamed.get(name, name) for name in before.key]
    old_name = table_text(before.relation.schema, before.relation.name)
    name = table_text(after.relation.schema, after.relation.name)
    identity = after.relation.replica_identity
    return RelationDifferences(
        added=[
            f"{new.name} {new.type}" for new, old in zip(after.columns, former, strict=True) if old is None
        ],
        dropped=[f"{old.name} {old.type}" for old in before.columns if old not in kept],
        renamed=renamed,
        retyped=retyped,
        key=None if key == list(after.key) else list(after.key),
        former_name="" if old_name == name else old_name,
        replica_identity=""
        if identity == before.relation.replica_identity
        else IDENTITIES.get(identity, identity),
    )


def _partners(columns: Sequence[ColumnForm], others: Sequence[ColumnForm]) -> list[ColumnForm | None]:
    """Return for each column the same column among `others`; None if there is none."""
    by_id = {other.id: other for other in others if other.id is not None}
    by_name = {other.name: other for other in others}
    found: list[ColumnForm | None] = []
    for column in columns:
        same = by_id.get(column.id) if column.id is not None else None
        named = by_name.get(column.name)
        if same is None and named is not None and (column.id is None or named.id is None):
            same = named
        found.append(same)
    return found
