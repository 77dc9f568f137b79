"""`cdcd top` on a terminal: curses draws the lines of `top_view.py`, and a thread asks the daemon every second.

The rule: the terminal is restored, however the program ends. `curses.wrapper` restores it after a return and after
an exception, and the signals that end a process are exceptions here. A daemon that does not answer delays no key.
"""

import curses
import locale
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Any, Final, NoReturn

from cdcd.core.visible import visible
from cdcd.tools.operations.top_view import SORTS, Answer, Line, Look, lines

ASK_S: Final = 1.0
"""Seconds between two requests."""

KEY_MS: Final = 100
"""Milliseconds to wait for a key before the screen is redrawn."""

LEAVE: Final = ("q", "Q", "\x1b")

_COLOURS: Final = {"good": curses.COLOR_GREEN, "warning": curses.COLOR_YELLOW, "error": curses.COLOR_RED}

Ask = Callable[[bool], Answer]
"""Function that asks the daemon, for all tables or the busiest ones. A call may take seconds, and raises nothing."""


class Poller:
    """Asks the daemon in its own thread. `answer` is the last answer."""

    def __init__(self, ask: Ask, first: Answer) -> None:
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


def show(ask: Ask, first: Answer, file: str) -> None:
    """Show the screen until the user leaves. Raises curses.error if the terminal is unknown (TERM)."""
    locale.setlocale(locale.LC_ALL, "")
    # A single Escape is a key here; the default would wait a second for the rest of a sequence.
    os.environ.setdefault("ESCDELAY", "25")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
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
