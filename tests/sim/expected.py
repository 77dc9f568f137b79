"""The records that a change must become, and what is wrong with those that came."""

import json
from collections.abc import Collection
from hashlib import sha256
from typing import Any, Final

from tests.sim import filtered, published, routed
from tests.sim.catalog import SCHEMA, Definition, Row
from tests.sim.requests import PREFIX as REQUESTS
from tests.sim.wal import Change

Record = tuple[str, bytes | None, bytes | None, list[tuple[str, bytes]] | None]

TOPIC_PREFIX: Final = "sim"
MESSAGE_TOPIC: Final = f"{TOPIC_PREFIX}.message"
PLACEHOLDER: Final = "__debezium_unavailable_value"
OWN_PREFIXES: Final = (REQUESTS, "cdcd.watermark")
"""Messages to the daemon, which make no record."""

Part = tuple[str, Definition | None, str]
"""A record: its op, its table, and what its topic has behind the name of the table's own one."""

TOMBSTONE: Final = "tombstone"
PUBLISHED: Final = "published"


class PromiseBrokenError(AssertionError):
    """A guarantee is broken."""


class Expected:
    """One record. `op` is its op, `TOMBSTONE` or `PUBLISHED`; `serial` the event's number in its transaction; `route`
    what its topic has behind the name of the table's own one; `is_short` says that size and digest stand for the
    content of a message.
    """

    __slots__ = ("change", "commit_lsn", "is_short", "op", "origin", "route", "serial", "table", "xid")

    def __init__(
        self,
        change: Change,
        op: str,
        table: Definition | None,
        *,
        xid: int,
        commit_lsn: int,
        serial: int,
        origin: str,
        route: str = "",
        is_short: bool = False,
    ) -> None:
        self.is_short = is_short
        self.change = change
        self.op = op
        self.table = table
        self.xid = xid
        self.commit_lsn = commit_lsn
        self.serial = serial
        self.origin = origin
        self.route = route

    def __repr__(self) -> str:
        name = self.table.name + self.route if self.table is not None else "message"
        return f"{self.op} of event {self.change.event} in {name} ({self.xid} at {self.commit_lsn}, {self.serial})"


def parts_of(
    change: Change,
    *,
    truncates: bool,
    skipped: Collection[str] = (),
    left_out: Collection[str] = (),
    filters: bool = False,
    routes: bool = False,
    moved: bool = False,
) -> list[Part]:
    """An event's records; `skipped` operations and tables that are `left_out` have none.

    `moved`: an update takes its row to another partition.
    """
    without = {*skipped, TOMBSTONE} if "d" in skipped else skipped
    if routes and change.what in "IUDT":
        parts = _routed_parts(change, truncates=truncates, filters=filters)
    else:
        whole = _all_parts(change, truncates=truncates, filters=filters, moved=moved)
        parts = [(op, table, "") for op, table in whole]
    return [
        (op, table, route)
        for op, table, route in parts
        if op not in without and (table is None or table.name not in left_out)
    ]


def _routed_parts(change: Change, *, truncates: bool, filters: bool) -> list[Part]:
    if change.what == "T":
        tables = change.tables if truncates else ()
        further = [("t", one, suffix) for one in tables for suffix in routed.ALL if suffix]
        return [*[("t", one, "") for one in tables], *further]
    found: list[Part] = []
    for op, suffix in routed.parts_of(change, filtered.tag_of(change) if filters else change.what):
        found.append((op, change.definition, suffix))
        if op == "d":
            found.append((TOMBSTONE, change.definition, suffix))
    return found


def _all_parts(
    change: Change, *, truncates: bool, filters: bool, moved: bool
) -> list[tuple[str, Definition | None]]:
    what, table = change.what, change.definition
    if filters and what in "IUD":
        what = filtered.tag_of(change)
    if what == "M":
        if published.record_of(change.prefix, change.content) is not None:
            return [(PUBLISHED, None)]
        return [] if change.prefix in OWN_PREFIXES else [("m", None)]
    if what == "T":
        return [("t", one) for one in change.tables] if truncates else []
    if not what:
        return []
    if what == "I":
        return [("c", table)]
    if table is not None and table.keyless:
        return [("d" if what == "D" else "u", table)]
    if what == "D":
        return [("d", table), (TOMBSTONE, table)]
    if change.moves or moved:
        return [("d", table), (TOMBSTONE, table), ("c", table)]
    return [("u", table)]


def topic_of(table: Definition) -> str:
    return f"{TOPIC_PREFIX}.{SCHEMA}.{table.name}"


def key_bytes(table: Definition, row: Row) -> bytes:
    """G4: they depend on the key's names and values only; the columns are in the table's order."""
    fields = [(column.name, row[column.attnum]) for column in table.columns if column.name in table.key]
    return b"{" + b",".join([b'"%b":%b' % (name.encode(), value or b"") for name, value in fields]) + b"}"


def own_key(table: Definition, fields: dict[str, Any]) -> bytes:
    """The key of a row of a table without a key, as only the simulation knows it: from the values of a record."""
    values = [(column.name, fields[column.name]) for column in table.columns if column.name in table.key]
    return b"{" + b",".join([b'"%b":%d' % (name.encode(), value) for name, value in values]) + b"}"


def text_of(value: object) -> bytes | None:
    """A value of JSON in PostgreSQL's text."""
    return None if value is None else str(value).encode()


def check(expected: Expected, record: Record) -> dict[str, Any]:
    """Raise if the record is not the expected one in every respect; its fields, {} for a tombstone."""
    topic, key, value, headers = record
    change, table, op = expected.change, expected.table, expected.op
    if table is None:
        return _check_message(expected, record)
    _same(expected, "topic", topic, topic_of(table) + expected.route)
    leaves = change.what == "U" and op in ("d", TOMBSTONE)
    row = change.old if leaves else change.row
    _same(expected, "key", key, None if op == "t" or table.keyless else key_bytes(table, row))
    if op == TOMBSTONE:
        _same(expected, "value", value, None)
        return {}
    assert value is not None, f"{expected}: a tombstone came"
    fields: dict[str, Any] = json.loads(value)
    _same(expected, "op", fields["op"], op)
    _check_source(expected, fields["source"])
    _same(expected, "table", fields["source"]["table"], table.name)
    whole = table.identity == "f"
    kept = () if whole else change.kept
    if op in ("c", "u"):
        _check_row(expected, fields["after"], change.row, kept)
        names = [column.name for column in table.columns if column.attnum in kept]
        sent = [json.loads(text) for name, text in headers or () if name == "cdcd.unchanged"]
        _same(expected, "unchanged", sent, [names] if names else [])
    else:
        _same(expected, "after", fields["after"], None)
    if op in ("d", "u") and (whole or op == "d"):
        old = change.old if change.what == "U" else change.row
        _check_old(expected, fields["before"], old, whole=whole)
    else:
        _same(expected, "before", fields["before"], None)
    return fields


def _check_message(expected: Expected, record: Record) -> dict[str, Any]:
    topic, _, value, headers = record
    if expected.op == PUBLISHED:
        _same(expected, "event", record, published.record_of(expected.change.prefix, expected.change.content))
        return {}
    _same(expected, "topic", topic, MESSAGE_TOPIC)
    if expected.is_short:
        content = expected.change.content
        _same(expected, "value", value, None)
        _same(expected, "size", dict(headers or ())["cdcd.size"], b"%d" % len(content))
        digest = sha256(content).hexdigest().encode()
        _same(expected, "digest", dict(headers or ())["cdcd.sha256"], digest)
        return {}
    assert value is not None
    fields: dict[str, Any] = json.loads(value)
    _same(expected, "op", fields["op"], "m")
    _check_source(expected, fields["source"])
    _same(expected, "prefix", fields["message"]["prefix"], expected.change.prefix)
    return fields


def _check_source(expected: Expected, source: dict[str, Any]) -> None:
    _same(expected, "commit_lsn", source["commit_lsn"], expected.commit_lsn)
    _same(expected, "event_serial_no", source["event_serial_no"], expected.serial)
    _same(expected, "lsn", source["lsn"], expected.change.lsn)
    _same(expected, "txId", source["txId"], expected.xid or None)
    _same(expected, "origin", source["origin"], expected.origin or None)


def _check_row(expected: Expected, found: dict[str, Any], row: Row, kept: tuple[int, ...]) -> None:
    table = expected.table
    assert table is not None
    wanted = {
        column.name: PLACEHOLDER.encode() if column.attnum in kept else table.value(row, column)
        for column in table.columns
    }
    _same(expected, "row", without_marker(found, table), wanted)


def _check_old(expected: Expected, found: dict[str, Any], row: Row, *, whole: bool) -> None:
    table = expected.table
    assert table is not None
    if whole:
        wanted = {column.name: table.value(row, column) for column in table.columns}
        _same(expected, "before", without_marker(found, table), wanted)
        return
    for column in table.columns:
        value = row[column.attnum] if column.name in table.key else None
        _same(expected, f"before.{column.name}", text_of(found[column.name]), value)


def without_marker(found: dict[str, Any], table: Definition) -> dict[str, bytes | None]:
    """The real columns' values in PostgreSQL's text; the marker must say its own name."""
    if not table.marked:
        return {name: text_of(value) for name, value in found.items()}
    *fields, (marker, version) = found.items()
    if marker != version:
        raise PromiseBrokenError(f"a row with {version!r} in {marker} was read by another definition")
    return {name: text_of(value) for name, value in fields}


def _same(expected: Expected, what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise PromiseBrokenError(f"{expected}: {what} is {found!r} instead of {wanted!r}")
