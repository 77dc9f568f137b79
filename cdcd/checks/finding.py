"""What a look at one of the sides finds: the rows of `cdcd check`."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """About what, what is so, and what to do about it ("" where nothing is to be done).

    ok: as it should be. warning: works now, and will hurt somebody some day. error: `cdcd run` would not work.
    """

    level: Level
    subject: str
    found: str
    fix: str = ""
