"""Keys and values of records in any format of the daemon, as the JSON that `changes.py` reads.

A record with the header `cdcd.change` tells its operation and its place in the header. So its value need not be an
envelope: a flattened row becomes the row before or after the change, and the header becomes the rest of the envelope.
The rule: no record is lost here. A record that cannot be read becomes a JSON that is no change.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from cdcd.core.records.encoder import HEADER_NEW_KEY, HEADER_OLD_KEY
from cdcd.mirror.records.avro import AvroSchemas
from cdcd.mirror.records.changes import head, payload

FORMATS: Final = ("json", "json_schema", "json_registry", "avro")
"""The daemon's formats (`format.value`) that can be read."""

_PLAIN: Final = ("", "json", "json_schema")
"""Formats whose envelopes `changes` reads as they are. "": records without the header."""

_KEYS: Final = (HEADER_OLD_KEY, HEADER_NEW_KEY)
_ALL: Final = 2**31 - 1
_HEADS: Final = {b"\x00": 5, b"\x03": 18}
"""Number of bytes that name a schema in a registry, in Confluent's form and in Glue's, by the first of these bytes."""


@dataclass(frozen=True, slots=True)
class ValueForm:
    """How the keys and values of a table's records are written.

    Attributes:
        format: `format.value` of the daemon, if the records have the header `cdcd.change`; otherwise "".
        flattened: a value is a row, and no envelope.
        avro: schemas of keys and values in Avro. None: they are in JSON.
        names: of the table's columns.
    """

    format: str = ""
    flattened: bool = False
    avro: AvroSchemas | None = None
    names: tuple[str, ...] = ()


def as_json(records: DataFrame, form: ValueForm) -> DataFrame:
    """Return records whose values are envelopes in JSON. Their keys, and the keys in headers, are JSON too.

    Args:
        records: of this form, as `base.part.records_of` gives them.
    """
    if form.format in _PLAIN and not form.flattened:
        return records
    key, value = key_json(sf.col("key"), form), _json_of(sf.col("value"), form, of_key=False)
    if form.flattened:
        value = _envelope(value, key)
    elif form.avro is not None:
        value = sf.concat(sf.substring(value, 1, sf.length(value) - 1), sf.lit(","), _told())
    headers = sf.transform(
        "headers",
        lambda each: sf.struct(
            each["key"].alias("key"),
            sf.when(each["key"].isin(*_KEYS), key_json(key_bytes(each["value"]), form).cast("binary"))
            .otherwise(each["value"])
            .alias("value"),
        ),
    )
    return records.withColumns(
        {
            "key": key.cast("binary"),
            "value": sf.coalesce(value, sf.lit("{}")).cast("binary"),
            "headers": headers,
        }
    )


def _envelope(row: Column, key: Column) -> Column:
    """The envelope around a row, and the key of a deleted row without a value."""
    op = head()["op"]
    image = sf.when(op == "d", sf.lit('{"before":')).otherwise(sf.lit('{"after":'))
    shown = sf.coalesce(row, sf.when(op == "d", key), sf.lit("null"))
    return sf.concat(image, shown, sf.lit(","), _told())


def _told() -> Column:
    """What the header says, as the end of an object in JSON."""
    return sf.substring(sf.to_json(head()), 2, _ALL)


def key_json(data: Column, form: ValueForm) -> Column:
    """The JSON of a key, without the schema beside it, and without the bytes that name a schema."""
    return _json_of(data, form, of_key=True)


def _json_of(data: Column, form: ValueForm, *, of_key: bool) -> Column:
    in_avro = None if form.avro is None else form.avro.json_of(data, form.names, of_key=of_key)
    found = payload(data.cast("string"))
    for first, count in _HEADS.items():
        named = payload(sf.substring(data, count + 1, _ALL).cast("string")) if in_avro is None else in_avro
        found = sf.when(_begins(data, first), named).otherwise(found)
    return found


def _begins(data: Column, first: bytes) -> Column:
    return sf.substring(data, 1, 1) == sf.lit(first)


def key_text(data: Column) -> Column:
    """The text of a key in a header, which the log has: JSON as it is, and bytes that name a schema as hexadecimal
    digits.
    """
    named = [_begins(data, first) for first in _HEADS]
    return sf.when(named[0] | named[1], sf.hex(data)).otherwise(data.cast("string"))


def key_bytes(text: Column) -> Column:
    """The bytes of a key, of which `key_text` gave the text. An object in JSON has no hexadecimal form."""
    return sf.coalesce(sf.unhex(text.cast("string")), text.cast("binary"))
