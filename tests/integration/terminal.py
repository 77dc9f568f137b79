"""A program on a terminal of its own, as a person has it: what it draws there, and what it leaves behind."""

import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from deploy.local.cache import REPOSITORY
from tests.integration.daemon import WAIT_S

ESCAPE: Final = re.compile(
    rb"\x1b(?:\[[0-9;?<=>]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|\([A-Z0-9]|.)", re.DOTALL
)
"""An escape sequence (ECMA-48: control sequences, operating system commands, character sets, and those of one byte)."""


class Terminal:
    """A process whose standard streams are a new terminal. `drawn` is every byte of it that was read so far.

    The process has a session of its own without a controlling terminal, so that no signal comes from the terminal.

    Args:
        command: what is run, in the repository.
        rows, columns: the size of the terminal.
        only_errors: only standard error is the terminal, the other streams are `/dev/null`.
        environment: variables beside ours.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        rows: int = 40,
        columns: int = 120,
        only_errors: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.drawn = b""
        self._ours, self._theirs = pty.openpty()
        self._is_open = True
        self.resize(rows, columns)
        self._before = termios.tcgetattr(self._theirs)
        other = subprocess.DEVNULL if only_errors else self._theirs
        self.process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=other,
            stdout=other,
            stderr=self._theirs,
            env={**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(environment or {})},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self.hang_up()

    def resize(self, rows: int, columns: int) -> None:
        """The program hears of it by SIGWINCH, which the caller sends."""
        termios.tcsetwinsize(self._ours, (rows, columns))

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)

    def read_until(self, text: str | re.Pattern[str], timeout_s: float = WAIT_S) -> None:
        """Read until the text, or a match of the pattern, is drawn. What was drawn before this call does not count."""
        pattern = re.compile(re.escape(text)) if isinstance(text, str) else text
        begin = len(self.drawn)
        deadline = time.monotonic() + timeout_s
        while pattern.search(self.plain(begin)) is None:
            assert self._read(deadline), f"the program ended without {text!r}:\n{self.plain(begin)}"

    def read_to_end(self, timeout_s: float = 2 * WAIT_S) -> int:
        """Read until the program has ended and everything that it has drawn is read; its exit code."""
        deadline = time.monotonic() + timeout_s
        while self._read(deadline):
            pass
        return self.process.wait()

    def plain(self, begin: int = 0) -> str:
        """What was drawn, without escape sequences, from that byte on."""
        return ESCAPE.sub(b"", self.drawn[begin:]).decode(errors="replace")

    def is_as_before(self) -> bool:
        """Whether the terminal's settings are those from before the program ran."""
        return termios.tcgetattr(self._theirs) == self._before

    def hang_up(self) -> None:
        """The terminal is gone, and no signal says so."""
        if self._is_open:
            self._is_open = False
            os.close(self._ours)
            os.close(self._theirs)

    def _read(self, deadline: float) -> bool:
        """Read what is there, or wait for a moment; False if the program has ended and nothing is left."""
        assert time.monotonic() < deadline, f"the program went on:\n{self.plain()[-2000:]}"
        has_ended = self.process.poll() is not None
        if select.select([self._ours], [], [], 0 if has_ended else 0.1)[0]:
            self.drawn += os.read(self._ours, 65_536)
            return True
        return not has_ended
