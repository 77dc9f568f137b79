"""Records in the schemas topic that say which changes the topics of tables lack: gaps, and tables that are set aside.

A gap of the stream has its LSNs, and the differences that healed the topics. The key is `{"gap": "<LSN>"}`, with the
LSN at which the stream goes on. The value:

```
{"gap":{"begins":"0/1A2B","ends":"0/3C4D","healed_ms":1700000000000,"tables":2,
 "healed":[{"table":"public.orders","deletes":1,"updates":2,"inserts":3},…]}}
```

Changes that were committed between `begins` and `ends` have no records of their own. `tables` is the number of tables
whose topics were compared; `healed` names those that differed, at most `TABLES_MAX`. Other tables were read again
behind a truncate record, or were not read.

A table that is set aside (`engine/fates.py`) has one key, `{"aside": <oid>}`, so the compacted topic has one record for
it. The value:

```
{"aside":{"oid":16402,"table":"public.orders","since":"0/1A2B","fault":"size","until":null}}
```

The topic lacks changes of transactions that commit at `since` or later. When the table comes back, or leaves the
publication, a record with `until` follows: from there on the topic has all changes again, behind a truncate record. A
record is in the same Kafka transaction as the first checkpoint that says the same.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.core import bounded_json
from cdcd.core.errors import ProtocolError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.encoder import Record

ASIDE_BYTES_MAX: Final = 4096
"""Maximum size of a record of a table that is set aside. Names have at most 63 bytes each in PostgreSQL."""

FAULT_MAX: Final = 32
"""Maximum number of characters of a kind of fault."""

TABLES_MAX: Final = 1000
"""Maximum number of tables that a record names, so that it stays below the size that every topic accepts."""


@dataclass(frozen=True, slots=True)
class HealedTable:
    """A table whose topic was compared and healed, as `schema.table`, with the numbers of records by operation."""

    name: str
    deletes: int
    updates: int
    inserts: int


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap of the stream. `topic` is the schemas topic, `begins` the LSN up to which changes were delivered."""

    topic: str
    begins: int

    def record(self, ends: int, unix_us: int, healed: Sequence[HealedTable]) -> Record:
        """Return the record of the gap, which ends at the LSN `ends`."""
        differed = [each for each in healed if each.deletes or each.updates or each.inserts]
        value = {
            "gap": {
                "begins": str(Lsn(self.begins)),
                "ends": str(Lsn(ends)),
                "healed_ms": unix_us // 1000,
                "tables": len(healed),
                "healed": [
                    {
                        "table": each.name,
                        "deletes": each.deletes,
                        "updates": each.updates,
                        "inserts": each.inserts,
                    }
                    for each in differed[:TABLES_MAX]
                ],
            }
        }
        key = _json({"gap": str(Lsn(ends))})
        return self.topic, key, _json(value), None


def is_gap(value: bytes) -> bool:
    """Return whether a record of the schemas topic is that of a gap."""
    try:
        found = bounded_json.parse(value, 1 << 20)
    except ValueError:
        return False
    return isinstance(found, dict) and found.keys() == {"gap"}


@dataclass(frozen=True, slots=True)
class Aside:
    """A table that is or was set aside, as the schemas topic says.

    Attributes:
        since: commit LSN from which on the topic lacks changes.
        until: LSN from which on the topic has all changes again; None if the table is set aside.
    """

    oid: int
    table: str
    since: int
    fault: str
    until: int | None = None

    def record(self, topic: str, headers: list[tuple[str, bytes]] | None) -> Record:
        """Return the record for the schemas topic."""
        value = {
            "aside": {
                "oid": self.oid,
                "table": self.table,
                "since": str(Lsn(self.since)),
                "fault": self.fault,
                "until": None if self.until is None else str(Lsn(self.until)),
            }
        }
        return topic, _json({"aside": self.oid}), _json(value), headers

    @classmethod
    def read(cls, value: bytes) -> "Aside | None":
        """Read a record of the schemas topic; None if it is another kind of record.

        Raises:
            ValueError: the record is not one that cdcd writes.
        """
        if not value.startswith(b'{"aside":'):
            return None
        try:
            fields = bounded_json.fields(bounded_json.parse(value, ASIDE_BYTES_MAX))["aside"]
            fields = bounded_json.fields(fields, frozenset({"oid", "table", "since", "fault", "until"}))
            until = fields["until"]
            fault = bounded_json.text(fields["fault"])
            if not fault.isidentifier() or len(fault) > FAULT_MAX:
                raise ValueError("the kind of fault is not one word")
            return cls(
                bounded_json.count(fields["oid"]),
                bounded_json.text(fields["table"]),
                Lsn.parse(bounded_json.text(fields["since"])),
                fault,
                None if until is None else Lsn.parse(bounded_json.text(until)),
            )
        except (KeyError, TypeError, ProtocolError) as error:
            raise ValueError(
                f"the record of a table that is set aside is malformed: {repr(error)[:200]}"
            ) from error


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
