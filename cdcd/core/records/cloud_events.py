"""CloudEvents as the values of records: which form a pipeline asks for. `cloudevents/` writes them."""

from dataclasses import dataclass
from typing import Final

CLOUDEVENTS: Final = "cloudevents"
"""The format of values that are CloudEvents."""

STRUCTURED: Final = "structured"
BINARY: Final = "binary"
"""Where the attributes of an event stand: in the value around the data, or in headers beside it."""


@dataclass(frozen=True, slots=True)
class CloudEvents:
    """How records are CloudEvents.

    Attributes:
        mode: STRUCTURED or BINARY.
        data: the format of an event's data: json, json_schema or avro.
        extensions: whether the fields of the source block are attributes of the event.
    """

    mode: str = STRUCTURED
    data: str = "json"
    extensions: bool = True
