"""HTTP contents of a daemon: page, status, metrics, probes, and actions if a token allows them."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from cdcd.config.models import Config
from cdcd.config.reference import changed_yaml
from cdcd.core.facts import Observer
from cdcd.telemetry.access import reading
from cdcd.telemetry.actions import Ask, action_routes
from cdcd.telemetry.daemon_status import ALL_TABLES_MAX, TABLES_MAX, daemon_status
from cdcd.telemetry.html_page import html_page, runbook_page
from cdcd.telemetry.html_style import HEADERS
from cdcd.telemetry.http import Reply, Request, Route, Routes, serve
from cdcd.telemetry.look_ups import HTML, LookUps, Tools
from cdcd.telemetry.pages import Kept, json_reply, metrics_and_probes
from cdcd.telemetry.state import Health, Telemetry, liveness, readiness
from cdcd.telemetry.tls import Tls

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

FRESH_S: Final = 0.5
"""Minimum seconds for which an answer is kept, so that many readers cost no more than a few."""

SHARE_MAX: Final = 0.01
"""Maximum share of a core for making the status, and for making its page."""

ALL: Final = "tables=all"
"""Query string that requests all tables."""


def serve_http(
    config: Config,
    telemetry: Telemetry,
    current: Callable[[], Config] | None = None,
    ask: Ask | None = None,
    observe: Observer | None = None,
    *,
    runbook: Callable[[], str] | None = None,
    tools: Tools | None = None,
) -> AbstractContextManager[str]:
    """Serve HTTP while the block runs; yields `host:port`, or "" if `http.enabled` is false.

    Args:
        current: returns the configuration in effect, which SIGHUP may change; None if it is always `config`.
        ask: carries out an action; None if no actions are allowed.
        observe: is called with a fact that says who requested an action.
        runbook: reads the runbook; None if the runbook is not served.
        tools: runs checks and looks up records; None if the server shows neither.
    """
    routes = daemon_routes(current or (lambda: config), telemetry, ask, observe, runbook=runbook, tools=tools)
    return serve(config.http, routes, Tls.of(config.http) if config.http.enabled else None)


def daemon_routes(
    current: Callable[[], Config],
    telemetry: Telemetry,
    ask: Ask | None = None,
    observe: Observer | None = None,
    *,
    runbook: Callable[[], str] | None = None,
    tools: Tools | None = None,
) -> Routes:
    """Return all routes of a daemon."""

    def live() -> Health:
        return liveness(telemetry, time.monotonic(), current().http.stall_s_max)

    def ready() -> Health:
        limits = current().ready
        return readiness(
            telemetry,
            time.time(),
            limits.lag_bytes_max,
            limits.lag_s_max,
            during_snapshot=limits.during_snapshot,
        )

    def registry() -> "CollectorRegistry":
        from cdcd.telemetry.metrics import registry_for  # noqa: PLC0415  the first scrape waits for it, not the start

        return registry_for(telemetry)

    configuration = _Configuration()
    look_ups = None if tools is None else LookUps(current, telemetry, tools)
    statuses: Kept[int, dict[str, Any]] = Kept(SHARE_MAX, FRESH_S)
    pages: Kept[int, Reply] = Kept(SHARE_MAX, FRESH_S)
    objects: Kept[int, Reply] = Kept(SHARE_MAX, FRESH_S)

    def status(tables_max: int) -> dict[str, Any]:
        return statuses(
            tables_max,
            lambda: daemon_status(telemetry, ready(), time.monotonic(), time.time(), tables_max),
        )

    def page(asked: Request) -> Reply:
        most = _tables(asked)
        return pages(
            most,
            lambda: Reply(
                200,
                HTML,
                html_page(
                    status(most),
                    configuration.text(current()),
                    None if look_ups is None else look_ups.checked(),
                ).encode(),
                HEADERS,
            ),
        )

    def runbook_reply(_asked: Request) -> Reply:
        assert runbook is not None
        return Reply(200, HTML, runbook_page(runbook()).encode(), HEADERS)

    def status_json(asked: Request) -> Reply:
        most = _tables(asked)
        return objects(most, lambda: json_reply(200, status(most)))

    refuse = reading(current)
    return {
        "/": Route(get=page, refuse=refuse),
        "/v1/status": Route(get=status_json, refuse=refuse),
        **({} if runbook is None else {"/runbook": Route(get=runbook_reply, refuse=refuse)}),
        **({} if look_ups is None else look_ups.routes()),
        **metrics_and_probes(registry, {"/healthz": live, "/readyz": ready}, refuse),
        **action_routes(current, ask, observe),
    }


class _Configuration:
    """Cache of the YAML of the configuration in effect. A reload of the configuration renews the text."""

    def __init__(self) -> None:
        self._of: Config | None = None
        self._text = ""

    def text(self, config: Config) -> str:
        if config is not self._of:
            self._of, self._text = config, changed_yaml(config)
        return self._text


def _tables(asked: Request) -> int:
    return ALL_TABLES_MAX if asked.query == ALL else TABLES_MAX
