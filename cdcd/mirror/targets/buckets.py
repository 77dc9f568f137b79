"""Buckets: the part of a mirror in which the row of a key lies, by a hash of the key.

A MERGE names the buckets of its batch, so that it reads no other part of the table. It names the hashes too, so that
rows of other keys are left out before the shuffle, also in a table without buckets.

The rule: the hash of a key changes only with the key's value. It stays the same when columns of the key are renamed,
when they are listed in another order, or when their type grows (`evolution.widens`). So the bucket that a row was
written with is the bucket in which it is looked for.
"""

from collections.abc import Callable, Collection
from typing import Final

from pyspark.sql.types import ByteType, DataType, DecimalType, FloatType, IntegerType, ShortType

from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.records.schema import TableSchema

BUCKET: Final = "_cdcd_bucket"
"""Column of a mirror with buckets, and the one by which it is partitioned: the number of the row's bucket."""

HASHES: Final = 1 << 16
"""Number of hashes. It is a multiple of every number of buckets, so that the hash of a key tells its bucket."""

BUCKETS_MAX: Final = 4096

NAMED_MAX: Final = 4096
"""Maximum number of hashes that a MERGE names. A batch with more of them looks at most rows of the table anyway."""

_INTEGERS: Final = (ByteType, ShortType, IntegerType)
_PRECISION_MAX: Final = 38


def hash_of(schema: TableSchema, value: Callable[[str], str]) -> str:
    """The expression of SQL for the hash of a row's key, from 0 to `HASHES` - 1.

    Args:
        value: gives the expression for the value of a column of the key.
    """
    parts = [
        f"pmod(xxhash64({canonical(value(name), schema.column(name).spark)}), {HASHES})"
        for name in schema.key
    ]
    return f"CAST(pmod({' + '.join(parts)}, {HASHES}) AS INT)"


def bucket_of(schema: TableSchema, buckets: int, value: Callable[[str], str] = quoted) -> str:
    """The expression of SQL for the number of the bucket of a row."""
    return f"pmod({hash_of(schema, value)}, {buckets})"


def named(schema: TableSchema, alias: str, hashes: Collection[int], buckets: int) -> list[str]:
    """Conditions of SQL that all rows with one of these hashes meet.

    Args:
        alias: what the statement calls the table.
        hashes: those of a batch's keys.
        buckets: how many the table has; 1: it has none.
    """
    conditions = []
    touched = sorted({number % buckets for number in hashes})
    if len(touched) < buckets:
        conditions.append(f"{alias}.{BUCKET} IN ({', '.join(map(str, touched))})")
    if len(hashes) <= NAMED_MAX:
        of_row = hash_of(schema, lambda name: f"{alias}.{quoted(name)}")
        conditions.append(f"{of_row} IN ({', '.join(map(str, sorted(hashes)))})")
    return conditions


def buckets_for(size: int, file_bytes: int) -> int:
    """The number of buckets for a table of `size` bytes: about one for each file, and a power of two."""
    files = max(1, size // max(1, file_bytes))
    return min(BUCKETS_MAX, 1 << (files - 1).bit_length())


def canonical(value: str, kind: DataType) -> str:
    """The same value in the widest type that the column can get."""
    if isinstance(kind, _INTEGERS):
        return f"CAST({value} AS BIGINT)"
    if isinstance(kind, FloatType):
        return f"CAST({value} AS DOUBLE)"
    if isinstance(kind, DecimalType):
        return f"CAST({value} AS DECIMAL({_PRECISION_MAX}, {kind.scale}))"
    return value
