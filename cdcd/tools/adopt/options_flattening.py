"""Options of Debezium's transform ExtractNewRecordState, which is cdcd's `event_flattening`.

The names and defaults are those of Debezium 3.7.0. The transform itself, and all others, are judged in `transforms.py`.
"""

from collections.abc import Mapping
from typing import Final

from cdcd.core.records.flattening import (
    DELETE_TO_TOMBSTONE,
    DROP,
    REWRITE,
    REWRITE_WITH_TOMBSTONE,
    TOMBSTONE,
    read_added,
)
from cdcd.tools.adopt.verdicts import (
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

FLATTENING: Final = "io.debezium.transforms.extractnewrecordstate"
"""The class of the transform, in lower case."""

_MODES: Final = (DROP, TOMBSTONE, REWRITE, REWRITE_WITH_TOMBSTONE, DELETE_TO_TOMBSTONE)
_MODE: Final = "delete.tombstone.handling.mode"
_FORMER_MODE: Final = "delete.handling.mode"
_FORMER_DROP: Final = "drop.tombstones"

_OF_FORMER: Final = {
    ("drop", "true"): DROP,
    ("drop", "false"): TOMBSTONE,
    ("rewrite", "true"): REWRITE,
    ("rewrite", "false"): REWRITE_WITH_TOMBSTONE,
    ("none", "true"): DELETE_TO_TOMBSTONE,
    ("none", "false"): TOMBSTONE,
}
"""The present mode for each pair of delete.handling.mode and drop.tombstones, which it replaced together."""

_FORMER: Final = (
    f"event_flattening.delete_tombstone_handling_mode, from {_FORMER_MODE} and {_FORMER_DROP} together. Debezium has "
    f"{_MODE} in their place since 2.5."
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


def mode_of(options: Mapping[str, str]) -> str | None:
    """The mode for deletes in the options of one transform; None: no option sets it, or its value is not known."""
    given = options.get(_MODE, "").strip().lower()
    if given:
        return given if given in _MODES else None
    former = options.get(_FORMER_MODE, "").strip().lower(), options.get(_FORMER_DROP, "").strip().lower()
    return _OF_FORMER.get((former[0] or "drop", former[1] or "true")) if any(former) else None


def of_former(option: str, options: Mapping[str, str], found: Verdict) -> Verdict:
    """The verdict on one option of the transform. `found`: the verdict of the option's row in the table."""
    if option not in (_FORMER_MODE, _FORMER_DROP):
        return found
    if options.get(_MODE, "").strip():
        return Verdict(Kind.IRRELEVANT, f"{_MODE} is given, which counts in its place.")
    mode = mode_of(options)
    if mode is None:
        return Verdict(
            Kind.UNKNOWN,
            f"{_FORMER_MODE} is drop, rewrite or none, and {_FORMER_DROP} is true or false. Write "
            "event_flattening.delete_tombstone_handling_mode into cdcd.yaml, and accept this option.",
        )
    return differs(
        f"event_flattening.delete_tombstone_handling_mode: {mode}, from {_FORMER_MODE} and {_FORMER_DROP} together. "
        f"Debezium has {_MODE} in their place since 2.5: a version that no longer knows this option ignores it.",
        event_flattening__delete_tombstone_handling_mode=mode,
    )


_OF: Final = "transforms.<alias>."
FLATTENING_OPTIONS: Final = (
    Option(
        f"{_OF}{_MODE}",
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
    Option(f"{_OF}{_FORMER_DROP}", None, lambda _: differs(_FORMER)),
    Option(f"{_OF}{_FORMER_MODE}", None, lambda _: differs(_FORMER)),
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
