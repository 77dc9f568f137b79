"""Options of Debezium's transform ExtractNewRecordState, which is cdcd's `event_flattening`.

The names and defaults are those of Debezium 3.7.0. The transform itself, and all others, are judged in `transforms.py`.
"""

from typing import Final

from cdcd.adopt.verdicts import (
    Kind,
    Option,
    Rule,
    Verdict,
    by_value,
    differs,
    impossible,
    irrelevant,
    lacks,
    only,
    same,
    to,
)
from cdcd.formats.flattening import (
    DELETE_TO_TOMBSTONE,
    DROP,
    REWRITE,
    REWRITE_WITH_TOMBSTONE,
    TOMBSTONE,
    read_added,
)

FLATTENING: Final = "io.debezium.transforms.extractnewrecordstate"
"""The class of the transform, in lower case."""

_MODES: Final = (DROP, TOMBSTONE, REWRITE, REWRITE_WITH_TOMBSTONE, DELETE_TO_TOMBSTONE)
_FORMER: Final = (
    "Debezium has delete.tombstone.handling.mode instead. Write event_flattening.delete_tombstone_handling_mode into "
    "cdcd.yaml. For delete.handling.mode drop, rewrite and none, it is drop, rewrite and delete-to-tombstone; with "
    "drop.tombstones: false it is tombstone, rewrite-with-tombstone and tombstone. Then accept this option."
)


def _added(key: str) -> Rule:
    def rule(value: str) -> Verdict:
        fields = [each.strip() for each in value.split(",") if each.strip()]
        try:
            for each in fields:
                read_added(each, "")
        except ValueError as error:
            return lacks(
                f"{error}. Take it out of the connector's option, or leave it out by accepting this."
            )
        return Verdict(Kind.SAME, f"{key}.", {key: fields})

    return rule


_OF: Final = "transforms.<alias>."
FLATTENING_OPTIONS: Final = (
    Option(
        f"{_OF}delete.tombstone.handling.mode",
        None,
        by_value(
            {
                mode: same(
                    "event_flattening.delete_tombstone_handling_mode.",
                    event_flattening__delete_tombstone_handling_mode=mode,
                )
                for mode in _MODES
            }
        ),
    ),
    Option(f"{_OF}add.fields", None, _added("event_flattening.add_fields")),
    Option(f"{_OF}add.fields.prefix", None, to("event_flattening.add_fields_prefix")),
    Option(f"{_OF}add.headers", None, _added("event_flattening.add_headers")),
    Option(f"{_OF}add.headers.prefix", None, to("event_flattening.add_headers_prefix")),
    Option(f"{_OF}drop.tombstones", None, impossible(_FORMER)),
    Option(f"{_OF}delete.handling.mode", None, lambda _: lacks(_FORMER)),
    Option(
        f"{_OF}route.by.field",
        None,
        impossible("cdcd routes by tables only. Let a job after the topics do it, and accept this option."),
    ),
    Option(
        f"{_OF}drop.fields.header.name",
        None,
        impossible("cdcd leaves columns out by columns.exclude. Write them there, and accept this option."),
    ),
    Option(f"{_OF}drop.fields.from.key", None, irrelevant("It belongs to drop.fields.header.name.")),
    Option(
        f"{_OF}drop.fields.keep.schema.compatible", None, irrelevant("It belongs to drop.fields.header.name.")
    ),
    Option(
        f"{_OF}replace.null.with.default",
        None,
        only(
            "false",
            "NULL is null.",
            differs("NULL is null in cdcd's records, also in a column that has a default."),
        ),
    ),
)
"""Rows for the options of the transform. Those of another transform have the same pattern of names."""
