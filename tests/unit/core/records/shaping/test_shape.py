"""Events go through the shapes of a stream in their order."""

from typing import Any

import pytest

from cdcd.build import is_compiled
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.errors import ProtocolError, SourceError
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Column, Insert, Relation
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.shaping.shape import Shape, ShapedPart
from cdcd.core.records.stream import RecordStream

uncompiled = pytest.mark.skipif(is_compiled(), reason="a compiled class has compiled subclasses only")
OID = 7
RELATION = Relation(None, OID, "public", "t", "d", (Column(1, "id", 23, -1), Column(0, "note", 25, -1)))


def row(number: int, note: bytes, xid: int | None = None) -> bytes:
    message = Insert(xid, OID, (b"%d" % number, note))
    return write_frame(XLogData(500, 500, 0, write_message(message)))


def shape_of(becomes: Any, word: bytes = b"x") -> Shape:
    """A shape that takes rows with a word in them; `becomes` says what each of their parts becomes."""

    class Takes(Shape):
        @property
        def is_on(self) -> bool:
            return True

        def takes(self, item: Any, in_stream: bool) -> bool:
            return isinstance(item, bytes) and peek.tag_of(item) in peek.ROWS and word in item

        def parts(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
            if not self.takes(frame, in_stream):
                return None
            found: list[ShapedPart] = becomes(ShapedPart(frame))
            return found

    return Takes()


def stream(*shapes: Shape, **settings: Any) -> RecordStream:
    made = record_stream(EncoderSettings("1", "shop", "db", **settings))
    for shape in shapes:
        made.shapes.put(shape)
    made.define(RELATION, TableDescription(("id",)), {})
    made.begin(5, 1000, 0, None)
    return made


def numbers(records: list[Record]) -> list[tuple[bytes | None, int]]:
    """The key of each record, and its number in the transaction."""
    return [
        (key, int((value or b"").partition(b'"event_serial_no":')[2].split(b",")[0].rstrip(b"}")))
        for _, key, value, _ in records
    ]


@uncompiled
def test_each_event_counts_once_whatever_it_becomes():
    parted = shape_of(lambda part: [part, ShapedPart(row(8, b"o"))], b"twice")
    gone = shape_of(lambda _part: [], b"gone")
    made = stream(parted, gone)
    out: list[Record] = []
    frames = [row(1, b"a"), row(2, b"gone"), row(3, b"twice"), row(4, b"a")]
    size = made.encode_all(list(frames), False, 0, out)
    assert numbers(out) == [(b'{"id":1}', 1), (b'{"id":3}', 3), (b'{"id":8}', 3), (b'{"id":4}', 4)]
    assert made.serial == 4
    assert size == sum(len(key or b"") + len(value or b"") for _, key, value, _ in out)


@uncompiled
def test_the_last_shape_is_the_first_that_an_event_goes_through():
    seen: list[str] = []

    def told(name: str) -> Any:
        def becomes(part: ShapedPart) -> list[ShapedPart]:
            seen.append(name)
            return [part]

        return becomes

    stream(shape_of(told("inner")), shape_of(told("outer"))).encode(row(1, b"x"), False, 0, [])
    assert seen == ["outer", "inner"]


@uncompiled
def test_an_event_that_cannot_be_shaped_counts_once_and_leaves_only_its_tables_description():
    def fails(_part: ShapedPart) -> list[ShapedPart]:
        raise SourceError("the server did not send a value")

    made = stream(shape_of(fails), schemas_topic="schemas")
    out: list[Record] = []
    with pytest.raises(SourceError):
        made.encode_all([row(1, b"x"), row(2, b"a")], False, 0, out)
    assert (out, made.serial) == ([], 1)
    # The first part has introduced the table when the second one is refused.
    made = stream(shape_of(lambda part: [part, ShapedPart(row(9, b"y")[:-1])]), schemas_topic="schemas")
    with pytest.raises(ProtocolError):
        made.encode_all([row(1, b"x")], False, 0, out)
    assert ([topic for topic, *_ in out], made.serial) == (["schemas"], 1)
    made.encode_all([row(2, b"a")], False, 0, out)
    assert [topic for topic, *_ in out] == ["schemas", "shop.public.t"]
    assert numbers(out[1:]) == [(b'{"id":2}', 2)]


@uncompiled
def test_events_that_a_shape_takes_are_not_drafted():
    made = stream(shape_of(lambda part: [part]))
    frames: list[Any] = [row(1, b"a", 9), row(2, b"b", 9), row(3, b"x", 9), row(4, b"c", 9)]
    drafts = made.draft_all(list(frames), {OID: (0, RELATION)})
    assert [isinstance(each, bytes) for each in drafts] == [False, True, False]
    out: list[Record] = []
    made.encode_all(drafts, True, 0, out)
    assert [number for _, number in numbers(out)] == [1, 2, 3, 4]
