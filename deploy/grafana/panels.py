"""The dashboard as a table of panels: `python -m deploy.grafana.panels` writes dashboard.json from it.

A pipeline is a job of Prometheus', its instances are the active one and the standbys. Positions and lag are shown
where the role is active: a standby knows none.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

DASHBOARD: Final = Path(__file__).with_name("dashboard.json")
IN_CHART: Final = DASHBOARD.parents[2] / "helm" / "cdcd" / "files" / "dashboard.json"
"""A chart can read its own files only."""

_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH: Final = 24
_ACTIVE: Final = 'and on (namespace, job, instance) cdcd_role{role="active"} == 1'
_JOB: Final = 'namespace=~"$namespace", job=~"$job"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Args:
        title: what is seen, in words.
        unit: as Grafana calls it.
        queries: legend to PromQL.
        says: what it means and when it matters.
        kind: over time, or the last value.
        width: of 24 columns.
    """

    title: str
    unit: str
    queries: dict[str, str]
    says: str
    kind: Literal["timeseries", "stat"] = "timeseries"
    width: int = 8

    @property
    def height(self) -> int:
        return 4 if self.kind == "stat" else 8


PANELS: Final = (
    Panel(
        "Active",
        "none",
        {"active": f'sum(cdcd_role{{{_JOB}, role="active"}})'},
        "Instances that write: 1, or 0 for a moment while a standby takes over.",
        "stat",
        4,
    ),
    Panel(
        "Standby",
        "none",
        {"standby": f'sum(cdcd_role{{{_JOB}, role="standby"}})'},
        "Instances that wait to take over.",
        "stat",
        4,
    ),
    Panel(
        "Lag",
        "s",
        {"lag": f"max(cdcd_lag_seconds{{{_JOB}}} {_ACTIVE})"},
        "Age of the last delivered commit while there is more to deliver.",
        "stat",
        4,
    ),
    Panel(
        "To deliver",
        "bytes",
        {"lag": f"max(cdcd_lag_bytes{{{_JOB}}} {_ACTIVE})"},
        "WAL that the server has and Kafka does not.",
        "stat",
        4,
    ),
    Panel(
        "WAL held by the slot",
        "bytes",
        {"retained": f"max(cdcd_retained_wal_bytes{{{_JOB}}} {_ACTIVE})"},
        "What PostgreSQL cannot recycle yet.",
        "stat",
        4,
    ),
    Panel(
        "Tables set aside",
        "none",
        {"tables": f"sum(cdcd_tables_set_aside{{{_JOB}}} {_ACTIVE}) or vector(0)"},
        "Tables that a fault of their own has stopped: `cdcd tables` names them.",
        "stat",
        4,
    ),
    Panel(
        "Version",
        "none",
        {"{{version}}": f"count by (version) (cdcd_build_info{{{_JOB}}})"},
        "Instances by version: one version, but during a rollout.",
        "stat",
        4,
    ),
    Panel(
        "Events",
        "cps",
        {"{{op}}": f"sum by (op) (rate(cdcd_events_total{{{_JOB}}}[$__rate_interval]))"},
        "Records by operation: c create, u update, d delete, t truncate, m message.",
        width=12,
    ),
    Panel(
        "Busiest tables",
        "cps",
        {"{{table}}": f"topk(10, sum by (table) (rate(cdcd_events_total{{{_JOB}}}[$__rate_interval])))"},
        "Records by table.",
        width=12,
    ),
    Panel(
        "Lag",
        "s",
        {"{{instance}}": f"cdcd_lag_seconds{{{_JOB}}} {_ACTIVE}"},
        "Alert CdcdLagging above 300 s.",
    ),
    Panel(
        "WAL to deliver, and held",
        "bytes",
        {
            "to deliver": f"max(cdcd_lag_bytes{{{_JOB}}} {_ACTIVE})",
            "held by the slot": f"max(cdcd_retained_wal_bytes{{{_JOB}}} {_ACTIVE})",
        },
        "The slot holds at least what is to be delivered; much more of it is an open or prepared transaction.",
    ),
    Panel(
        "WAL by stage",
        "Bps",
        {
            stage: f"max(rate(cdcd_{stage}_lsn{{{_JOB}}}[$__rate_interval]))"
            for stage in ("received", "sent", "acked", "flushed")
        },
        "Bytes of WAL a second that came in, went to Kafka, were acknowledged, and were confirmed to PostgreSQL.",
    ),
    Panel(
        "Kafka acknowledges a batch in",
        "s",
        {
            f"p{int(quantile * 100)}": f"histogram_quantile({quantile}, "
            f"sum by (le) (rate(cdcd_kafka_commit_seconds_bucket{{{_JOB}}}[$__rate_interval])))"
            for quantile in (0.5, 0.99)
        },
        "From handing a batch to Kafka to its acknowledgement.",
    ),
    Panel(
        "From commit to acknowledgement",
        "s",
        {
            f"p{int(quantile * 100)}": f"histogram_quantile({quantile}, "
            f"sum by (le) (rate(cdcd_commit_to_acknowledged_seconds_bucket{{{_JOB}}}[$__rate_interval])))"
            for quantile in (0.5, 0.99)
        },
        "From the commit of a source transaction to its acknowledgement by Kafka.",
    ),
    Panel(
        "Batches",
        "cps",
        {"batches": f"sum(rate(cdcd_kafka_transactions_total{{{_JOB}}}[$__rate_interval]))"},
        "Kafka transactions a second.",
    ),
    Panel(
        "Queue to the broker",
        "bytes",
        {
            "queue": f"max(cdcd_queue_bytes{{{_JOB}}})",
            "limit": f"max(cdcd_queue_limit_bytes{{{_JOB}}})",
        },
        "At the limit, PostgreSQL is not read on: Kafka is the slower side.",
    ),
    Panel(
        "Source transactions",
        "cps",
        {"{{kind}}": f"sum by (kind) (rate(cdcd_transactions_total{{{_JOB}}}[$__rate_interval]))"},
        "Delivered: plain, streamed, prepared, message. Dropped: rolled_back, aborted.",
    ),
    Panel(
        "Spool",
        "bytes",
        {
            "memory": f"max(cdcd_spool_memory_bytes{{{_JOB}}})",
            "disk": f"max(cdcd_spool_disk_bytes{{{_JOB}}})",
        },
        "Changes of transactions that are not decided yet.",
    ),
    Panel(
        "Undecided transactions",
        "none",
        {
            "streamed": f"max(cdcd_streamed_open{{{_JOB}}})",
            "prepared": f"max(cdcd_prepared_open{{{_JOB}}})",
        },
        "A prepared one that stays holds the slot.",
    ),
    Panel(
        "Oldest prepared transaction",
        "s",
        {"age": f"max(cdcd_prepared_oldest_age_seconds{{{_JOB}}})"},
        "Alert CdcdPreparedOld above 900 s.",
    ),
    Panel(
        "Tables that are read: how far",
        "percentunit",
        {"{{table}}": f"max by (table) (cdcd_snapshot_share{{{_JOB}}})"},
        "Snapshots: the share of each table that is with the broker.",
    ),
    Panel(
        "Tables that are read: rows",
        "cps",
        {"{{table}}": f"max by (table) (deriv(cdcd_snapshot_table_rows{{{_JOB}}}[$__rate_interval]))"},
        "Rows a second of each table that is being read.",
    ),
    Panel(
        "Tables that are read: time left",
        "s",
        {
            "{{table}}": f"max by (table) ((cdcd_snapshot_table_bytes{{{_JOB}}} "
            f"- cdcd_snapshot_table_read_bytes{{{_JOB}}}) "
            f"/ (deriv(cdcd_snapshot_table_read_bytes{{{_JOB}}}[$__rate_interval]) > 0))"
        },
        "By the pace of the moment.",
    ),
    Panel(
        "Kafka and PostgreSQL answer",
        "none",
        {
            "Kafka": f"min(cdcd_kafka_up{{{_JOB}}})",
            "PostgreSQL": f"min(cdcd_postgres_up{{{_JOB}}})",
        },
        "1, or 0 while one side does not answer an instance. Alerts CdcdKafkaUnreachable and CdcdPostgresUnreachable.",
    ),
    Panel(
        "Time that the WAL is kept for",
        "s",
        {"left": f"min(cdcd_wal_seconds_left{{{_JOB}}} {_ACTIVE})"},
        "Until the slot may be lost, at the rate of the last ten minutes, if nothing is delivered. Alert CdcdWalShort.",
    ),
    Panel(
        "Reconnects",
        "none",
        {"{{side}}": f"sum by (side) (increase(cdcd_reconnects_total{{{_JOB}}}[$__rate_interval]))"},
        "Connections that were lost and begun again.",
    ),
    Panel(
        "Process",
        "bytes",
        {"{{instance}}": f"process_resident_memory_bytes{{{_JOB}}}"},
        "Resident memory.",
    ),
    Panel(
        "CPU",
        "percentunit",
        {"{{instance}}": f"rate(process_cpu_seconds_total{{{_JOB}}}[$__rate_interval])"},
        "Of one core; the pipeline is one thread and librdkafka's.",
    ),
    Panel(
        "Mirror: behind",
        "s",
        {"{{table}}": f"topk(10, max by (job, table) (cdcd_mirror_table_lag_seconds{{{_JOB}}}))"},
        "Time since a table was last known to have all changes of the log; the ten tables that are furthest behind.",
    ),
    Panel(
        "Mirror: changes",
        "cps",
        {"{{table}}": f"topk(10, sum by (job, table) (rate(cdcd_mirror_table_changes_total{{{_JOB}}}[5m])))"},
        "Changes that go into the tables of the lake; the ten tables with most.",
    ),
    Panel(
        "Mirror: stopped, quarantine",
        "none",
        {
            "stopped": f"sum(cdcd_mirror_table_stopped{{{_JOB}}})",
            "unreadable records": f"sum(increase(cdcd_mirror_log_unreadable_total{{{_JOB}}}[1h]))",
        },
        "Tables that are left as they are, and records of the last hour that are no change of a table.",
    ),
    Panel(
        "Verification",
        "none",
        {
            "tables that differ": f"sum(cdcd_verify_differs{{{_JOB}}})",
            "tables that could not be compared whole": f"sum(cdcd_verify_partial{{{_JOB}}})",
            "differences in an hour": f"sum(increase(cdcd_verify_differences_total{{{_JOB}}}[1h]))",
        },
        "What cdcd verify --continuous finds: tables whose topic is not what the table is.",
    ),
)


def dashboard() -> str:
    """dashboard.json as it should be."""
    return json.dumps(
        {
            "title": "cdcd",
            "uid": "cdcd",
            "description": "Made from the table in deploy/grafana/panels.py.",
            "tags": ["cdcd"],
            "schemaVersion": 41,
            "editable": True,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": [_datasource_variable(), _namespace_variable(), _job_variable()]},
            "panels": _placed(),
        },
        indent=1,
    )


def _datasource_variable() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "hide": 0}


def _namespace_variable() -> dict[str, Any]:
    """Variable for the namespace. Its default, All, includes metrics without a namespace (outside of Kubernetes)."""
    return {
        "name": "namespace",
        "label": "namespace",
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": "label_values(cdcd_build_info, namespace)", "refId": "namespace"},
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
        "sort": 1,
    }


def _job_variable() -> dict[str, Any]:
    return {
        "name": "job",
        "label": "pipeline",
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": 'label_values(cdcd_build_info{namespace=~"$namespace"}, job)', "refId": "job"},
        "refresh": 2,
        "sort": 1,
    }


def _placed() -> list[dict[str, Any]]:
    """The panels from left to right in rows of equal height."""
    placed, x, y, height = [], 0, 0, 0
    for number, panel in enumerate(PANELS, 1):
        if x + panel.width > _WIDTH:
            x, y = 0, y + height
        height = panel.height
        placed.append(_panel(number, panel, {"x": x, "y": y, "w": panel.width, "h": height}))
        x += panel.width
    return placed


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "expr": query,
            "legendFormat": legend,
            "instant": panel.kind == "stat",
        }
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


if __name__ == "__main__":
    for _path in (DASHBOARD, IN_CHART):
        _path.write_text(dashboard() + "\n")
