"""Settings for flattened records, whose value is the row itself, as from Debezium's transform ExtractNewRecordState.

`debezium_json/flat_rows.py` writes the rows in JSON, `avro/around.py` those of binary formats.
"""

from dataclasses import dataclass
from typing import Final

DROP: Final = "drop"
TOMBSTONE: Final = "tombstone"
REWRITE: Final = "rewrite"
REWRITE_WITH_TOMBSTONE: Final = "rewrite-with-tombstone"
DELETE_TO_TOMBSTONE: Final = "delete-to-tombstone"
"""What a delete becomes, with the values of Debezium's `delete.tombstone.handling.mode`."""

DELETED_FIELD: Final = "__deleted"
"""Field of rewritten rows that says whether the row was deleted, as the text true or false."""

ENVELOPE_FIELDS: Final = ("op", "ts_ms", "ts_us", "ts_ns")
SOURCE_FIELDS: Final = (
    "version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns", "schema", "table", "txId",
    "lsn", "xmin", "origin", "origin_lsn", "commit_lsn", "event_serial_no", "schema_id",
)  # fmt: skip
"""Fields of the envelope and of its `source` that may be added to a row."""

_SOURCE: Final = "source."
_TRANSACTION: Final = ("transaction.", "id", "total_order", "data_collection_order")


@dataclass(frozen=True, slots=True)
class AddedField:
    """A field or header that is added to records.

    Attributes:
        name: its name, including the prefix.
        field: where its value comes from: a field of the envelope, or `source.` and a field of `source`.
    """

    name: str
    field: str


@dataclass(frozen=True, slots=True)
class Flattening:
    """How records are flattened.

    Attributes:
        deletes: what a delete becomes, which is one of the modes above.
        fields, headers: what is added to each record, in this order.
        names_deletes: whether a rewritten delete has the field `__deleted`, and other records have it too.
    """

    deletes: str = TOMBSTONE
    fields: tuple[AddedField, ...] = ()
    headers: tuple[AddedField, ...] = ()
    names_deletes: bool = True

    @property
    def rewrites(self) -> bool:
        """True if a delete becomes a record with the old row."""
        return self.deletes in {REWRITE, REWRITE_WITH_TOMBSTONE}

    @property
    def has_deleted_field(self) -> bool:
        """True if each record has the field `__deleted`."""
        return self.rewrites and self.names_deletes

    def has_tombstones(self, tombstones: bool) -> bool:
        """Return whether a delete has a record without a value; `tombstones` as in `EncoderSettings`."""
        if self.deletes == DELETE_TO_TOMBSTONE:
            return True
        return tombstones and self.deletes in {TOMBSTONE, REWRITE_WITH_TOMBSTONE}


def read_added(text: str, prefix: str) -> AddedField:
    """Parse an entry of Debezium's `add.fields` or `add.headers`: a field, optionally with `:` and another name for it.

    Without another name, `source.ts_ms` gets the name `<prefix>source_ts_ms`, and `lsn`, which means `source.lsn`,
    gets the name `<prefix>lsn`.

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
