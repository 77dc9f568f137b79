"""Flattened records: the value is the row itself, as Debezium's transform ExtractNewRecordState makes it.

`Flattening` is what a pipeline asks for; `debezium_json/flat_encoder.py` writes the records.
"""

from dataclasses import dataclass
from typing import Final

DROP: Final = "drop"
TOMBSTONE: Final = "tombstone"
REWRITE: Final = "rewrite"
REWRITE_WITH_TOMBSTONE: Final = "rewrite-with-tombstone"
DELETE_TO_TOMBSTONE: Final = "delete-to-tombstone"
"""What becomes of a delete, by the values of Debezium's `delete.tombstone.handling.mode`."""

DELETED_FIELD: Final = "__deleted"
"""The field of rewritten rows that says whether the row was deleted, as text: true or false."""

ENVELOPE_FIELDS: Final = ("op", "ts_ms", "ts_us", "ts_ns")
SOURCE_FIELDS: Final = (
    "version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns", "schema", "table", "txId",
    "lsn", "xmin", "origin", "origin_lsn", "commit_lsn", "event_serial_no", "schema_id",
)  # fmt: skip
"""Fields of the envelope and of its `source` that can be added to a row."""

_SOURCE: Final = "source."
_TRANSACTION: Final = ("transaction.", "id", "total_order", "data_collection_order")


@dataclass(frozen=True, slots=True)
class AddedField:
    """A field or header that records have beside their row.

    Attributes:
        name: what it is called, prefix included.
        field: what it holds: a field of the envelope, or `source.` and a field of that.
    """

    name: str
    field: str


@dataclass(frozen=True, slots=True)
class Flattening:
    """How records are flattened.

    Attributes:
        deletes: what becomes of a delete, one of the modes above.
        fields, headers: what is added to each record, in this order.
    """

    deletes: str = TOMBSTONE
    fields: tuple[AddedField, ...] = ()
    headers: tuple[AddedField, ...] = ()

    @property
    def rewrites(self) -> bool:
        """A delete has a record with the old row, and each record the field `__deleted`."""
        return self.deletes in {REWRITE, REWRITE_WITH_TOMBSTONE}

    def has_tombstones(self, tombstones: bool) -> bool:
        """A delete has a record without a value; `tombstones`: as `EncoderSettings` has it."""
        if self.deletes == DELETE_TO_TOMBSTONE:
            return True
        return tombstones and self.deletes in {TOMBSTONE, REWRITE_WITH_TOMBSTONE}


def read_added(text: str, prefix: str) -> AddedField:
    """An entry of Debezium's `add.fields` or `add.headers`: a field, maybe with `:` and another name for it.

    Without another name, `source.ts_ms` is called `<prefix>source_ts_ms`, and `lsn`, which is the same as `source.lsn`,
    `<prefix>lsn`.

    Raises:
        ValueError: there is no such field.
    """
    reference, colon, renamed = text.strip().partition(":")
    if colon and (not renamed or ":" in renamed):
        raise ValueError(f"{text}: write a field, or a field, a colon and a name")
    if reference.startswith(_TRANSACTION[0]) or reference in _TRANSACTION:
        raise ValueError(
            f"{text}: flattened records have no transaction metadata; source.txId, source.commit_lsn and "
            "source.event_serial_no tell a record's transaction and its place in it"
        )
    name = prefix + (renamed or reference.replace(".", "_"))
    if reference in ENVELOPE_FIELDS:
        return AddedField(name, reference)
    field = reference.removeprefix(_SOURCE)
    if field not in SOURCE_FIELDS:
        known = ", ".join((*ENVELOPE_FIELDS, *[_SOURCE + each for each in SOURCE_FIELDS]))
        raise ValueError(f"{text}: there is no such field, only {known}")
    return AddedField(name, _SOURCE + field)
