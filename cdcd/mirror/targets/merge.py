"""The MERGE that brings a reduced batch into a target, as SQL; the same for both formats."""

from collections.abc import Collection
from typing import Final

from cdcd.mirror.platform.sql import quoted, text
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.buckets import BUCKET, bucket_of, named
from cdcd.mirror.targets.layout import DELETED, PLAIN, Layout
from cdcd.mirror.targets.name_lists import NO_NAMES
from cdcd.mirror.targets.reduction import EVENT, KEEP, LOST, LSN, MARKED, OP
from cdcd.mirror.targets.state import At

UNKNOWN: Final = "_cdcd_unknown"
"""Array of the columns whose value in the row is not known, because the source did not send it and the target never had
it; null for almost all rows."""


def merge(
    target: str,
    source: str,
    schema: TableSchema,
    *,
    keeps: Collection[str] = (),
    truncated: At | None = None,
    removed: At | None = None,
    key_range: tuple[int, int] | None = None,
    hashes: Collection[int] = (),
    within: Collection[str] = (),
    layout: Layout = PLAIN,
    again: bool = False,
) -> str:
    """MERGE INTO `target` of the view `source` (`reduction.reduced`).

    A row changes only if the batch's is later than its own. So a batch that comes again finds nothing to do, even
    without what `state` leaves out.

    Args:
        keeps: columns that some row of the batch leaves as they are.
        truncated: rows that were last changed before it go, or are marked as deleted.
        removed: rows that the batch lacks, and that were last changed before it, go in any case.
        again: what the row has may be known better now, so that its own change is taken once more.
        key_range: bounds on the first column of the key, by which files are left out; not where all rows are looked at.
        hashes: of all keys of the batch (`buckets.hash_of`), by which rows are left out; empty: they are not known.
        within: conditions of SQL that all rows `t` of the batch's keys meet; not where all rows are looked at.
        layout: of the target. If it marks deletes, `source` was reduced with `marks`.
    """
    before = "<=" if again else "<"
    later = f"(t.{LSN} < s.{LSN} OR (t.{LSN} = s.{LSN} AND t.{EVENT} {before} s.{EVENT}))"
    on = [f"t.{quoted(name)} = s.{quoted(name)}" for name in schema.key]
    all_rows = truncated is not None or removed is not None
    if key_range is not None and not all_rows:
        low, high = key_range
        on.append(f"t.{quoted(schema.key[0])} BETWEEN {low} AND {high}")
    if hashes and not all_rows:
        on += named(schema, "t", hashes, layout.buckets)
    on += [] if all_rows else within
    # A row that is marked as deleted was another one: what the source leaves as it is, is not in it. If its own change
    # is taken once more, it is.
    ended = ""
    if layout.marks:
        same = f" AND NOT (t.{LSN} = s.{LSN} AND t.{EVENT} = s.{EVENT})" if again else ""
        ended = f"t.{DELETED}{same}"
    own = own_values(layout, truncated, "s.")
    sets = _values(schema, keeps, ended) | own
    # What was unknown stays so where the batch does not know it either.
    still = f"array_intersect(coalesce(t.{UNKNOWN}, {NO_NAMES}), s.{KEEP})"
    if ended:
        still = f"CASE WHEN {ended} THEN s.{KEEP} ELSE {still} END"
    sets[UNKNOWN] = f"nullif(array_union({still}, s.{LOST}), {NO_NAMES})" if keeps else "NULL"
    inserted = {quoted(column.name): f"s.{quoted(column.name)}" for column in schema.columns} | own
    inserted[UNKNOWN] = f"nullif(array_union(s.{KEEP}, s.{LOST}), {NO_NAMES})" if keeps else "NULL"
    for name, field in layout.own:
        # By what the row becomes. The condition of the MERGE does not ask for it: the row may lie anywhere.
        inserted[name] = field.value(schema, f"s.{quoted(field.column)}")
        sets[name] = field.value(schema, f"({sets[quoted(field.column)]})")
    if layout.buckets > 1:
        inserted[BUCKET] = bucket_of(schema, layout.buckets, lambda name: f"s.{quoted(name)}")
    gone = "DELETE" if not layout.marks else _set({LSN: f"s.{LSN}", EVENT: f"s.{EVENT}", DELETED: "true"})
    insert = f"INSERT ({', '.join(inserted)}) VALUES ({', '.join(inserted.values())})"
    lines = [
        f"MERGE INTO {target} t USING {source} s ON {' AND '.join(on)}",
        f"WHEN MATCHED AND s.{OP} = 'd' AND {later} THEN {gone}",
        f"WHEN MATCHED AND s.{OP} <> 'd' AND {later} THEN {_set(sets)}",
        f"WHEN NOT MATCHED AND s.{OP} <> 'd' THEN {insert}",
    ]
    if removed is not None:
        lines.append(f"WHEN NOT MATCHED BY SOURCE AND {_before('t.', removed)} THEN DELETE")
    if truncated is not None and layout.marks:
        lsn, event = truncated
        cut = f"NOT t.{DELETED} AND {_before('t.', truncated)}"
        ends = _set({LSN: str(lsn), EVENT: str(event), DELETED: "true"})
        # The batch may have an older change of a row.
        lines.insert(3, f"WHEN MATCHED AND {cut} THEN {ends}")
        lines.append(f"WHEN NOT MATCHED BY SOURCE AND {cut} THEN {ends}")
    elif truncated is not None:
        lines.append(f"WHEN NOT MATCHED BY SOURCE AND {_before('t.', truncated)} THEN DELETE")
    return "\n".join(lines)


def own_values(layout: Layout, truncated: At | None, alias: str = "") -> dict[str, str]:
    """The place of a row of a reduced batch, and whether it is deleted: expressions of SQL by column.

    Args:
        alias: what stands before the batch's columns.
    """
    place = {LSN: f"{alias}{LSN}", EVENT: f"{alias}{EVENT}"}
    if not layout.marks:
        return place
    deleted = f"{alias}{OP} = '{MARKED}'"
    if truncated is None:
        return {**place, DELETED: deleted}
    # The truncate is the last change of a row that was there.
    cut = f"{alias}{OP} <> '{MARKED}' AND {_before(alias, truncated)}"
    ends = {
        name: f"CASE WHEN {cut} THEN {at}L ELSE {alias}{name} END"
        for name, at in zip((LSN, EVENT), truncated, strict=True)
    }
    return {**ends, DELETED: f"{deleted} OR {_before(alias, truncated)}"}


def _values(schema: TableSchema, keeps: Collection[str], ended: str) -> dict[str, str]:
    """What the columns of the source become in a row that is there.

    Args:
        ended: the condition of SQL that the row's values are not those that a change leaves as they are; empty: never.
    """
    sets = {}
    for name in [column.name for column in schema.columns]:
        column = quoted(name)
        kept = f"array_contains(s.{KEEP}, '{text(name)}')"
        if ended:
            kept += f" AND NOT ({ended})"
        sets[column] = (
            f"CASE WHEN {kept} THEN t.{column} ELSE s.{column} END" if name in keeps else f"s.{column}"
        )
    return sets


def _set(values: dict[str, str]) -> str:
    return f"UPDATE SET {', '.join(f'{column} = {value}' for column, value in values.items())}"


def _before(alias: str, at: At) -> str:
    lsn, event = at
    return f"({alias}{LSN} < {lsn} OR ({alias}{LSN} = {lsn} AND {alias}{EVENT} < {event}))"
