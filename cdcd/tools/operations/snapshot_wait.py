"""`cdcd snapshot start --wait`: waits until a request has ended, by the checkpoint in Kafka.

The rule: only the checkpoint shows the outcome of a request. So the daemon may be killed, restarted or replaced by
a standby meanwhile, without any effect on the wait.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from cdcd.config.loading import Config
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import SinkUnavailableError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.snapshot.outcomes import CANCELLED, Requested, find_request
from cdcd.core.snapshot.progress import Progress
from cdcd.telemetry.terminal_text import number, seconds
from cdcd.tools.operations.sides import peek
from cdcd.tools.operations.snapshot_status import SnapshotStatus, lines

LOOK_S: Final = 1.0
"""Seconds between two reads of the checkpoint."""

UNHEARD_S: Final = 10.0
"""Seconds after which a request that no instance has accepted is reported."""

LINE_S: Final = 10.0
"""Seconds between two lines of progress."""

Kind = Literal["unheard", "open", "ended", "forgotten"]


@dataclass(frozen=True, slots=True)
class RequestVerdict:
    """State of a request by the checkpoint: not accepted yet, open, ended, or accepted and no longer remembered."""

    kind: Kind
    request: Requested | None = None


def judge(found: Checkpoint | None, name: str, sent: Lsn) -> RequestVerdict:
    """Return the state of the request `name`, which is at `sent` in the WAL."""
    if found is None or found.position.end_lsn <= sent:
        return RequestVerdict("unheard")
    request = find_request((found.snapshot or Progress()).requests, name)
    if request is None:
        return RequestVerdict("forgotten")
    return RequestVerdict("ended" if request.has_ended else "open", request)


def outcome(verdict: RequestVerdict) -> tuple[int, str]:
    """Return the exit code and the final message for a request that has ended."""
    request = verdict.request
    if request is None:
        return CANCELLED, (
            "The outcome is no longer known, because many requests have ended since. See `cdcd snapshot status` and "
            "the events table.read and table.failed in the log of the daemon."
        )
    took = seconds(max(0, request.ended - request.asked))
    if not request.tables:
        return request.code, f"refused: {request.error}"
    if not request.failed:
        return 0, f"complete: {number(request.tables, 'table')}, {number(request.rows, 'row')} in {took}"
    return request.code, (
        f"not complete: {request.failed:,} of {number(request.tables, 'table')}, after {took}: "
        f"{request.error}"
    )


class Screen:
    """Display of a request's progress: `show` gets all lines at each update, `note` a sentence that is shown once."""

    def show(self, text: list[str]) -> None:
        raise NotImplementedError

    def note(self, text: str) -> None:
        raise NotImplementedError


def wait(config: Config, name: str, sent: Lsn, timeout_s: float, screen: Screen) -> tuple[int, str]:
    """Wait for the end of the request.

    Args:
        timeout_s: maximum seconds to wait; 0: no limit.

    Returns:
        The exit code, and a message with the outcome of the request.

    Raises:
        SinkError, PositionError: the checkpoint cannot be read, and a retry would not help.
    """
    return _Wait(config, name, sent, timeout_s, screen).run()


class _Wait:
    def __init__(self, config: Config, name: str, sent: Lsn, timeout_s: float, screen: Screen) -> None:
        self._config = config
        self._name = name
        self._sent = sent
        self._screen = screen
        self._began = time.monotonic()
        self._deadline = self._began + timeout_s if timeout_s else None
        self._said: set[str] = set()

    def run(self) -> tuple[int, str]:
        while True:
            verdict = self._look()
            if verdict is not None and verdict.kind in {"ended", "forgotten"}:
                return outcome(verdict)
            now = time.monotonic()
            if self._deadline is not None and now >= self._deadline:
                return CANCELLED, (
                    "The time of --timeout is over. The request continues. `cdcd snapshot status` shows the progress; "
                    "`cdcd snapshot cancel` cancels the request."
                )
            time.sleep(LOOK_S if self._deadline is None else min(LOOK_S, self._deadline - now))

    def _look(self) -> RequestVerdict | None:
        try:
            found = peek(self._config)
        except SinkUnavailableError as error:
            self._say(
                "away",
                f"Kafka does not answer, so the state of the request is not known now. Still waiting. {error.message}",
            )
            return None
        self._said.discard("away")
        verdict = judge(found, self._name, self._sent)
        if verdict.kind == "unheard" and time.monotonic() - self._began > UNHEARD_S:
            self._say(
                "unheard",
                "No instance has received the request yet. The request is in the WAL: start `cdcd run`, or wait until "
                "the running instance catches up (`cdcd status` shows its position).",
            )
        progress = None if found is None else found.snapshot
        if verdict.kind == "open" and progress is not None:
            if progress.paused:
                self._say("paused", "Snapshots are paused: `cdcd snapshot resume` continues them.")
            else:
                self._said.discard("paused")
            status = SnapshotStatus(progress, now=int(time.time()))
            self._screen.show(list(lines(status, request=self._name)))
        return verdict

    def _say(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._screen.note(text)


class WaitLines(Screen):
    """Display as lines for a pipe or a file: the progress every `LINE_S` seconds.

    Args:
        write: prints a line.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._next_at = time.monotonic() + LINE_S

    def show(self, text: list[str]) -> None:
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + LINE_S
            for line in text:
                self._write(line)

    def note(self, text: str) -> None:
        self._write(text)
