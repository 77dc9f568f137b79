"""Routes that a daemon and a mirror have: /metrics, and probes.

Answers are kept for a moment, so that whoever asks often costs the stream little.
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
"""Kinds of answers that are kept. If there are more, all of them are forgotten."""

Kind = TypeVar("Kind", bound=Hashable)
Answer = TypeVar("Answer")


class Kept(Generic[Kind, Answer]):
    """Call it with a kind and with what makes the answer. An answer is made anew when it is old.

    Args:
        share_max: the largest share of a core that making answers of one kind may take. An answer is kept for as long
            as that needs: one that takes 50 ms is kept for 5 s at a share of 0.01.
        fresh_s: seconds for which it is kept anyway.
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
