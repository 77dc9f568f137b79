import io
from dataclasses import replace

import pytest
from rich.console import Console, Group

from cdcd.config.sections.process import LogConfig
from cdcd.core.facts.snapshot import SnapshotFinished
from cdcd.core.snapshot.outcomes import Outcome
from cdcd.core.snapshot.progress import EXPORTED, Progress
from cdcd.core.snapshot.table_task import Part, TableTask
from cdcd.telemetry.logs import configure_logging
from cdcd.telemetry.terminal_text import Began, Terminal, bar_lines, size, terminal

MB = 1 << 20
HALF = TableTask("public.orders", 1, parts=(Part(1, 1, 100, 10 * MB, ((0, 50),)),), rows=5000)
WAITING = TableTask("public.items", 2, where="id > 5")
PROGRESS = Progress(EXPORTED, (HALF, WAITING), event_no=7000, outcomes=(Outcome("public.old", "", 2000),))


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(progress: Progress | None, began: Began | None = None) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(Group(*bar_lines(progress, {} if began is None else began)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_each_table_has_a_bar_with_rows_and_bytes():
    text = shown(PROGRESS)
    orders = next(line for line in text.splitlines() if "public.orders" in line)
    assert "50%" in orders
    assert "5,000" in orders
    assert "5 MB of 10 MB" in orders
    assert "waiting" in next(line for line in text.splitlines() if "public.items where id > 5" in line)
    assert "exported; 7,000 rows" in text
    assert "public.old" not in text


def test_rate_and_time_left_are_by_the_pace_since_it_was_first_seen(monkeypatch: pytest.MonkeyPatch):
    clock = iter([100.0, 110.0])
    monkeypatch.setattr("cdcd.telemetry.terminal_text.time.monotonic", lambda: next(clock))
    began: Began = {}
    shown(Progress(tasks=(HALF,)), began)
    later = replace(HALF, parts=(replace(HALF.parts[0], done=((0, 60),)),) if HALF.parts else None, rows=6000)
    orders = next(line for line in shown(Progress(tasks=(later,)), began).splitlines() if "orders" in line)
    assert "100" in orders
    assert "40 s" in orders


def test_nothing_to_read_is_said_in_words():
    assert "nothing was delivered yet" in shown(None)
    assert "nothing is being read" in shown(Progress(event_no=3))
    assert "paused" in shown(Progress(paused=True))
    assert size(1 << 50) == "1024.0 TB"


def test_bars_stand_below_the_log_and_go_when_all_is_read():
    screen, now = Screen(), [PROGRESS]
    foot = terminal(lambda: now[0], screen)
    assert isinstance(foot, Terminal)
    observe = configure_logging(LogConfig(level="info", format="json"), foot)
    foot.tick()
    foot.tick()
    observe(SnapshotFinished(rows=7))
    now[0] = Progress()
    foot.tick()
    text = screen.getvalue()
    assert "public.orders" in text
    # THEN the line of the log is whole, however long, and what is written later goes straight to the terminal
    assert '"event":"snapshot.finished"' in text.replace(": ", ":")
    before = len(screen.getvalue())
    observe(SnapshotFinished(rows=8))
    assert screen.getvalue()[before:].count("\n") == 1
    assert "public.orders" not in screen.getvalue()[before:]


def test_what_is_no_terminal_has_no_bars():
    assert terminal(lambda: PROGRESS, io.StringIO()) is None
