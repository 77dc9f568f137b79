"""Rows as the topics make them, while they are kept to be compared."""

from typing import Final, NamedTuple

Place = tuple[int, int]
"""Where a change stands in the stream: commit_lsn and event_serial_no."""

KEY_MAX: Final = 1000
"""Bytes of a key that are kept to be shown."""

WHOLE: Final = 0
UNSENT: Final = 1
MOVED: Final = 2
ELSEWHERE: Final = 3
FOREIGN: Final = 4
"""What a row lacks: nothing; a value that was never sent; a value that the row with its former key has; all of its
values, which are in a file (claim check); a place, because another connector wrote it."""


class Stored(NamedTuple):
    """A row as its last change left it.

    Attributes:
        lsn, serial: the place of that change.
        state: what the row lacks.
        shape: the number of its shape (`TableFold.shapes`).
        packed: its values (`values.py`).
        name: its key, as far as it is kept.
    """

    lsn: int
    serial: int
    state: int
    shape: int
    packed: bytes
    name: bytes


class Loose(NamedTuple):
    """A row without a key that came (`sign` 1) or went (-1) at a place."""

    lsn: int
    serial: int
    half: int
    sign: int
    shape: int
    packed: bytes
