"""Transaction metadata as its consumer sees it: each record has its place, and END counts the records that came."""

import json
from typing import Any, Final

from tests.sim.expected import PromiseBrokenError, Record

TOPIC: Final = "sim.transaction"


class Seen:
    """What came of one transaction."""

    def __init__(self) -> None:
        self.total = 0
        self.tables: dict[str, int] = {}
        self.is_ended = False


class TransactionsSeen:
    """Records are given in the order of the log, where each source transaction is delivered once."""

    def __init__(self) -> None:
        self.by_id: dict[str, Seen] = {}

    def boundary(self, record: Record) -> bool:
        """BEGIN or END came; whether it was BEGIN."""
        _, key, value, _ = record
        assert key is not None
        assert value is not None
        fields = json.loads(value)
        name = fields["id"]
        _must(json.loads(key) == {"id": name}, f"the key of {fields} is {key!r}")
        seen = self.by_id.get(name)
        if fields["status"] == "BEGIN":
            _must(seen is None, f"BEGIN of {name} came twice, or behind its first record")
            _must(fields["event_count"] is None and fields["data_collections"] is None, f"{fields}")
            self.by_id[name] = Seen()
            return True
        _must(fields["status"] == "END", f"{fields}")
        _must(seen is not None and not seen.is_ended, f"END of {name} has no BEGIN, or came twice")
        assert seen is not None
        counts = {each["data_collection"]: each["event_count"] for each in fields["data_collections"]}
        _must(
            fields["event_count"] == seen.total,
            f"END of {name} counts {fields}, and {seen.total} records came",
        )
        _must(counts == seen.tables, f"END of {name} counts {counts}, and {seen.tables} came")
        seen.is_ended = True
        return False

    def record(self, fields: dict[str, Any]) -> None:
        """A record with a value came, of a change or of a snapshot."""
        place, source = fields["transaction"], fields["source"]
        if fields["op"] not in {"c", "u", "d", "t"} or source["txId"] is None:
            _must(place is None, f"{fields} is in no transaction, or does not count")
            return
        name = f"{source['txId']}:{source['commit_lsn']}"
        _must(place is not None and place["id"] == name, f"{fields} is of {name}")
        seen = self.by_id.get(name)
        _must(seen is not None and not seen.is_ended, f"{fields} has no BEGIN, or came behind END")
        assert seen is not None
        table = f"{source['schema']}.{source['table']}"
        seen.total += 1
        seen.tables[table] = seen.tables.get(table, 0) + 1
        found = (place["total_order"], place["data_collection_order"])
        wanted = (seen.total, seen.tables[table])
        _must(found == wanted, f"{fields} has the places {found}, not {wanted}")

    def finish(self) -> None:
        """Everything was delivered."""
        for name, seen in self.by_id.items():
            _must(seen.is_ended and seen.total > 0, f"{name} has no END, or no records")


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise PromiseBrokenError(f"transaction metadata: {what}")
