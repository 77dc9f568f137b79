"""The plots of the page: a bar for each minute of the last hour, or each quarter of an hour of the last day, as SVG."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any, Final

WIDTH: Final = 720
HEIGHT: Final = 150
_TOP: Final = 24
_FOOT: Final = 24
_LEFT: Final = 2


def bars(
    minutes: Sequence[Mapping[str, Any]],
    key: str,
    what: str,
    *,
    each: str = "minute",
    period: str = "hour",
    show: Callable[[float], str] = lambda value: f"{value:,.0f}",
) -> str:
    """Plot a bar for each minute, or for each quarter of an hour.

    Args:
        minutes: `minutes` of the status, or `day`.
        key: name of the number in each entry; null counts as 0.
        what: name of the counted things, for people.
        each, period: time span of a bar, and time span of all bars.
        show: formats a value for people.
    """
    values = [float(minute[key] or 0) for minute in minutes]
    most = max(values, default=0.0)
    step = (WIDTH - 2 * _LEFT) / max(1, len(values))
    space = HEIGHT - _TOP - _FOOT
    found = []
    for index, (minute, value) in enumerate(zip(minutes, values, strict=True)):
        # A minute with little is still seen.
        height = max(1.5, space * value / most) if value else 0.0
        at = _clock(minute["at"])
        found.append(
            f'<rect x="{_LEFT + index * step:.1f}" y="{HEIGHT - _FOOT - height:.1f}" width="{step * 0.8:.1f}" '
            f'height="{height:.1f}"><title>{at}: {show(value)} {escape(what)}</title></rect>'
        )
    ground = HEIGHT - _FOOT + 0.5
    label = (
        f"at most {show(most)} {escape(what)} in a {each}"
        if most
        else f"no {escape(what)} in the last {period}"
    )
    times = [
        f'<text x="{_LEFT + index * step:.0f}" y="{HEIGHT - 4}" text-anchor="{anchor}">{_clock(minutes[index]["at"])}'
        "</text>"
        for index, anchor in ((0, "start"), (len(values) // 2, "middle"))
        if index < len(values)
    ]
    about = f"{escape(what)} in each {each} of the last {period}: {label}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{about}">'
        f'{"".join(found)}<line x1="0" x2="{WIDTH}" y1="{ground}" y2="{ground}"/>'
        f'<text x="{_LEFT}" y="16">{label}</text>{"".join(times)}'
        f'<text x="{WIDTH - _LEFT}" y="{HEIGHT - 4}" text-anchor="end">now</text></svg>'
    )


def _clock(at: str) -> str:
    return datetime.fromisoformat(at).strftime("%H:%M")
