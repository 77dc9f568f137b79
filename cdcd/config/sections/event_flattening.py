"""The keys of `event_flattening`: records whose value is the row itself."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cdcd.config.types import Form, Section
from cdcd.core.records.flattening import DELETED_FIELD, AddedField, Flattening, read_added

Reference = Annotated[
    str, Form(r"[A-Za-z_.]+(:[^\x00:]{1,200})?", "must be a field, or a field, a colon and a name for it")
]
Prefix = Annotated[str, Form(r"[^\x00:]{0,100}", "must have no colon, and at most 100 characters")]


class EventFlatteningConfig(Section):
    """Flattened records, with the names and values of Debezium's transform ExtractNewRecordState."""

    enabled: bool = Field(
        False,
        description="Whether the value of a record is the row (after; of a delete before) instead of the envelope. "
        "TRUNCATE has no record then. Logical messages and events of an outbox are as without. `cdcd mirror` and `cdcd "
        "verify` refuse such topics, because they do not tell which change comes first. Each format has flattened "
        "records. Readers see other values from the next record on, so change it together with the topics' prefix.",
    )
    delete_tombstone_handling_mode: Literal[
        "drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone"
    ] = Field(
        "tombstone",
        description="What a delete becomes. drop: nothing. tombstone: a record without a value, if topics.tombstones "
        "is true. delete-to-tombstone: the same, also if it is false. rewrite: the old row (without REPLICA IDENTITY "
        "FULL its key only, the rest null) with the field __deleted: true; all other records have __deleted: false. "
        "rewrite-with-tombstone: that and, if topics.tombstones is true, a record without a value after it. A table "
        "without a key has no tombstones.",
    )
    add_fields: Annotated[tuple[Reference, ...], Field(strict=False)] = Field(
        (),
        description="Fields that are added to the row: op, ts_ms, ts_us and ts_ns of the envelope, and those of its "
        "source, as lsn or source.lsn. :<name> after it gives it another name than that with _ for the point.",
    )
    add_fields_prefix: Prefix = Field(
        "__",
        description="What the names of added fields begin with. A field that a table has a column of the same name as "
        "is left out of its records, and the event flattening.collision names it.",
    )
    add_headers: Annotated[tuple[Reference, ...], Field(strict=False)] = Field(
        (), description="The same as headers of the record. A header whose field is null is left out."
    )
    add_headers_prefix: Prefix = Field("__", description="What the names of added headers begin with.")

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Self:
        for key, added in (("add_fields", self._fields()), ("add_headers", self._headers())):
            names = [each.name for each in added]
            if "" in names:
                raise ValueError(f"{key}: a name is empty")
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(
                    f"{key}: {twice[0]} is there twice; give one of them another name by :<name>"
                )
        own = [each.name for each in self._headers() if each.name.startswith(("cdcd.", "__debezium."))]
        if own:
            raise ValueError(
                f"add_headers: {own[0]} must not begin with cdcd. or __debezium., as cdcd's own do"
            )
        if DELETED_FIELD in [each.name for each in self._fields()] and self._settings().rewrites:
            raise ValueError(
                f"add_fields: {DELETED_FIELD} is a field of rewritten rows; give it another name"
            )
        if not self.enabled and (self.add_fields or self.add_headers):
            raise ValueError("add_fields and add_headers need enabled: true")
        return self

    def _fields(self) -> tuple[AddedField, ...]:
        return _read("add_fields", self.add_fields, self.add_fields_prefix)

    def _headers(self) -> tuple[AddedField, ...]:
        return _read("add_headers", self.add_headers, self.add_headers_prefix)

    def _settings(self) -> Flattening:
        return Flattening(self.delete_tombstone_handling_mode, self._fields(), self._headers())

    @property
    def settings(self) -> Flattening | None:
        """How records are flattened; None: they are envelopes."""
        return self._settings() if self.enabled else None


def _read(key: str, texts: tuple[str, ...], prefix: str) -> tuple[AddedField, ...]:
    try:
        return tuple([read_added(each, prefix) for each in texts])
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
