"""The part of a table's fragments that depends on its columns only, which tables with the same columns share.

Thousands of tables often have the same columns, for example a set of tables for each customer. Without sharing, the
fragments would be half of the memory that such a table takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.core.catalog.field_names import Fields, Pairs
from cdcd.core.catalog.protection import EXCLUDE, ColumnRule
from cdcd.core.catalog.relations import TableDescription, TypeDescription, key_columns, types_of
from cdcd.core.catalog.wiretext import wire
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.debezium_json.changes import ColumnPlace, Plan
from cdcd.core.records.debezium_json.connect_schema import WITH_SCHEMA
from cdcd.core.records.debezium_json.converter import QUOTED
from cdcd.core.records.debezium_json.converters import converter_for
from cdcd.core.records.debezium_json.protected import protect
from cdcd.core.records.debezium_json.strings import quote
from cdcd.core.records.encoder import EncoderSettings

ROW_AT: Final = 2
"""Index of the first column's fragment."""

LAYOUTS_MAX: Final = 1000
"""Maximum number of layouts that are kept for further tables. After that, all of them are forgotten."""

_QUOTE: Final = b'"'


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """What the server and the configuration say of a relation.

    Attributes:
        relation, table: the description in the stream, and that in the catalog.
        types: types of columns that are not built in, by oid.
        rules: for each column the rule that protects it, or None; () if no column has a rule.
        fields: names of fields and constant fields that are chosen; None if no field has another name than its column.
        named: beginning of the names of schemas; "": the topic's name.
    """

    relation: Relation
    table: TableDescription
    types: Mapping[int, TypeDescription]
    rules: Sequence[ColumnRule | None] = ()
    fields: Fields | None = None
    named: str = ""

    @property
    def constants(self) -> Pairs:
        """The fields with one text each, which precede the columns in each row."""
        return () if self.fields is None else self.fields.constants


class RowLayout:
    """Fragments of rows, and the plan for the values between them. `TableFragments` describes the attributes."""

    __slots__ = (
        "converters",
        "empty_row",
        "event_template",
        "hidden_slots",
        "identity",
        "index",
        "key_columns",
        "key_places",
        "key_quoted",
        "key_slots",
        "modes",
        "names",
        "old_template",
        "placeholders",
        "places",
        "plan",
        "protected",
        "row_start",
        "visible",
    )

    def __init__(self, described: DescribedTable, settings: EncoderSettings) -> None:
        relation, types, fields = described.relation, described.types, described.fields
        renamed = relation if fields is None else fields.renamed(relation)
        columns, modes = relation.columns, settings.modes
        rules = described.rules or [None] * len(columns)
        self.converters = [
            protect(converter_for(column.type_oid, column.type_modifier, types, modes), rule)
            for column, rule in zip(columns, rules, strict=True)
        ]
        self.protected = [rule is not None for rule in rules]
        self.visible = [rule is None or rule.action != EXCLUDE for rule in rules]
        self.placeholders = [
            converter.unchanged(settings.unavailable).encode("latin-1") for converter in self.converters
        ]
        self.modes = [converter.mode for converter in self.converters]
        self.names = [quote(wire(column.name)).encode("latin-1") for column in renamed.columns]
        constants = b",".join([constant_field(name, text) for name, text in described.constants])
        self.empty_row = b"{" + constants
        self.row_start = self.empty_row + b"," if constants else self.empty_row
        self.identity = [column.is_key for column in columns]
        self.plan: Plan = []
        self.places: list[ColumnPlace] = []
        row: list[bytes] = []
        start = self.row_start
        for column, name in enumerate(self.names):
            shown = self.visible[column]
            row.append(start + name + b":" if shown else b"")
            start = b"," if shown else start
            self.places.append(ColumnPlace(row[-1], self.converters[column], b"null" if shown else b""))
            mode = self.converters[column].mode
            self.plan.append((_make_place(row, mode), mode, column))
        if not row:
            row.append(b"")
        if not any(self.visible):
            row[0] = self.empty_row
            if self.places:
                self.places[0].fragment = self.empty_row
        self.hidden_slots = [
            slot for (slot, _, _), shown in zip(self.plan, self.visible, strict=True) if not shown
        ]
        self.index = {place[0]: index for index, place in enumerate(self.plan)}
        fragments = [b'{"before":', b"null", b',"after":' + row[0], *row[1:]]
        self.event_template = [*fragments, b"}"]
        self.old_template = [b"", b"", *row, b"}"]
        position = {column.name: index for index, column in enumerate(columns)}
        keys = [position[name] for name in key_columns(relation, described.table)]
        self.key_columns = keys
        self.key_places = [self.places[index] for index in keys]
        self.key_slots = [self.plan[index][0] for index in keys]
        self.key_quoted = [self.plan[index][1] in QUOTED for index in keys]


LayoutKey = tuple[
    tuple[Column, ...],
    tuple[str, ...],
    tuple[TypeDescription, ...],
    Fields | None,
    bool,
    Pairs,
]
"""What a layout and the parts of keys in its places follow from: the columns, the key, the types that are not built in,
the names of fields, and the form of the key."""


class Layouts:
    """The layouts of a stream's tables. Tables with the same columns have one layout.

    A table has a layout of its own if a rule protects one of its columns, because each column may have a key of its
    own, or if keys have schemas, because such schemas have the name of the topic.
    """

    def __init__(self, settings: EncoderSettings) -> None:
        self.settings = settings
        self._layouts: dict[LayoutKey, RowLayout] = {}

    def layout(self, described: DescribedTable) -> RowLayout:
        """Return the layout of the table's rows."""
        is_protected = any(rule is not None for rule in described.rules)
        if is_protected or self.settings.key_format == WITH_SCHEMA:
            return RowLayout(described, self.settings)
        relation, table = described.relation, described.table
        key = (
            relation.columns,
            key_columns(relation, table),
            types_of(relation, described.types),
            described.fields,
            table.bare_key,
            table.key_constants,
        )
        found = self._layouts.get(key)
        if found is None:
            if len(self._layouts) >= LAYOUTS_MAX:
                self._layouts.clear()
            found = self._layouts[key] = RowLayout(described, self.settings)
        return found


def constant_field(name: str, text: str) -> bytes:
    """Return a field with a constant text, in JSON."""
    return f"{quote(wire(name))}:{quote(wire(text))}".encode("latin-1")


def _make_place(row: list[bytes], mode: int) -> int:
    """Make room for a column's value at the end of `row`, and return its slot."""
    if mode in QUOTED:
        row.extend([_QUOTE, b"", _QUOTE])
        return ROW_AT + len(row) - 2
    row.append(b"")
    return ROW_AT + len(row) - 1
