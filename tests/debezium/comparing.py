"""Records of a real Debezium and of cdcd beside each other: every difference is listed with a reason, or wrong."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from cdcd.core.catalog.modes import DEFAULTS
from tests.altered_tables import CASES, LIVE
from tests.debezium.capture import TYPES
from tests.debezium.capture_modes import RARE, TOASTED
from tests.unit.core.records.debezium_json.test_debezium_modes import DIFFERENCES, LATER, MODES
from tests.unit.core.records.debezium_json.test_debezium_schemas import DIFFERENT

FIELDS: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("source.commit_lsn", "source.event_serial_no", "source.schema_id", "headers.cdcd.unchanged"),
        "Only cdcd has it.",
    ),
    "headers.cdcd.unwritable": "Only cdcd has it: the null has a reason.",
    "source.version": "The version of the program.",
    "source.sequence": "Its first element is the last commit before, which Debezium forgets at a start.",
    **dict.fromkeys(("ts_ms", "ts_us", "ts_ns"), "When the record was made."),
    **dict.fromkeys(
        ("headers.__debezium.newkey", "headers.__debezium.oldkey"),
        "With the schema of the key, if that has one. Debezium's depend on the worker's header.converter.",
    ),
    "transaction.id": "One for the whole transaction. Debezium has the LSN of each event in it.",
    **dict.fromkeys(
        ("transaction", "transaction.total_order", "event_count", "data_collections"),
        "Logical messages have no place in a transaction, and are not counted.",
    ),
    "data_collections.items.optional": "An element of the list in END is never null. Debezium 3.7 says that it may be.",
}
"""Fields that are not compared, each with the reason. docs/from-debezium.md has them for people."""

OF_TOPIC: Final = {"transaction": "message", "event_count": "transaction", "data_collections": "transaction"}
"""Of these fields, the topic in which they are not compared."""

WITHOUT_RECORDS: Final = "BEGIN and END of a transaction without records"
PLACEHOLDER: Final = "a value that was not sent, of a type for which Debezium has no placeholder"
ENVELOPE_OF_NULL: Final = "JsonConverter's envelope around a value that a transformation made null"

INFINITE: Final = {2146033979: ("date", "infinity"), -9223372036832400000: ("timestamp(3)", "-infinity")}
"""Debezium's numbers for infinite dates and timestamps that are in keys: type and text (docs/from-debezium.md)."""

MISSING: Final = "(missing)"
SHOWN: Final = 60
"""Number of differences of a comparison that are printed, each with at most `SHOWN_LENGTH` characters."""

SHOWN_LENGTH: Final = 400

PARTS: Final = frozenset({"key", "value", "schema", "payload", "fields"})
"""Of a path, what says nothing of the field."""

Records = dict[str, list[dict[str, Any]]]
"""By topic: key, value and headers of each record, parsed, where null stands for none."""


@dataclass
class Compared:
    """How much was compared, and which differences there are."""

    records: int = 0
    values: int = 0
    listed: Counter[str] = field(default_factory=Counter)
    """How many values of each entry of the lists were different."""
    wrong: list[str] = field(default_factory=list)
    """The differences that no list has."""


def print_compared(name: str, compared: Compared) -> None:
    """Print the numbers of one comparison, and its first differences that no list has."""
    listed = ", ".join(f"{entry}: {count}" for entry, count in sorted(compared.listed.items()))
    print(
        f"{name}: {compared.records} records, {compared.values} values, {len(compared.wrong)} wrong; "
        f"listed: {listed or 'nothing'}"
    )
    for line in compared.wrong[:SHOWN]:
        print("   ", line[:SHOWN_LENGTH])


class Comparing:
    """The records of one variant, theirs beside ours."""

    def __init__(self, variant: str, sent: dict[str, dict[str, str]]) -> None:
        self._variant = variant
        self._sent = sent
        self._found = Compared()

    def compare(self, theirs: Records, ours: Records) -> Compared:
        for topic in sorted(topic for topic in {*theirs, *ours} if not is_altered(topic)):
            left, right = theirs.get(topic, []), ours.get(topic, [])
            if topic == f"{self._variant}.transaction":
                left, right = by_transaction(left), by_transaction(right)
                known = {payload(record["key"])["id"] for record in right}
                more = [record for record in left if payload(record["key"])["id"] not in known]
                left = [record for record in left if record not in more]
                self._found.listed[WITHOUT_RECORDS] += len(more)
            if len(left) != len(right):
                self._found.wrong.append(
                    f"{topic}: {len(left)} records of Debezium's, {len(right)} of cdcd's"
                )
                continue
            for place, pair in enumerate(zip(left, right, strict=True)):
                self._compare_records(f"{topic}[{place}]", topic.rpartition(".")[2], pair)
        return self._found

    def _compare_records(self, where: str, table: str, pair: tuple[Any, Any]) -> None:
        theirs, ours = pair
        self._found.records += 1
        self._found.values += leaves(ours)
        if isinstance(theirs["value"], dict) and theirs["value"].get("payload", "") is None:
            self._found.listed[ENVELOPE_OF_NULL] += 1
            theirs["value"] = None
        for path, their_value, our_value in differences("", theirs, ours):
            if not self._is_listed(table, pair, path, their_value):
                self._found.wrong.append(
                    f"{where}: {path}: {their_value!r} of Debezium's, {our_value!r} of cdcd's"
                )

    def _is_listed(self, table: str, pair: tuple[Any, Any], path: str, theirs: Any) -> bool:
        name = ".".join(each for each in path.split(".") if each not in PARTS)
        is_field = name in FIELDS and OF_TOPIC.get(name, table) == table
        entry = name if is_field else self._reason(table, pair, name, theirs)
        if entry is not None:
            self._found.listed[entry] += 1
        return entry is not None

    def _reason(self, table: str, pair: tuple[Any, Any], name: str, theirs: Any) -> str | None:
        """The entry of the lists that says why a column is different."""
        image, _, column = name.partition(".")
        column = column.partition(".")[0]
        if table == "dated":
            # Its dates are in keys too.
            kind, text = INFINITE.get(theirs, ("", "")) if isinstance(theirs, int) else ("", "")
        elif image in {"before", "after"}:
            kind, text = self._value(table, pair[0], column)
        else:
            return None
        if kind in DIFFERENT and kind not in LATER:
            return kind
        if theirs is None and column in json.loads(pair[1]["headers"].get("cdcd.unchanged", "[]")):
            return PLACEHOLDER
        modes = MODES.get(self._variant, DEFAULTS if table == "dated" else None)
        if modes is None or table == "toasted":
            return None
        return next(
            (entry for entry, (_, applies) in DIFFERENCES.items() if applies(kind, text, modes)), None
        )

    def _value(self, table: str, record: Any, column: str) -> tuple[str, str]:
        """The type of a column, and its value as the server sends it."""
        if table == "types" and column in self._sent["types"]:
            return TYPES[int(column[1:])][0], self._sent["types"][column]
        if table == "rare" and column in RARE:
            number = (record["value"]["payload"].get("after") or {}).get("id")
            return RARE[column][0], self._sent["rare"].get(str(number), "")
        if table == "toasted" and column not in {"id", "n"}:
            return TOASTED[int(column[1:])], ""
        return "", ""


def by_transaction(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of BEGIN and END, with the number of the transaction as `id`."""
    for record in records:
        for part in ("key", "value"):
            found = payload(record[part])
            found["id"] = found["id"].partition(":")[0]
    return records


def payload(part: dict[str, Any]) -> dict[str, Any]:
    """The payload of a key or value with a schema; without one, the key or value itself."""
    found: dict[str, Any] = part.get("payload", part)
    return found


def differences(path: str, theirs: Any, ours: Any) -> Iterator[tuple[str, Any, Any]]:
    """Where two values differ: the path, and both. Schemas are compared by the names of their fields."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in {**theirs, **ours}:
            yield from differences(
                f"{path}.{name}".lstrip("."), theirs.get(name, MISSING), ours.get(name, MISSING)
            )
    elif are_fields(theirs) and are_fields(ours):
        by_name = [{each["field"]: each for each in side} for side in (theirs, ours)]
        yield from differences(path, *by_name)
    elif theirs != ours:
        yield path, theirs, ours


def are_fields(value: Any) -> bool:
    """Whether it is the list of a schema's fields."""
    return isinstance(value, list) and all(isinstance(each, dict) and "field" in each for each in value)


def leaves(value: Any) -> int:
    """The number of values that are neither objects nor lists."""
    if isinstance(value, dict | list):
        return sum(map(leaves, value.values() if isinstance(value, dict) else value))
    return 1


def is_altered(topic: str) -> bool:
    """Whether it is of a table that is altered. Those are compared between formats only."""
    return topic.rpartition(".")[2].startswith(tuple(f"{name}_{LIVE}" for name in CASES))
