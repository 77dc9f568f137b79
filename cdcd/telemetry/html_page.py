"""The page `/`, made from the status (`daemon_pages.py`) alone.

The rule: every text of the status is escaped (`escape`), because anybody may have chosen names of tables,
conditions and errors. The page works without its script. The script reloads the page every two seconds.

Plots are SVG: a bar for each minute of the last hour, or for each quarter of an hour of the last day.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from html import escape as _escape
from typing import Any, Final
from urllib.parse import quote

from cdcd.core.visible import visible
from cdcd.telemetry.findings import Finding
from cdcd.telemetry.html_look_ups import ShownLookUp, check_section, escape, page
from cdcd.telemetry.html_style import STYLE
from cdcd.telemetry.terminal_text import number, seconds, size

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
    """Return the plot with a bar for each minute, or for each quarter of an hour.

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
        # Even a minute with a small number has a visible bar.
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


READING_MAX: Final = 20
"""Maximum number of a snapshot's tables on the page."""

WAL_SOON_S: Final = 3600.0
"""Seconds of remaining WAL below which the page shows a warning."""

Status = Mapping[str, Any]


RUNBOOK: Final[Mapping[str, str]] = {
    "kafka.unreachable": "CdcdKafkaUnreachable",
    "kafka.retry": "CdcdKafkaUnreachable",
    "postgres.unreachable": "CdcdPostgresUnreachable",
    "reconnect.scheduled": "CdcdReconnecting",
    "transaction.hanging": "CdcdTransactionHanging",
    "prepared.old": "CdcdPreparedOld",
    "standby.waiting": "CdcdNoStandby",
    "table.aside": "CdcdTableSetAside",
}
"""Section of the runbook by event."""


FOOTER: Final = (
    '<footer class="soft small"><a href="/v1/status">/v1/status</a> has this as JSON, <a href="/metrics">/metrics</a> '
    "for Prometheus. <code>cdcd top</code> shows it on a terminal. "
    '<a href="/runbook">The runbook</a> says what to do about each alert.</footer>'
)


def html_page(
    status: Status, configuration: str = "", checked: ShownLookUp[Sequence[Finding]] | None = None
) -> str:
    """Return the page `/`.

    Args:
        configuration: YAML of the keys that differ from the defaults, with secrets masked; "": not shown.
        checked: the last findings of `cdcd check`; None: the server shows neither checks nor records of tables.
    """
    title = f"{escape(status['pipeline'])}: {escape(status['summary'])}"
    return page(title, "".join(_main(status, configuration, checked)), footer=FOOTER)


def _main(
    status: Status, configuration: str, checked: ShownLookUp[Sequence[Finding]] | None
) -> Iterator[str]:
    yield from _head(status)
    yield from _notes(status)
    if status["role"] == "standby":
        # A standby has no figures of the stream, because only the active instance reads the stream.
        yield from _active_elsewhere(status)
        yield from _problems(status["problems"])
    else:
        yield '<div class="cards">'
        yield from _cards(status)
        yield "</div><section><h2>Rows in each minute of the last hour</h2>"
        yield bars(status["minutes"], "rows", "rows")
        yield "</section>"
        yield from _day(status["day"])
        yield from _set_aside(status)
        yield from _snapshot(status["snapshot"])
        yield from _tables(status, has_records=checked is not None)
        yield '<div class="pair">'
        yield from _problems(status["problems"])
        yield from _position(status)
        yield "</div>"
        if checked is not None:
            yield from check_section(checked)
    if configuration:
        yield "<section><details><summary>Configuration in effect, without defaults and secrets</summary>"
        yield f"<pre>{_escape(visible(configuration, lines=True), quote=True)}</pre></details></section>"


def _active_elsewhere(status: Status) -> Iterator[str]:
    """Yield the section about the active instance, for the page of a standby."""
    other = status["active_elsewhere"]
    yield "<section><h2>Active instance</h2>"
    if other is None:
        yield '<p class="soft">It was not seen yet.</p></section>'
        return
    yield "<dl>"
    for name, value in (
        ("client address", other["client"] or "the server's own machine (a socket)"),
        ("application name", other["application_name"]),
        ("server process", other["pid"]),
        ("seen since", f"{_moment(other['seen_at'])} UTC"),
    ):
        yield f"<dt>{name}<dd>{'not known' if value is None else escape(value)}"
    yield "</dl><p>Lag, tables and snapshots are on the page of that instance, at <code>http.port</code> of that "
    yield "address. <code>cdcd status</code> asks PostgreSQL and Kafka from anywhere.</p></section>"


def _day(day: Sequence[Status]) -> Iterator[str]:
    """Yield the plots of lag and latency of the last day."""
    yield '<div class="pair">'
    for title, key, what in (
        ("Largest lag in each quarter of an hour of the last day", "lag_s", "lag"),
        (
            "Mean latency in each quarter of an hour of the last day",
            "delay_s",
            "latency",
        ),
    ):
        yield f"<section><h2>{title}</h2>"
        yield bars(day, key, what, each="quarter of an hour", period="day", show=_duration)
        yield "</section>"
    yield "</div>"


def _duration(value: float) -> str:
    return f"{value * 1000:,.0f} ms" if value < 1.0 else seconds(value)


def _head(status: Status) -> Iterator[str]:
    level = "good" if status["ready"] else "warning"
    if False in (status["postgres"]["up"], status["kafka"]["up"]):
        level = "error"
    yield f'<header><h1>{escape(status["pipeline"])}</h1><span class="tag {level}">{escape(status["role"])}</span>'
    yield f'<span class="summary">{escape(status["summary"])}</span>'
    yield f'<span class="soft small">cdcd {escape(status["version"])}, {_moment(status["at"])} UTC</span></header>'


def _notes(status: Status) -> Iterator[str]:
    """Yield the present problems."""
    for side, name in (("postgres", "PostgreSQL"), ("kafka", "Kafka")):
        found = status[side]
        if found["away_s"] is not None:
            yield f'<section class="note"><h2>{name} has not answered for {seconds(found["away_s"])}</h2>'
            yield f'<p>{escape(found["message"])}</p><p class="hint">{escape(found["hint"])} '
            yield f"{_runbook(f'{side}.unreachable')}</p></section>"
    reasons = [] if status["ready"] else [each for each in status["reasons"] if "is unreachable" not in each]
    if reasons:
        yield '<section class="note soon"><h2>Not ready</h2>'
        yield "".join([f"<p>{escape(each)}</p>" for each in reasons])
        yield "</section>"


def _cards(status: Status) -> Iterator[str]:
    lag_s, lag_bytes, rates = status["lag_s"], status["lag_bytes"], status["rates"]
    yield _card(
        "Lag",
        "not known" if lag_s is None else seconds(lag_s) if lag_s else "0 s",
        "" if lag_bytes is None else f"{size(lag_bytes)} of WAL",
    )
    yield _card(
        "Throughput",
        f"{rates['rows_per_s']:,.0f} rows/s",
        f"{rates['transactions_per_s']:,.0f} transactions/s, {size(rates['bytes_per_s'])}/s",
    )
    slot = status["slot"]
    retained = slot["retained_bytes"]
    yield _card(
        f"WAL held by slot {slot['name']}",
        "not known" if retained is None else size(retained),
        *_wal_left(slot),
    )
    open_, prepared, oldest = status["streamed_open"], status["prepared_open"], status["prepared_oldest_s"]
    yield _card(
        "Open transactions",
        f"{open_:,}",
        f"{prepared:,} prepared" + ("" if oldest is None else f", the oldest for {seconds(oldest)}"),
    )
    yield _card(
        "Waiting for Kafka",
        size(status["queue_bytes"]),
        f"{number(status['queue_records'], 'record')}, limit {size(status['queue_bytes_max'])}",
    )
    yield _card(
        "Spool",
        size(status["spool_memory_bytes"]),
        f"in memory, {size(status['spool_disk_bytes'])} on disk"
        + (f", {size(durable)} in the durable log" if (durable := status["durable_spool_bytes"]) else ""),
    )


def _wal_left(slot: Status) -> tuple[str, str]:
    """Return how long the WAL lasts, and the level of this value."""
    left, safe = slot["seconds_left"], slot["safe_bytes"]
    if safe is None:
        return "without limit (max_slot_wal_keep_size)", ""
    if left is None:
        return f"{size(max(0, safe))} more until it may be lost", ""
    text = f"may be lost in {seconds(left)}, after {size(max(0, safe))} more"
    return text, "warning" if left < WAL_SOON_S else ""


def _card(title: str, value: str, more: str, level: str = "") -> str:
    more = f'<span class="{level}">{escape(more)}</span>' if level else escape(more)
    return (
        f'<div class="card"><h2>{escape(title)}</h2><div class="big">{escape(value)}</div>'
        f'<div class="soft small">{more}</div></div>'
    )


def _set_aside(status: Status) -> Iterator[str]:
    """Yield the section about tables that are set aside, each with its reason and the command that brings it back."""
    tables, total = status["set_aside"], status["set_aside_total"]
    if not total:
        return
    yield f'<section><h2>{number(total, "table")} set aside</h2><p class="soft small">Changes of these tables have no '
    yield "records. All other tables go on.</p>"
    yield '<div class="wide">'
    rows = [
        (
            f'{escape(each["table"])} <span class="tag error">{escape(each["fault"])}</span>',
            escape(each["since_lsn"] or "-"),
            f'{escape(each["reason"])} <span class="soft">{escape(each["hint"])}</span>',
            f"<code>{escape(each['command'])}</code>",
        )
        for each in tables
    ]
    yield _table(("table", "since", "reason and what to do", "then"), rows)
    if total > len(tables):
        yield f'<p class="soft small">and {number(total - len(tables), "table")} more: <code>cdcd tables --all</code> '
        yield "shows them.</p>"
    yield "</div></section>"


def _snapshot(snapshot: Status | None) -> Iterator[str]:
    if snapshot is None or not (snapshot["tables_left"] or snapshot["ended"]):
        return
    left, reading = snapshot["tables_left"], snapshot["reading"]
    state = f"{number(left, 'table')} to read" if left else "nothing is being read"
    paused = ' <span class="tag warning">paused</span>' if snapshot["paused"] else ""
    yield f'<section><h2>Snapshots: {state}{paused}</h2><div class="wide">'
    shown = reading[:READING_MAX]
    rows = [
        (
            _table_name(each),
            f'<progress max="1" value="{each["share"]}"></progress><span class="share">{each["share"]:.0%}</span>',
            f"{each['rows']:,}",
            "" if each["bytes"] is None else size(each["bytes"]),
        )
        for each in shown
    ]
    if rows:
        yield _table(("table", "read", "rows", "size"), rows)
    if left > len(shown):
        yield f'<p class="soft small">and {number(left - len(shown), "table")} more: '
        yield "<code>cdcd snapshot status</code> shows all</p>"
    ended = [
        (
            _table_name(each),
            f"{each['rows']:,}",
            f'<span class="tag error">{escape(each["error"])}</span>' if each["error"] else "complete",
        )
        for each in reversed(snapshot["ended"])
    ]
    if ended:
        yield f"<details{'' if rows else ' open'}><summary>Last {len(ended):,} finished</summary>"
        yield _table(("table", "rows", "outcome"), ended) + "</details>"
    yield f'<p class="soft small">{snapshot["rows"]:,} rows were read since the pipeline began.</p></div></section>'


def _table_name(each: Status) -> str:
    more = []
    if each.get("where"):
        more.append(f"where {each['where']}")
    if each.get("request"):
        more.append(f"asked for by {each['request']}")
    return escape(each["table"]) + (
        f' <span class="soft small">{escape(", ".join(more))}</span>' if more else ""
    )


def _tables(status: Status, *, has_records: bool) -> Iterator[str]:
    tables, total = status["tables"], status["tables_total"]
    yield f"<section><h2>{number(total, 'table')} with rows since {_moment(status['started_at'])} UTC</h2>"
    if not tables:
        yield '<p class="soft">No row came since this process started.</p></section>'
        return
    if total > len(tables):
        yield f'<p class="soft small">The busiest {len(tables):,} of {total:,} tables. <a href="/?tables=all">Show all'
        yield "</a></p>"
    yield '<div class="wide"><table><thead><tr><th>table<th>rows/s<th class="more">inserts<th class="more">updates'
    yield '<th class="more">deletes<th class="more">read<th>rows</tr></thead><tbody>'
    for each in tables:
        idle = "" if each["rows_per_s"] else ' class="idle"'
        level = {"set aside": "error", "failed": "error", "reading": "warning", "waiting": "warning"}.get(
            each["state"]
        )
        state = f' <span class="tag {level}">{escape(each["state"])}</span>' if level else ""
        name = escape(each["table"]) or "messages"
        if has_records and each["table"]:
            name = f'<a href="/records?table={escape(quote(each["table"], safe=""))}">{name}</a>'
        yield f"<tr{idle}><td>{name}{state}<td>{_rate(each['rows_per_s'])}"
        for count in ("inserts", "updates", "deletes", "rows_read"):
            yield f'<td class="more">{each[count]:,}'
        yield f"<td>{each['rows']:,}</tr>"
    yield "</tbody></table></div>"
    yield "</section>"


def _rate(value: float) -> str:
    return "" if not value else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table whose cells are HTML."""
    lines = "".join([f"<tr>{''.join([f'<td>{cell}' for cell in row])}</tr>" for row in rows])
    return f"<table><thead><tr>{''.join([f'<th>{cell}' for cell in head])}</tr></thead><tbody>{lines}</tbody></table>"


def _problems(problems: Iterable[Status]) -> Iterator[str]:
    yield "<section><h2>Last warnings and errors</h2>"
    nothing = True
    for each in problems:
        nothing = False
        count = f" <b>{each['count']:,} times</b>, last" if each["count"] > 1 else ""
        yield f'<div class="problem"><span class="tag {escape(each["level"])}">{escape(each["event"])}</span>'
        yield f'<span class="soft small">{count} {_moment(each["at"])}</span><p>{escape(each["message"])}</p>'
        if each["hint"] or each["event"] in RUNBOOK:
            yield f'<p class="hint small">{escape(each["hint"])} {_runbook(each["event"])}</p>'
        yield "</div>"
    if nothing:
        yield '<p class="soft">There were none since this process started.</p>'
    yield "</section>"


def _runbook(event: str) -> str:
    """Return a link to the section of the runbook about an event; "" if there is no such section."""
    section = RUNBOOK.get(event)
    return "" if section is None else f'<a href="/runbook#{section.lower()}">Runbook: {section}</a>'


def runbook_page(text: str) -> str:
    """The runbook as a page, with an anchor at each heading. The Markdown of the other blocks is shown unchanged."""
    parts = []
    for block in text.split("\n\n"):
        line = block.strip()
        if line.startswith("#"):
            marks, _, title = line.partition(" ")
            level = min(len(marks), 3)
            name = escape(title.lower().replace(" ", "-"))
            parts.append(f'<h{level} id="{name}">{escape(title)}</h{level}>')
        elif line:
            parts.append(f"<pre>{_escape(visible(line, lines=True), quote=True)}</pre>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>cdcd: runbook</title><style>{STYLE}</style></head>'
        f'<body><main><p><a href="/">The page of this pipeline</a></p>{"".join(parts)}</main></body></html>\n'
    )


def _position(status: Status) -> Iterator[str]:
    position, totals = status["position"], status["totals"]
    last = position["last_commit_at"]
    yield "<section><h2>Position</h2><dl>"
    for name, value in (
        ("server", position["server_lsn"]),
        ("received", position["received_lsn"]),
        ("sent to Kafka", position["sent_lsn"]),
        ("acknowledged", position["acked_lsn"]),
        ("confirmed to PostgreSQL", position["flushed_lsn"]),
        ("last commit delivered", None if last is None else _moment(last)),
        (
            "since the start",
            f"{totals['transactions']:,} transactions, {totals['rows']:,} rows, {size(totals['bytes'])}",
        ),
        ("reconnects", ", ".join([f"{side} {count:,}" for side, count in status["reconnects"].items()])),
        ("runs since", _moment(status["started_at"])),
    ):
        yield f"<dt>{name}<dd>{'not known' if value is None else escape(value)}"
    yield "</dl></section>"


def _moment(at: str) -> str:
    """Return a time in readable form, without the zone."""
    return escape(at[:19].replace("T", " "))
