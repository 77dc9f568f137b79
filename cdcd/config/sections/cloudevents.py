"""The keys of `cloudevents`: how records are CloudEvents."""

from typing import Literal

from pydantic import Field

from cdcd.config.types import Section
from cdcd.core.records.cloud_events import CloudEvents


class CloudEventsConfig(Section):
    """How records are CloudEvents 1.0, if `format.value` is cloudevents."""

    mode: Literal["structured", "binary"] = Field(
        "structured",
        description="Where the attributes of an event are. structured: in the value, a JSON object with the data in it "
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
