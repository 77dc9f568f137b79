"""Stage 6 for snapshots: rows read by COPY -> records with op `r`, in the form that changes have.

What differs from a change's record is the `source`: `snapshot` says so in Debezium's words (`snapshots/markers.py`),
`txId` is null, `lsn` is the place in the WAL up to which the row holds, and `commit_lsn` with `event_serial_no` put it
between the changes that were streamed before it and those that come after.
"""

from dataclasses import dataclass
from typing import Final

from cdcd.records.copytext import convert_row, explain_row
from cdcd.records.envelope import Record, closing, processed_at
from cdcd.records.formats.debezium_json import DebeziumJsonEncoder
from cdcd.records.wiretext import checked

READ: Final = "r"


@dataclass(frozen=True, slots=True)
class Place:
    """Where rows of a snapshot stand among the changes.

    Attributes:
        lsn: everything that was committed before it is in the rows, if it is in the stream before them.
        commit_lsn: after that of every transaction before the rows, and before that of every one after them.
        first, last, others: `source.snapshot` of the first row, the last one and those between.
        serial: how many rows stand at this `commit_lsn` already.
    """

    lsn: int
    commit_lsn: int
    first: str
    last: str
    others: str
    serial: int = 0


class SnapshotEncoder(DebeziumJsonEncoder):
    """Describes tables as `DebeziumJsonEncoder` does, by `define`, and encodes rows of them."""

    def encode_rows(  # noqa: PLR0917 - as `encode`, which has most of these
        self, oid: int, lines: list[bytes], place: Place, now_us: int, out: list[Record], dropped: set[bytes]
    ) -> tuple[int, int]:
        """Append the records of rows whose key is not in `dropped`; how many these are, and their bytes.

        Raises:
            ProtocolError: a row is malformed.
        """
        count = size = 0
        marker = ""
        table = self._tables[oid]
        template: list[bytes] = []
        processed = processed_at(now_us)
        for index, line in enumerate(lines):
            wanted = place.last if index == len(lines) - 1 else place.others if index else place.first
            if wanted != marker:
                marker = wanted
                self._source.begin(None, place.commit_lsn, now_us, None, snapshot=marker)
                self._transaction += 1
                table = self._table(oid, out)
                template = table.event_template.copy()
                template[-7] = template[-5] = str(int(place.lsn)).encode("ascii")
                template[-2] = closing(READ, table.schema_id)
                template[-1] = processed
            parts = template.copy()
            try:
                convert_row(line, table.plan, table.converters, parts)
                key = table.key(parts)
                if key is not None and key in dropped:
                    continue
                count += 1
                parts[-3] = str(place.serial + count).encode("ascii")
                value = checked(b"".join(parts))
            except (ValueError, IndexError) as cause:
                raise explain_row(line, table.relation, table.converters) from cause
            out.append((table.topic, key, value, None))
            size += len(value) if key is None else len(key) + len(value)
        table.tally.read += count
        return count, size

    def has_key(self, oid: int) -> bool:
        """Whether rows of this table can be told apart."""
        return bool(self._tables[oid].key_slots)
