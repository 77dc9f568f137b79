"""The header `cdcd.change`: the operation of a change, and its place among all changes. It is the same in each format.

The rule: exactly one record of each change has the header. A delete has a record with a value, a tombstone, or both; of
both, the first has it. The header is the envelope of Debezium's JSON without rows and with six fields of its `source`:

```
{"op":"u","source":{"ts_us":1767268800123456,"schema":"public","table":"orders","commit_lsn":25540280,
 "schema_id":"0f3a…","event_serial_no":1}}
```

So a reader orders changes of which the value is a flattened row, or Avro, without a look into the value.
"""

from typing import Final

from cdcd.core.catalog.wiretext import wire
from cdcd.core.protocol.peek import DELETE, INSERT
from cdcd.core.records.debezium_json.source_block import CREATED, DELETED, OPS, TRUNCATED, UPDATED
from cdcd.core.records.debezium_json.strings import quote
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.encoder import (
    HEADER_CHANGE,
    HEADER_NEW_KEY,
    HEADER_OLD_KEY,
    EncoderSettings,
    Record,
)
from cdcd.core.records.format import Current

_OPS: Final = [f'{{"op":"{op}"'.encode() for op in OPS]


class ChangeHeaders:
    """Adds the header to records of tables, if the settings say so. Each method returns the bytes that it added.

    Args:
        current: the event that is encoded.

    Attributes:
        is_on: whether records get the header.
    """

    def __init__(self, settings: EncoderSettings, current: Current) -> None:
        self.is_on = settings.change_header
        self._truncate = settings.truncate
        self._current = current
        self._table: TableFragments | None = None
        self._number = -1
        self._source = b""

    def row(
        self, table: TableFragments, tag: int, known: int, out: list[Record], came: list[Record] | None
    ) -> int:
        """Add the header to the records of a row.

        Args:
            tag: Insert, Update or Delete.
            known: index of the first record of the row in `out`.
            came: records of an insert, if the row moves; the records in `out` are those of its delete.
        """
        serial = self._current.serial
        if came:
            return self._put(table, DELETED, serial, known, out) + self._put(table, CREATED, serial, 0, came)
        op = CREATED if tag == INSERT else DELETED if tag == DELETE else UPDATED
        return self._put(table, op, serial, known, out)

    def truncate(self, table: TableFragments, known: int, out: list[Record]) -> int:
        """Add the header to the record of a truncate. A flattened truncate has no record, and gets one without key and
        value.
        """
        if self.is_on and self._truncate and len(out) == known:
            out.append((table.topic, None, None, None))
            table.tally.counts[TRUNCATED] += 1
        return self._put(table, TRUNCATED, self._current.serial, known, out)

    def rows(self, table: TableFragments, op: int, first: int, known: int, out: list[Record]) -> int:
        """Add the header to records of rows between two transactions, of which the first has the number `first`."""
        return self._put(table, op, first, known, out, rises=True)

    def _put(
        self,
        table: TableFragments,
        op: int,
        number: int,
        known: int,
        out: list[Record],
        *,
        rises: bool = False,
    ) -> int:
        if not self.is_on:
            return 0
        source = self._source_of(table)
        size = 0
        is_told = False
        for place in range(known, len(out)):
            topic, key, value, headers = out[place]
            if topic != table.topic:
                continue
            if is_told and value is None:
                is_told = False
                continue
            what = _part(op, headers)
            is_told = what == DELETED and value is not None
            text = b"%b%b%d}}" % (_OPS[what], source, number)
            out[place] = topic, key, value, [*(headers or ()), (HEADER_CHANGE, text)]
            size += len(HEADER_CHANGE) + len(text)
            if rises:
                number += 1
        return size

    def _source_of(self, table: TableFragments) -> bytes:
        """Return the part of the header that all changes of a table in a transaction share."""
        facts = self._current.facts
        if self._table is table and self._number == facts.number:
            return self._source
        relation = table.relation
        schema_id = "null" if table.schema_id is None else f'"{table.schema_id}"'
        self._table, self._number = table, facts.number
        self._source = (
            f',"source":{{"ts_us":{facts.unix_us},"schema":{quote(wire(relation.schema))},'
            f'"table":{quote(wire(relation.name))},"commit_lsn":{facts.commit_lsn},"schema_id":{schema_id},'
            '"event_serial_no":'
        ).encode("latin-1")
        return self._source


def _part(op: int, headers: Headers | None) -> int:
    """Return the operation of one record of an event. An update of the key has a delete and an insert."""
    if op == UPDATED and headers is not None:
        for name, _ in headers:
            if name == HEADER_NEW_KEY:
                return DELETED
            if name == HEADER_OLD_KEY:
                return CREATED
    return op
