"""Hints for rows that cannot be read."""

from typing import Final

HINT: Final = (
    "Nothing past it was confirmed. Either the bytes were damaged on the way, or the server writes this type in a way"
    " that this version of cdcd does not know."
)
HINT_BINARY: Final = (
    "Set postgres.binary: false, so that values come as text at every start, or leave the table out of the"
    " publication."
)
