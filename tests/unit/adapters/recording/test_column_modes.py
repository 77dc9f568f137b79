"""Modes of columns in a redacted recording."""

from dataclasses import replace

import pytest

from cdcd.adapters.recording.column_modes import ColumnModes, parse_mode
from cdcd.adapters.recording.events import CatalogAnswer, Event, Frames
from cdcd.adapters.recording.recorded_names import RecordedNames
from cdcd.adapters.recording.redaction import Redaction
from cdcd.core.catalog.relations import CatalogColumn, TableDescription, TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import (
    UNCHANGED,
    Binary,
    Column,
    Delete,
    Insert,
    Message,
    Relation,
    StreamStart,
    StreamStop,
    Update,
)
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message

REDACTION_KEY = b"0123456789abcdef"
COLUMNS = (("id", 20), ("mail", 25), ("note", 1043), ("total", 1700))
RELATION = Relation(
    None, 7, "public", "t", "d", tuple([Column(name == "id", name, oid, -1) for name, oid in COLUMNS])
)
ROW = (b"1000", b"me@example.com", b"plain text", b"12.50")


def modes(*texts: str) -> ColumnModes:
    return ColumnModes([parse_mode(each) for each in texts])


def redacted(found: ColumnModes, *messages: Message) -> list[Message]:
    """What becomes of messages behind the table's description."""
    redaction = Redaction(REDACTION_KEY, found)
    frames = [write_frame(XLogData(1, 1, 0, write_message(each))) for each in (RELATION, *messages)]
    event = redaction.event(Frames(0.0, frames))
    assert isinstance(event, Frames)
    return [read_message(frame, 25) for frame in event.frames[1:]]


def row(found: ColumnModes) -> tuple[object, ...]:
    (insert,) = redacted(found, Insert(None, 7, ROW))
    assert isinstance(insert, Insert)
    return insert.new


def test_each_column_has_the_mode_of_the_last_option_that_matches() -> None:
    found = row(modes("public.t=null", "*.*.id=replace", "public.t.note=hash", "public.*.total=keep"))
    assert found[0] not in {ROW[0], None}
    assert found[1] is None
    assert isinstance(found[2], bytes)
    assert len(found[2]) == 32
    assert found[3] == ROW[3]


def test_without_options_every_value_is_replaced_by_one_of_its_length() -> None:
    found = row(modes())
    assert not set(found) & set(ROW)
    assert [len(each) for each in found if isinstance(each, bytes)] == [len(each) for each in ROW]


def test_equal_values_have_equal_hashes_in_one_copy_and_others_in_another() -> None:
    found = modes("public.t.mail=hash", "public.t.note=hash")
    same = Insert(None, 7, (b"1", b"one", b"one", b"2"))
    (insert,) = redacted(found, same)
    assert isinstance(insert, Insert)
    assert (
        insert.new[1] == insert.new[2] != Redaction(b"another key of 16", found)._by_mode(25, b"one", "hash")
    )


def test_former_rows_and_values_that_were_not_sent_follow_the_mode() -> None:
    found = modes("public.t.mail=null", "public.t.total=keep")
    update, delete = redacted(
        found,
        Update(None, 7, "O", ROW, (b"1000", UNCHANGED, b"x", Binary(b"\0\1\0\0\0\0\0\0\0\7"))),
        Delete(None, 7, "O", ROW),
    )
    assert isinstance(update, Update)
    assert isinstance(delete, Delete)
    assert update.old is not None
    assert update.old[1] is delete.old[1] is None
    assert update.old[3] == delete.old[3] == b"12.50"
    assert update.new[1] is UNCHANGED
    assert update.new[3] == b"7"
    assert update.old[0] == delete.old[0] == update.new[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("public.t.id=null", "public.t.id is part of a key"),
        ("public.t=null", "public.t.id is part of a key"),
        ("public.t.total=hash", "public.t.total is not text"),
    ],
)
def test_a_mode_that_does_not_fit_its_column_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        modes(text).of(RELATION, BUILTIN_TYPES)


def test_a_domain_over_text_has_hashes() -> None:
    domain = TypeDescription(90001, "public", "mail", "d", "S", 0, 25, -1)
    relation = Relation(None, 7, "public", "t", "f", (Column(1, "mail", 90001, -1),))
    assert modes("public.t.mail=hash").of(relation, {90001: domain, **BUILTIN_TYPES}) == ("hash",)
    # Under REPLICA IDENTITY FULL, each column is flagged.
    assert modes("public.t.mail=null").of(relation, {90001: domain, **BUILTIN_TYPES}) == ("null",)


@pytest.mark.parametrize(
    "text", ["public.t.mail", "public.t.mail=", "public.t.mail=sha", "=null", "t=null", "a.b.c.d=keep"]
)
def test_an_option_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--column"):
        parse_mode(text)


def test_quoted_names_are_patterns_as_everywhere() -> None:
    rule = parse_mode('public."odd.name"."a=b"=keep')
    assert rule.pattern.matches("public", "odd.name", "a=b")
    assert parse_mode('public."odd.name"=keep').pattern.matches("public", "odd.name", "any")


KEPT = ("public.*=keep", "public.t.ssn=null")


def relation(*columns: str, oid: int = 7, name: str = "t") -> Relation:
    return Relation(
        None, oid, "public", name, "d", tuple([Column(each == "id", each, 25, -1) for each in columns])
    )


def answer(of: Relation, *numbers: int) -> CatalogAnswer:
    columns = tuple(
        [
            CatalogColumn(column.name, number, "text", 25, 0, None)
            for column, number in zip(of.columns, numbers, strict=True)
        ]
    )
    return CatalogAnswer(0.0, of, TableDescription(columns=columns, last_id=max(numbers)), {}, None)


def frame(of: Relation) -> Frames:
    return Frames(0.0, [write_frame(XLogData(1, 1, 0, write_message(of)))])


def recorded(*events: Event, rules: tuple[str, ...] = KEPT) -> ColumnModes:
    names = RecordedNames()
    for event in events:
        names.take(event)
    return ColumnModes([parse_mode(each) for each in rules], names)


def test_a_column_has_the_strictest_mode_of_all_names_that_it_has_in_the_recording() -> None:
    before, after = relation("id", "ssn"), relation("id", "note")
    found = recorded(frame(before), answer(before, 1, 2), frame(after), answer(after, 1, 2))
    assert found.of(before, BUILTIN_TYPES) == ("keep", "null")
    assert found.of(after, BUILTIN_TYPES) == ("keep", "null")
    assert found.not_kept == {"public.t": "column note or its table had a name that no --column keeps"}
    # A column that took the name of another one is not the other one, and its rule by name holds.
    swapped = relation("id", "ssn", "note")
    found = recorded(answer(relation("id", "note"), 1, 2), answer(swapped, 1, 2, 3))
    assert found.of(relation("id", "note"), BUILTIN_TYPES) == ("keep", "null")
    assert found.of(swapped, BUILTIN_TYPES) == ("keep", "null", "keep")


def test_a_rule_holds_through_renames_of_the_table_in_streamed_transactions_too() -> None:
    rules = ("public.*=keep", "public.people=null", "public.people.id=replace")
    renamed = relation("id", "note", name="crowd")
    streamed = replace(renamed, xid=9)
    frames = Frames(
        0.0,
        [
            write_frame(XLogData(1, 1, 0, write_message(each)))
            for each in (StreamStart(9, True), streamed, StreamStop())
        ],
    )
    first = relation("id", "note", name="people")
    found = recorded(answer(first, 1, 2), frames, rules=rules)
    assert found.of(renamed, BUILTIN_TYPES) == ("replace", "null")


def test_nothing_is_kept_where_attribute_numbers_are_unknown_and_columns_were_altered() -> None:
    before, after = relation("id", "ssn"), relation("id", "note")
    found = recorded(frame(before), answer(after, 1, 2))
    assert found.of(after, BUILTIN_TYPES) == ("replace", "replace")
    assert "attribute numbers" in found.not_kept["public.t"]
    # Columns that were never altered need no numbers.
    found = recorded(frame(after), frame(after))
    assert found.of(after, BUILTIN_TYPES) == ("keep", "keep")
    assert not found.not_kept


def test_nothing_is_kept_of_tables_that_have_had_the_same_name() -> None:
    found = recorded(frame(relation("id", "a")), frame(relation("id", "a", oid=8)))
    for oid in (7, 8):
        assert found.of(relation("id", "a", oid=oid), BUILTIN_TYPES) == ("replace", "replace")
    assert found.not_kept == {"public.t": "several tables had this name in the recording"}
