"""The forms that a part of the log leads a table through, and what becomes of the table's rows and of the changes.

A column may be added in one form and renamed in the next one. So a table is not brought from its form to the last one
at once, but through each form in between, as `evolution.plan` has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType

from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.evolution import (
    Add,
    Drop,
    IncompatibleSchemaError,
    Relabel,
    Rename,
    Step,
    Widen,
    plan,
)
from cdcd.mirror.targets.same_columns import numbered
from cdcd.mirror.targets.upgrading import upgrade


@dataclass(slots=True)
class Steps:
    """What becomes of rows that are there, by the names that columns have at the end.

    Attributes:
        defaults: added columns whose default the rows get.
        types: columns that got a wider type.
        labels: columns of enums whose labels have other words.
    """

    defaults: dict[str, ColumnSchema] = field(default_factory=dict)
    types: dict[str, DataType] = field(default_factory=dict)
    labels: dict[str, Relabel] = field(default_factory=dict)

    def take(self, step: Step) -> None:
        """Add the next step of `evolution.plan`."""
        parts: list[dict[str, Any]] = [self.defaults, self.types, self.labels]
        match step:
            case Add(column):
                if column.has_default:
                    self.defaults[column.name] = column
            case Drop(name):
                for part in parts:
                    part.pop(name, None)
            case Rename(name, to):
                for part in parts:
                    if name in part:
                        part[to] = part.pop(name)
            case Widen(name, to):
                self.types[name] = to
            case Relabel(name, words) if words:
                self.labels[name] = step
            case _:
                pass


class Path:
    """The forms that a part of the log leads a table through, in the order of their changes.

    A column may be added in one form and renamed in the next one. The first form tells what older rows have in it.

    While the daemon was behind, it described former forms by the catalog of its time. So it may not be known which
    columns of such a form are those of the form before it. The path passes such a form over, if the form can become the
    last one: then the last form tells which columns are the same.

    Args:
        has: the form of the rows that are there. None: there are no such rows.
        forms: of one relation.
    """

    def __init__(self, has: TableSchema | None, forms: Sequence[Form]) -> None:
        self.has = has
        self.forms = forms
        self._schemas: list[TableSchema] = []
        self._passed: set[int] = set()
        """Numbers of the forms that the path passes over."""
        before, last = has, forms[-1].schema
        for number, form in enumerate(forms):
            schema = form.schema if before is None else numbered(before, form.schema)
            if number < len(forms) - 1 and not _follows(before, schema) and _follows(form.schema, last):
                self._passed.add(number)
                schema = form.schema
            else:
                before = schema
            self._schemas.append(schema)

    @property
    def schema(self) -> TableSchema:
        """The last form."""
        return self._schemas[-1]

    def steps(self) -> Steps:
        """What becomes of the rows that are there. IncompatibleSchemaError: they cannot be brought to the last form."""
        found = Steps()
        if self.has is not None:
            ids = [schema.schema_id for schema in self._schemas]
            # A part that is folded again begins with forms from before that of the rows.
            past = ids.index(self.has.schema_id) + 1 if self.has.schema_id in ids else 0
            for before, schema in pairwise([self.has, *self._after(past)]):
                for step in plan(before, schema):
                    found.take(step)
        return found

    def upgraded(self, changes: DataFrame, number: int) -> DataFrame:
        """Changes of the form with this number, as changes of the last form. IncompatibleSchemaError: as `steps`."""
        for old, new in pairwise([self._schemas[number], *self._after(number + 1)]):
            changes = upgrade(changes, old, new)
        return changes

    def _after(self, number: int) -> list[TableSchema]:
        """The forms from this number on, without those that the path passes over."""
        return [
            schema for each, schema in enumerate(self._schemas) if each >= number and each not in self._passed
        ]


def _follows(before: TableSchema | None, after: TableSchema) -> bool:
    """True if rows of the first form can be brought to the second one. None: there are no rows."""
    if before is None:
        return True
    try:
        plan(before, after)
    except IncompatibleSchemaError:
        return False
    return True
