"""The keys of `format`: how keys and values of records are written."""

from typing import Final, Literal

from pydantic import Field, field_validator

from cdcd.config.types import Section

_HEX: Final = "hex:"


class FormatConfig(Section):
    """How keys and values of records are written. A mode has the name and the values of Debezium's option."""

    key: Literal["json", "json_schema", "avro", "protobuf"] = Field(
        "json",
        description="json: the key columns as a JSON object. json_schema: that as the payload beside its schema, as "
        "Kafka Connect's JsonConverter has it with schemas.enable. avro: the key columns in Avro, in Confluent's wire "
        "format, with a schema in a registry (registry); only beside value: avro, or value: cloudevents with "
        "cloudevents.data: avro. protobuf: likewise in Protobuf, only beside value: protobuf. Another value gives all "
        "keys other bytes, so that they go to other partitions, and a compacted topic keeps the former records beside "
        "the new ones.",
    )
    value: Literal["json", "json_schema", "avro", "protobuf", "cloudevents"] = Field(
        "json",
        description="json: Debezium's envelope. json_schema: the envelope as the payload beside its schema, which "
        "every record repeats: several times as many bytes. avro: the envelope in Avro, in Confluent's wire format, "
        "with a schema in a registry (registry): less than half as many bytes. protobuf: likewise in Protobuf, with "
        "field numbers that stay when columns come, go and are renamed. cloudevents: each record is an event of "
        "CloudEvents 1.0 (cloudevents).",
    )
    decimal_handling_mode: Literal["string", "precise", "double"] = Field(
        "string",
        description="numeric and money. string: text with all digits. precise: the bytes of the number without its "
        "point, in base64; a numeric without a declared precision is an object of scale and bytes. NaN and infinities, "
        "which precise has no form for, are null in the record, whose header cdcd.unwritable names the column. double: "
        "a number, rounded.",
    )
    time_precision_mode: Literal[
        "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
    ] = Field(
        "adaptive",
        description="date, time and timestamp; those with time zone are text in ISO 8601 always. adaptive: days, and "
        "milli- or microseconds by the declared precision. adaptive_time_microseconds: the same, but time in "
        "microseconds always. connect: days and milliseconds, without the digits behind them. isostring: text in ISO "
        "8601. microseconds and nanoseconds: time and timestamp in these. A timestamp before 1677-09-21 or after "
        "2262-04-11, which 64 bits of nanoseconds do not hold, is null in the record, whose header cdcd.unwritable "
        "names the column.",
    )
    interval_handling_mode: Literal["string", "numeric"] = Field(
        "string",
        description="interval. string: text in ISO 8601. numeric: microseconds, with months of 30.4375 days.",
    )
    binary_handling_mode: Literal["bytes", "base64", "base64-url-safe", "hex"] = Field(
        "bytes",
        description="bytea. bytes and base64: base64, with another type in the schema. base64-url-safe: base64 with - "
        "and _ instead of + and /. hex: hexadecimal digits.",
    )
    hstore_handling_mode: Literal["json", "map"] = Field(
        "json", description="hstore. json: an object as text. map: an object."
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
        description="Names of the schemas of json_schema. none: <topic>.Key, .Value and .Envelope. avro: _ for each "
        "character that Avro does not take in a name. avro_unicode: _u and four hexadecimal digits, for _ too.",
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


def _placeholder(text: str) -> str:
    if text.startswith(_HEX):
        return bytes.fromhex(text.removeprefix(_HEX)).decode("utf-8")
    return text
