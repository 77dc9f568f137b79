"""Conversion of errors to the terms of a Python program instead of the daemon's configuration.

The lower modules were written for the daemon, so their messages name keys of `cdcd.yaml`, commands, and the
daemon's next steps. A program has parameters instead, and decides itself on the next step.
"""

from typing import Final, TypeVar

from cdcd.core.errors import CdcdError

E = TypeVar("E", bound=CdcdError)

WORDS: Final[tuple[tuple[str, str], ...]] = (
    ("; cdcd connects again.", ": connect again."),
    ("cdcd connects again.", "Connect again."),
    ("cdcd tries again.", "Connect again."),
    ("cdcd reads it again.", "connect again."),
    ("Trying again. ", "Connect again. "),
    ("create a new slot with `cdcd run --accept-gap`", "create a new one with create_slot=True"),
    ("create a new slot with `cdcd run --accept-gap`", "create a new slot with create_slot=True"),
    ("bring the consumers back to a known state", "read the tables again"),
    ("missing in Kafka", "missing"),
    ("If a bytea is the reason, postgres.binary: true sends up to 1 GB of it. Or leave", "Leave"),
    (" (`cdcd reset`)", ""),
    (" `cdcd check` says how many files and connections cdcd needs.", ""),
    (
        (
            "Restart the pipeline from scratch: `cdcd reset --yes` removes slot and checkpoint, and the next "
            "`cdcd run` reads the tables again (snapshot.mode). Rows that were deleted meanwhile leave no record. Or "
            "accept that the changes are missing: drop the slot"
        ),
        "Create the publication, drop the slot",
    ),
    (" Either way, cdcd creates a missing publication.", ""),
    (
        "Read its tables again, or accept it with `cdcd run --accept-gap` after moving the slot past this position.",
        "Read its tables again, and move the slot past this position with pg_replication_slot_advance.",
    ),
    (
        "Choose another name in postgres.slot: cdcd creates it.",
        "Pass another name as slot, with create_slot=True.",
    ),
    (", or name the tables in postgres.tables", ", or name the tables one by one"),
    ("see postgres.protocol and its options", "see streaming and messages"),
    ("streaming: on", "streaming='on'"),
    ("streaming: parallel", "streaming='parallel'"),
    ("set postgres.streaming: off", "pass streaming='off'"),
    (" and protocol: auto", ""),
    ("Set postgres.binary: false, so that values", "Values"),
    ("Take postgres.", "Take "),
    (" out of the configuration", " out of the program"),
    ("the configuration asks for", "the program asks for"),
    ("give this pipeline a slot of its own", "give this program a slot of its own"),
    ("lost to cdcd", "lost to this program"),
    ("room for cdcd (`cdcd check` says how many it opens)", "connections for this stream, which opens two"),
    ("spool.disk_bytes_max", "spool_disk_bytes_max"),
    ("spool.directory", "spool_directory"),
    ("cdcd runs the command again.", "Connect again, which runs the command again."),
    ("postgres.password_command", "password_command"),
    ("postgres.dsn", "the DSN"),
    ("postgres.slot", "slot"),
)
"""(the daemon's text, the program's text), in the order of replacement."""


def in_our_words(error: E) -> E:
    """Replace the daemon's words in the error's message and hint by a program's words, and return the error."""
    error.message = reworded(error.message)
    error.hint = reworded(error.hint)
    error.args = (error.message,)
    return error


def reworded(text: str) -> str:
    """Return a message or a hint with the texts of a program."""
    for theirs, ours in WORDS:
        text = text.replace(theirs, ours)
    return text
