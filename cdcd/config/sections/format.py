"""The keys of `format`, `cloudevents`, `event_flattening` and `money`: how keys and values of records are written."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from cdcd.config.types import Section, TextForm
from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.money import DIGITS_MAX, DIGITS_OF_C
from cdcd.core.records.cloud_events import CloudEvents
from cdcd.core.records.flattening import DELETED_FIELD, AddedField, Flattening, read_added

_HEX: Final = "hex:"


class FormatConfig(Section):
    """Format of keys and values of records. A mode has the name and the values of Debezium's option."""

    key: Literal["json", "json_schema", "json_registry", "avro", "protobuf", "text"] = Field(
        "json",
        description="json: the key columns as a JSON object. json_schema: an object with this JSON as `payload` and "
        "its schema, as Kafka Connect's JsonConverter writes it with schemas.enable. avro: the key columns in Avro, "
        "in Confluent's wire "
        "format, with a schema in a registry (registry); only beside value: avro, or value: cloudevents with "
        "cloudevents.data: avro. protobuf: likewise in Protobuf, only beside value: protobuf. json_registry: the "
        "JSON of json in Confluent's wire format, only beside value: json_registry. text: as json, but a bare key "
        "(key.forms) that is a text has no quotes, as Kafka Connect's StringConverter writes it. If you change this "
        "value, all keys have other bytes. Records then go to other partitions, and a compacted topic keeps the former "
        "records beside the new ones.",
    )
    value: Literal["json", "json_schema", "json_registry", "avro", "protobuf", "cloudevents"] = Field(
        "json",
        description="json: Debezium's envelope. json_schema: the envelope as the payload beside its schema, which "
        "every record repeats: several times as many bytes. avro: the envelope in Avro, in Confluent's wire format, "
        "with a schema in a registry (registry): less than half as many bytes. protobuf: likewise in Protobuf, with "
        "field numbers that stay when columns come, go and are renamed. json_registry: the JSON of json in Confluent's "
        "wire format, with a JSON Schema in a registry, as JsonSchemaConverter writes it. cloudevents: each record is "
        "an event of CloudEvents 1.0 (cloudevents).",
    )
    decimal_handling_mode: Literal["string", "precise", "double"] = Field(
        "string",
        description="numeric and money. string: text with all digits. precise: the bytes of the number without its "
        "point, in base64; a numeric without a declared precision is an object of scale and bytes. precise cannot "
        "express NaN and infinities: they are null, and the record's header cdcd.unwritable names the column. double: "
        "a number, rounded.",
    )
    time_precision_mode: Literal[
        "adaptive",
        "adaptive_time_microseconds",
        "connect",
        "isostring",
        "microseconds",
        "nanoseconds",
        "structured",
    ] = Field(
        "adaptive",
        description="date, time and timestamp; those with time zone are text in ISO 8601, except with structured. "
        "adaptive: days, and "
        "milli- or microseconds by the declared precision. adaptive_time_microseconds: the same, but time in "
        "microseconds always. connect: days and milliseconds, without the digits behind them. isostring: text in ISO "
        "8601. microseconds and nanoseconds: time and timestamp in these. A timestamp before 1677-09-21 or after "
        "2262-04-11, which 64 bits of nanoseconds do not hold, is null in the record, whose header cdcd.unwritable "
        "names the column. structured: objects with a field for each part, also for the types with time zone and for "
        "interval, which is null with the same header if it is infinite. `cdcd mirror` refuses structured.",
    )
    interval_handling_mode: Literal["string", "numeric"] = Field(
        "string",
        description="interval. string: text in ISO 8601. numeric: microseconds, with months of 30.4375 days. With "
        "time_precision_mode: structured, interval is an object in both cases.",
    )
    binary_handling_mode: Literal["bytes", "base64", "base64-url-safe", "hex"] = Field(
        "bytes",
        description="bytea. bytes and base64: base64, with another type in the schema. base64-url-safe: base64 with - "
        "and _ instead of + and /. hex: hexadecimal digits.",
    )
    hstore_handling_mode: Literal["json", "map"] = Field(
        "json", description="hstore. json: an object as text. map: an object."
    )
    geometry_handling_mode: Literal["text", "structured"] = Field(
        "text",
        description="box, circle, line, lseg, path and polygon. text: PostgreSQL's text. structured: the objects of "
        "Debezium 3.7, with well-known binary; PostGIS's geometry then also has the field extensions, as there. point "
        "is an object in both cases.",
    )
    unavailable_value_placeholder: str = Field(
        "__debezium_unavailable_value",
        min_length=1,
        max_length=200,
        description="Stands for a value that PostgreSQL did not send, because it is TOASTed and unchanged; the header "
        "cdcd.unchanged names its column. hex: and hexadecimal digits are the text with these bytes in UTF-8.",
    )
    schema_name_adjustment_mode: Literal["none", "avro", "avro_unicode"] = Field(
        "none",
        description="Names of the schemas of json_schema and json_registry. none: <topic>.Key, .Value and .Envelope. "
        "avro: _ for each character that Avro does not take in a name. avro_unicode: _u and four hexadecimal digits, "
        "for _ too.",
    )
    change_header: bool = Field(
        False,
        description="Whether each change has the header cdcd.change, which tells its operation and its place among all "
        "changes, whatever the format of the value is. `cdcd mirror` with change_log: fold needs the header to read "
        "flattened rows (event_flattening) and records in avro or json_registry. TRUNCATE then has a record without "
        "key and value if rows are flattened, and the records of topics.schemas with the ids of a registry also have "
        "the texts of the schemas. Not for cloudevents. If you change this value, also change the prefix of the "
        "topics.",
    )

    @field_validator("unavailable_value_placeholder")
    @classmethod
    def _is_text(cls, value: str) -> str:
        try:
            _placeholder(value)
        except ValueError:
            raise ValueError("hex: must be followed by the hexadecimal digits of a text in UTF-8") from None
        return value

    @property
    def placeholder(self) -> str:
        """The text that stands for a value which was not sent."""
        return _placeholder(self.unavailable_value_placeholder)

    def modes(self, money_digits: int = DIGITS_OF_C) -> Modes:
        """The forms of values of some types.

        Args:
            money_digits: digits of money after the point (`postgres/money.py`). Whoever writes or compares values must
                give the number.
        """
        return Modes(
            decimal=self.decimal_handling_mode,
            time_precision=self.time_precision_mode,
            interval=self.interval_handling_mode,
            binary=self.binary_handling_mode,
            hstore=self.hstore_handling_mode,
            geometry=self.geometry_handling_mode,
            money_digits=money_digits,
        )


def _placeholder(text: str) -> str:
    if text.startswith(_HEX):
        return bytes.fromhex(text.removeprefix(_HEX)).decode("utf-8")
    return text


class CloudEventsConfig(Section):
    """How records are CloudEvents 1.0, if `format.value` is cloudevents."""

    mode: Literal["structured", "binary"] = Field(
        "structured",
        description="Place of an event's attributes. structured: in the value, a JSON object with the data in it "
        "(application/cloudevents+json), as Debezium's CloudEventsConverter writes it. binary: in headers (ce_id, "
        "ce_type ...), and the value is the data.",
    )
    data: Literal["json", "json_schema", "avro"] = Field(
        "json",
        description="The data: before and after of the row. json: a JSON object. json_schema: that as the payload "
        "beside its schema, as with json.schemas.enable of Debezium's converter. avro: in Confluent's wire format, "
        "with a schema in a registry (registry), whose URL is the attribute dataschema; in base64 if mode is "
        "structured.",
    )
    extension_attributes: bool = Field(
        True,
        description="Whether an event has the fields of the source block as attributes: iodebeziumop, iodebeziumtable, "
        "iodebeziumlsn and others. Without them, an event does not tell its table and operation.",
    )

    @property
    def settings(self) -> CloudEvents:
        """The same for the encoders."""
        return CloudEvents(self.mode, self.data, self.extension_attributes)


Reference = Annotated[
    str, TextForm(r"[A-Za-z_.]+(:[^\x00:]{1,200})?", "must be a field, or a field, a colon and a name for it")
]
Prefix = Annotated[str, TextForm(r"[^\x00:]{0,100}", "must have no colon, and at most 100 characters")]


class EventFlatteningConfig(Section):
    """Flattened records, with the names and values of Debezium's transform ExtractNewRecordState."""

    enabled: bool = Field(
        False,
        description="Whether the value of a record is only the row instead of the envelope: the new row, or the old "
        "row of a delete. "
        "With this option, TRUNCATE has no record. Logical messages and events of an outbox do not change. `cdcd "
        "verify` refuses such topics, because they do not tell which change comes first, and `cdcd mirror` reads them "
        "with format.change_header only. All formats support this. A change of this key changes all later records, so "
        "also change the prefix of the topics.",
    )
    delete_tombstone_handling_mode: Literal[
        "drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone"
    ] = Field(
        "tombstone",
        description="Form of a delete. drop: no record. tombstone: a record without a value, if topics.tombstones "
        "is true. delete-to-tombstone: the same, also if it is false. rewrite: the old row (without REPLICA IDENTITY "
        "FULL its key only, the rest null) with the field __deleted: true; all other records have __deleted: false. "
        "rewrite-with-tombstone: that and, if topics.tombstones is true, a record without a value after it. A table "
        "without a key has no tombstones.",
    )
    deleted_field: bool = Field(
        True,
        description="Whether records have the field __deleted if delete_tombstone_handling_mode is rewrite or "
        "rewrite-with-tombstone. false: a rewritten delete looks like any other row, unless add_fields has op.",
    )
    add_fields: Annotated[tuple[Reference, ...], Field(strict=False)] = Field(
        (),
        description="Fields that are added to the row: op, ts_ms, ts_us and ts_ns of the envelope, and those of its "
        "source, as lsn or source.lsn. :<name> after it gives it another name than that with _ for the point.",
    )
    add_fields_prefix: Prefix = Field(
        "__",
        description="Beginning of the names of added fields. If a table has a column of the same name, its records "
        "lack the added field, and the event flattening.collision names it.",
    )
    add_headers: Annotated[tuple[Reference, ...], Field(strict=False)] = Field(
        (),
        description="Fields of the envelope and of source to add as headers of the record. A header whose field "
        "is null is left out.",
    )
    add_headers_prefix: Prefix = Field("__", description="Beginning of the names of added headers.")

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
                f"add_headers: {own[0]} must not begin with cdcd. or __debezium., because cdcd's own headers begin so"
            )
        if DELETED_FIELD in [each.name for each in self._fields()] and self._settings().has_deleted_field:
            raise ValueError(
                f"add_fields: {DELETED_FIELD} is a field of every rewritten row; choose another name"
            )
        if not self.enabled and (self.add_fields or self.add_headers):
            raise ValueError("add_fields and add_headers need enabled: true")
        return self

    def _fields(self) -> tuple[AddedField, ...]:
        return _read("add_fields", self.add_fields, self.add_fields_prefix)

    def _headers(self) -> tuple[AddedField, ...]:
        return _read("add_headers", self.add_headers, self.add_headers_prefix)

    def _settings(self) -> Flattening:
        return Flattening(
            self.delete_tombstone_handling_mode,
            self._fields(),
            self._headers(),
            names_deletes=self.deleted_field,
        )

    @property
    def settings(self) -> Flattening | None:
        """How records are flattened; None: they are envelopes."""
        return self._settings() if self.enabled else None


def _read(key: str, texts: tuple[str, ...], prefix: str) -> tuple[AddedField, ...]:
    try:
        return tuple([read_added(each, prefix) for each in texts])
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


class MoneyConfig(Section):
    """The type money: PostgreSQL stores a whole number, and lc_monetary says which of its digits are a fraction."""

    digits: int | None = Field(
        None,
        ge=0,
        le=DIGITS_MAX,
        description="Number of decimal digits of money. null: the number that the database's default lc_monetary has, "
        "which cdcd reads when it connects: 0 for Japan, 3 for Kuwait, 2 for most others. Set this key if sessions "
        "with another lc_monetary wrote the amounts.",
    )
