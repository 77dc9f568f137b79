"""Public names of `cdcd.mirror.api`, for Spark jobs that read changes or write tables themselves."""

from cdcd.mirror.api import (
    apply_changes,
    consistent_points,
    create_scd2_view,
    follow_changes,
    has_new_form,
    read_changes,
    scd2,
    stream_changes,
)
from cdcd.mirror.base.given import reached
from cdcd.mirror.base.reading import LogTables
from cdcd.mirror.records.table_changes import Changes

__all__ = [
    "Changes",
    "LogTables",
    "apply_changes",
    "consistent_points",
    "create_scd2_view",
    "follow_changes",
    "has_new_form",
    "reached",
    "read_changes",
    "scd2",
    "stream_changes",
]
