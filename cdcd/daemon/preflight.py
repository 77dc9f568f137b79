"""What `cdcd check` finds: both sides looked at, nothing changed.

A side that cannot be asked is a finding too, and its error's exit code is the command's: it says more than that
something was found. The other side is asked all the same.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from cdcd.daemon.config import Config
from cdcd.errors import CdcdError

Level = Literal["ok", "warning", "error"]

FOUND_ERROR: Final = 10
"""The exit code when both sides answered and something is wrong (`errors.EXIT_CODES`)."""


class Finding(Protocol):
    """About what, what is so, and what to do about it (empty where nothing is to be done)."""

    @property
    def level(self) -> Level: ...

    @property
    def subject(self) -> str: ...

    @property
    def found(self) -> str: ...

    @property
    def fix(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Unasked:
    """Stands for a side that could not be asked, or not to the end."""

    subject: str
    found: str
    fix: str
    level: Level = "error"


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, PostgreSQL's first, and the exit code that follows from them."""

    findings: tuple[Finding, ...]
    exit_code: int


Ask = Callable[[Config], Awaitable[Sequence[Finding]]]


def examine(config: Config) -> Report:
    """Ask both sides. Raises nothing that the world can cause: that is in the report."""
    return asyncio.run(gather(config, SIDES))


async def gather(config: Config, sides: Mapping[str, Ask]) -> Report:
    """The findings of the sides, by name, asked at the same time."""
    answers = await asyncio.gather(*(_ask(name, ask, config) for name, ask in sides.items()))
    findings = tuple(finding for found, _ in answers for finding in found)
    unasked = next((code for _, code in answers if code), 0)
    wrong = FOUND_ERROR if any(finding.level == "error" for finding in findings) else 0
    return Report(findings, unasked or wrong)


async def _ask(name: str, ask: Ask, config: Config) -> tuple[Sequence[Finding], int]:
    try:
        return await ask(config), 0
    except CdcdError as error:
        return [Unasked(name, error.message, error.hint)], error.exit_code


SIDES: Final[Mapping[str, Ask]] = {}
