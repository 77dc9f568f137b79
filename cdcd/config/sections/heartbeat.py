"""The keys of `heartbeat`: a record, watermarks, and a query on the source, at an interval."""

from typing import Final, Self

from pydantic import Field, model_validator

from cdcd.config.types import Section, Text

INTERVAL_S_MIN: Final = 0.1
INTERVAL_S_MAX: Final = 86_400


class HeartbeatConfig(Section):
    """Heartbeat records, watermarks, and the query that lets a quiet database move on (docs/records.md, Heartbeats)."""

    interval_s: float = Field(
        0,
        ge=0,
        le=INTERVAL_S_MAX,
        description="Debezium's heartbeat.interval.ms, in seconds: how often topics.heartbeat gets a record that says "
        "up to which LSN everything is delivered, also when nothing changes. 0: never. A heartbeat waits for the end "
        "of the transaction that is being delivered.",
    )
    action_query: Text | None = Field(
        None,
        description="Debezium's heartbeat.action.query: one SQL statement that the active instance runs on the source "
        "at each interval, as the role of postgres.dsn and on a connection of its own. search_path is empty there, so "
        "names need their schema. A query that fails is an event and a metric, and does not hold up the stream.",
    )
    action_timeout_s: float = Field(
        5,
        ge=0.1,
        le=600,
        description="How long PostgreSQL may take for action_query (statement_timeout). It waits half as long for a "
        "lock (lock_timeout).",
    )

    watermark_interval_s: float = Field(
        0,
        ge=0,
        le=INTERVAL_S_MAX,
        description="How often every partition of every table's topic gets a record without key and value, whose "
        "header cdcd.watermark says up to which LSN the partition is complete; only if the LSN has moved. Each round "
        "costs a record for every partition of all these topics. Compacted topics refuse such records. 0: never.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if 0 < self.interval_s < INTERVAL_S_MIN:
            raise ValueError(f"interval_s must be 0 or at least {INTERVAL_S_MIN:g}")
        if 0 < self.watermark_interval_s < INTERVAL_S_MIN:
            raise ValueError(f"watermark_interval_s must be 0 or at least {INTERVAL_S_MIN:g}")
        if self.action_query is not None and not self.interval_s:
            raise ValueError("action_query needs interval_s, which says how often the query runs")
        return self
