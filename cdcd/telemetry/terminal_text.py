"""Text for a terminal: foreign names and messages, times, sizes and counts, in a number of columns; and a bar for each
table that is being read.

The status of a pipeline and the status of a mirror use it.

`bar_lines` makes the bars. `Terminal` keeps them at the bottom of the terminal of `cdcd run` while tables are read. The
rule: the log owns the terminal, and the bars are below its last line. So each line is written whole above the bars,
and there are no bars if standard error is not a terminal.
"""

import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

from cdcd.core.snapshot.progress import Progress
from cdcd.core.visible import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live


_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"))
_WIDTH_MIN: Final = 40
_BREAKS: Final = str.maketrans("\t\n\r", "   ")


def plain(text: str) -> str:
    """Return the text in one line, with hidden characters written out, because it may come from strangers."""
    return visible(text.translate(_BREAKS))


def wrapped(message: str, hint: str, width: int) -> Iterator[str]:
    """Yield indented lines of at most `width` columns: the message, then the hint."""
    for text in (message, hint):
        yield from textwrap.wrap(
            plain(text),
            max(width, _WIDTH_MIN),
            initial_indent="    ",
            subsequent_indent="    ",
            # Commands and names of columns must stay copyable, so lines are not broken at hyphens.
            break_long_words=visible(text, lines=True) != text,
            break_on_hyphens=False,
        )


def cut(text: str, width: int) -> str:
    """Return the text, or its beginning and its end, because names of tables differ at either side."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[-end:]}"


def number(count: int, what: str) -> str:
    """Return a count with its noun: `1 table`, `2 tables`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def ago(then: datetime, now: datetime) -> str:
    """Return the age of a time, in one unit."""
    return seconds(max(0.0, (now - then).total_seconds()))


def seconds(value: float) -> str:
    """Return a duration in one unit: `0.4 s`, `12 s`, `3 min`, `5 h`, `2 d`."""
    for unit_s, unit in _UNITS:
        if value >= unit_s:
            return f"{value / unit_s:.0f} {unit}"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


BAR_WIDTH: Final = 30
REFRESH_PER_S: Final = 4

Began = dict[str, tuple[float, int, int]]
"""By table: the time at which it was first seen, with its pages and rows at that time. Speed and remaining time are
computed from them."""


def bar_lines(progress: Progress | None, began: Began) -> list[Any]:
    """Return a bar for each table that is being read, and the total.

    The result is printed by rich. The caller keeps `began` from one call to the next.
    """
    from rich.progress_bar import ProgressBar  # noqa: PLC0415  the daemon without a terminal needs none of it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if progress is None:
        return [Text("nothing was delivered yet")]
    table = Table("table", "", "read", "rows", "size", "rows/s", "left", pad_edge=False, box=None)
    now = time.monotonic()
    for task in progress.tasks:
        since, pages, rows = began.setdefault(task.name, (now, task.pages_done, task.rows))
        seconds = now - since
        rate = (task.rows - rows) / seconds if seconds else 0.0
        pace = (task.pages_done - pages) / seconds if seconds else 0.0
        table.add_row(
            Text(plain(task.name + (f" where {task.where}" if task.where else ""))),
            ProgressBar(total=1.0, completed=task.share, width=BAR_WIDTH),
            Text("waiting" if task.parts is None else f"{task.share:.0%}"),
            Text(f"{task.rows:,}"),
            Text("" if task.parts is None else f"{size(task.size * task.share)} of {size(task.size)}"),
            Text(f"{rate:,.0f}" if rate else ""),
            Text(f"{(task.pages - task.pages_done) / pace:,.0f} s" if pace else ""),
        )
    found: list[Any] = [table] if progress.tasks else []
    state = "paused" if progress.paused else "nothing is being read" if progress.is_done else progress.method
    found.append(Text(f"{state}; {progress.event_no:,} rows were read since the pipeline began"))
    return found


def size(bytes_: float) -> str:
    """Return a number of bytes as text for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if bytes_ < 1024:
            return f"{bytes_:.0f} {unit}"
        bytes_ /= 1024
    return f"{bytes_:.1f} TB"


class Terminal:
    """The log's output stream on a terminal, with progress bars below the log.

    Args:
        stream: the terminal.
        look: returns the present progress.
    """

    def __init__(self, stream: TextIO, look: Callable[[], Progress | None]) -> None:
        self._stream = stream
        self._look = look
        self._console: Console | None = None
        self._live: Live | None = None
        self._began: Began = {}

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        """Write a line of the log above the bars."""
        live, console = self._live, self._console
        if live is None or console is None:
            return self._stream.write(text)
        from rich.text import Text  # noqa: PLC0415

        console.print(Text.from_ansi(text.rstrip("\n")), soft_wrap=True)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def tick(self) -> None:
        """Show the bars while tables are read, and else remove them; call this at short intervals."""
        progress = self._look()
        if progress is None or progress.is_done:
            self.close()
        elif self._live is None:
            from rich.console import Console  # noqa: PLC0415
            from rich.live import Live  # noqa: PLC0415

            self._began.clear()
            self._console = Console(file=self._stream, force_terminal=True, highlight=False)
            live = Live(
                console=self._console,
                get_renderable=self._render,
                refresh_per_second=REFRESH_PER_S,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            live.start()
            self._live = live

    def close(self) -> None:
        """Remove the bars. Idempotent."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _render(self) -> Any:
        from rich.console import Group  # noqa: PLC0415

        return Group(*bar_lines(self._look(), self._began))


def terminal(look: Callable[[], Progress | None], stream: TextIO | None = None) -> Terminal | None:
    """Return the terminal of standard error; None if standard error is not a terminal."""
    stream = sys.stderr if stream is None else stream
    return Terminal(stream, look) if stream.isatty() else None
