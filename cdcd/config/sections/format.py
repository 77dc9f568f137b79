"""The keys of `format`: how keys and values of records are written."""

from typing import Literal

from pydantic import Field

from cdcd.config.types import Section


class FormatConfig(Section):
    """How keys and values of records are written."""

    key: Literal["json", "json_schema", "avro"] = Field(
        "json",
        description="json: the key columns as a JSON object. json_schema: that as the payload beside its schema, as "
        "Kafka Connect's JsonConverter has it with schemas.enable. avro: the key columns in Avro, in Confluent's wire "
        "format, with a schema in a registry (registry); only beside value: avro. Another value gives all keys other "
        "bytes, so that they go to other partitions, and a compacted topic keeps the former records beside the new "
        "ones.",
    )
    value: Literal["json", "json_schema", "avro"] = Field(
        "json",
        description="json: Debezium's envelope. json_schema: the envelope as the payload beside its schema, which "
        "every record repeats: several times as many bytes. avro: the envelope in Avro, in Confluent's wire format, "
        "with a schema in a registry (registry): less than half as many bytes.",
    )
