"""Values of the mirror's types as texts, so that two values are equal if and only if their texts are.

Spark's own hashes and comparisons do not tell all values apart: hashes leave NULL out, also inside of an array, and
take 0.0 for -0.0; `=` says nothing of two NULLs. A text does, and a person can read it.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, BinaryType, DataType, StructType

from cdcd.mirror.records.types import is_variant

ABSENT: Final = "\x00"
"""Stands for NULL where texts are hashed. No value of PostgreSQL has this character."""

SHORT: Final = 40
SHOWN: Final = 24
"""Characters of a value that is longer than SHORT, of which length and hash are shown too."""


def text(value: Column, type_: DataType) -> Column:
    """The text of a value; NULL for NULL. The session's time zone is UTC."""
    if is_variant(type_):
        return sf.to_json(value)
    if isinstance(type_, BinaryType):
        return sf.lower(sf.hex(value))
    if isinstance(type_, ArrayType):
        element = type_.elementType
        return sf.when(value.isNotNull(), sf.to_json(sf.transform(value, lambda each: text(each, element))))
    if isinstance(type_, StructType):
        fields = [text(value[field.name], field.dataType).alias(field.name) for field in type_.fields]
        return sf.when(value.isNotNull(), sf.to_json(sf.struct(*fields)))
    return value.cast("string")


def row_hash(texts: Column, columns: int) -> Column:
    """What a row adds to the sum of its range.

    Args:
        texts: an array with the text of each of so many columns.
    """
    each = [sf.coalesce(sf.get(texts, sf.lit(at)), sf.lit(ABSENT)) for at in range(columns)]
    return sf.xxhash64(*each).cast("decimal(20,0)")


def shown(value: Column) -> Column:
    """A text for a person, of bounded length."""
    size = sf.octet_length(value)
    digest = sf.substring(sf.sha2(value, 256), 1, 12)
    cut = sf.format_string("%s… (%d bytes, sha256 %s)", sf.substring(value, 1, SHOWN), size, digest)
    return sf.when(value.isNull(), sf.lit("NULL")).when(size > SHORT, cut).otherwise(value)
