"""Settings for CloudEvents as the values of records; `cloudevents/` writes the events."""

from dataclasses import dataclass
from typing import Final

CLOUDEVENTS: Final = "cloudevents"
"""Name of the format of values that are CloudEvents."""

STRUCTURED: Final = "structured"
BINARY: Final = "binary"
"""Where an event has its attributes: in the value, around the data (structured), or in headers (binary)."""


@dataclass(frozen=True, slots=True)
class CloudEvents:
    """How records become CloudEvents.

    Attributes:
        mode: STRUCTURED or BINARY.
        data: format of an event's data: json, json_schema or avro.
        extensions: whether the fields of the source block become attributes of the event.
    """

    mode: str = STRUCTURED
    data: str = "json"
    extensions: bool = True
