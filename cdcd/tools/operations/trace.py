"""`cdcd trace`: find the records of one row, and show its publication, filter, route, topics and mirror. And the last
records of a table, for the daemon's page.

The rule: the table itself is not read, because the owner of a table can run code as the role that reads the table. The
records of the row are in the topics. Publication, configuration, checkpoint and slot say why a record is missing.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.bounded_reading import Last, read_last
from cdcd.adapters.kafka.reading import Follower
from cdcd.adapters.postgres.pipeline_state import PipelineState
from cdcd.config.loading import Config
from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.catalog.routing import parse_table
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import CdcdError, ConfigError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.table_names import split_table, table_text
from cdcd.daemon.settings import require_json
from cdcd.telemetry.html_look_ups import LastRecord
from cdcd.telemetry.terminal_text import number, plain, seconds
from cdcd.tools.operations.change_lines import OPERATIONS, Filter, ReadRecord, key_of
from cdcd.tools.operations.pipeline_status import PipelineStatus
from cdcd.tools.operations.tail import POLL_S, seen_of

Key = Mapping[str, str] | Sequence[str]
"""Values of the key as texts: by column, or in the order of the record's key."""

NOTICE_S: Final = 5.0
"""Seconds between two notices about the number of records that were read."""


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """One record of the row.

    Attributes:
        op: INSERT, UPDATE, DELETE, READ or TOMBSTONE; "": the record has no known operation.
        lsn, xid: LSN and transaction of the change; None: the record has none.
        committed_ms: time of the commit (Unix milliseconds); None: not in the record.
        written_ms: time at which cdcd made the record (Unix milliseconds); None: not in the record.
    """

    topic: str
    partition: int
    offset: int
    op: str
    lsn: int | None
    xid: int | None
    committed_ms: int | None
    written_ms: int | None


def parse_key(words: Sequence[str]) -> Key:
    """Read `COLUMN=VALUE` words, values alone in the order of the key, or a JSON object as in `cdcd tail --json`.

    ConfigError: the words have two of these forms.
    """
    if len(words) == 1 and words[0].startswith("{"):
        with suppress(ValueError):
            if isinstance(found := json.loads(words[0]), dict):
                return {column: _text(value) for column, value in found.items()}
    pairs = [word.partition("=") for word in words]
    named = {column: value for column, sign, value in pairs if sign and column.isidentifier()}
    if not named:
        return tuple(words)
    if len(named) < len(words):
        raise ConfigError(
            "Some parts of the key have the form column=value, and others do not, or a column occurs twice.",
            hint="Give `id=5`, or the values alone in the order of the key: `5`.",
        )
    return named


def matches(key: Mapping[str, Any], wanted: Key) -> bool:
    """True if the key of a record has these values."""
    if isinstance(wanted, Mapping):
        return all(column in key and _text(key[column]) == value for column, value in wanted.items())
    return [_text(value) for value in key.values()] == list(wanted)


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def topics_of(config: Config, table: str) -> tuple[str, tuple[str, ...]]:
    """Return the table's text, and the topics that may have its records, the table's own topic first.

    ConfigError: `table` is not the name of one table.
    """
    if not parse_pattern(table, "TABLE").is_literal:
        raise ConfigError(
            "TABLE must be the name of one table.", hint="For example: cdcd trace public.orders 5"
        )
    schema, name = parse_table(table)
    return table_text(schema, name), config.topic_names().all_of(schema, name)


def find(
    config: Config, topics: Sequence[str], key: Key, *, last: int, notice: Callable[[str], None]
) -> tuple[int, list[FoundRecord]]:
    """Read the topics up to their present ends. Returns the number of the row's records, and the last `last` records.

    Raises:
        ConfigError: the topics are not in JSON.
        SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
    """
    require_json(config, "cdcd trace", "Read these topics with a consumer that knows the schema registry.")
    connection, _ = client.configured(config.kafka)
    wanted = frozenset(topics)
    follower = Follower(connection, f"{config.name}-trace", lambda topic: topic in wanted, beginning=True)
    kept: deque[FoundRecord] = deque(maxlen=last)
    count = read = 0
    told_at = time.monotonic()
    try:
        while follower.topics and not follower.at_end:
            for message in follower.poll(POLL_S):
                read += 1
                seen = seen_of(message)
                if matches(key_of(seen), key):
                    count += 1
                    _, written_ms = message.timestamp()
                    kept.append(found_of(seen, written_ms))
            if time.monotonic() - told_at > NOTICE_S:
                told_at = time.monotonic()
                notice(f"{number(read, 'record')} read, {count:,} of this row")
    finally:
        follower.close()
    # Records are sorted by time, because a tombstone has no LSN. A tombstone follows its delete.
    return count, sorted(
        kept, key=lambda each: (each.written_ms or 0, each.topic, each.partition, each.offset)
    )


MOMENT_MS_END: Final = 253_402_300_800_000
"""Milliseconds from 1970 to the year 10000, where Python's times end."""


def found_of(seen: ReadRecord, written_ms: int) -> FoundRecord:
    """Place, operation and position of a record. `written_ms`: Kafka's timestamp; 0 or less: there is none."""
    envelope = None if seen.value is None else Filter().wanted(seen)
    source = {} if envelope is None else envelope["source"]
    op = "TOMBSTONE" if seen.value is None else "" if envelope is None else OPERATIONS.get(envelope["op"], "")
    return FoundRecord(
        seen.topic,
        seen.partition or 0,
        seen.offset or 0,
        op,
        _number(source.get("lsn")),
        _number(source.get("txId")),
        _moment_ms(source.get("ts_ms")),
        _moment_ms(written_ms),
    )


def _moment_ms(value: object) -> int | None:
    """Return the value if it is a time that people can be shown, else None."""
    return value if isinstance(value, int) and 0 < value < MOMENT_MS_END else None


def _number(value: object) -> int | None:
    """Return the value if it is a positive 64-bit integer, else None. The record may come from any writer."""
    return value if isinstance(value, int) and 0 < value < 1 << 63 else None


def lines(
    table: str,
    config: Config,
    status: PipelineStatus,
    topics: Sequence[str],
    *,
    count: int,
    found: Sequence[FoundRecord],
    mirrored: Iterable[str] = (),
) -> Iterator[str]:
    """Yield lines about publication, filter, route, delivery and records of the row.

    `mirrored`: lines about the mirror.
    """
    yield f"publication  {_published(table, status)}"
    yield f"filter       {_rule(table, config.filters.tables, 'filters.tables', 'all rows')}"
    route = _rule(table, config.routes.tables, "routes.tables", "the table's own topic")
    yield f"route        {route}: {', '.join(topics)}"
    yield f"delivered    {_delivered(status)}"
    if not count:
        yield "records      none with this key"
        for reason in reasons(table, config, status):
            yield f"             {reason}"
    else:
        shown = "" if count == len(found) else f", the last {len(found)}:"
        yield f"records      {count:,}{shown}"
        for each in found:
            yield f"  {_record(each)}"
    for line in mirrored:
        yield f"mirror       {line}"


def _published(table: str, status: PipelineStatus) -> str:
    server = status.server
    if not isinstance(server, PipelineState):
        return f"not known: {server.message}"
    if server.publication is None:
        return f"{status.named.publication} does not exist"
    published = [each for each in server.publication.tables if table in (each.qualified, each.root)]
    if not published:
        return f"{table} is not in {server.publication.name}"
    if not status.selection.test()(table):
        return f"{table} is in {server.publication.name}, and tables.include or tables.exclude leaves it out"
    names = {"d": "the primary key", "f": "the whole row (FULL)", "i": "an index", "n": "nothing"}
    return (
        f"{table} is in {server.publication.name} ({', '.join(server.publication.operations)}); its replica identity "
        f"is {names.get(published[0].replica_identity, 'not known')}"
    )


def _rule(table: str, rules: Mapping[str, object], key: str, otherwise: str) -> str:
    for pattern in rules:
        if parse_pattern(pattern, key).matches_name(table):
            return f"by {key}, {pattern}"
    return otherwise


def _delivered(status: PipelineStatus) -> str:
    checkpoint = status.checkpoint
    if isinstance(checkpoint, CdcdError):
        return f"not known: {checkpoint.message}"
    if checkpoint is None:
        return "nothing yet: there is no checkpoint"
    at = "" if status.slot is None else f"; the server is at {Lsn(status.slot.current_lsn)}"
    return f"everything up to {checkpoint.position}{at}"


def _record(found: FoundRecord) -> str:
    parts = [f"{found.op or 'ROW':9}"]
    if found.lsn is not None:
        parts.append(f"LSN {Lsn(found.lsn)}")
    if found.xid is not None:
        parts.append(f"transaction {found.xid}")
    if found.committed_ms is not None:
        parts.append(f"committed {_moment(found.committed_ms)}")
    parts.append(f"-> {plain(found.topic)} [{found.partition}] offset {found.offset}")
    if found.written_ms is not None:
        after = ""
        if found.committed_ms is not None and found.op != "READ":
            after = f", {seconds(max(0.0, (found.written_ms - found.committed_ms) / 1000))} after the commit"
        parts.append(f"written {_moment(found.written_ms)}{after}")
    return "  ".join(parts)


def _moment(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def reasons(table: str, config: Config, status: PipelineStatus) -> Iterator[str]:
    """Yield reasons why a row may have no record, the likeliest first."""
    server, checkpoint = status.server, status.checkpoint
    if isinstance(server, PipelineState) and server.active is None:
        yield "No instance runs. `cdcd status` says what to do."
    if isinstance(checkpoint, Checkpoint) and status.lag_bytes:
        yield "The change may lie in the WAL that is not delivered yet."
    state = next((each for each in status.tables() if each.name == table), None)
    if state is not None and state.state in ("failed", "reading", "waiting"):
        yield f"Rows that existed before are not all read: the snapshot of the table is {state.state}."
    if config.snapshot.mode == "never":
        yield "snapshot.mode is never: rows that existed before have no record until they change."
    if any(parse_pattern(each, "filters.tables").matches_name(table) for each in config.filters.tables):
        yield "The filter may leave the row out."
    if config.tables.selection.is_all is False:
        yield "tables.include and tables.exclude choose the tables."
    yield "The key may have another form: `cdcd tail --beginning --json` shows keys as records have them."
    yield "Kafka may have deleted the record (retention of the topic)."


def mirror_lines(status: Mapping[str, Any], table: str, newest: FoundRecord | None) -> Iterator[str]:
    """Yield lines about the row in a mirror. `status`: the object of `cdcd mirror status --format json`."""
    entries = [each for each in status.get("tables", ()) if each.get("table") == table]
    if not entries:
        yield f"the mirror has no table for {table}"
    for entry in entries:
        if entry.get("stopped"):
            yield f"the table is stopped: {plain(str(entry['stopped'].get('message')))}"
        for target in entry.get("targets", ()):
            lsn = target.get("lsn")
            name = plain(str(target.get("name")))
            if lsn is None:
                yield f"{name} has no change yet"
            elif newest is None or newest.lsn is None:
                yield f"{name} has everything up to {lsn}"
            elif int(Lsn.parse(str(lsn))) >= newest.lsn:
                yield f"{name} has the newest record: everything up to {lsn}, written {target.get('written_at')}"
            else:
                yield f"{name} does not have the newest record yet: everything up to {lsn}"


RECORDS_MAX: Final = 20

PARSED_MAX: Final = 1 << 20
"""Size of the largest record whose operation is shown. To parse a record takes many times its size."""

LAST: Final = Last(offsets=2 * RECORDS_MAX, partitions=24, timeout_s=8.0)
"""A transaction's marker takes an offset, too, so more offsets are read than records are shown."""


def last_records(config: Config, table: str) -> Sequence[LastRecord]:
    """Return the last records of a table, the newest first.

    Args:
        table: text of the table, as the daemon's status names it.

    Raises:
        SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
    """
    topics = set(config.topic_names().all_of(*split_table(table)))
    connection, _ = client.configured(config.kafka)
    found: list[tuple[int, int, LastRecord]] = []
    lsns: dict[tuple[str, int], int] = {}
    for message in read_last(connection, f"{config.name}-page", topics, LAST):
        _, written_ms = message.timestamp()
        seen = seen_of(message)
        sizes = len(seen.key or b"") + len(seen.value or b"")
        each = found_of(seen if sizes <= PARSED_MAX else replace(seen, value=b""), written_ms)
        place = (each.topic, each.partition)
        # A tombstone has no LSN. It belongs to the record before it.
        lsn = lsns[place] = lsns.get(place, 0) if each.lsn is None else each.lsn
        record = LastRecord(
            each.topic, each.partition, each.offset, each.op, each.lsn, each.written_ms, sizes
        )
        found.append((each.written_ms or 0, lsn, record))
    found.sort(key=_order, reverse=True)
    return [record for _, _, record in found[:RECORDS_MAX]]


def _order(found: tuple[int, int, LastRecord]) -> tuple[int, int, str, int, int]:
    """Kafka's time has milliseconds, so the LSN orders the records of one batch over partitions."""
    written_ms, lsn, record = found
    return written_ms, lsn, record.topic, record.partition, record.offset
