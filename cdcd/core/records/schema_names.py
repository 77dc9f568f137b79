"""Names of schemas that Avro takes, as Debezium's `schema.name.adjustment.mode` makes them.

A name of Avro has letters, digits, `_` and points, and does not begin with a digit or a point (SchemaNameAdjuster).
"""

import re
from collections.abc import Mapping
from typing import Final

NONE: Final = "none"
AVRO: Final = "avro"
AVRO_UNICODE: Final = "avro_unicode"

_REFUSED: Final[Mapping[str, re.Pattern[str]]] = {
    AVRO: re.compile(r"^[^A-Za-z_]|[^A-Za-z0-9_.]"),
    # Here `_` begins what stands for another character, so it is replaced too.
    AVRO_UNICODE: re.compile(r"^[^A-Za-z]|[^A-Za-z0-9.]"),
}


def adjusted(name: str, mode: str) -> str:
    """The name of a schema under a mode: `_` or `_u0020` for each character that Avro does not take."""
    if mode == NONE:
        return name
    return _REFUSED[mode].sub(_unicode if mode == AVRO_UNICODE else "_", name)


def _unicode(match: re.Match[str]) -> str:
    # Of a character beyond the first plane, Java has two.
    pairs = match[0].encode("utf-16-be").hex()
    return "".join([f"_u{pairs[at : at + 4]}" for at in range(0, len(pairs), 4)])
