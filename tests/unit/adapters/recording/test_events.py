from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.adapters.recording.blocks import RecordingError, pack
from cdcd.adapters.recording.events import (
    Answered,
    CatalogAnswer,
    Delivered,
    Event,
    Frames,
    HeartbeatQueryEnded,
    LockLostCall,
    Next,
    SegmentBegan,
    StopCall,
    StreamBegun,
    TopicsReady,
    decode_events,
    item_of,
    item_of_next,
)
from cdcd.adapters.recording.values import CLASSES, Reader, write_value
from cdcd.build import is_compiled
from cdcd.config.expressions import parse_expression
from cdcd.core.catalog.field_names import FieldRule
from cdcd.core.catalog.patterns import TableSelection
from cdcd.core.catalog.relations import CatalogColumn, TableDescription
from cdcd.core.catalog.routing import RoutedTopics
from cdcd.core.catalog.table_rules import KeyRule, PartitionRule
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.engine.actions import Ask, FindWriters, Lost, Published, Read, Turn
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.session_start import SessionStart
from cdcd.core.engine.settings import BatchSettings, EngineSettings
from cdcd.core.errors import TransientError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.shaping.expressions import DEPTH_MAX
from cdcd.core.records.shaping.settings import Outbox, OutboxTable, Route, TableFilter, TableRoutes
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.reading import KeyQuery, Rows, SourceTable, Visibility
from cdcd.core.transactions.position import Position

RELATION = Relation(7, 16385, "public", "t", "d", (Column(1, "id", 23, -1), Column(0, "note", 25, -1)))
DESCRIPTION = TableDescription(("id",), (), (CatalogColumn("id", 1, "integer", 23, 0, None),))
TABLE = SourceTable(RELATION, "id > 0", ())
QUERY = KeyQuery(TABLE, ("id",), (((False, b"1"),),), ("note <> 'x'",))
DEEPEST = f"{'!' * (DEPTH_MAX - 4)}(row.note in ['a', null, 1.5] && -row.id < 0x10)"
START = SessionStart(
    settings=EngineSettings("shop", BatchSettings(1, 2, 3, 4), 5.0),
    checkpoint=Checkpoint("7", 1, "s", Position(Lsn(10), Lsn(12)), 12, snapshot=Progress()),
    encoding=EncoderSettings(
        "1",
        "shop",
        "db",
        names={("public", "t"): "topic"},
        topic_template="{prefix}.x.{table}",
        key_rules=(KeyRule("public.t", ("id",)),),
        partition_rules=(PartitionRule("public.t", ("id",)),),
        field_rules=(FieldRule("public.t", (("id", "key"),), (("region", "eu"),)),),
        routes=(RoutedTopics("public.t", ("p.public.t-eu",)),),
    ),
    tables=TableSelection(("public.*",), ("*.secret",)),
    published={16385: "public.t"},
    excluded=("public.*",),
    outbox=Outbox(
        ("events",),
        messages=True,
        tables={("public", "o"): OutboxTable("events", "a", "", "b", "c", {"t": "d"})},
    ),
    filters=(TableFilter("public.t", DEEPEST, parse_expression(DEEPEST)),),
    routes=(TableRoutes("public.t", (Route(DEEPEST, parse_expression(DEEPEST), "p.public.t-eu"),)),),
)
KNOWN = (RELATION, DESCRIPTION, {23: BUILTIN_TYPES[23]})
EVENTS: list[Event] = [
    SegmentBegan("1.0", True, START, 12, (KNOWN,), (), 9, 1.5, 1_700_000_000_000_000),
    Next(b"r", 1.25, 17),
    Next(b"a", 1.25, 17, 3, Read(QUERY, 1 << 62)),
    Next(b"a", 1.25, 17, 4, FindWriters((1, 2))),
    Frames(2.5, [b"w" + bytes(40), b"", b"k"]),
    CatalogAnswer(3.0, RELATION, DESCRIPTION, {23: BUILTIN_TYPES[23]}, Visibility(1, 5, frozenset({2, 3}))),
    TopicsReady(3.5, ("a", "b")),
    Answered(4.0, 3, Rows([b"1\tx\n", b"2\t\\N\n"], 8, Visibility(1, 2), 99)),
    Answered(4.0, 4, Published({1: "public.t"}, 7, {1: 100}, 5)),
    Delivered(5.0),
    StreamBegun(5.5),
    HeartbeatQueryEnded(5.75),
    LockLostCall(6.0, "gone", "57P01", True),
    StopCall(),
]


def test_every_event_is_read_as_it_was_written():
    assert list(decode_events(pack([item_of(event) for event in EVENTS]))) == EVENTS
    assert len({type(event) for event in EVENTS}) == 11


def test_the_frequent_event_has_the_same_form_by_itself():
    assert list(decode_events(pack([item_of_next(Turn(), 1.0, 2)]))) == [Next(b"r", 1.0, 2)]
    assert list(decode_events(pack([item_of_next(None, 1.0, 2)]))) == [Next(b"!", 1.0, 2)]
    asked = Next(b"a", 1.0, 2, 7, FindWriters((1, 2)))
    assert item_of_next(Ask(7, FindWriters((1, 2))), 1.0, 2) == item_of(asked)
    assert list(decode_events(pack([item_of(asked)]))) == [asked]


def test_a_lost_connection_is_an_answer_with_its_message():
    (event,) = decode_events(pack([item_of(Answered(1.0, 2, Lost(TransientError("away"))))]))
    assert isinstance(event, Answered)
    assert isinstance(event.answer, Lost)
    assert event.answer.error.message == "away"


def test_bytes_of_strangers_are_refused_and_never_run():
    rng = Random(5)
    whole = pack([item_of(event) for event in EVENTS])
    refused = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            list(decode_events(bytes(data[: rng.randrange(len(data) + 1)])))
        except RecordingError:
            refused += 1
    assert refused > 1500


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
        lambda inner: st.tuples(inner, inner) | st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_plain_values_are_read_as_they_were_written(value):
    reader = Reader(write_value(value))
    assert reader.value() == value
    assert reader.is_done


def test_a_class_that_is_not_listed_is_neither_written_nor_read():
    with pytest.raises(TypeError, match="Progress is not recorded"):
        write_value(Progress())
    forged = write_value(Visibility(1, 2)).replace(b"Visibility", b"Checkpoint")
    with pytest.raises(RecordingError, match="Checkpoint, which this version does not know"):
        Reader(forged).value()


def test_a_field_of_another_version_is_refused():
    forged = write_value(Visibility(1, 2)).replace(b"xmin", b"xmon")
    with pytest.raises(RecordingError, match="another form of Visibility"):
        Reader(forged).value()


def test_a_value_that_is_nested_without_end_is_refused():
    with pytest.raises(RecordingError, match="too deeply"):
        Reader(b"t\x01\x00\x00\x00" * 100 + b"n").value()


def test_the_start_of_a_session_is_the_same_after_a_round_trip():
    (began,) = decode_events(pack([item_of(EVENTS[0])]))
    assert isinstance(began, SegmentBegan)
    assert began.start == START
    assert replace(began.start, binary=True) != START


@given(st.lists(st.binary(max_size=300), max_size=20), st.floats(allow_nan=False))
def test_frames_are_read_wherever_they_stand(frames: list[bytes], now: float):
    event = Frames(now, frames)
    items = [item_of(StopCall()), item_of(event), item_of(event)]
    assert list(decode_events(pack(items))) == [StopCall(), event, event]


def test_frames_that_are_not_of_their_form_are_refused():
    whole = pack([item_of(Frames(1.0, [b"a", b"bc"]))])
    # `outer` is in the list of items and in the item, `inner` is in its list of frames. Each pair is (offset, byte).
    outer = ((0, ord("(")), (1, 2), (5, ord("[")), (6, 3), (10, ord("f")))
    inner = ((19, ord("(")), (20, 9), (24, ord("z")), (25, 200))
    for at, byte in (*outer, *inner):
        with pytest.raises(RecordingError):
            list(decode_events(bytes([*whole[:at], byte, *whole[at + 1 :]])))
    for size in range(len(whole)):
        with pytest.raises(RecordingError):
            list(decode_events(whole[:size]))
    with pytest.raises(RecordingError):
        list(decode_events(whole + b"s"))


def parts_of(kind: Any, found: set[type]) -> None:
    """Add the dataclasses that values of this type may hold, itself included."""
    for each in get_args(kind):
        parts_of(each, found)
    if isinstance(kind, type) and is_dataclass(kind) and kind not in found:
        found.add(kind)
        types = get_type_hints(kind)
        for field in fields(kind):
            if field.compare:
                parts_of(types[field.name], found)


@pytest.mark.skipif(is_compiled(), reason="a compiled class does not tell all types of its fields")
def test_whatever_the_recorded_classes_hold_is_recorded_or_refused_by_the_configuration():
    found: set[type] = set()
    for each in CLASSES.values():
        parts_of(each, found)
    assert found >= set(CLASSES.values())
    # `columns`, `topics.rename` and `topics.shared` are refused beside `record.directory`.
    assert {each.__name__ for each in found - set(CLASSES.values())} == {
        "ColumnRule",
        "ColumnPattern",
        "Router",
        "SharedTopic",
        "TablePattern",
    }
