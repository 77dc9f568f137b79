"""Options of Debezium's transform ExtractNewRecordState, which is cdcd's `event_flattening`.

The names and defaults are those of Debezium 3.7.0. A connector's other transforms have no counterpart.
"""

from collections.abc import Mapping
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

NO_OTHERS: Final = (
    "cdcd flattens records, but has no other transforms. Write event_flattening into cdcd.yaml, let the consumers or a "
    "job after the topics do what the others do, and accept this option. Do not take over before that: the records "
    "would not be flattened."
)
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
    Option(
        f"{_OF}predicate",
        None,
        impossible(
            "cdcd flattens the records of all tables, or of none. Accept this option if that is what you want."
        ),
    ),
    Option(f"{_OF}negate", None, irrelevant("It belongs to predicate.")),
)
"""Rows for the options of the transform. Those of another transform have the same pattern of names (`of_transform`)."""


def of_transform(name: str, options: Mapping[str, str], found: Verdict) -> Verdict:
    """What becomes of an option of the connector's transforms, which all of them decide together."""
    aliases = [each.strip() for each in options.get("transforms", "").split(",") if each.strip()]
    types = {each: options.get(f"transforms.{each}.type", "").strip().lower() for each in aliases}
    is_all = list(types.values()) == [FLATTENING]
    if name == "transforms":
        if is_all:
            return same("event_flattening.enabled: true.", event_flattening__enabled=True)
        return lacks(NO_OTHERS) if FLATTENING in types.values() else found
    _, alias, option = [*name.split(".", 2), "", ""][:3]
    if alias not in types and not found.keys:
        return found
    if alias not in types:
        return Verdict(Kind.IRRELEVANT, "It belongs to a transform that `transforms` does not name.")
    if types[alias] != FLATTENING and option != "type":
        return Verdict(Kind.IRRELEVANT, "It belongs to its transform.")
    if types[alias] == FLATTENING and not is_all and found.keys:
        # Without the other transforms, flattening could be something else than what the topics have.
        return Verdict(Kind.IRRELEVANT, "It belongs to its transform, beside which there are others.")
    return found
