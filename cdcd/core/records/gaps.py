"""Record in the schemas topic that describes a gap of the stream: its LSNs, and the differences that healed the topics.

The key is `{"gap": "<LSN>"}`, with the LSN at which the stream goes on. The value:

```
{"gap":{"begins":"0/1A2B","ends":"0/3C4D","healed_ms":1700000000000,"tables":2,
 "healed":[{"table":"public.orders","deletes":1,"updates":2,"inserts":3},…]}}
```

Changes that were committed between `begins` and `ends` have no records of their own. `tables` is the number of tables
whose topics were compared; `healed` names those that differed, at most `TABLES_MAX`. Other tables were read again
behind a truncate record, or were not read.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.core import bounded_json
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.encoder import Record

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


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
