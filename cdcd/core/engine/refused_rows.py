"""Refuses rows whose record is certainly larger than the producer takes, by their length and before they are decoded.

The record of a row has the text of each column, which JSON does not make shorter, or its bytes. So the sizes of the
large columns in the frame are a lower bound for the size of the record. This is true only if each row has a record
with all its columns (`EngineSettings.record_bytes_max`).
"""

from collections.abc import Collection
from typing import Final

from cdcd.core.catalog.sharing import whole_topic
from cdcd.core.catalog.types import BYTEA
from cdcd.core.errors import RecordTooLargeError
from cdcd.core.protocol import peek
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.encoder import HEADER_NEW_KEY, Encoder, Record

LOOKED_AT_BYTES: Final = 1 << 20
"""Size up to which rows are encoded first, so that the error can name the key."""

ANY_SIZE: Final = 1 << 62
"""A limit that no record reaches."""

_TEXTS: Final = frozenset((25, 114, 1042, 1043, 3802))
"""The oids of text, json, bpchar, varchar and jsonb: types that every format writes as their text."""

_HEX_HEAD: Final = 2
_COPIED_HEX_HEAD: Final = 3
"""Number of bytes before the digits of a bytea: in the stream, and in COPY, which escapes the backslash."""


class RecordLimits:
    """The sizes of records that Kafka takes (`EngineSettings`).

    Attributes:
        record_bytes_max: as in `EngineSettings`.
        row_bytes_max: bytes of a row's frame, or of rows of COPY, above which `refuse` is called; 0: it never is.
        fails_over: size of key and value above which a record is a fault of its table.
    """

    def __init__(self, record_bytes_max: int = 0, fails_over_bytes: int = 0) -> None:
        self.record_bytes_max = record_bytes_max
        self.row_bytes_max = max(record_bytes_max, LOOKED_AT_BYTES) if record_bytes_max else 0
        self.fails_over = fails_over_bytes or ANY_SIZE


NO_LIMITS: Final = RecordLimits()


def refuse(frame: bytes, in_stream: bool, encoder: Encoder, bytes_max: int) -> None:
    """Refuse the row in the frame if its record has more than `bytes_max` bytes in any case.

    Raises:
        RecordTooLargeError: the record is too large.
    """
    if peek.tag_of(frame) not in {peek.INSERT, peek.UPDATE}:
        return
    oid = peek.relation_of_row(frame, in_stream)
    described = encoder.tables.description(oid)
    if described is None:
        return
    relation = described.relation
    least = least_bytes(frame, in_stream, relation)
    if least <= bytes_max:
        return
    raise RecordTooLargeError(
        f"A record of at least {least} bytes for topic {whole_topic(encoder.tables.topic_of(oid))}: the row of "
        f"{relation.schema}.{relation.name} at {Lsn(peek.lsn_of(frame))} has {len(frame)} bytes, and message.max.bytes "
        f"allows records of {bytes_max} bytes."
    )


def refuse_lines(lines: list[bytes], oid: int, encoder: Encoder, bytes_max: int) -> None:
    """Refuse rows of COPY in the same way as `refuse` does.

    Raises:
        RecordTooLargeError: the record of a row has more than `bytes_max` bytes in any case.
    """
    described = encoder.tables.description(oid)
    if described is None:
        return
    relation = described.relation
    for line in lines:
        if len(line) <= bytes_max:
            continue
        least = least_bytes_of_line(line, relation)
        if least > bytes_max:
            raise RecordTooLargeError(
                f"A record of at least {least} bytes for topic {whole_topic(encoder.tables.topic_of(oid))}: a row of "
                f"{relation.schema}.{relation.name}, read for a snapshot, has {len(line)} bytes, and "
                f"message.max.bytes allows records of {bytes_max} bytes."
            )


def too_large(
    topic: str, key: bytes | None, size: int, commit_lsn: int, bytes_max: int
) -> RecordTooLargeError:
    """Return the error for a finished record that Kafka does not take."""
    named = "" if key is None else f" with a key of {len(key)} bytes"
    return RecordTooLargeError(
        f"A record of {size} bytes for topic {topic}{named}, of the transaction that commits at {Lsn(commit_lsn)}: "
        f"message.max.bytes allows records of {bytes_max} bytes."
    )


def without_large(records: list[Record], place: int, topics: Collection[str]) -> tuple[list[Record], int]:
    """Remove a table's records from `records`, beginning with the event to which the record at index `place` belongs.

    Args:
        topics: topics of the table.

    Returns:
        The removed records, and the index of the first record after them.
    """
    begin = place
    while begin and records[begin - 1][0] in topics and _is_left_row(records[begin - 1]):
        begin -= 1
    gone = [each for each in records[begin:] if each[0] in topics]
    records[begin:] = [each for each in records[begin:] if each[0] not in topics]
    return gone, begin


def _is_left_row(record: Record) -> bool:
    """Return whether the record is the delete, or its tombstone, for an update that changes the key of a row."""
    return any(name == HEADER_NEW_KEY for name, _ in record[3] or ())


def least_bytes_of_line(line: bytes, relation: Relation) -> int:
    """Return a lower bound for the bytes of the record of a row of COPY; 0 if none is known."""
    least = at = 0
    for column in relation.columns:
        end = line.find(b"\t", at)
        if end < 0:
            end = len(line) - 1
        if column.type_oid in _TEXTS:
            # Each escape has at least one backslash, and stands for at least one byte.
            least += end - at - line.count(b"\\", at, end)
        elif column.type_oid == BYTEA:
            least += max(0, end - at - _COPIED_HEX_HEAD) // 2
        at = end + 1
    return least if at == len(line) else 0


def least_bytes(frame: bytes, in_stream: bool, relation: Relation) -> int:
    """Return a lower bound for the bytes of the record of a row; 0 if none is known."""
    try:
        sizes = peek.new_row_sizes(frame, in_stream)
    except (ValueError, IndexError):
        # The encoder raises the error, which names the malformed part of the message.
        return 0
    if len(sizes) != len(relation.columns):
        return 0
    least = 0
    for (kind, size), column in zip(sizes, relation.columns, strict=True):
        if column.type_oid in _TEXTS:
            least += size
        elif column.type_oid == BYTEA:
            least += size if kind == peek.BINARY else max(0, size - _HEX_HEAD) // 2
    return least
