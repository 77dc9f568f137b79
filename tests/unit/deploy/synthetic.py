"""Topics written by hand: what a daemon without faults would have written, for tests to spoil."""

import base64
import json
from typing import Any

from deploy.demo.topics import Raw


class Topics:
    """Records appended one after the other; `table` says which, and `begin` which transaction."""

    def __init__(self) -> None:
        self.records: list[Raw] = []
        self._lsn = 0
        self._serial = 0
        self._xid = 0

    def begin(self, lsn: int) -> "Topics":
        self._lsn, self._serial, self._xid = lsn, 0, lsn + 1
        return self

    def insert(self, table: str, key: Any, **row: Any) -> "Topics":
        self._serial += 1
        return self._add(table, key, "c", None, row)

    def update(self, table: str, key: Any, before: Any = None, unchanged: Any = (), **row: Any) -> "Topics":
        self._serial += 1
        return self._add(table, key, "u", before, row, headers=_unchanged(unchanged))

    def delete(self, table: str, key: Any, tombstone: bool = True, **before: Any) -> "Topics":
        self._serial += 1
        self._add(table, key, "d", before, None)
        return self.tombstone(table, key) if tombstone and key is not None else self

    def rekey(self, table: str, old: Any, new: Any, unchanged: Any = (), **row: Any) -> "Topics":
        self._serial += 1
        self._add(table, old, "d", dict(old), None, headers=[("__debezium.newkey", _json(new))])
        self.tombstone(table, old)
        return self._add(
            table, new, "c", None, row, headers=[("__debezium.oldkey", _json(old)), *_unchanged(unchanged)]
        )

    def truncate(self, *tables: str) -> "Topics":
        self._serial += 1
        for table in tables:
            self._add(table, None, "t", None, None)
        return self

    def tombstone(self, table: str, key: Any) -> "Topics":
        return self._append(table, _json(key), None, [])

    def message(self, content: str, lsn: int | None = None) -> "Topics":
        """Of the transaction, or with an LSN of its own outside of any."""
        self._serial += 1
        serial = self._serial if lsn is None else 1
        value = {
            "op": "m",
            "source": {"schema": "", "table": "", "commit_lsn": self._lsn if lsn is None else lsn}
            | {"event_serial_no": serial, "txId": self._xid if lsn is None else None},
            "message": {"prefix": "p", "content": base64.b64encode(content.encode()).decode()},
        }
        return self._append("message", _json({"prefix": "p"}), _json(value), [])

    def again(self, index: int, partition: int = 0) -> "Topics":
        """One of the records once more."""
        raw = self.records[index]
        self.records.append(Raw(raw.topic, partition, len(self.records), raw.key, raw.value, raw.headers))
        return self

    def _add(self, table: str, key: Any, op: str, before: Any, after: Any, *, headers: Any = ()) -> "Topics":
        source = {"schema": "public", "table": table, "txId": self._xid}
        source |= {"commit_lsn": self._lsn, "event_serial_no": self._serial}
        value = {"before": before, "after": after, "source": source, "op": op}
        return self._append(table, None if key is None else _json(key), _json(value), headers)

    def _append(self, table: str, key: bytes | None, value: bytes | None, headers: Any) -> "Topics":
        self.records.append(Raw(f"p.public.{table}", 0, len(self.records), key, value, tuple(headers)))
        return self


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _unchanged(names: Any) -> list[tuple[str, bytes]]:
    return [("cdcd.unchanged", _json(list(names)))] if names else []
