"""The plot of the page: what came in each minute of the last hour, as SVG."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any, Final

WIDTH: Final = 720
HEIGHT: Final = 150
_TOP: Final = 24
_FOOT: Final = 24
_LEFT: Final = 2


def bars(minutes: Sequence[Mapping[str, Any]], key: str, what: str) -> str:
    """A bar for each minute.

    Args:
        minutes: `minutes` of the status.
        key: which of its numbers.
        what: what is counted, for people.
    """
    values = [int(minute[key]) for minute in minutes]
    most = max(values, default=0)
    step = (WIDTH - 2 * _LEFT) / max(1, len(values))
    space = HEIGHT - _TOP - _FOOT
    found = []
    for index, (minute, value) in enumerate(zip(minutes, values, strict=True)):
        # A minute with little is still seen.
        height = max(1.5, space * value / most) if value else 0.0
        at = _clock(minute["at"])
        found.append(
            f'<rect x="{_LEFT + index * step:.1f}" y="{HEIGHT - _FOOT - height:.1f}" width="{step * 0.8:.1f}" '
            f'height="{height:.1f}"><title>{at}: {value:,} {escape(what)}</title></rect>'
        )
    ground = HEIGHT - _FOOT + 0.5
    label = f"at most {most:,} {escape(what)} in a minute" if most else f"no {escape(what)} in the last hour"
    times = [
        f'<text x="{_LEFT + index * step:.0f}" y="{HEIGHT - 4}" text-anchor="{anchor}">{_clock(minutes[index]["at"])}'
        "</text>"
        for index, anchor in ((0, "start"), (len(values) // 2, "middle"))
        if index < len(values)
    ]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(what)} in each minute of the last hour: '
        f'{label}">{"".join(found)}<line x1="0" x2="{WIDTH}" y1="{ground}" y2="{ground}"/>'
        f'<text x="{_LEFT}" y="16">{label}</text>{"".join(times)}'
        f'<text x="{WIDTH - _LEFT}" y="{HEIGHT - 4}" text-anchor="end">now</text></svg>'
    )


def _clock(at: str) -> str:
    return datetime.fromisoformat(at).strftime("%H:%M")
