"""Records of one table for the tests of `cdcd.tools.verify`, as the encoder writes them."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.records.schemas import TableForm
from cdcd.core.snapshot.reading import Visibility
from cdcd.tools.verify.columns import Columns
from cdcd.tools.verify.comparing import ComparedOutcome, SourceRow, TableComparison
from cdcd.tools.verify.folding import FoldSettings, TableFold
from cdcd.tools.verify.partition import TopicRecord
from cdcd.tools.verify.record_parsing import row as cut_row
from cdcd.tools.verify.row_store import RowStore
from cdcd.tools.verify.snapshot_visibility import Sight


def text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def form(*columns: ColumnForm, key: tuple[str, ...] = ("id",)) -> TableForm:
    return TableForm("public", "t", "p.public.t", key, columns, 16384)


def column(name: str, number: int, **fields: Any) -> ColumnForm:
    return ColumnForm(
        name, number, **{"type": "text", "type_oid": 25, "modifier": -1, "form": "text", **fields}
    )


ID = column("id", 1, type="integer", type_oid=23, form="int32")
NOTE = column("note", 2)
FORM = form(ID, NOTE)


EVERYTHING = Sight(Visibility(1 << 30, 1 << 30), 1 << 62, 0)


class Topic:
    """A topic that is filled record by record, and folded."""

    def __init__(self, folder: Path, former: tuple[TableForm, ...] = (FORM,), **settings: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.store = RowStore(folder)
        self.asked = 0
        """How often descriptions were asked for."""
        known: dict[str, TableForm] = {}

        def describe() -> None:
            self.asked += 1
            known.update({each.fingerprint: each for each in former})

        self.fold = TableFold(0, self.store, "p.public.t", FoldSettings(**settings), known, describe=describe)
        self.fold.look(EVERYTHING)
        self._records: dict[int, list[TopicRecord]] = {}

    def change(
        self,
        op: str,
        lsn: int,
        after: dict[str, Any] | None = None,
        before: dict[str, Any] | None = None,
        *,
        serial: int = 1,
        partition: int = 0,
        key: dict[str, Any] | None = None,
        unchanged: tuple[str, ...] = (),
        old_key: dict[str, Any] | None = None,
        new_key: dict[str, Any] | None = None,
        schema: TableForm | None = FORM,
        tombstone: bool = True,
        xid: int | None = 1,
        keyed: bool = True,
    ) -> None:
        """Add a change. A delete has its tombstone."""
        source: dict[str, Any] = {"version": "1", "snapshot": "true" if op == "r" else "false", "table": "t"}
        source |= {"txId": None if op == "r" else xid}
        source |= {"commit_lsn": lsn, "event_serial_no": serial}
        source |= {} if schema is None else {"schema_id": schema.fingerprint}
        envelope = {
            "before": before,
            "after": after,
            "source": source,
            "transaction": None,
            "op": op,
            "ts_ms": 1,
        }
        headers = [("cdcd.unchanged", text(list(unchanged)))] if unchanged else []
        headers += [] if old_key is None else [("__debezium.oldkey", text(old_key))]
        headers += [] if new_key is None else [("__debezium.newkey", text(new_key))]
        row = after or before
        name = None
        if keyed and row is not None:
            name = text(key or {"id": row["id"]})
        self.raw(name, text(envelope), tuple(headers), partition=partition)
        if op == "d" and tombstone and name is not None:
            self.raw(name, None, partition=partition)

    def raw(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
        *,
        partition: int = 0,
    ) -> None:
        records = self._records.setdefault(partition, [])
        records.append(TopicRecord(len(records), key, value, headers))
        self.fold.partition(partition).take(records[-1])

    def look(self, sight: Sight) -> None:
        """Take what the snapshot sees, as the reader does: from the first record that was not taken."""
        begins = self.fold.again_from()
        self.fold.look(sight)
        for number, offset in begins.items():
            for record in self._records[number][offset:]:
                self.fold.partition(number).take(record)

    def compare(
        self,
        rows: list[dict[str, Any]],
        now: TableForm = FORM,
        defaults: dict[str, bytes] | None = None,
        **excuses: str,
    ) -> ComparedOutcome:
        """The topic against a source with these rows."""
        columns = Columns(now, [(defaults or {}).get(each.name) for each in now.columns], self.fold.former)
        source = []
        for each in rows:
            name = text({name: each[name] for name in now.key}) if now.key else None
            values = cut_row(text(each), "row")
            assert values is not None
            source.append(SourceRow(name, values.values, f"id = {each.get('id')}" if now.key else ""))
        with closing(TableComparison(self.fold, columns)) as comparison:
            comparison.excuse(**excuses)
            comparison.add_source(source)
            if comparison.ranges():
                comparison.look_at(source)
            return comparison.end()

    @property
    def faults(self) -> list[str]:
        return [fault.kind for fault in self.fold.faults]
