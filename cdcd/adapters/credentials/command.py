"""Runner of configured commands that print a secret: a password or a token.

There is no shell: the arguments go to the program as they are. What the command prints is a secret and is never
shown. If the command fails, the error shows the end of its standard error: ordinary words and small numbers, and
`***` for everything else.
"""

import asyncio
import os
import re
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cdcd.config.masking import MASK, mask_text
from cdcd.core.errors import ConfigError, TransientError, out_of_files

OUTPUT_BYTES_MAX: Final = 65_536
"""Maximum bytes that a command may print. Tokens of clouds have some thousand bytes."""

SAID_LENGTH_MAX: Final = 300
"""Maximum characters of a command's standard error in an error: the last ones, where programs name the reason."""

_SAID_BYTES_MAX: Final = 4 * SAID_LENGTH_MAX

_OPAQUE: Final = re.compile(r"(?=[A-Za-z+/_=%-]*[0-9])[A-Za-z0-9+/_=%-]{24,}")
"""Pattern of text that may be a token, a key or a signature. Ordinary words have no digits, and parts of host names
are shorter."""

_NAMED: Final = re.compile(r"(\w*(?:password|passwd|secret|token|key)\w*[\"']?\s*[=:]\s*)\S+", re.IGNORECASE)
"""Pattern of a name of a secret with its value."""


_SECRET_NOUN: Final = re.compile(
    r"(?:token|password|passwd|passphrase|passcode|secret|key|credential|pin)s?[:=]?", re.IGNORECASE
)
"""Words after which a program may print the secret itself."""

_ORDINARY: Final = re.compile(
    r"an?|and|are|at|be|by|can|cannot|command|could|did|does|endpoint|error|expired|failed|file|for|found|from|has|have"
    r"|id|in|invalid|is|manager|may|missing|must|no|not|of|on|or|policy|provider|refused|rejected|required|server"
    r"|service|sealed|still|store|the|to|too|type|unknown|url|vault|was|were|will|with|wrong"
)
"""Harmless words that may follow such a word."""

_LETTERS: Final = r"(?:[a-z]{1,24}|[A-Z]{1,24}|[A-Z][a-z]|(?:[a-z]+)?(?:[A-Z][a-z]{2,23})+)"
_WORD: Final = re.compile(
    rf"[(\[<]*(?:/?{_LETTERS}(?:[-/_.:']{_LETTERS})*|[0-9]{{1,5}}|(?:[A-Za-z_]+[=:])?\*{{3}})[)\]>.,:;!?]*|[-–—:=.,;…]+"
)
"""Pattern of a word that cannot be a secret: letters in the case of words, names of programs, a small number."""

_QUOTED: Final = re.compile(r"(['\"`])[^'\"`]+\1")


@dataclass(frozen=True, slots=True)
class Command:
    """A command, with the configuration key that contains it.

    Attributes:
        arguments: the program and its arguments.
        timeout_s: seconds after which the command is killed.
    """

    key: str
    arguments: tuple[str, ...]
    timeout_s: float


class _Running:
    """A running command in its own process group, so that `kill` ends its children too."""

    def __init__(self, command: Command) -> None:
        """Start the command.

        Raises ConfigError if the program cannot be run, and TransientError if it cannot be run at this moment.
        """
        self._command = command
        self._deadline = time.monotonic() + command.timeout_s
        try:
            self._process = subprocess.Popen(  # noqa: S603  the operator's own, and no shell reads it
                command.arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            raise ConfigError(
                f"{self._what} cannot be run: {error.strerror}",
                hint=f"Correct {command.key}. It is a list of the program and its arguments, and no shell reads it. "
                "Give the program's whole path if its folder is not in PATH.",
            ) from None
        except OSError as error:
            full = out_of_files(error)
            if full is not None:
                raise full from None
            raise TransientError(f"{self._what} cannot be run: {error.strerror}", hint=self._hint) from None

    def kill(self) -> None:
        """Kill the command and its children at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def output(self) -> str:
        """Wait for the end of the command, and return the text that it printed, without the last line's end.

        Raises TransientError if the command took too long, failed, or did not print text.
        """
        with self._process as process:
            try:
                printed, said = self._read()
                code = process.wait(max(0.0, self._deadline - time.monotonic()))
            except (TimeoutError, subprocess.TimeoutExpired):
                raise TransientError(
                    f"{self._what} did not end within {self._command.timeout_s:g} s", hint=self._hint
                ) from None
            finally:
                self.kill()
        if code:
            why = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            shown = _shown(said, printed)
            raise TransientError(f"{self._what} {why}{': ' + shown if shown else ''}", hint=self._hint)
        if len(printed) > OUTPUT_BYTES_MAX:
            raise TransientError(f"{self._what} printed more than {OUTPUT_BYTES_MAX} bytes", hint=self._hint)
        try:
            text = printed.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise TransientError(f"{self._what} printed what is not UTF-8 text", hint=self._hint) from None
        if not text.strip():
            raise TransientError(f"{self._what} printed nothing", hint=self._hint)
        return text

    def _read(self) -> tuple[bytes, bytes]:
        """Return the command's standard output, and the end of its standard error.

        TimeoutError: the command did not end in time.
        """
        printed, said = bytearray(), bytearray()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with selectors.DefaultSelector() as pipes:
            pipes.register(self._process.stdout, selectors.EVENT_READ, printed)
            pipes.register(self._process.stderr, selectors.EVENT_READ, said)
            while pipes.get_map():
                left = self._deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                for key, _ in pipes.select(left):
                    data = os.read(key.fd, OUTPUT_BYTES_MAX)
                    if not data:
                        pipes.unregister(key.fileobj)
                    key.data.extend(data)
                del printed[OUTPUT_BYTES_MAX + 1 :]
                del said[:-_SAID_BYTES_MAX]
        return bytes(printed), bytes(said)

    @property
    def _what(self) -> str:
        return f"{self._command.key}: {self._command.arguments[0]}"

    @property
    def _hint(self) -> str:
        return (
            f"Run the command of {self._command.key} by hand, as the user and in the environment of cdcd, and correct "
            f"the fault that it reports."
        )


def _shown(said: bytes, printed: bytes) -> str:
    """Return the end of a command's standard error without secrets.

    `***` replaces each word that may be a secret or a part of the command's output.
    """
    output = printed.decode(errors="replace").lower()
    parts = set(re.findall(r"\w{3,}", output))
    shown, is_next = [], False
    for word in _QUOTED.sub(MASK, without_secrets(said.decode(errors="replace"))).split():
        core = word.strip("()[]<>.,:;!?").lower()
        is_part = len(core) > 2 and (core in output or any(part in core for part in parts))
        hidden = (
            _WORD.fullmatch(word) is None
            or is_part
            or (is_next and MASK not in word and _ORDINARY.fullmatch(core) is None)
        )
        shown.append(MASK if hidden else word)
        is_next = _SECRET_NOUN.fullmatch(core) is not None or (
            is_next and core in {"is", "was", "the", "=", ""}
        )
    text = " ".join(
        word for word, before in zip(shown, ["", *shown], strict=False) if (word, before) != (MASK, MASK)
    )
    return text if len(text) <= SAID_LENGTH_MAX else f"… {text[-SAID_LENGTH_MAX:]}"


def without_secrets(text: str) -> str:
    """Return a program's text with everything masked that may be a secret."""
    return _OPAQUE.sub(MASK, _NAMED.sub(rf"\1{MASK}", mask_text(text)))


def output_of(command: Command) -> str:
    """Run the command, and return the text that it prints. The call blocks for `timeout_s` at most.

    Raises:
        ConfigError: the program cannot be run.
        TransientError: the command took too long, failed, or did not print text.
    """
    return _Running(command).output()


async def await_output(command: Command) -> str:
    """Run the command without blocking the event loop, and return the text that it prints.

    If the call is cancelled, the command is killed.
    """
    running = _Running(command)
    try:
        return await asyncio.to_thread(running.output)
    except asyncio.CancelledError:
        running.kill()
        raise
