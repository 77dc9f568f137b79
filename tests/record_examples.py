"""The records and values that docs/records.md shows, made by the encoder from what real servers sent.

Changes are those of the golden stream of PostgreSQL 18 (`tests/golden`). Values of types are the cases of
`tests/integration/test_types.py`, which a real server confirms. `tests.documents` puts both into the page.
"""

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

from cdcd.core.catalog.relations import CatalogColumn, TableDescription, TypeDescription
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import (
    Begin,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    Truncate,
    Update,
)
from cdcd.core.protocol.reader import read_message
from cdcd.core.records import markers
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition
from tests.golden.streams import Golden
from tests.golden.workload import ROWS
from tests.integration.test_types import CASES, Case

NOW_US: Final = 1_767_225_600_000_000
"""2026-01-01: the time at which the records of the page are made."""

LONG: Final = 60
"""Characters of a string that the page shows whole."""

WHOLE: Final = TableDescription(
    ("id",),
    columns=(
        CatalogColumn("id", 1, "integer", 23, 0, None),
        CatalogColumn("name", 2, "text", 25, 0, None),
        CatalogColumn("note", 3, "text", 25, 0, None),
    ),
    last_id=3,
)
TABLES: Final = {"person": TableDescription(("id",)), "whole": WHOLE, "customer": TableDescription(("id",))}
"""What the catalog says of the tables that the page shows."""

KINDS: Final = {"mail": "d", "home": "c"}

Event = tuple[Message, list[Record]]


class Stream:
    """The golden stream, encoded: each event with its records."""

    def __init__(self) -> None:
        settings = EncoderSettings("0.1.0", "shop", "shop", schemas_topic="shop.schemas")
        self.encoder = record_stream(settings)
        self.relations: dict[str, Relation] = {}
        self.events: list[Event] = []
        last_commit_lsn = None
        for frame in Golden(18, "v1").frames():
            if frame[0] != ord("w"):
                continue
            message = read_message(frame, XLOG_HEADER)
            if isinstance(message, Relation):
                self._define(message)
            elif isinstance(message, Begin):
                self.encoder.begin(message.xid, message.final_lsn, message.commit_time, last_commit_lsn)
                last_commit_lsn = message.final_lsn
            elif isinstance(message, Insert | Update | Delete | Truncate | LogicalMessage):
                records: list[Record] = []
                if isinstance(message, LogicalMessage) and not message.transactional:
                    self.encoder.encode_message(frame, False, last_commit_lsn, NOW_US, records)
                else:
                    self.encoder.encode(frame, False, NOW_US, records)
                self.events.append((message, records))

    def _define(self, relation: Relation) -> None:
        types = {
            column.type_oid: TypeDescription(
                column.type_oid, "public", column.name, KINDS.get(column.name, "e"), "U", 0, 25, -1
            )
            for column in relation.columns
            if column.type_oid >= 16384
        }
        self.relations.setdefault(relation.name, relation)
        self.encoder.define(relation, TABLES.get(relation.name, TableDescription()), types)

    def of(self, table: str, kind: type[Message]) -> Iterator[list[Record]]:
        """Records of each event of a kind in a table, without the table's description."""
        for message, records in self.events:
            topic = f"shop.public.{table}"
            if isinstance(message, kind) and any(record[0] == topic for record in records):
                yield [record for record in records if record[0] == topic]

    def description(self, table: str) -> Record:
        """The first description of a table."""
        found = [record for _, records in self.events for record in records if record[0] == "shop.schemas"]
        return next(record for record in found if json.loads(record[1] or b"")["table"] == f"public.{table}")

    def message(self) -> Record:
        """The first logical message."""
        return next(records[0] for message, records in self.events if isinstance(message, LogicalMessage))

    def snapshot(self) -> Record:
        """A row of the workload's COPY, as a snapshot would read it."""
        relation = self.relations["whole"]
        self.encoder.define(relation, WHOLE, {})
        lines = next(step.copy for step in ROWS if step.copy).encode().splitlines(keepends=True)
        place = SnapshotPosition(25_000_000, 24_999_999, markers.FIRST, markers.LAST, markers.ROW)
        records: list[Record] = []
        self.encoder.encode_rows(relation.oid, lines, place, NOW_US, records, set())
        return next(record for record in records if record[0] != "shop.schemas")


def sections() -> dict[str, str]:
    """The generated sections of docs/records.md by their names."""
    stream = Stream()
    inserts = list(stream.of("person", Insert))
    updates = list(stream.of("person", Update))
    (moved,) = [records for records in updates if len(records) == 3 and "10}" in str(records[0][1])]
    deleted = next(stream.of("person", Delete))
    return {
        "insert": shown(inserts[0], whole=True),
        "update": shown(updates[0]),
        "update-full": shown(next(stream.of("whole", Update))),
        "delete": shown(deleted),
        "delete-full": shown(next(stream.of("whole", Delete))[:1]),
        "key": shown(moved),
        "read": shown([stream.snapshot()], whole=True),
        "truncate": shown(next(stream.of("customer", Truncate))),
        "message": shown([stream.message()], whole=True),
        "description": shown([stream.description("whole")], whole=True),
        "types": types(),
    }


def shown(records: list[Record], *, whole: bool = False) -> str:
    """Records as the page shows them. `whole`: with `source` and the times."""
    return "\n".join([_shown(record, whole=whole) for record in records])


def _shown(record: Record, *, whole: bool) -> str:
    topic, key, value, headers = record
    lines = [f"topic    {topic}", f"key      {'null' if key is None else key.decode()}"]
    lines += [f"header   {name}: {data.decode()}" for name, data in headers or []]
    if value is None:
        lines.append("value    null")
        return "\n".join(["```text", *lines, "```", ""])
    envelope: dict[str, Any] = json.loads(value)
    if not whole:
        envelope = {name: envelope[name] for name in ("before", "after", "op")}
    body = json.dumps(_cut(envelope), indent=2, ensure_ascii=False)
    return "\n".join(["```text", *lines, "```", "", "```json", body, "```", ""])


def _cut(value: Any) -> Any:
    """A value whose long strings are cut."""
    if isinstance(value, dict):
        return {name: _cut(each) for name, each in value.items()}
    if isinstance(value, str) and len(value) > LONG:
        return f"{value[:10]}… ({len(value)} characters)"
    return value


def types() -> str:
    """The table of types: each with values in SQL and in a record."""
    lines = ["| type | value in SQL | value in a record |", "|---|---|---|"]
    cases = [case for case in CASES if len(case.value) + len(case.json) < 200 and "chr(" not in case.value]
    for kind, group in groupby(sorted(cases, key=_order(cases)), key=lambda case: case.type):
        name = f"`{kind}`"
        for case in group:
            since = f" (PostgreSQL {case.since} and newer)" if case.since > 13 else ""
            lines.append(f"| {name}{since} | {_code(case.value)} | {_code(case.json)} |")
            name = ""
    return "\n".join([*lines, ""])


def _order(cases: list[Case]) -> Any:
    """Cases of a type together, types in the order of their first case."""
    places: dict[str, int] = {}
    for case in cases:
        places.setdefault(case.type, len(places))
    return lambda case: places[case.type]


def _code(text: str) -> str:
    """Code in a cell of a table. Backticks would end it, and none of the cases has any."""
    assert "`" not in text
    return f"`{text.replace('|', chr(92) + '|')}`"
