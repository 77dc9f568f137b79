"""What a table's columns are: types and keys, as the catalog describes them.

A Relation message names its columns' types by oid only, and says which columns are the replica identity, not which
are the key that consumers should see. The rest comes from the catalog (`cdcd.adapters.postgres.catalog`), for built-in
types from the table of types (`types.py`).

Two descriptions of a table are compared by columns, key, name and replica identity. The rule: a column is its attribute
number, so a column with the same number and another name was renamed, and one with another number and the same name is
another column. Where a number is not known (`numbering.py`), the name counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cdcd.core.protocol.messages import Relation

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
        stamp: `xmin` of the row of pg_attribute, which is another one after each change of the column.
        generated: PostgreSQL computes the values, so that a publication may leave the column out.
    """

    name: str
    id: int
    type: str
    type_oid: int
    dimensions: int
    missing: str | None
    stamp: int = field(default=0, compare=False)
    generated: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Kin:
    """The table itself, a table that it inherits from, or a partition of it, as the catalog has it now.

    Attributes:
        columns: number and name of each column; empty for the table itself.
        is_part: a partition of the table, whose columns have the same names.
    """

    oid: int
    schema: str
    name: str
    columns: tuple[tuple[int, str], ...] = ()
    is_part: bool = False


UNKNOWN_PLACE: Final = -1
"""`TableDescription.at` of a relation that is described again as it was described before."""

TENTATIVE: Final = -2
"""`TableDescription.at` of a relation whose transaction may never commit."""


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """A column as it is described in the schemas topic; the head of `records/schemas.py` says what the fields hold."""

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
    column: str | None = None
    """The column's name in PostgreSQL, where the field has another one (`field_names.py`)."""


@dataclass(frozen=True, slots=True)
class TableDescription:
    """What the catalog knows of a table: its keys, as names of columns, () for none; and its columns.

    All of these empty: the catalog does not know the table any more.

    Attributes:
        former: the columns of former descriptions of this relation, the newest first. They number columns that the
            catalog has under other names by now (`numbering.py`).
        chosen_key: the columns that the configuration makes the key; () if it leaves that to the table
            (`table_rules.py`).
        repeats: several rows may have the same chosen key.
        is_partitioned: its rows are in partitions, each with a replica identity of its own.
        last_id: the highest attribute number that a column of the table ever had (`pg_class.relnatts`).
        rewritten: 0 if the table is in the file that it was created with; else a number that is another one after
            PostgreSQL has written the table anew. Only a rewritten table loses the values of `CatalogColumn.missing`.
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
    is_partitioned: bool = False
    last_id: int = 0
    rewritten: int = 0
    unsent: tuple[tuple[str, str], ...] = ()
    # Without rules that protect columns, nothing goes by these.
    kin: tuple[Kin, ...] = field(default=(), compare=False)
    listed: bool = field(default=False, compare=False)
    seen: int = field(default=0, compare=False)
    at: int = field(default=UNKNOWN_PLACE, compare=False)
    numbers: tuple[int, ...] = field(default=(), compare=False)

    @property
    def has_key(self) -> bool:
        """Whether a key of the catalog or of the configuration tells its rows apart, whatever the replica identity."""
        return bool(self.chosen_key or self.primary_key or self.unique_key)

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

    They are those that the configuration chooses, if it does.

    With REPLICA IDENTITY DEFAULT and USING INDEX they are the columns that the server flags, since an old key holds
    just those. FULL flags all columns and NOTHING none, so there it is the primary key, else the unique key, if the
    publication has all of its columns. The order is the columns' and not the index's, which the server does not tell:
    so a key has the same bytes whatever the replica identity is.
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
    """The descriptions of the columns' types, and of what those are made of; without those that are not known."""
    found: dict[int, TypeDescription] = {}
    wanted = [column.type_oid for column in relation.columns]
    while wanted:
        oid = wanted.pop()
        if oid in types and oid not in found:
            found[oid] = types[oid]
            wanted += (found[oid].element_oid, found[oid].base_oid, *found[oid].parts)
    return tuple(found.values())


IDENTITIES: Final = {"d": "default", "n": "nothing", "f": "full", "i": "index"}
"""`pg_class.relreplident` in words."""


@dataclass(frozen=True, slots=True)
class Described:
    """A table as it was described at one place of the stream: the message, its columns, and the key of its records."""

    relation: Relation
    columns: tuple[ColumnForm, ...]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Differences:
    """What changed. All fields are empty if nothing did.

    Attributes:
        added, dropped: names of columns, with their types.
        renamed: the new name of a column by its former one.
        retyped: `<former type> -> <new type>` by the column's new name.
        key: the columns of the record's key, by their new names; None: the key did not change.
        former_name: the former `schema.table`; "": the name did not change.
        replica_identity: default, nothing, full or index; "": it did not change.
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
        """Whether nothing changed."""
        some = self.added or self.dropped or self.renamed or self.retyped
        return not (some or self.key is not None or self.former_name or self.replica_identity)


def differences(before: Described, after: Described) -> Differences:
    """What `after` changes in `before`, two descriptions of one table."""
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
    old_name = f"{before.relation.schema}.{before.relation.name}"
    name = f"{after.relation.schema}.{after.relation.name}"
    identity = after.relation.replica_identity
    return Differences(
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
    """For each column the same one among `others`, None where there is none."""
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
