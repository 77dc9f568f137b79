"""Adjusts names of schemas to what Avro allows, as Debezium's `schema.name.adjustment.mode` does.

A name in Avro consists of letters, digits, `_` and points, and does not begin with a digit or a point
(SchemaNameAdjuster).
"""

import re
from collections.abc import Mapping
from typing import Final

NONE: Final = "none"
AVRO: Final = "avro"
AVRO_UNICODE: Final = "avro_unicode"

_REFUSED: Final[Mapping[str, re.Pattern[str]]] = {
    AVRO: re.compile(r"^[^A-Za-z_]|[^A-Za-z0-9_.]"),
    # In this mode, `_` begins the code of another character, so `_` itself is replaced too.
    AVRO_UNICODE: re.compile(r"^[^A-Za-z]|[^A-Za-z0-9.]"),
}


def adjusted(name: str, mode: str) -> str:
    """Return the name of a schema under a mode, with `_` or a code such as `_u0020` for each character that Avro does
    not allow.
    """
    if mode == NONE:
        return name
    return _REFUSED[mode].sub(_unicode if mode == AVRO_UNICODE else "_", name)


def _unicode(match: re.Match[str]) -> str:
    # Java has two code units for a character beyond the first plane.
    pairs = match[0].encode("utf-16-be").hex()
    return "".join([f"_u{pairs[at : at + 4]}" for at in range(0, len(pairs), 4)])
