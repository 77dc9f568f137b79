"""Checks the records by which topics are healed after a gap."""

from typing import Any, Final

from tests.sim.catalog import EVENT
from tests.sim.expected import PromiseBrokenError, Record, without_marker
from tests.sim.fold import Fold

OPS: Final = ("d", "u", "c")


def is_healed(fields: dict[str, Any]) -> bool:
    """Return whether a record is a difference, and no change of a transaction."""
    return bool(fields) and fields["op"] in OPS and fields["source"].get("txId") is None


class HealedSeen:
    """Records of differences, as Kafka holds them: each is one, and brings the topic nearer to the table."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._deleted: Record | None = None
        self.records = 0

    def has_taken(self, record: Record, fields: dict[str, Any]) -> bool:
        """Take a record of a difference, or the tombstone behind it; False if the record is neither."""
        deleted, self._deleted = self._deleted, None
        if is_healed(fields):
            self._take(record, fields)
            return True
        return deleted is not None and record[2] is None and record[:2] == deleted[:2]

    def _take(self, record: Record, fields: dict[str, Any]) -> None:
        fold, key = self._fold, record[1]
        topic = fold.topic(record[0])
        op = fields["op"]
        assert key is not None
        self.records += 1
        if not fold.has_gap:
            raise PromiseBrokenError(f"G3: a difference without a gap: {record}")
        if (op == "c") == (key in topic.rows):
            raise PromiseBrokenError(f"G9: {op} of {key!r} in {record[0]}, whose rows say otherwise")
        if op == "d":
            self._deleted = record
            topic.take(key, None)
            return
        event = int(fields["after"][EVENT] or 0)
        oid = fold.database.oids.get(event)
        if oid is None or oid not in fold.database.published:
            raise PromiseBrokenError(
                f"G9: a difference of event {event}, which wrote no published row: {record}"
            )
        values = without_marker(fields["after"], fold.database.first[oid])
        fold.check_row(oid, event, key, values)
        if op == "u" and topic.rows[key] == values:
            raise PromiseBrokenError(f"G2: a difference that is none: {record}")
        if event < max(topic.newest.get((oid, key), 0), topic.truncated.get(oid, 0)):
            raise PromiseBrokenError(f"G9: stale difference: event {event} of {record[0]} {key!r}")
        topic.put(key, values)
