"""Two daemons in pairs on the same content of the WAL: of another working tree and of this one, or with other settings.

Whoever comes first in a pair comes second in the next one, so that a machine that gets slower is no one's fault.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from deploy.local.kafka_broker import KafkaBroker
from deploy.local.postgres_server import PostgresServer
from tests.bench.drain import Drained, drain_with_cdcd

THREAD_US: Final = 0.01
"""Microseconds of CPU a row that a thread has to use to be shown."""

Pair = tuple[Drained, Drained]
"""The former daemon's run and the present one's."""


class Side(NamedTuple):
    """A daemon: its form (`forms.py`), and settings beside those of `daemon_config`."""

    form: str
    settings: Mapping[str, Any] = {}


def compare(
    server: PostgresServer,
    broker: KafkaBroker,
    folder: Path,
    sides: tuple[Side, Side],
    slots: list[str],
    end: int,
    rows: int,
    *,
    together: bool = False,
) -> list[Pair]:
    """Drain two slots in each pair: `sides` are the former and the present daemon, `end` as `drain_with_cdcd`.

    Daemons that drain `together` share every change of the machine's speed: the ratios of their CPU times scatter much
    less, but their times are those of a machine that has twice the work.
    """

    def drain(side: Side, slot: str) -> Drained:
        run = drain_with_cdcd(server, broker, slot, end, rows, folder, side.form, **side.settings)
        server.execute(f"SELECT pg_drop_replication_slot('{slot}')", "bench")
        return run

    pairs = []
    with ThreadPoolExecutor(2 if together else 1) as runners:
        for number in range(0, len(slots), 2):
            order = (0, 1) if number % 4 == 0 else (1, 0)
            pair = zip(order, slots[number : number + 2], strict=True)
            runs = {which: runners.submit(drain, sides[which], slot) for which, slot in pair}
            pairs.append((runs[0].result(), runs[1].result()))
    return pairs


def report(pairs: list[Pair]) -> list[str]:
    """Medians of each, and of the ratios of the pairs; in all lines less is better."""
    return [
        _line("user CPU per row", [(one.user_us, other.user_us) for one, other in pairs], "µs"),
        _line("CPU per row", [(one.cpu_us, other.cpu_us) for one, other in pairs], "µs"),
        _line("walsender CPU per row", [(a.walsender_cpu_us, b.walsender_cpu_us) for a, b in pairs], "µs"),
        _line("start to last ack", [(one.wall_s, other.wall_s) for one, other in pairs], "s"),
        _line("first to last ack", [(one.streaming_s, other.streaming_s) for one, other in pairs], "s"),
        _line("peak RSS", [(a.peak_rss_bytes / 1e6, b.peak_rss_bytes / 1e6) for a, b in pairs], "MB"),
        *[f"  CPU of {name}: {text}" for name, text in _threads(pairs)],
    ]


def _threads(pairs: list[Pair]) -> list[tuple[str, str]]:
    """The medians of each thread that is worth it, with the start."""
    names = {name for pair in pairs for run in pair for name in run.threads or {}}
    found = []
    for name in sorted(names):
        sides = [
            median([(run.threads or {}).get(name, 0.0) / run.rows * 1e6 for run in side])
            for side in zip(*pairs, strict=True)
        ]
        if max(sides) >= THREAD_US:
            found.append((name, f"before {sides[0]:.2f} µs, after {sides[1]:.2f} µs a row"))
    return found


def _line(what: str, pairs: list[tuple[float, float]], unit: str) -> str:
    ratios = [after / before for before, after in pairs]
    before, after = median([pair[0] for pair in pairs]), median([pair[1] for pair in pairs])
    return (
        f"  {what:<24} before {before:.2f} {unit}, after {after:.2f} {unit}, "
        f"ratio {median(ratios):.3f} ({min(ratios):.3f} … {max(ratios):.3f})"
    )
