"""RESULTS.md: one section for each thing that is measured, which only the program that measured it writes."""

import re
from datetime import datetime
from pathlib import Path

_TITLE = "# What was measured\n"


def write_section(path: Path, heading: str, command: str, text: str) -> None:
    """Put `text` under this heading, with the date and the command; the other sections stay as they are."""
    section = f"## {heading}\n\n{datetime.now().astimezone():%Y-%m-%d}, by `{command}`\n\n```\n{text.strip()}\n```\n"
    sections = sections_of(path.read_text()) if path.exists() else {}
    sections[heading] = section
    path.write_text("\n".join([_TITLE, *sections.values()]))


def sections_of(text: str) -> dict[str, str]:
    """The sections by their headings, in their order."""
    found = {}
    for part in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        if part.startswith("## "):
            found[part.partition("\n")[0][3:]] = part.rstrip("\n") + "\n"
    return found
