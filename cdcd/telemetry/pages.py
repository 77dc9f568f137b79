"""Routes that both a daemon and a mirror serve: /metrics and probes.

Answers are cached for a moment, so that frequent requests cost the stream little.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from cdcd.telemetry.http import Reply, Request, Route
from cdcd.telemetry.state import Health

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
import time
from collections.abc import Hashable
from typing import Generic, TypeVar

KINDS_MAX: Final = 16
"""Maximum number of kinds of answers in the cache. If there are more, the cache is cleared."""

Kind = TypeVar("Kind", bound=Hashable)
Answer = TypeVar("Answer")


class Kept(Generic[Kind, Answer]):
    """A cache; call it with a kind and a function that makes the answer. An old answer is made again.

    Args:
        share_max: maximum share of a core for making the answers of one kind. It determines how long an answer is
            kept: with a share of 0.01, an answer that took 50 ms is kept for 5 s.
        fresh_s: minimum seconds for which an answer is kept.
    """

    def __init__(self, share_max: float, fresh_s: float = 0.0) -> None:
        self._share_max = share_max
        self._fresh_s = fresh_s
        self._made: dict[Kind, tuple[float, Answer]] = {}

    def __call__(self, kind: Kind, make: Callable[[], Answer]) -> Answer:
        now = time.monotonic()
        found = self._made.get(kind)
        if found is not None and now < found[0]:
            return found[1]
        began = time.thread_time()
        answer = make()
        if len(self._made) >= KINDS_MAX:
            self._made.clear()
        keep_s = max(self._fresh_s, (time.thread_time() - began) / self._share_max)
        self._made[kind] = (now + keep_s, answer)
        return answer


SHARE_MAX: Final = 0.1
"""Maximum share of a core for scrapes. With 200 tables a scrape takes 35 ms, and is kept for 0.35 s."""


def metrics_and_probes(
    registry: "Callable[[], CollectorRegistry]",
    probes: Mapping[str, Callable[[], Health]],
    refuse: Callable[[Request], Reply | None] | None = None,
) -> dict[str, Route]:
    """Return the routes /metrics and the probes by their paths.

    Args:
        registry: returns the registry, called at the first scrape.
        refuse: refuses requests for the metrics; None: all may read them.
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
    """Return a JSON answer with an object."""
    return Reply(status, "application/json", json.dumps(value).encode() + b"\n", headers)
