"""The last records of a table, for the daemon's page: where they are and how large, without keys and values."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.tails import Last, read_last
from cdcd.config.loading import Config
from cdcd.telemetry.html_look_ups import LastRecord
from cdcd.tools.operations.tail import seen_of
from cdcd.tools.operations.trace import found_of

RECORDS_MAX: Final = 20

PARSED_MAX: Final = 1 << 20
"""Size of the largest record whose operation is shown. To parse a record takes many times its size."""

LAST: Final = Last(offsets=2 * RECORDS_MAX, partitions=24, timeout_s=8.0)
"""A transaction's marker takes an offset, too, so more offsets are read than records are shown."""


def last_records(config: Config, table: str) -> Sequence[LastRecord]:
    """Return the last records of a table, the newest first.

    Args:
        table: `schema.table` without quotes, as the daemon's status names it. Both names may have dots.

    Raises:
        SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
    """
    names = config.topic_names()
    parts = table.split(".")
    splits = [(".".join(parts[:at]), ".".join(parts[at:])) for at in range(1, len(parts))]
    topics = {topic for schema, name in splits for topic in names.all_of(schema, name)}
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
