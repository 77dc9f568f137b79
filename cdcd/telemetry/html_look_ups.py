"""Pages and JSON objects for the answers of `look_ups.py`: findings of `cdcd check`, and the last records of a table.

As in `html_page.py`, every text is escaped. No key and no value of a record is shown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape as _escape
from typing import Any, Final, Generic, TypeVar

from cdcd.core.protocol.lsn import Lsn
from cdcd.telemetry.findings import Finding
from cdcd.telemetry.html_style import SCRIPT, STYLE
from cdcd.telemetry.terminal_text import number, plain, size

LEVELS: Final = {"error": "error", "warning": "warning", "unknown": "not checked", "ok": "ok"}
"""Levels of findings in the order of the page, with their titles."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class LastRecord:
    """Place and size of a record in Kafka.

    Attributes:
        op: INSERT, UPDATE, DELETE, READ, TRUNCATE or TOMBSTONE; "": the format of the record does not show it.
        lsn: LSN of the change; None: the record has none, or its format does not show it.
        written_ms: Kafka's timestamp of the record (Unix milliseconds); None: there is none.
        bytes: size of key and value.
    """

    topic: str
    partition: int
    offset: int
    op: str
    lsn: int | None
    written_ms: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class ShownLookUp(Generic[Answer]):
    """The last answer of a look-up.

    Attributes:
        answer: None: there is no answer yet, or the look-up failed.
        at: when the look-up ended (Unix seconds); None: no look-up has ended.
        error, hint: why the look-up failed, and what to do; "": it did not fail.
    """

    answer: Answer | None = None
    at: float | None = None
    error: str = ""
    hint: str = ""


def check_section(looked: ShownLookUp[Sequence[Finding]]) -> Iterator[str]:
    """Yield the section for the pipeline's page: errors and warnings, and the numbers of the other findings."""
    yield "<section><h2>Checks</h2>"
    findings = looked.answer
    if findings is None:
        yield _missing(looked, "The checks have not run yet.")
    else:
        yield "".join([_finding(each) for level in ("error", "warning") for each in _of(findings, level)])
        yield f'<p class="soft small">{_counts(findings)} at {_time(looked.at)} UTC. '
    yield '<a href="/check">All checks</a></p></section>' if findings is not None else "</section>"


def check_page(pipeline: str, looked: ShownLookUp[Sequence[Finding]]) -> str:
    """Return the page `/check`: all findings, errors first."""

    def body() -> Iterator[str]:
        yield "<section><h2>Findings of <code>cdcd check</code></h2>"
        findings = looked.answer
        if findings is None:
            yield _missing(looked, "The checks run now. The page shows their findings in a few seconds.")
        else:
            yield f"<p>{_counts(findings)} at {_time(looked.at)} UTC. The page runs them again after ten minutes. "
            yield "<code>cdcd check</code> runs them at once.</p>"
            yield "".join(
                [_finding(each) for level in LEVELS if level != "ok" for each in _of(findings, level)]
            )
            fine = _of(findings, "ok")
            yield f"<details><summary>{len(fine):,} in order</summary>{''.join(map(_finding, fine))}</details>"
        yield "</section>"

    return _page(pipeline, "checks", body())


def check_object(looked: ShownLookUp[Sequence[Finding]]) -> dict[str, Any]:
    """Return the object for `/v1/check`."""
    findings = None if looked.answer is None else [asdict(each) for each in looked.answer]
    return {**_head(looked), "findings": findings}


def records_page(pipeline: str, table: str, looked: ShownLookUp[Sequence[LastRecord]]) -> str:
    """Return the page `/records`: partition, offset and size of the last records of the table."""

    def body() -> Iterator[str]:
        yield f"<section><h2>Last records of {escape(table)}</h2>"
        records = looked.answer
        if records is None:
            yield _missing(
                looked, "The records are being looked up. The page shows their findings in a few seconds."
            )
        elif not records:
            yield f'<p class="soft">Kafka has no record of the table ({_time(looked.at)} UTC).</p>'
        else:
            yield '<div class="wide"><table><thead><tr><th>time (UTC)<th>operation<th>LSN<th>partition'
            yield "<th>offset<th>size<th>topic</tr></thead><tbody>"
            for each in records:
                yield f"<tr><td>{'' if each.written_ms is None else _time(each.written_ms / 1000, 'milliseconds')}"
                yield f"<td>{escape(each.op)}<td>{'' if each.lsn is None else Lsn(each.lsn)}"
                yield f"<td>{each.partition}<td>{each.offset}<td>{size(each.bytes)}<td>{escape(each.topic)}</tr>"
            yield f'</tbody></table></div><p class="soft small">Looked up at {_time(looked.at)} UTC, among the last '
            yield "offsets of each partition. Operation and LSN are shown if the records are JSON with an envelope.</p>"
        yield "<p>This page has no keys and no values. To see rows, use <code>cdcd tail</code>, and to follow one row, "
        yield "<code>cdcd trace</code>.</p></section>"

    return _page(pipeline, table, body())


def records_object(table: str, looked: ShownLookUp[Sequence[LastRecord]]) -> dict[str, Any]:
    """Return the object for `/v1/records`."""
    records = None
    if looked.answer is not None:
        records = [
            {
                "topic": each.topic,
                "partition": each.partition,
                "offset": each.offset,
                "operation": each.op or None,
                "lsn": None if each.lsn is None else str(Lsn(each.lsn)),
                "written_at": None
                if each.written_ms is None
                else _iso(each.written_ms / 1000, "milliseconds"),
                "bytes": each.bytes,
            }
            for each in looked.answer
        ]
    return {"table": table, **_head(looked), "records": records}


def escape(text: object) -> str:
    """Return the text escaped for HTML, without control characters."""
    return _escape(plain(str(text)), quote=True)


def page(title: str, main: str, *, footer: str = "") -> str:
    """Return a whole page, which reloads itself."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<noscript><meta http-equiv="refresh" content="10"></noscript>'
        f"<title>{title}</title><style>{STYLE}</style></head><body>"
        f'<div id="away" class="error" role="alert" hidden></div><main>{main}</main>{footer}'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _page(pipeline: str, title: str, body: Iterator[str]) -> str:
    name = escape(pipeline)
    head = f'<header><h1><a href="/">{name}</a></h1></header>'
    return page(f"{name}: {escape(title)}", head + "".join(body))


def _missing(looked: ShownLookUp[Any], otherwise: str) -> str:
    if not looked.error:
        return f'<p class="soft">{otherwise}</p>'
    return f'<p>{escape(looked.error)} ({_time(looked.at)} UTC)</p><p class="hint">{escape(looked.hint)}</p>'


def _finding(each: Finding) -> str:
    level = each.level
    tag = {"ok": "good", "unknown": "soft"}.get(level, level)
    fix = f'<p class="hint small">Fix: {escape(each.fix)}</p>' if each.fix else ""
    return (
        f'<div class="problem"><span class="tag {tag}">{LEVELS[level]}</span> <b>{escape(each.subject)}</b> '
        f'<span class="soft small">{escape(each.code)}</span><p>{escape(each.found)}</p>{fix}</div>'
    )


def _of(findings: Sequence[Finding], level: str) -> list[Finding]:
    return [each for each in findings if each.level == level]


def _counts(findings: Sequence[Finding]) -> str:
    errors, warnings, unknown, fine = [len(_of(findings, level)) for level in LEVELS]
    return (
        f"{number(errors, 'error')}, {number(warnings, 'warning')}, "
        + (f"{unknown:,} not checked, " if unknown else "")
        + f"{fine:,} in order"
    )


def _head(looked: ShownLookUp[Any]) -> dict[str, Any]:
    at = None if looked.at is None else _iso(looked.at)
    return {"at": at, "error": looked.error or None, "hint": looked.hint or None}


def _time(unix: float | None, precision: str = "seconds") -> str:
    return "" if unix is None else _iso(unix, precision).removesuffix("+00:00").replace("T", " ")


def _iso(unix: float, precision: str = "seconds") -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec=precision)
