"""What a look at one of the sides finds: the rows of `cdcd check`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cdcd.core.errors import CdcdError
from cdcd.telemetry.finding_codes import CODES

Level = Literal["ok", "unknown", "warning", "error"]

NAMED_MAX: Final = 8
"""So many names stand in one finding; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was looked at.

    Attributes:
        level: ok: as it should be. unknown: nobody can tell without changing something, so it was not checked. warning:
            works now, and will hurt somebody some day. error: `cdcd run` would end.
        code: what was looked at, a name in `codes.CODES`.
        subject: which one, as a person calls it.
        found: how it is.
        fix: what to do; "" if nothing is to be done.
    """

    level: Level
    code: str
    subject: str
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert self.code in CODES, f"{self.code} is not in the table of codes"


def of_error(code: str, subject: str, error: CdcdError) -> Finding:
    """What `cdcd run` would end with, in its words."""
    return Finding("error", code, subject, error.message, error.hint)


def named(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
