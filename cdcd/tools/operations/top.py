"""`cdcd top`: the lines for a screen with a number of columns and rows, from the daemon's status; and the terminal,
on which curses draws them while a thread asks the daemon every second.

The rule: a line is never wider than the screen, and there are never more lines than rows. If there is no room,
tables are left out first, and a line shows how many. Every text is shown without control characters.

The rule: the terminal is restored, however the program ends. `curses.wrapper` restores it after a return and after
an exception, and the signals that end a process are exceptions here. A daemon that does not answer delays no key.
"""

import curses
import locale
import os
import select
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any, Final, Literal, NoReturn

from rich.cells import set_cell_size

from cdcd.core.pasted import cdcd
from cdcd.core.visible import visible
from cdcd.telemetry.terminal_text import cut, number, plain, seconds, size

Look = Literal["", "bold", "good", "warning", "error", "soft", "head"]
"""Style of a line."""

Status = Mapping[str, Any]

SORTS: Final[Mapping[str, tuple[str, str]]] = {
    "r": ("rows_per_s", "rate"),
    "t": ("rows", "total"),
    "i": ("inserts", "inserts"),
    "u": ("updates", "updates"),
    "d": ("deletes", "deletes"),
    "n": ("table", "name"),
}
"""Sort orders of the tables by key: field of the status, and name of the order."""

_COLUMNS: Final = (
    ("ROWS/S", "rows_per_s"),
    ("ROWS", "rows"),
    ("INSERTS", "inserts"),
    ("UPDATES", "updates"),
    ("DELETES", "deletes"),
    ("READ", "rows_read"),
)
"""Columns of the table list; a narrow screen leaves out the last ones first."""

_INDENT: Final = " " * 10
_NAME_MIN: Final = 20
_NUMBER: Final = 11


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the screen."""

    text: str
    look: Look = ""


@dataclass(frozen=True, slots=True)
class DaemonAnswer:
    """The daemon's last answer.

    Attributes:
        status: last status; None: none so far.
        silent_s: seconds since the last answer; None: the daemon has just answered, or was not asked yet.
        stranger: name of another pipeline that answers instead; "" if none does.
        url: address that was asked; "" if the configuration has none.
    """

    url: str
    status: Status | None = None
    silent_s: float | None = None
    stranger: str = ""


def lines(answer: DaemonAnswer, file: str, columns: int, rows: int, sort: str = "r") -> list[Line]:
    """Return the lines of the whole screen. `file` is the configuration's name, and `sort` a key of `SORTS`."""
    status = answer.status
    found = list(_wrapped(_away(answer, file), columns))
    if status is not None:
        found += _wrapped(_parts(status), columns)
        room = rows - len(found) - 2
        if room > 1:
            found.append(Line(""))
            found += _tables(status, columns, room, sort)
    orders = [f"[{key} {name}]" if key == sort else f"{key} {name}" for key, (_, name) in SORTS.items()]
    foot = Line(f"q leave  sort by: {'  '.join(orders)}", "soft")
    shown = [*found[: max(0, rows - 1)], foot][:rows]
    return [Line(set_cell_size(plain(line.text), columns).rstrip(), line.look) for line in shown]


def text_lines(answer: DaemonAnswer, file: str, columns: int) -> Iterator[str]:
    """Yield the lines of the status once, for a file or a pipe, with all parts and tables."""
    for line in (*_away(answer, file), *(() if answer.status is None else _parts(answer.status))):
        yield plain(line.text)
    if answer.status is not None:
        yield ""
        for line in _tables(answer.status, columns, 1_000_000, "r"):
            yield plain(line.text)


def _wrapped(given: Iterable[Line], columns: int) -> Iterator[Line]:
    for line in given:
        for text in textwrap.wrap(plain(line.text), max(columns, _NAME_MIN), subsequent_indent=_INDENT):
            yield Line(text, line.look)


def _away(answer: DaemonAnswer, file: str) -> Iterator[Line]:
    """Yield lines with the reason for a missing answer, and a hint."""
    if answer.stranger:
        yield Line(f"{answer.url} answers for another pipeline, {answer.stranger}.", "error")
        yield Line(
            "Give each pipeline on this machine a port of its own (http.port), or name the daemon with --url."
        )
    elif not answer.url:
        yield Line("http.port or http.enabled does not say where the daemon answers.", "error")
        yield Line("Name it: cdcd top --url http://host:9464")
    elif answer.silent_s is not None:
        since = f" since {seconds(answer.silent_s)}" if answer.status is not None else ""
        yield Line(f"No daemon answers at {answer.url}{since}.", "error")
        yield Line(f"Start it: {cdcd('run', '--config', file)}. If it runs elsewhere: --url http://host:9464")
        yield Line(f"State of PostgreSQL and Kafka: {cdcd('status', '--config', file)}")
        if answer.status is not None:
            yield Line("The screen shows its last answer.", "soft")
    elif answer.status is None:
        yield Line(f"asks {answer.url}", "soft")


def _parts(status: Status) -> Iterator[Line]:
    level: Look = "good" if status["ready"] else "warning"
    yield Line(f"{status['pipeline']}: {status['summary']}", "bold")
    yield Line(
        f"role      {status['role']}{', ready' if status['ready'] else ''}, cdcd {status['version']}, at "
        f"{status['at'][:19].replace('T', ' ')} UTC",
        level,
    )
    for side, name in (("postgres", "PostgreSQL"), ("kafka", "Kafka")):
        found = status[side]
        if found["away_s"] is not None:
            yield Line(f"{name} has not answered for {seconds(found['away_s'])}: {found['message']}", "error")
            yield Line(f"{_INDENT}{found['hint']}")
    for reason in status["reasons"]:
        if "is unreachable" not in reason:
            yield Line(f"not ready: {reason}", "warning")
    rates = status["rates"]
    yield Line(f"lag       {_known(status['lag_s'], seconds)}, {_known(status['lag_bytes'], size)}")
    yield Line(
        f"rate      {rates['rows_per_s']:,.0f} rows/s, {rates['transactions_per_s']:,.0f} transactions/s, "
        f"{size(rates['bytes_per_s'])}/s"
    )
    slot = status["slot"]
    left = slot["seconds_left"]
    yield Line(
        f"slot      {slot['name']} keeps {_known(slot['retained_bytes'], size)} of WAL"
        + (f", may be lost in {seconds(left)}" if left is not None else "")
    )
    oldest = status["prepared_oldest_s"]
    yield Line(
        f"open      {number(status['streamed_open'], 'transaction')}, {status['prepared_open']:,} prepared"
        + ("" if oldest is None else f", the oldest for {seconds(oldest)}")
    )
    yield Line(
        f"spool     {size(status['spool_memory_bytes'])} in memory, {size(status['spool_disk_bytes'])} on disk; "
        f"queue {size(status['queue_bytes'])} of {size(status['queue_bytes_max'])}"
    )
    snapshot = status["snapshot"]
    if snapshot is not None and snapshot["tables_left"]:
        paused = ", paused" if snapshot["paused"] else ""
        yield Line(f"snapshot  {number(snapshot['tables_left'], 'table')} to read{paused}")
        for each in snapshot["reading"][:3]:
            yield Line(f"{_INDENT}{each['share']:4.0%} {each['rows']:>{_NUMBER},} rows  {each['table']}")
    for each in status["problems"][:1]:
        yield Line(
            f"last      {each['at'][11:19]} {each['event']}: {each['message']}", _look_of(each["level"])
        )
        if each["hint"]:
            yield Line(f"{_INDENT}{each['hint']}", "soft")


def _look_of(level: str) -> Look:
    return "warning" if level == "warning" else "error"


def _known(value: float | None, show: Any) -> str:
    return "not known" if value is None else str(show(value))


def _tables(status: Status, columns: int, room: int, sort: str) -> Iterator[Line]:
    tables, total = status["tables"], status["tables_total"]
    if not tables:
        yield Line("No row came since the daemon started.", "soft")
        return
    count = min(len(_COLUMNS), max(1, (columns - _NAME_MIN) // (_NUMBER + 1)))
    shown = _COLUMNS[:count]
    width = max(1, min(max(len(each["table"]) for each in tables), columns - count * (_NUMBER + 1)))
    width = max(width, min(_NAME_MIN, columns))
    yield Line(f"{'TABLE'.ljust(width)} {' '.join(title.rjust(_NUMBER) for title, _ in shown)}", "head")
    rows = room - 1
    if total > rows:
        rows -= 1
    for each in _sorted(tables, sort)[: max(0, rows)]:
        numbers = " ".join(_number(each[key]).rjust(_NUMBER) for _, key in shown)
        name = plain(each["table"]) or "messages"
        yield Line(
            f"{set_cell_size(cut(name, width), width)} {numbers}", "" if each["rows_per_s"] else "soft"
        )
    more = total - min(len(tables), max(0, rows))
    if more > 0:
        yield Line(f"and {number(more, 'table')} more; cdcd status --all shows all", "soft")


def _sorted(tables: Sequence[Status], sort: str) -> list[Status]:
    key = SORTS[sort][0]
    if key == "table":
        return sorted(tables, key=lambda each: str(each[key]))
    return sorted(tables, key=lambda each: (-each[key], str(each["table"])))


def _number(value: Any) -> str:
    if not value:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) and value < 10.0 else f"{value:,.0f}"


ASK_S: Final = 1.0
"""Seconds between two requests."""

KEY_MS: Final = 100
"""Milliseconds to wait for a key before the screen is redrawn."""

LEAVE: Final = ("q", "Q", "\x1b")

_COLOURS: Final = {"good": curses.COLOR_GREEN, "warning": curses.COLOR_YELLOW, "error": curses.COLOR_RED}

Ask = Callable[[bool], DaemonAnswer]
"""Function that asks the daemon, for all tables or the busiest ones. A call may take seconds, and raises nothing."""


class Poller:
    """Asks the daemon in its own thread. `answer` is the last answer."""

    def __init__(self, ask: Ask, first: DaemonAnswer) -> None:
        self.answer = first
        self.all_tables = False
        self._ask = ask
        self._wake = Event()
        self._thread = Thread(target=self._run, name="top", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def want(self, *, all_tables: bool) -> None:
        """Set how many tables are shown. If there are more than before, the daemon is asked at once."""
        if all_tables and not self.all_tables:
            self._wake.set()
        self.all_tables = all_tables

    def _run(self) -> NoReturn:
        while True:
            self._wake.clear()
            self.answer = self._ask(self.all_tables)
            self._wake.wait(ASK_S)


def show(ask: Ask, first: DaemonAnswer, file: str) -> None:
    """Show the screen until the user leaves. Raises curses.error if the terminal is unknown (TERM)."""
    locale.setlocale(locale.LC_ALL, "")
    # A single Escape is a key here; the default would wait a second for the rest of a sequence.
    os.environ.setdefault("ESCDELAY", "25")
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, _leave)
    poller = Poller(ask, first)
    try:
        with suppress(KeyboardInterrupt):
            curses.wrapper(_run, poller, file)
    except curses.error:
        # A closed terminal cannot be restored.
        if not hung_up(sys.stdin.fileno()):
            raise
        _leave(signal.SIGHUP, None)


def _leave(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _run(screen: "curses.window", poller: Poller, file: str) -> None:
    looks = _looks()
    screen.timeout(KEY_MS)
    poller.start()
    sort, drawn, at = "r", None, 0.0
    while True:
        rows, columns = screen.getmaxyx()
        # The busiest tables are enough for a small screen that shows only the busiest ones.
        poller.want(all_tables=sort != "r" or rows > 40)
        now = time.monotonic()
        state = (poller.answer, rows, columns, sort)
        if (
            drawn is None
            or any(a is not b and a != b for a, b in zip(state, drawn, strict=True))
            or now - at > 1
        ):
            _draw(screen, lines(poller.answer, file, columns - 1, rows, sort), looks)
            drawn, at = state, now
        key = screen.getch()
        if key < 0 and hung_up(sys.stdin.fileno()):
            return
        if key == curses.KEY_RESIZE:
            curses.update_lines_cols()
            # The screen is redrawn completely, because the terminal may have moved or wrapped its contents.
            screen.clear()
            drawn = None
        elif 0 <= key < 128:
            letter = chr(key)
            if letter in LEAVE:
                return
            if letter.lower() in SORTS:
                sort, drawn = letter.lower(), None


def hung_up(descriptor: int) -> bool:
    """Return True if the terminal is closed.

    Without a controlling terminal there is no signal then, and no wait for a key.
    """
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


def _looks() -> dict[Look, int]:
    """Return the attributes of lines, with colours if the terminal has colours and NO_COLOR
    (no-color.org) is not set.
    """
    found: dict[Look, int] = {
        "": 0,
        "bold": curses.A_BOLD,
        "head": curses.A_REVERSE,
        "soft": curses.A_DIM,
        "good": curses.A_NORMAL,
        "warning": curses.A_BOLD,
        "error": curses.A_BOLD,
    }
    with suppress(curses.error):
        curses.curs_set(0)
    if not curses.has_colors() or os.environ.get("NO_COLOR"):
        return found
    curses.use_default_colors()
    looks: list[Any] = list(_COLOURS)
    for pair, look in enumerate(looks, start=1):
        curses.init_pair(pair, _COLOURS[look], -1)
        found[look] |= curses.color_pair(pair)
    return found


def _draw(screen: "curses.window", shown: list[Line], looks: dict[Look, int]) -> None:
    screen.erase()
    for row, line in enumerate(shown):
        # A character that the terminal's encoding lacks is shown as a question mark.
        text = visible(line.text).encode(screen.encoding, "replace").decode(screen.encoding)
        try:
            screen.addstr(row, 0, text, looks[line.look])
        except curses.error:
            # The screen has become smaller. It is drawn again after KEY_RESIZE.
            break
    screen.refresh()
