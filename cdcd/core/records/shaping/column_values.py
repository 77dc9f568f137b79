"""Values of columns in expressions: converts what the stream or COPY has of a column into a value of a CEL type.

The rule: a value is converted from PostgreSQL's text for it, so it does not depend on `format`. These types can be
converted:

| PostgreSQL | in an expression |
|---|---|
| boolean | bool |
| smallint, integer, bigint, oid | int |
| real, double precision | double |
| numeric | numeric: for comparisons, exact |
| date, timestamp, timestamptz | timestamp; those without a time zone are taken as UTC |
| text, varchar, char(n), citext, enums, uuid, json, jsonb, xml, inet and others that records have as text | string |

Other types cannot, and an expression that uses such a column is refused.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from cdcd.core.catalog.binary_text import Reader
from cdcd.core.catalog.logical import logical_type
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.temporal import DAY_US, epoch_days, epoch_us
from cdcd.core.catalog.types import GEOMETRIC
from cdcd.core.errors import SourceError
from cdcd.core.protocol.messages import UNCHANGED, Column, Value
from cdcd.core.records.shaping.evaluation import BOOL, DECIMAL, DOUBLE, INT, STRING, TIMESTAMP, Missing

KINDS: Final[Mapping[str, str]] = {
    "boolean": BOOL,
    "int16": INT,
    "int32": INT,
    "int64": INT,
    "oid": INT,
    "float32": DOUBLE,
    "float64": DOUBLE,
    "decimal": DECIMAL,
    "date": TIMESTAMP,
    "timestamp": TIMESTAMP,
    "timestamptz": TIMESTAMP,
    "text": STRING,
    "enum": STRING,
    "uuid": STRING,
    "json": STRING,
    "jsonb": STRING,
    "xml": STRING,
    "ltree": STRING,
    **dict.fromkeys(GEOMETRIC, STRING),
}
"""The CEL type of each logical type (`catalog/types.py`)."""

_INFINITE: Final[Mapping[str, int]] = {"infinity": 2**63, "-infinity": -(2**63)}
"""Values that are beyond every timestamp in PostgreSQL."""

UNSENT: Final = "the server did not send the value (unchanged TOAST)"
UNREADABLE: Final = "the value is not of its type's form"
NOT_A_NUMBER: Final = "the value is NaN"


class ColumnValues:
    """Converts the values of one column.

    Attributes:
        index: index of the column in the relation.
        kind: its CEL type; "" if its values cannot be converted.
        is_identity: whether it belongs to the replica identity.
    """

    def __init__(self, column: Column, index: int, types: Mapping[int, TypeDescription]) -> None:
        self.index = index
        self.is_identity = column.is_key
        self.name = column.name
        self.kind = ""
        self._logical = ""
        self._read: Reader | None = None
        try:
            logical = logical_type(column.type_oid, column.type_modifier, types)
        except SourceError:
            return
        if logical.element is None:
            self._logical = logical.name
            self._read = logical.read
            self.kind = KINDS.get(logical.name, "")

    def of(self, value: Value) -> object:
        """Return the value for an expression; None for NULL, `Missing` if the value is not known."""
        if value is None:
            return None
        if value is UNCHANGED:
            return Missing(UNSENT)
        try:
            if isinstance(value, bytes):
                return self._of_text(value)
            if self._read is None:
                return Missing(UNREADABLE)
            return self._of_text(self._read(value.data).encode("latin-1"))
        except (ValueError, ArithmeticError):
            return Missing(UNREADABLE)

    def _of_text(self, data: bytes) -> object:
        kind = self.kind
        if kind == STRING:
            return data.decode("utf-8")
        text = data.decode("ascii")
        if kind == INT:
            return int(text)
        if kind == BOOL:
            return text == "t"
        if kind == DOUBLE:
            return float(text)
        if kind == DECIMAL:
            number = Decimal(text)
            return Missing(NOT_A_NUMBER) if number.is_nan() else number
        return self._timestamp(text)

    def _timestamp(self, text: str) -> int:
        infinite = _INFINITE.get(text)
        if infinite is not None:
            return infinite
        if self._logical == "date":
            return epoch_days(text) * DAY_US
        if self._logical == "timestamptz":
            # The sessions of cdcd use the time zone UTC.
            text = text.replace("+00", "", 1)
        return epoch_us(text)
