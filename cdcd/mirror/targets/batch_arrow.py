"""A whole batch brought into the rows of a table in the driver: what a MERGE does (`merge`), for a table that is small
beside the batch.

Spark reads, parses and reduces the batch. A MERGE of the result is two or three joins, each with a plan of its own, and
to plan them costs more CPU than some ten thousand rows. So the driver takes the reduced rows and those of the table as
Arrow, joins their keys, and replaces the table's files by one.

The rule: the driver takes only batches and tables that are plain. A batch with a truncate or with a value that was not
sent, and a table that is large beside the batch, are left to a MERGE. A row without a change stays the row that was
read.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.merge import UNKNOWN
from cdcd.mirror.targets.partitions import EXACT
from cdcd.mirror.targets.reduction import EVENT, LSN, OP, Summary
from cdcd.mirror.targets.small_files import FEW, VALUES_BYTES_MAX, Limits

KEYS_MAX: Final = 200_000
"""Number of keys of a batch, and of rows of a table, up to which the driver takes them."""
TABLE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size of all files of a table up to which the driver takes it."""

_REWRITTEN_BYTES: Final = FEW.size
"""The files of each table up to this size are replaced, however few keys the batch has."""
_REWRITTEN_BYTES_A_KEY: Final = 128
"""A MERGE also replaces the files of a larger table that has no more bytes than this for each key of the MERGE. A row
in Parquet has about this size.
"""
_BYTES_A_KEY: Final = 512
"""The driver replaces files of up to this size for each key of the batch. They may have some five times the rows that
change, because a MERGE costs more CPU than to write the others again.
"""

_THERE, _NEW = "_cdcd_there", "_cdcd_new"
_OF_CHANGE: Final = "_cdcd_change"


def rewritten_bytes(keys: int) -> int:
    """The size of a table, in bytes, up to which a MERGE with this number of keys replaces its files. In a larger
    table, the MERGE marks rows by deletion vectors.
    """
    return max(_REWRITTEN_BYTES, keys * _REWRITTEN_BYTES_A_KEY)


def limits(found: Summary, schema: TableSchema) -> Limits | None:
    """How large a table may be that the driver brings a batch into. None: the batch is one for Spark."""
    plain = not found.partial and found.truncated is None and not found.moves
    if (
        not plain
        or found.keys > KEYS_MAX
        or found.values_bytes is None
        or found.values_bytes > VALUES_BYTES_MAX
    ):
        return None
    if not schema.key or not all(isinstance(schema.column(name).spark, EXACT) for name in schema.key):
        return None
    return Limits(min(TABLE_BYTES_MAX, max(_REWRITTEN_BYTES, found.keys * _BYTES_A_KEY)), KEYS_MAX)


def brought_in(rows: pa.Table, source: DataFrame, schema: TableSchema) -> pa.Table | None:
    """The rows of a mirror after a reduced batch. None: the table is not one of a plain mirror.

    Args:
        rows: all of the mirror, which neither has buckets nor marks deletes.
        source: the reduced batch (`reduction.reduced`), which is plain as `limits` says.
    """
    if not is_plain(rows, schema):
        return None
    names = [column.name for column in schema.columns]
    unknown = sf.lit(None).cast("array<string>").alias(UNKNOWN)
    new = source.select(OP, *map(quoted, names), LSN, EVENT, unknown).toArrow()
    typed = {field.name: new[field.name].cast(field.type) for field in rows.schema}
    return joined(rows, pa.table({**typed, OP: new[OP]}), schema.key)


def is_plain(rows: pa.Table, schema: TableSchema) -> bool:
    """Whether rows have the columns of a mirror and no others. Buckets and marked deletes have columns of their own."""
    return set(rows.column_names) == {LSN, EVENT, UNKNOWN, *[column.name for column in schema.columns]}


def joined(rows: pa.Table, new: pa.Table, key: Sequence[str]) -> pa.Table | None:
    """The rows of a table after changes, one for each key. None: the table has a key twice.

    Args:
        new: the changes, with the columns of `rows` in their types, and OP.
    """
    pairs = _numbered(rows, key, _THERE).join(
        _numbered(new, key, _NEW), list(key), join_type="inner", right_suffix=_OF_CHANGE
    )
    if pc.count_distinct(pairs[_NEW]).as_py() < pairs.num_rows:
        return None
    # A row changes only if the change is later than its own, as in `merge.merge`.
    lsn, event = pairs[LSN + _OF_CHANGE], pairs[EVENT + _OF_CHANGE]
    same = pc.and_(pc.equal(pairs[LSN], lsn), pc.less(pairs[EVENT], event))
    is_later = pc.or_(pc.less(pairs[LSN], lsn), same)
    gone = pairs.filter(is_later)[_THERE]
    late = pairs.filter(pc.invert(is_later))[_NEW]
    stay = rows.filter(_not_in(rows.num_rows, gone))
    put = new.filter(pc.and_(_not_in(new.num_rows, late), pc.not_equal(new[OP], "d")))
    columns = [put[field.name] for field in rows.schema]
    return pa.concat_tables([stay, pa.table(columns, schema=rows.schema)])


def _numbered(rows: pa.Table, key: Sequence[str], number: str) -> pa.Table:
    """The keys and places of rows, and their numbers."""
    return rows.select([*key, LSN, EVENT]).append_column(number, pa.array(range(rows.num_rows), pa.int64()))


def _not_in(count: int, numbers: pa.ChunkedArray) -> pa.Array:
    """For each number from 0 to `count` - 1: true if `numbers` lacks the number."""
    return pc.invert(pc.is_in(pa.array(range(count), pa.int64()), value_set=numbers.combine_chunks()))
