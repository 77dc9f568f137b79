"""What was measured, kept in one file with a section for each command."""

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_HEAD: Final = "# What was measured\n\nWritten by `make ha`: takeover and failover, all on one machine.\n"


def write(file: Path, name: str, command: str, lines: Sequence[str]) -> None:
    """Put the section `name` in place of the former one, or after the others."""
    text = file.read_text() if file.exists() else _HEAD
    others = [
        part
        for part in re.split(r"^(?=## )", text, flags=re.MULTILINE)
        if not part.startswith(f"## {name}\n")
    ]
    told = "\n".join(lines)
    # What else the machine did is in the figures too.
    busy = f"{os.cpu_count()} cores, load average {os.getloadavg()[2]:.1f} over a quarter of an hour"
    section = f"## {name}\n\n{datetime.now(UTC):%Y-%m-%d}, by `{command}`; {busy}\n\n```\n{told}\n```\n"
    file.write_text("\n".join(part.rstrip("\n") + "\n" for part in [*others, section]))
