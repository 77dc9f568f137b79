"""Names that each column has in a recording, by the oid of its table and its attribute number.

The rule: a mode of a redaction holds for a column under all names that the column and its table have in the recording.
Otherwise, a renamed column would have its values in clear in the parts of the copy where it has a name with the mode
`keep`. So all names are collected before the first value is redacted.

A Relation message has no attribute numbers. The recorded answers of the catalog give them. If they do not, or if
several tables had the same name, the names of a column may be incomplete, and `doubt` says why.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from cdcd.adapters.recording.events import Answered, CatalogAnswer, Event, Frames, Next, SegmentBegan
from cdcd.core.catalog.attribute_numbers import column_ids
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.engine.actions import Looked, Read
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Relation
from cdcd.core.protocol.reader import read_message

ColumnName = tuple[str, str, str]
"""Schema, table and column."""

Form = tuple[tuple[str, int], ...]
"""Name and type of each column of a relation."""

_STREAM: Final = b"SE"


class RelationReader:
    """Reader of the Relation messages in recorded frames. Pass every frame, in order."""

    def __init__(self) -> None:
        self.in_stream = False
        """True within a segment of a streamed transaction, where messages have a transaction id."""

    def read(self, frame: bytes) -> Relation | None:
        """Return the Relation message of the frame; None if the frame has another message."""
        if len(frame) <= XLOG_HEADER or frame[peek.FRAME_KIND_AT] != peek.XLOG_DATA:
            return None
        tag = peek.tag_of(frame)
        if tag in _STREAM:
            self.in_stream = tag == ord("S")
        if tag != peek.RELATION:
            return None
        found = read_message(frame, XLOG_HEADER, in_stream=self.in_stream)
        assert isinstance(found, Relation)
        return found


class RecordedNames:
    """Names of the columns of a recording. Pass all events of the recording to `take`."""

    def __init__(self) -> None:
        self._frames = RelationReader()
        self._tables: dict[tuple[str, str], set[int]] = {}
        """Oids of the tables that have had a name."""
        self._names: dict[int, set[tuple[str, str]]] = {}
        """Schemas and names of each table, by oid."""
        self._forms: dict[int, dict[Form, list[set[int]]]] = {}
        """Attribute numbers that each column of a form has had, by oid. An empty set: no answer of the catalog has
        them."""

    def take(self, event: Event) -> None:
        """Add the names that an event has."""
        for relation, numbers in self._relations(event):
            self._tables.setdefault((relation.schema, relation.name), set()).add(relation.oid)
            self._names.setdefault(relation.oid, set()).add((relation.schema, relation.name))
            form = _form(relation)
            known = self._forms.setdefault(relation.oid, {}).setdefault(form, [set() for _ in form])
            for found, number in zip(known, numbers, strict=False):
                if number is not None:
                    found.add(number)

    def _relations(self, event: Event) -> Iterator[tuple[Relation, Sequence[int | None]]]:
        """Yield the relations of an event, with the attribute numbers of their columns, () if unknown."""
        if isinstance(event, Frames):
            for frame in event.frames:
                relation = self._frames.read(frame)
                if relation is not None:
                    yield relation, ()
        elif isinstance(event, SegmentBegan):
            if event.first:
                self._frames.in_stream = False
            for relation, table, _ in (*event.relations, *event.previewed):
                yield relation, _numbers(relation, table)
        elif isinstance(event, CatalogAnswer):
            yield event.relation, _numbers(event.relation, event.description)
        elif isinstance(event, Answered) and isinstance(event.answer, Looked):
            if event.answer.table is not None:
                relation = event.answer.table.relation
                yield relation, _numbers(relation, event.answer.description)
        elif isinstance(event, Next) and isinstance(event.question, Read):
            source = event.question.query.table
            yield source.relation, source.numbers

    def of(self, relation: Relation) -> list[set[ColumnName]]:
        """Return the names of each column of a relation, which include its present one."""
        tables = self._names.get(relation.oid, set()) | {(relation.schema, relation.name)}
        forms = self._forms.get(relation.oid, {})
        numbers = forms.get(_form(relation), [set() for _ in relation.columns])
        found: list[set[ColumnName]] = []
        for column, mine in zip(relation.columns, numbers, strict=True):
            names = {column.name}
            for form, theirs in forms.items():
                names |= {name for (name, _), each in zip(form, theirs, strict=True) if each & mine}
            found.append({(*table, name) for table in tables for name in names})
        return found

    def doubt(self, relation: Relation) -> str:
        """Return the reason why a column of the relation may have had further names; "" if it had none."""
        if len(self._tables.get((relation.schema, relation.name), ())) > 1:
            return "several tables had this name in the recording"
        forms = self._forms.get(relation.oid, {})
        if len({tuple([name for name, _ in form]) for form in forms}) > 1 and not all(
            all(numbers) for numbers in forms.values()
        ):
            return "its columns were altered, and the recording does not have the attribute numbers of all of them"
        return ""


def _form(relation: Relation) -> Form:
    return tuple([(column.name, column.type_oid) for column in relation.columns])


def _numbers(relation: Relation, table: TableDescription) -> Sequence[int | None]:
    if not table.columns:
        return ()
    return table.numbers or column_ids(relation.columns, table)
