"""What Spark says of the batches of the log's query."""

import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import Column, Row
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from cdcd.mirror.log.positions import Ends
from cdcd.mirror.watching.progress import LogAppended

OBSERVED: Final = "cdcd_log"
"""Name under which Spark gives the figures of a batch."""


def figures() -> list[Column]:
    """Return the figures that Spark counts for each batch."""
    return [
        sf.count("*").alias("records"),
        sf.count_if(sf.col("kind").isin("change", "truncate")).alias("changes"),
        sf.count_if(sf.col("kind") == "unreadable").alias("unreadable"),
        sf.max("lsn").alias("lsn"),
        sf.max(sf.unix_micros("ts")).alias("at"),
    ]


def after(query: StreamingQuery, told: int) -> list[Mapping[str, Any]]:
    """The batches after the one with the number `told` that read records."""
    last = query.lastProgress
    if last is not None and last["batchId"] <= told:
        return []
    # Each progress has the offsets of all topics, so the former ones are read only if a batch is missing.
    found = query.recentProgress if last is None or last["batchId"] > told + 1 else [last]
    return [each for each in found if each["batchId"] > told and _rows_read(each) > 0]


def _rows_read(progress: Mapping[str, Any]) -> int:
    """The number of rows that a batch read. Over Spark Connect, the progress has it for each source only."""
    return sum(source["numInputRows"] for source in progress["sources"])


def done(name: str, progress: Mapping[str, Any], now: float) -> LogAppended:
    """Return the fact that a batch of the log `name` is done, with its figures if Spark has them.

    Args:
        now: seconds since 1970.
    """
    observed = (progress["observedMetrics"] or {}).get(OBSERVED)
    said = {} if observed is None else named(observed)
    at = said.get("at")
    return LogAppended(
        name,
        progress["batchId"],
        said.get("records") or _rows_read(progress),
        said.get("changes") or 0,
        said.get("unreadable") or 0,
        said.get("lsn") or 0,
        None if at is None else round(max(0.0, now - at / 1e6), 3),
        progress["durationMs"].get("triggerExecution", 0) / 1000,
    )


def named(figures: Row | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the observed figures of a batch by name. A figure that is null may be missing.

    Args:
        figures: a row; where the progress is plain JSON (Spark 3.5), a dict; over Spark Connect, values and a schema.
    """
    said = figures.asDict() if isinstance(figures, Row) else figures
    if "values" not in said:
        return said
    names = [field["name"] for field in said["schema"]["fields"]]
    return dict(zip(names, said["values"], strict=True))


def ends(query: StreamingQuery) -> Ends | None:
    """The offsets at which the next batch begins, as the query says them. None: it has made no batch."""
    last = query.lastProgress
    if last is None or not last["sources"]:
        return None
    # Spark 4 gives the offsets as a text of Python, but for the JSON of the progress. Spark 3.5 gives a plain dict.
    said = json.loads(last.json) if hasattr(last, "json") else last
    offsets = said["sources"][0]["endOffset"]
    if isinstance(offsets, str):
        # Over Spark Connect.
        offsets = json.loads(offsets)
    if not offsets:
        return None
    return {topic: {int(part): end for part, end in ends.items()} for topic, ends in offsets.items()}
