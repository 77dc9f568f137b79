"""What a new description of a table changes: columns, the key, the name, the replica identity.

The rule: a column is its attribute number, so a column with the same number and another name was renamed, and one with
another number and the same name is another column. Where a number is not known (`numbering.py`), the name counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.protocol.messages import Relation

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
