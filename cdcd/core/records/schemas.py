"""Descriptions of tables: what a reader of their records needs to know of the columns, which no record says.

The topic `topics.schemas` (compacted) has one record for each form of each table. The key is `{"table", "schema"}`,
where `schema` is the fingerprint of the description, and so the same whenever and by whomever it is made. Every change
names it in `source.schema_id`. A description stands in the Kafka transaction of the first change that names it, before
it; each life of the daemon writes those that it meets again, and compaction removes the repeats. The header
`cdcd.pipeline` has the name of the pipeline.

The value:

```
{"schema":"public","table":"orders","topic":"shop.public.orders","oid":16384,"fingerprint":"0f3a…","key":["id"],
 "columns":[{"name":"id","id":1,"type":"bigint","type_oid":20,"modifier":-1,"form":"int64","default":null},…]}
```

`oid` is that of the relation, which tells a table from another one that had or gets its name. `id` is
`pg_attribute.attnum`, which tells a renamed column from a new one; null where neither the catalog nor a former
description of the relation tells it (`catalog/attribute_numbers.py`). A column of an enum, of a domain over one or of
an array of one has `labels`, pairs of `pg_enum.oid` and label: a label that is renamed keeps its oid.

`skipped` are the operations (`c`, `u`, `d`) that have no records, where there are such: readers of such a topic cannot
know the table from it.

`flattened` is true where the value of a record is a row instead of an envelope (`event_flattening`). Its records do not
say which description they follow, unless they have `change_header`.

`change_header` is the format of values (`format.value`) where each change has the header `cdcd.change`
(`change_headers.py`), which also says which description a flattened row follows.

`routes` are the topics beside `topic` that rows go to, where they are routed by their values (`routes`).

`cloudevents` is true where records are CloudEvents instead of envelopes.
`repeats` is true where several rows may have the same key (`key.columns`).
`constants` are the fields of a row that have one text each (`fields.tables`). They are not among the columns. `column`
is the name of a column in PostgreSQL, where its field has another one.
`bare_key` is true where a key is the bare value of its one column, and `key_constants` are fields that follow the
columns of each key (`key.forms`).
`computed` are the columns whose values expressions make (`fields.tables`). The table has no such column, or one of
another type.
`moves` is true where records of one key may lie in several partitions (`partitioner.columns`).

`shared` is true where `topic` has the records of several tables (`topics.shared`).

`dead_letters` is true where records that `topic` cannot have go to another topic (`kafka.dead_letters`).

A column whose values are replaced (`protection.py`) has `protected`, the name of what is done, and the form `text`. A
column that is left out of the records is not described.

`default` is what rows hold that are older than the column (ADD COLUMN … DEFAULT), as a record would have it; null for
NULL. Descriptions of older daemons have PostgreSQL's text of it instead, as `missing`.

PostgreSQL forgets that value when it writes a table again (ALTER TYPE, VACUUM FULL). Two fields tell whether it
may have done so before the daemon asked (`is_default_lost`), and are not part of the fingerprint. `rewritten` is 0
if the relation was never written again, else a number that differs after each time. `last_id` is the highest
number that a column of the relation had when the daemon first saw `rewritten` as it is. Both are null where the
catalog did not know the relation.

`form` says how values are written, after domains, enums and arrays are looked through:

| form | JSON |
|---|---|
| `boolean`, `int16`, `int32`, `int64`, `float32`, `float64` | boolean, number; "NaN", "Infinity", "-Infinity" |
| `decimal(p,s)`, `decimal` | text of a number; "NAN", "POSITIVE_INFINITY", "NEGATIVE_INFINITY" |
| `bytes`, `bits` | base64; of a bit string as a little-endian number |
| `date` | days since 1970 |
| `time`, `timestamp` | microseconds; milliseconds as `time_ms`, `timestamp_ms` |
| `timestamptz` | ISO 8601 text |
| `point`, `object` | an object |
| `json` | text that is JSON |
| `text` | text |
| `decimal_bytes(p,s)`, `decimal_variable` | base64 of the number without its point; that and the scale in an object |
| `bytes_base64_url`, `bytes_hex` | base64 with - and _; hexadecimal digits |
| `date_connect`, `timestamp_connect` | days, milliseconds, with infinities of their own |
| `date_iso`, `time_iso`, `timestamp_iso` | ISO 8601 text |
| `timestamp_us`, `time_ns`, `timestamp_ns` | microseconds with infinities of their own; nanoseconds |
| `date_struct`, `time_struct`, `timestamp_struct` … | objects with a field for each part |
| any with `[]` | arrays of it, `[][]` for as many dimensions as are declared |

The finer rules are those of `debezium_json/converters.py`, `mode_types.py` and `structured_types.py`. A column's form
follows from its logical
type (`catalog/types.py`, `catalog/modes.py`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

from cdcd.core import bounded_json
from cdcd.core.catalog.attribute_numbers import column_ids
from cdcd.core.catalog.field_names import Fields, Pairs
from cdcd.core.catalog.logical import labels_of
from cdcd.core.catalog.modes import DEFAULTS, Modes, form_under
from cdcd.core.catalog.protection import EXCLUDE, ColumnRule
from cdcd.core.catalog.relations import (
    CatalogColumn,
    ColumnForm,
    TableDescription,
    TypeDescription,
    key_columns,
)
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.catalog.wiretext import to_bytes, wire
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.debezium_json.converters import converter_for
from cdcd.core.records.debezium_json.protected import protect

FINGERPRINT_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class TableForm:
    """The description of a table. `oid`, `last_id` and `rewritten` are None where a former version of cdcd wrote it."""

    schema: str
    table: str
    topic: str
    key: tuple[str, ...]
    columns: tuple[ColumnForm, ...]
    oid: int | None = None
    skipped: tuple[str, ...] = ()
    flattened: bool = False
    cloudevents: bool = False
    repeats: bool = False
    routes: tuple[str, ...] = ()
    moves: bool = False
    bare_key: bool = False
    key_constants: Pairs = ()
    shared: bool = False
    computed: tuple[str, ...] = ()
    letters: bool = False
    constants: Pairs = ()
    last_id: int | None = None
    rewritten: int | None = None
    change_header: str = ""

    @property
    def source_columns(self) -> tuple[ColumnForm, ...]:
        """The columns with their names in PostgreSQL."""
        return tuple(
            [
                column if column.column is None else replace(column, name=column.column, column=None)
                for column in self.columns
            ]
        )

    def with_fields(self, relation: Relation, fields: Fields) -> "TableForm":
        """The description with the names of the fields for those of the columns."""
        names = dict(zip([column.name for column in relation.columns], fields.names, strict=True))
        columns = [
            replace(column, name=names[column.name], column=column.name)
            if names[column.name] != column.name
            else column
            for column in self.columns
        ]
        return replace(
            self,
            key=fields.of_columns(relation, self.key),
            columns=tuple(columns),
            constants=fields.constants,
        )

    @property
    def fingerprint(self) -> str:
        """Of everything that is in it; the same text each time."""
        return sha256(_json(self._data()).encode()).hexdigest()[:FINGERPRINT_DIGITS]

    def record(self) -> tuple[bytes, bytes]:
        """Key and value of the description's record."""
        fingerprint = self.fingerprint
        key = {"table": f"{self.schema}.{self.table}", "schema": fingerprint}
        data = {
            **self._data(),
            "last_id": self.last_id,
            "rewritten": self.rewritten,
            "fingerprint": fingerprint,
        }
        return _json(key).encode(), _json(data).encode()

    def _data(self) -> dict[str, Any]:
        # What was not there is left out, so that a description of a former version keeps its fingerprint.
        columns = [
            {
                "name": column.name,
                "id": column.id,
                "type": column.type,
                "type_oid": column.type_oid,
                "modifier": column.modifier,
                "form": column.form,
                "default": None if column.default is None else json.loads(column.default),
                **({"labels": [list(label) for label in column.labels]} if column.labels else {}),
                **({} if column.protected is None else {"protected": column.protected}),
                **({} if column.column is None else {"column": column.column}),
            }
            for column in self.columns
        ]
        return {
            "schema": self.schema,
            "table": self.table,
            "topic": self.topic,
            **({} if self.oid is None else {"oid": self.oid}),
            "key": list(self.key),
            **({"routes": list(self.routes)} if self.routes else {}),
            **({"skipped": list(self.skipped)} if self.skipped else {}),
            **({"flattened": True} if self.flattened else {}),
            **({"cloudevents": True} if self.cloudevents else {}),
            **({"change_header": self.change_header} if self.change_header else {}),
            **({"repeats": True} if self.repeats else {}),
            **({"moves": True} if self.moves else {}),
            **({"bare_key": True} if self.bare_key else {}),
            **({"key_constants": dict(self.key_constants)} if self.key_constants else {}),
            **({"shared": True} if self.shared else {}),
            **({"computed": list(self.computed)} if self.computed else {}),
            **({"dead_letters": True} if self.letters else {}),
            **({"constants": dict(self.constants)} if self.constants else {}),
            "columns": columns,
        }


def _json(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


WRITTEN_BYTES_MAX: Final = 1_000_000
"""Bytes of a description that is written. Kafka's default limit of a record (max.message.bytes) is 1,048,588 bytes."""

_COLUMN_BYTES: Final = 1_000
"""More than the bytes of a column in a description, without its default and labels. A name has 63 bytes at most."""

_ESCAPED: Final = 6
"""Bytes that JSON needs at most for a byte of a text."""


def require_writable(form: TableForm) -> None:
    """Raise ConfigError if the description is too large for its topic.

    The owner of a table chooses how many labels an enum has, so this must be a fault of the table.
    """
    texts = sum(map(_text_size, form.columns))
    if _COLUMN_BYTES * len(form.columns) + _ESCAPED * texts <= WRITTEN_BYTES_MAX:
        return
    size = len(form.record()[1])
    if size <= WRITTEN_BYTES_MAX:
        return
    most = max(form.columns, key=_text_size)
    raise ConfigError(
        f"The description of {form.schema}.{form.table} for the topic of descriptions (topics.schemas) has {size} "
        f"bytes, and at most {WRITTEN_BYTES_MAX} are allowed. Column {most.name} takes most of them, with "
        f"{len(most.labels)} labels of its enum and {len(most.default or '')} characters of its default.",
        hint="Leave columns with so many labels or such long defaults out (columns.exclude, or a column list of the "
        "publication), make enums texts, or set topics.schemas to false if nothing reads the descriptions.",
    )


def _text_size(column: ColumnForm) -> int:
    """Return the characters of the default and the labels, with what stands between labels."""
    return len(column.default or "") + sum(len(label) + 16 for _, label in column.labels)


DESCRIPTION_BYTES_MAX: Final = 1 << 24
"""Bytes of a description: 1,600 columns, with long defaults and labels."""


def read_form(value: bytes) -> tuple[str, TableForm]:
    """The fingerprint in a description's record, and the description.

    Raises:
        ValueError: it is no description.
    """
    count, text = bounded_json.count, bounded_json.text
    try:
        data = bounded_json.fields(bounded_json.parse(value, DESCRIPTION_BYTES_MAX))
        form = TableForm(
            schema=text(data["schema"]),
            table=text(data["table"]),
            topic=text(data["topic"]),
            key=_texts(data["key"]),
            columns=tuple([_read_column(column) for column in bounded_json.items(data["columns"])]),
            oid=None if data.get("oid") is None else count(data["oid"]),
            skipped=_texts(data.get("skipped", [])),
            flattened=data.get("flattened") is True,
            cloudevents=data.get("cloudevents") is True,
            change_header=text(data.get("change_header", "")),
            repeats=data.get("repeats") is True,
            last_id=None if data.get("last_id") is None else count(data["last_id"]),
            rewritten=None if data.get("rewritten") is None else bounded_json.whole(data["rewritten"]),
            moves=data.get("moves") is True,
            bare_key=data.get("bare_key") is True,
            key_constants=_pairs(data.get("key_constants", {})),
            computed=_texts(data.get("computed", [])),
            constants=_pairs(data.get("constants", {})),
            shared=data.get("shared") is True,
            letters=data.get("dead_letters") is True,
            routes=_texts(data.get("routes", [])),
        )
        return str(data["fingerprint"]), form
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the description of a table: {error}") from None


def _pairs(value: object) -> Pairs:
    return tuple([(str(name), str(text)) for name, text in bounded_json.fields(value).items()])


def _texts(value: object) -> tuple[str, ...]:
    return tuple([bounded_json.text(each) for each in bounded_json.items(value)])


def is_default_lost(column: ColumnForm, form: TableForm) -> bool:
    """Whether rows that are older than a column of `form` may have another value in it than `default` says.

    A description has the value if the column came after the last rewrite, and if its number is known, by which the
    catalog has the value.
    """
    if column.default is not None or column.missing is not None or form.rewritten is None:
        return False
    if column.id is None:
        return True
    return bool(form.rewritten) and (form.last_id is None or form.last_id >= column.id)


def _read_column(value: object) -> ColumnForm:
    whole, text = bounded_json.whole, bounded_json.text
    data = bounded_json.fields(value)
    labels = tuple([(whole(oid), text(label)) for oid, label in bounded_json.items(data.get("labels", []))])
    default = data.get("default")
    column = ColumnForm(**{**data, "labels": labels, "default": None if default is None else _json(default)})
    for each in (column.name, column.type, column.form):
        text(each)
    for may in (column.missing, column.protected, column.column):
        if may is not None:
            text(may)
    for number in (column.type_oid, column.modifier, 0 if column.id is None else column.id):
        whole(number)
    return column


def table_form(
    relation: Relation,
    table: TableDescription,
    types: Mapping[int, TypeDescription],
    topic: str,
    rules: Sequence[ColumnRule | None] | None = None,
    *,
    modes: Modes = DEFAULTS,
    skipped: tuple[str, ...] = (),
    flattened: bool = False,
    cloudevents: bool = False,
    moves: bool = False,
    shared: bool = False,
    letters: bool = False,
    routes: tuple[str, ...] = (),
    change_header: str = "",
) -> TableForm:
    """Describe a relation as a Relation message and the catalog have it; `rules`: how each column is protected."""
    now = {column.id: column for column in table.columns}
    described = [
        (column, rule)
        for column, rule in zip(relation.columns, rules or [None] * len(relation.columns), strict=True)
        if rule is None or rule.action != EXCLUDE
    ]
    ids = column_ids([column for column, _ in described], table)
    columns = [
        _column_form(column, number, None if number is None else now.get(number), types, rule, modes=modes)
        for (column, rule), number in zip(described, ids, strict=True)
    ]
    return TableForm(
        relation.schema,
        relation.name,
        topic,
        key_columns(relation, table),
        tuple(columns),
        relation.oid,
        skipped,
        flattened,
        cloudevents,
        table.repeats,
        moves=moves,
        bare_key=table.bare_key,
        key_constants=table.key_constants,
        shared=shared,
        letters=letters,
        last_id=table.last_id if table.columns else None,
        rewritten=table.rewritten if table.columns else None,
        routes=tuple(dict.fromkeys([each for each in routes if each != topic])),
        change_header=change_header,
    )


def _column_form(
    column: Column,
    number: int | None,
    known: CatalogColumn | None,
    types: Mapping[int, TypeDescription],
    rule: ColumnRule | None,
    *,
    modes: Modes,
) -> ColumnForm:
    """`known`: the column of that number as the catalog has it now, maybe with another name and type."""
    oid, modifier = column.type_oid, column.type_modifier
    form = form_under(modes, oid, modifier, types, dimensions=1 if known is None else known.dimensions)
    labels = labels_of(oid, types)
    if known is not None and known.type_oid == oid:
        name = known.type
    else:
        described = types.get(oid) or BUILTIN_TYPES.get(oid)
        name = f"oid {oid}" if described is None else described.name
    default = None if known is None else _default(column, known, types, rule, modes)
    if rule is not None:
        # Whatever the type is, a replacement is a JSON string.
        form, labels = "text", ()
    return ColumnForm(
        column.name,
        number,
        name,
        oid,
        modifier,
        form,
        labels=labels,
        default=default,
        protected=None if rule is None else rule.action,
    )


def _default(
    column: Column,
    known: CatalogColumn,
    types: Mapping[int, TypeDescription],
    rule: ColumnRule | None,
    modes: Modes,
) -> str | None:
    """What a record would have for the value of rows that are older than the column, as JSON."""
    if known.missing is None:
        return None
    converter = protect(converter_for(column.type_oid, column.type_modifier, types, modes), rule)
    try:
        return _json(json.loads(to_bytes(converter.json(wire(known.missing)))))
    except ValueError:
        # The catalog is as of now: the text is of another type than the column had then, so it is not its default.
        return None
