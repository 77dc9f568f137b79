"""The plan of a fold: the table as it is, the part of the log that the table lacks, and the forms in between.

A fold carries the plan out. A view of now (`now.py`) reads the same plan, and changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

from pyspark.sql import SparkSession

from cdcd.core.errors import SinkError
from cdcd.core.pasted import begin_again
from cdcd.mirror.base.columns import digest
from cdcd.mirror.base.formats import TOPIC_ID, BaseFormat, Version, check_made, read_form
from cdcd.mirror.base.part import Forms, LacksChangesError, LogReader, Part, PartOfForm, Place, last_truncate
from cdcd.mirror.base.path import Path, Steps
from cdcd.mirror.base.position import NO_FORM, Position
from cdcd.mirror.log.positions import truncate_after_gap
from cdcd.mirror.platform.tables import exists
from cdcd.mirror.records.defaults import fits
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, Relabel, check, plan, unfilled
from cdcd.mirror.targets.same_columns import is_other, numbered


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a fold into a table.

    Attributes:
        there: the table as it is. None: there is no table.
        position: of the table; the position of a table without rows if it is not known.
        part: of the log, which the table lacks.
        path: the forms from that of the rows to that of the last change. None: nothing is to be folded.
        topic: the property that names the topic.
        removed: (LSN, event number) of a truncate. Rows that were last changed before it are removed, also if the table
            marks deletes. None: a truncate in the part marks them.
        whole: the position is not known, so the part replaces all rows.
        has: properties of the table.
    """

    there: Version | None
    position: Position
    part: Part
    path: Path | None = None
    topic: dict[str, str] = field(default_factory=dict)
    whole: bool = False
    removed: tuple[int, int] | None = None
    has: Mapping[str, str] = field(default_factory=dict)


def plan_of(spark: SparkSession, format_: BaseFormat, place: Place, forms: Forms, log: LogReader) -> Plan:
    """Return the plan of a fold into a table.

    Args:
        log: reads the part up to its bound.

    Raises:
        OvertakenError: another writer folded the table beyond the bound.
        SourceError, SinkError, IncompatibleSchemaError: the table cannot be folded until a person acts.
    """
    there = None
    properties: Mapping[str, str] = {}
    if exists(spark, place.name):
        properties = check_made(spark, place.name, place.table)
        there = format_.version(spark, place.name)
    topic_id = properties.get(TOPIC_ID)
    whole = there is not None and there.position is None
    position = Position(clean=not whole) if there is None or there.position is None else there.position
    position = log.begin(position)
    described = newly_labelled(spark, place, position) if position.reached <= log.bound else None
    if position.clean and position.lsn >= log.bound and described is None:
        return Plan(there, position, Part(position.lsn))
    marks = place.layout.marks
    # A table that marks deletes keeps the rows from before a truncate.
    part = log.part(position, topic_id, whole=whole, from_truncate=not marks)
    if not part.forms and position.clean and described is None:
        return Plan(there, position, part)
    has = form_of_rows(spark, place, position)
    if marks and part.cut is None and (cut := last_truncate(part.forms)) is not None:
        ids = part.topic_ids | ({topic_id} if topic_id is not None else set())
        forms_of_part = [log.described([each])[each.schema_id].schema for each in _in_order(part.forms)]
        if len(ids) > 1 or begins_anew(has, forms_of_part, is_new=there is None):
            part = log.from_cut(cut)
    parts, topic_ids = part.forms, set(part.topic_ids)
    if topic_id is not None and part.cut is None:
        topic_ids.add(topic_id)
    log.check_topic(topic_ids)
    found = log.described(parts)
    last = max(parts, key=lambda each: each.last, default=None)
    newest = None
    if last is not None:
        newest = found[last.schema_id]
    elif has is not None:
        newest = forms([has.schema_id]).get(has.schema_id) or described
    if newest is None:
        # The log has nothing that could be folded.
        return Plan(there, position, part)
    mine = [each for each in parts if not is_other(found[each.schema_id].schema, newest.schema)]
    check_relation(place, parts, mine, has, newest)
    mine = _in_order(mine)
    # No row from before the truncate stays. So the forms of these rows, and of the truncate, do not matter.
    mine = [each for each in mine if (each.first, each.last) != (part.cut, part.cut)]
    later = [found[each.schema_id] for each in mine]
    if has is not None and position.is_former and not part.cut:
        later = with_form_of_rows(has, position, mine, later, forms)
    later = later or [newest]
    if described is not None and later[-1].schema.schema_id != described.schema.schema_id:
        later = [*later, described]
    is_same = marks and has is not None and not is_other(has, newest.schema)
    path = Path(has if is_same or not part.cut else None, later)
    removed = None if is_same else part.cut
    topic = {TOPIC_ID: min(topic_ids)} if topic_ids else {}
    return Plan(there, position, part, path, topic, whole, removed, properties)


def newly_labelled(spark: SparkSession, place: Place, position: Position) -> Form | None:
    """Return the newest description of a table if it has other labels of enums than the form of the table's rows.

    PostgreSQL sends no change of a row when a label is renamed.
    """
    if place.described is None or position.form in {NO_FORM, digest(place.described.schema)}:
        return None
    has = form_of_rows(spark, place, position)
    return place.described if has is not None and has_other_labels(has, place.described.schema) else None


def has_other_labels(before: TableSchema, after: TableSchema) -> bool:
    """Return whether two forms of a table differ in the words of labels, and in nothing else that rows have.

    Raises:
        IncompatibleSchemaError: labels exchanged their words.
    """
    if is_other(before, after) or unlabelled(before) != unlabelled(after):
        return False
    return any(isinstance(step, Relabel) and step.words for step in plan(before, numbered(before, after)))


def unlabelled(schema: TableSchema) -> tuple[object, ...]:
    """What a form says of its rows, without the labels of enums."""
    return schema.key, [replace(column, labels=(), default_lost=False) for column in schema.columns]


def begins_anew(has: TableSchema | None, forms: Sequence[TableSchema], *, is_new: bool) -> bool:
    """Return whether a table that marks deletes begins with the last truncate record of a part.

    Otherwise the part is folded as a whole, and the truncate marks the rows from before it.

    Args:
        has: the form of the rows. None: there are no rows.
        forms: those of the part, in the order of their last changes.
        is_new: there is no table yet.
    """
    if any(is_other(each, forms[-1]) for each in (*([] if has is None else [has]), *forms)):
        # No row of a table that had this name before stays, neither with a mark nor without one.
        return True
    try:
        for before, after in pairwise(forms):
            plan(before, numbered(before, after))
    except IncompatibleSchemaError:
        # A table that is there stops, because its marked rows cannot get the last form.
        return is_new
    return False


def _in_order(parts: Sequence[PartOfForm]) -> list[PartOfForm]:
    return sorted(parts, key=lambda each: each.last)


def form_of_rows(spark: SparkSession, place: Place, position: Position) -> TableSchema | None:
    """Return the form of the table's rows. None: there are no rows, or all rows are folded again."""
    if position.form == NO_FORM:
        return None
    text = read_form(spark, place.name, position.form)
    if text is None:
        raise SinkError(
            f"{place.table}: {place.name} lacks the property with the form of its rows.",
            hint=f"DROP TABLE {place.name}: the next fold makes the table again from the log.",
        )
    return TableSchema.from_json(text)


def with_form_of_rows(
    has: TableSchema, position: Position, parts: Sequence[PartOfForm], forms: Sequence[Form], known: Forms
) -> list[Form]:
    """The forms of a part, with the form of the table's rows among them, in the order of their last changes.

    Without it, records of an earlier form that are folded again would take the table back to that form.

    Args:
        parts, forms: what the part has of each form, and the form.
        known: gives forms by their ids.
    """
    form = known([has.schema_id]).get(has.schema_id)
    if form is None or is_other(has, form.schema) or has.schema_id in [each.schema_id for each in parts]:
        return list(forms)
    number = len([each for each in parts if each.last[0] <= position.reached])
    return [*forms[:number], form, *forms[number:]]


def check_relation(
    place: Place,
    parts: Sequence[PartOfForm],
    mine: Sequence[PartOfForm],
    has: TableSchema | None,
    newest: Form,
) -> None:
    """Check that a truncate record precedes the rows of a relation that took over the name of another one.

    Raises:
        IncompatibleSchemaError: it does not, so the table stops.
    """
    schema, former = newest.schema, place.former_name
    is_taken = len(mine) < len(parts) or (has is not None and is_other(has, schema))
    if not is_taken and (has is not None or former is None):
        return
    if min(part.first for part in mine) in [part.truncate for part in mine]:
        return
    raise IncompatibleSchemaError(
        schema.table,
        f"another table has this name now (oid {schema.oid}), or it was called {former} before, and no truncate "
        "record precedes its rows in this topic.",
        "",
    )


def steps_of(spark: SparkSession, path: Path) -> Steps:
    """Return how the table's rows get the last form. IncompatibleSchemaError: they cannot get it."""
    check(path.schema)
    steps = path.steps()
    for column in steps.defaults.values():
        if not fits(spark, column):
            raise unfilled(path.schema.table, column)
    return steps


class KnowsGaps(Protocol):
    """Attributes of a log: by topic, the greatest LSN that retention has deleted, and why records are missing."""

    @property
    def deleted(self) -> Mapping[str, int]: ...

    @property
    def gaps(self) -> Mapping[str, str]: ...


def log_begins(spark: SparkSession, log: str, table: str, topic: str, has: KnowsGaps) -> int:
    """Return the LSN up to which the log lacks rows of the topic. 0: the log has all rows.

    Raises:
        LacksChangesError: the topic lost records that the log has not read, and the table was not read again since.
    """
    deleted = has.deleted.get(topic, 0)
    if topic not in has.gaps:
        return deleted
    begins = truncate_after_gap(spark, log, topic)
    if begins is None:
        raise LacksChangesError(
            f"{table}: {has.gaps[topic]}, so the log lacks changes of the table.",
            hint=begin_again(table),
        )
    return max(deleted, begins - 1)
