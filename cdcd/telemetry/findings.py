"""Findings of `cdcd check`: the level of a finding shows the result, and its code what was examined.

A finding with an unknown code fails.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cdcd.core.errors import CdcdError
from cdcd.telemetry.check_codes import CODES

Level = Literal["ok", "unknown", "warning", "error"]

NAMED_MAX: Final = 8
"""Maximum number of names in one finding; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check.

    Attributes:
        level: ok: as it should be. unknown: cannot be checked without changing something. warning: works now, but
            will cause trouble later. error: `cdcd run` would end.
        code: the checked matter, a name in `check_codes.CODES`.
        subject: the checked object, in the words of an operator.
        found: state of the object.
        fix: instruction for the operator; "" if nothing is to be done.
    """

    level: Level
    code: str
    subject: str
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert self.code in CODES, f"{self.code} is not in the table of codes"


def of_error(code: str, subject: str, error: CdcdError) -> Finding:
    """Return a finding with the error with which `cdcd run` would end."""
    return Finding("error", code, subject, error.message, error.hint)


def named(names: Sequence[str]) -> str:
    """Return the first names, and the number of further ones."""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
