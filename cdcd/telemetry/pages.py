"""Routes that a daemon and a mirror have: /metrics, and probes."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from cdcd.telemetry.http import Reply, Request, Route
from cdcd.telemetry.kept import Kept
from cdcd.telemetry.state import Health

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

SHARE_MAX: Final = 0.1
"""The largest share of a core that scrapes take. With 200 tables a scrape takes 35 ms, and is kept for 0.35 s."""


def metrics_and_probes(
    registry: "Callable[[], CollectorRegistry]",
    probes: Mapping[str, Callable[[], Health]],
    refuse: Callable[[Request], Reply | None] | None = None,
) -> dict[str, Route]:
    """/metrics, and probes by their paths.

    Args:
        registry: made at the first scrape.
        refuse: judges who may read the metrics; None: all.
    """
    metrics_of = cache(registry)
    scrapes: Kept[str, Reply] = Kept(SHARE_MAX)

    def metrics(asked: Request) -> Reply:
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415  the first scrape waits, not the start

        encode, content_type = choose_encoder(asked.headers.get("Accept", ""))
        return scrapes(content_type, lambda: Reply(200, content_type, encode(metrics_of())))

    def probe(look: Callable[[], Health]) -> Route:
        return Route(get=lambda _: _health(look()), is_probe=True)

    return {
        "/metrics": Route(get=metrics, refuse=refuse),
        **{path: probe(look) for path, look in probes.items()},
    }


def _health(health: Health) -> Reply:
    return json_reply(200 if health.well else 503, health.detail)


def json_reply(status: int, value: object, **headers: str) -> Reply:
    """An object for programs."""
    return Reply(status, "application/json", json.dumps(value).encode() + b"\n", headers)
