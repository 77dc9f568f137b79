"""None of the values that were planted into a recording is in the bytes of the redacted one."""

import json
from dataclasses import replace
from random import Random

from cdcd.adapters.recording.blocks import pack
from cdcd.adapters.recording.events import (
    Answered,
    CatalogAnswer,
    Event,
    Frames,
    LockLostCall,
    Next,
    SegmentBegan,
    item_of,
)
from cdcd.adapters.recording.redaction import Redaction
from cdcd.config.expressions import parse_expression
from cdcd.core.catalog.relations import CatalogColumn, ColumnForm, TableDescription, TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.engine.actions import Busy, Looked, Lost, Read
from cdcd.core.errors import TransientError
from cdcd.core.protocol.frames import XLOG_HEADER, XLogData, write_frame
from cdcd.core.protocol.messages import (
    UNCHANGED,
    BeginPrepare,
    Binary,
    Column,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    StreamStart,
    StreamStop,
    TupleData,
    Update,
)
from cdcd.core.protocol.reader import read_message
from cdcd.core.records.shaping.settings import Route, TableFilter, TableRoutes
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.reading import Changed, KeyQuery, PageQuery, Refused, Rows, SourceTable, Visibility
from cdcd.core.snapshot.signals import Signal, token_digest
from cdcd.core.snapshot.table_task import TableTask
from tests.unit.adapters.recording.test_events import START

KEY = b"0123456789abcdef"
TYPES = {
    "id": 20,
    "note": 25,
    "doc": 3802,
    "tags": 1009,
    "uid": 2950,
    "raw": 17,
    "amount": 1700,
    "mood": 90001,
}
MOOD = TypeDescription(90001, "public", "mood", "e", "E", 0, 0, -1)
RELATION = Relation(
    None, 16385, "public", "t", "d", tuple(Column(name == "id", name, oid, -1) for name, oid in TYPES.items())
)
SENSITIVE = 10_000


class Planted:
    """Values of many types, each of which is known to have been in a recording."""

    def __init__(self) -> None:
        self.words: set[str] = set()
        self._rng = Random(11)

    def word(self) -> str:
        word = "".join(self._rng.choices("abcdefghijklmnopqrstuvwxyz", k=14))
        self.words.add(word)
        return word

    def number(self, digits: int = 16) -> str:
        number = str(self._rng.randrange(10 ** (digits - 1), 10**digits))
        self.words.add(number)
        return number

    def hexadecimal(self) -> str:
        number = f"{self._rng.getrandbits(128) | 1 << 127:032x}"
        self.words.add(number)
        return number

    def row(self) -> tuple[bytes, ...]:
        uid = self.hexadecimal()
        self.words.add(uid[:8])
        texts = (
            self.number(),
            f"to {self.word()}, {self.word()}",
            f'{{"{self.word()}": ["{self.word()}", {self.number()}]}}',
            f'{{{self.word()},"a {self.word()}",NULL}}',
            f"{uid[:8]}-{uid[8:12]}-{uid[12:16]}-{uid[16:20]}-{uid[20:]}",
            rf"\x{self.hexadecimal()}",
            f"{self.number()}.{self.number(12)}",
            self.word(),
        )
        return tuple(text.encode() for text in texts)


def frames(*messages: Message) -> Frames:
    return Frames(1.0, [write_frame(XLogData(1, 1, 1, each)) for each in map(written, messages)])


def written(message: Message) -> bytes:
    from cdcd.core.protocol.writer import write_message

    return write_message(message)


def filtered(word: str) -> tuple[TableFilter, ...]:
    text = f"row.note == '{word}'"
    return (TableFilter("public.t", text, parse_expression(text)),)


def routed(word: str) -> tuple[TableRoutes, ...]:
    text = f"row.note == '{word}'"
    return (TableRoutes("public.t", (Route(text, parse_expression(text), "p.public.t-eu"),)),)


def recording(planted: Planted) -> list[Event]:
    """Every place of a recording that has values."""
    word = planted.word
    mood = replace(MOOD, labels=((1, word()), (2, word())))
    column = CatalogColumn("note", 2, "text", 25, 0, word())
    form = ColumnForm("note", 2, "text", 25, -1, "string", word(), ((1, word()),), f'"{word()}"')
    description = TableDescription(("id",), (), (column,), ((form,),))
    types = {**BUILTIN_TYPES, 90001: mood}
    table = SourceTable(RELATION, f"note = '{word()}'", ())
    task = TableTask("public.t", 16385, where=f"note = '{word()}'", owed=(((False, word().encode()),),))
    checkpoint = replace(START.checkpoint, snapshot=Progress(tasks=(task,)))
    by_key = KeyQuery(table, ("note",), (((False, word().encode()),), ((True, word().encode()),)), (word(),))
    pages = PageQuery("t", 16385, 1, 0, 5, table, (f"note = '{word()}'",))
    request = Signal("start", ("public.t",), f"note = '{word()}'", token=word()).encode()
    refused = json.dumps({"action": "start", "tables": ["public.t"], "token": word(), "note": word()})
    known = (RELATION, description, types)
    start = replace(START, checkpoint=checkpoint, filters=filtered(word()), routes=routed(word()))
    events: list[Event] = [
        SegmentBegan("1", True, start, 1, (known,), (known,), 1, 1.0, 1),
        CatalogAnswer(1.0, RELATION, description, {90001: mood}, None),
        Next(b"a", 1.0, 1, 1, Read(by_key, 10)),
        Answered(1.0, 1, Rows([b"\t".join(planted.row()) + b"\n" for _ in range(50)], 100)),
        Next(b"a", 1.0, 1, 2, Read(pages, 10)),
        Answered(1.0, 2, Changed(word())),
        Answered(1.0, 3, Refused(word(), word())),
        Answered(1.0, 4, Busy(word())),
        Answered(1.0, 5, Lost(TransientError(word()))),
        Answered(1.0, 6, Looked(table, description, types, word(), Visibility(1, 2))),
        LockLostCall(1.0, word(), "", False),
        frames(
            RELATION,
            LogicalMessage(None, False, 5, "app", word().encode()),
            LogicalMessage(None, False, 5, "cdcd.snapshot", request.encode()),
            LogicalMessage(None, False, 5, "cdcd.snapshot", refused.encode()),
            BeginPrepare(1, 2, 3, 4, word()),
        ),
    ]
    while len(planted.words) < SENSITIVE:
        old, new = planted.row(), planted.row()
        binary: TupleData = (
            Binary(int(planted.number()).to_bytes(8, "big")),
            Binary(word().encode()),
            *new[2:],
        )
        events += [
            frames(
                Insert(None, 16385, new),
                Update(None, 16385, "O", old, (*new[:3], UNCHANGED, None, *new[5:])),
                Delete(None, 16385, "O", old),
                Insert(None, 16385, binary),
            ),
            frames(
                StreamStart(7, True),
                replace(RELATION, xid=7),
                Insert(7, 16385, planted.row()),
                LogicalMessage(7, True, 5, "app", word().encode()),
                StreamStop(),
            ),
        ]
    return events


def test_no_planted_value_is_in_the_bytes_of_a_redacted_recording():
    planted = Planted()
    events = recording(planted)
    before = pack([item_of(event) for event in events])
    redaction = Redaction(KEY)
    after = pack([item_of(redaction.event(event)) for event in events])
    assert len(planted.words) >= SENSITIVE
    words = {word.encode() for word in planted.words}
    # The values were there, but for the numbers that came in binary form.
    assert len(found(words, before)) > 0.9 * len(words)
    assert found(words, after) == set()
    numbers = {int(word).to_bytes(8, "big") for word in words if word.isdigit() and len(word) == 16}
    assert len(numbers) > SENSITIVE // 10
    assert found(numbers, after) == set()


def found(words: set[bytes], data: bytes) -> set[bytes]:
    """The words that stand anywhere in `data`."""
    return {
        data[at : at + size] for size in {len(word) for word in words} for at in range(len(data) - size + 1)
    } & words


def test_the_same_key_gives_the_same_recording_and_names_stay():
    events = recording(Planted())[:14]
    one, other = Redaction(KEY), Redaction(KEY)
    assert [item_of(one.event(each)) for each in events] == [item_of(other.event(each)) for each in events]
    began = one.event(events[0])
    assert isinstance(began, SegmentBegan)
    assert began.version == "1+redacted"
    assert began.start.published == {16385: "public.t"}
    assert began.relations[0][0] == RELATION


def test_a_replay_of_the_copy_knows_the_token_of_a_request_that_the_daemon_knew():
    tokens = (token_digest("the token of the pipeline"),)
    start = replace(START, settings=replace(START.settings, request_tokens=tokens))
    redaction = Redaction(KEY)
    began = redaction.event(SegmentBegan("1", True, start, 1, (), (), 1, 1.0, 1))
    assert isinstance(began, SegmentBegan)
    known = began.start.settings.request_tokens
    assert known is not None
    assert known != tokens
    for token in ("the token of the pipeline", "the token of a stranger"):
        request = Signal("start", ("public.t",), token=token)
        event = redaction.event(
            frames(LogicalMessage(None, False, 5, "cdcd.snapshot", request.encode().encode()))
        )
        assert isinstance(event, Frames)
        message = read_message(event.frames[0], XLOG_HEADER)
        assert isinstance(message, LogicalMessage)
        copied = Signal.decode(message.content)
        assert replace(copied, token=token) == request
        assert (token_digest(copied.token) in known) == (token == "the token of the pipeline")
