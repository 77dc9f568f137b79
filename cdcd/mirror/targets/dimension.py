"""A changelog as slowly changing dimension of type 2: as the text of a query, so that it can be a view.

The rule: of the rows of a key in the order of its changes, each holds until the next, or until a truncate between the
two. What the source did not send (unchanged TOAST) is what the key's row had before, unless the row was deleted or
truncated since: a row that came from another key brings such values from there, and here they are null.
"""

from typing import Final

from cdcd.mirror.platform.sql import quoted, text
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.changelog import CHANGE, TIME, UNCHANGED
from cdcd.mirror.targets.reduction import EVENT, LSN

_QUERY: Final = """\
WITH truncated AS (
  SELECT sort_array(collect_list(struct({lsn} AS lsn, {event} AS event, {time} AS at))) AS _cdcd_truncates
    FROM {name} WHERE {change} = 't'
), ordered AS (
  SELECT {change}, {lsn}, {event}, {time},
      lead({lsn}) OVER of_key AS _cdcd_next_lsn,
      lead({event}) OVER of_key AS _cdcd_next_event,
      lead({time}) OVER of_key AS _cdcd_next_time,
      {fills}
    FROM {name} WHERE {change} <> 't'
    WINDOW of_key AS ({order}), so_far AS ({order} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), held AS (
  SELECT *, get(filter(_cdcd_truncates, t -> {begun} AND (_cdcd_next_lsn IS NULL OR {not_ended})), 0) AS _cdcd_truncate
    FROM ordered CROSS JOIN truncated WHERE {change} <> 'd'
), dated AS (
  SELECT *, coalesce(_cdcd_truncate.lsn, _cdcd_next_lsn) AS _cdcd_end,
      coalesce(_cdcd_truncate.at, _cdcd_next_time) AS _cdcd_end_time
    FROM held
)
SELECT {columns},
    {time} AS valid_from, _cdcd_end_time AS valid_to, {lsn} AS valid_from_lsn, _cdcd_end AS valid_to_lsn,
    _cdcd_end IS NULL AS is_current
  FROM dated WHERE _cdcd_end IS NULL OR _cdcd_end > {lsn}"""


def scd2(name: str, schema: TableSchema, *, unknown: str = "") -> str:
    """The query, in Spark's SQL.

    One row for each state that a row of the source had between two commits: the columns of the table, `valid_from` (the
    time of the commit that made it), `valid_to` (of the one that ended it; null: it is the current one),
    `valid_from_lsn` and `valid_to_lsn` likewise, and `is_current`. States that no commit ever showed, because the same
    transaction changed the row again, are left out.

    Args:
        name: of the changelog, in SQL.
        schema: the form that it has; with a key.
        unknown: name of a further column, an array of the columns whose value is not known; null for almost all rows.
            "": there is no such column.
    """
    fills, columns, lost = [], [], []
    for number, column in enumerate(schema.columns):
        fill = f"_cdcd_fill_{number}"
        value = f"CASE WHEN {CHANGE} <> 'd' THEN {quoted(column.name)} END"
        unsent = f"coalesce(array_contains({UNCHANGED}, '{text(column.name)}'), false)"
        whole = f"{value} AS value, {LSN} AS lsn, {EVENT} AS event, {CHANGE} = 'd' AS gone"
        known = f"CASE WHEN NOT {unsent} THEN struct({whole}) END"
        fills.append(f"last_value({known}) IGNORE NULLS OVER so_far AS {fill}")
        since = f"{_is_after('t', f'{fill}.lsn', f'{fill}.event')} AND NOT {_is_after('t', LSN, EVENT)}"
        ended = f"{fill} IS NULL OR {fill}.gone OR exists(_cdcd_truncates, t -> {since})"
        lost.append(f"CASE WHEN {ended} THEN '{text(column.name)}' END")
        columns.append(
            f"CASE WHEN NOT exists(_cdcd_truncates, t -> {since}) THEN {fill}.value END AS {quoted(column.name)}"
        )
    if unknown:
        names = f"filter(array({', '.join(lost)}), n -> n IS NOT NULL)"
        columns.append(f"CASE WHEN size({names}) > 0 THEN {names} END AS {unknown}")
    half = f"CASE WHEN {CHANGE} = 'd' THEN 0 ELSE 1 END"
    return _QUERY.format(
        name=name,
        lsn=LSN,
        event=EVENT,
        time=TIME,
        change=CHANGE,
        fills=",\n      ".join(fills),
        columns=",\n    ".join(columns),
        order=f"PARTITION BY {', '.join(map(quoted, schema.key))} ORDER BY {LSN}, {EVENT}, {half}",
        begun=_is_after("t", LSN, EVENT),
        not_ended=f"NOT {_is_after('t', '_cdcd_next_lsn', '_cdcd_next_event')}",
    )


def _is_after(place: str, lsn: str, event: str) -> str:
    return f"({place}.lsn > {lsn} OR ({place}.lsn = {lsn} AND {place}.event > {event}))"
