"""What of a table's records never changes: fragments of JSON, and the plan for what goes between them.

```
{"before":  …  ,"after":{"id":  1  ,"name":  "x"  },"source":{…  lsn  …  lsn  …  number  },…"op":"c",  times}
   0        1        2          3      4      5      -8          -7   -6  -5  -4   -3         -2        -1
```
"""

from collections.abc import Mapping
from typing import Final

from cdcd.errors import SourceError
from cdcd.protocol.messages import Relation
from cdcd.records.changes import Plan
from cdcd.records.envelope import Record, SourceBlock, closing, of_table
from cdcd.records.relations import TableDescription, TypeDescription, key_columns
from cdcd.records.values import converter_for
from cdcd.records.wiretext import quote, wire

FIRST_SLOT: Final = 3
"""The slot of the first column's value; each further one is two on."""


class Tally:
    """Records of one table so far, by op."""

    __slots__ = ("created", "deleted", "truncated", "updated")

    def __init__(self) -> None:
        self.created = 0
        self.updated = 0
        self.deleted = 0
        self.truncated = 0


class TableFragments:
    """A relation as its last description has it, ready to encode rows of it.

    Attributes:
        plan: how stage 4 converts a row, and where it puts what it made.
        event_template: the fragments of an event, made for the transaction with the number `transaction`.
        source: the last eight of them, for events without a new row.
        old_template: the fragments of an old row by itself, its columns in the same slots.
        announcement: the record of the table's description, until a record of the table follows it.
        created, updated, deleted, truncated: what ends `source`, by op.
    """

    __slots__ = (
        "announcement",
        "created",
        "deleted",
        "event_template",
        "fragments",
        "identity",
        "key_fragments",
        "key_slots",
        "names",
        "old_template",
        "placeholders",
        "plan",
        "relation",
        "schema_id",
        "source",
        "source_piece",
        "tally",
        "topic",
        "transaction",
        "truncated",
        "updated",
        "width",
    )

    def __init__(
        self,
        relation: Relation,
        table: TableDescription,
        *,
        types: Mapping[int, TypeDescription],
        topic: str,
        tally: Tally,
        unavailable: str,
        schema_id: str | None = None,
        announcement: Record | None = None,
    ) -> None:
        self.relation = relation
        self.topic = topic
        self.tally = tally
        self.transaction = -1
        self.schema_id = schema_id
        self.announcement = announcement
        self.created = closing("c", schema_id)
        self.updated = closing("u", schema_id)
        self.deleted = closing("d", schema_id)
        self.truncated = closing("t", schema_id)
        self.source: list[str] = []
        self.event_template: list[str] = []
        self.source_piece = of_table(relation.schema, relation.name)
        columns = relation.columns
        self.width = len(columns)
        converters = [converter_for(column.type_oid, column.type_modifier, types) for column in columns]
        self.plan: Plan = [
            (FIRST_SLOT + 2 * index, converter.mode, converter) for index, converter in enumerate(converters)
        ]
        self.placeholders = [converter.unchanged(unavailable) for converter in converters]
        self.names = [quote(wire(column.name)) for column in columns]
        self.identity = [column.is_key for column in columns]
        row = ["{"]
        for index, name in enumerate(self.names):
            if index:
                row.append(f",{name}:")
            else:
                row[0] = f"{{{name}:"
            row.append("")
        self.fragments = ['{"before":', "null", f',"after":{row[0]}', *row[1:]]
        self.old_template = ["", "", *row, "}"]
        position = {column.name: index for index, column in enumerate(columns)}
        keys = [position[name] for name in key_columns(relation, table)]
        self.key_slots = [FIRST_SLOT + 2 * index for index in keys]
        self.key_fragments = [
            f"{',' if place else '{'}{self.names[index]}:" for place, index in enumerate(keys)
        ]

    def renew(self, source: SourceBlock, transaction: int) -> None:
        """Make the pieces that are the same for all events of this table in a transaction."""
        middle = f"{source.times}{self.source_piece}{source.transaction}"
        rest = ["", middle, "", source.tail, "", self.created, ""]
        self.source = [source.head, *rest]
        self.event_template = [*self.fragments, f"}}{source.head}", *rest]
        self.transaction = transaction

    def key(self, values: list[str]) -> bytes | None:
        """The key of a row; None when the table has none."""
        slots = self.key_slots
        if len(slots) == 1:
            return f"{self.key_fragments[0]}{values[slots[0]]}}}".encode("latin-1")
        if not slots:
            return None
        pieces = [f"{self.key_fragments[place]}{values[slot]}" for place, slot in enumerate(slots)]
        return f"{''.join(pieces)}}}".encode("latin-1")

    def take_over(
        self, values: list[str], unchanged: list[int], old: list[str], unchanged_old: list[int], whole: bool
    ) -> list[int]:
        """Fill slots whose value the server did not send from the old row, whose value it still is.

        `whole`: all of the old row is there, else only the replica identity. Returns the slots that stay empty.
        """
        rest: list[int] = []
        for slot in unchanged:
            if slot not in unchanged_old and (whole or self.identity[(slot - FIRST_SLOT) // 2]):
                values[slot] = old[slot]
            else:
                rest.append(slot)
        return rest

    def stand_in(self, values: list[str], unchanged: list[int]) -> list[str]:
        """Fill slots for which there is nothing else with placeholders; returns their columns' names, quoted.

        Raises:
            SourceError: one is of the key.
        """
        missing: list[str] = []
        for slot in unchanged:
            index = (slot - FIRST_SLOT) // 2
            if slot in self.key_slots:
                relation = self.relation
                raise SourceError(
                    f"The server did not send column {relation.columns[index].name!r} of {relation.schema}."
                    f"{relation.name}, which is TOASTed and part of the key.",
                    hint="PostgreSQL before 13.6 and 14.2 loses such keys: update it, or set REPLICA IDENTITY FULL.",
                )
            values[slot] = self.placeholders[index]
            missing.append(self.names[index])
        return missing
