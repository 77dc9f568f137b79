"""The engine as its shell sees it: frames and answers in, actions out, by a clock that the test moves."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdcd.config.expressions import parse_expression
from cdcd.core.catalog.patterns import TableSelection
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.routing import RoutedTopics
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.engine.actions import (
    Action,
    Ask,
    BeginStream,
    Describe,
    End,
    EnsureTopics,
    FindWriters,
    ListPublished,
    Look,
    Looked,
    Lost,
    Published,
    Read,
    Ship,
    Status,
    Turn,
    Wait,
    Writers,
)
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.ending import UNSTREAMED_S, StreamingAgainError
from cdcd.core.engine.engine import Engine
from cdcd.core.engine.questions import PUBLISHED_S
from cdcd.core.engine.session_start import ExportedTables, SessionStart
from cdcd.core.engine.settings import BatchSettings, EngineSettings, HeartbeatSettings, SnapshotSettings
from cdcd.core.engine.topics import NO_OUTBOX, SLICE
from cdcd.core.errors import SinkError, SourceError, TransientError
from cdcd.core.facts.process import PostgresStopping
from cdcd.core.facts.snapshot import SnapshotFinished, SnapshotSignalled
from cdcd.core.facts.start import LockLost
from cdcd.core.facts.tables import RelationChanged, TableAdded, TableReplaced, TableSetAside
from cdcd.core.facts.transactions import PreparedOld, PrepareMissing, TransactionLarge
from cdcd.core.protocol.frames import StatusUpdate, read_status
from cdcd.core.protocol.messages import (
    POSTGRES_EPOCH_US,
    UNCHANGED,
    Column,
    Delete,
    Insert,
    LogicalMessage,
    Relation,
    Update,
)
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.flattening import DELETE_TO_TOMBSTONE, REWRITE, TOMBSTONE, Flattening
from cdcd.core.records.shaping.outbox import shaped
from cdcd.core.records.shaping.routed import routed
from cdcd.core.records.shaping.settings import ASSUMED, Outbox, Route, TableRoutes
from cdcd.core.snapshot.beginning import initial
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.reading import Refused, Rows, SourceTable, Visibility
from cdcd.core.snapshot.signals import PREFIX, Signal
from cdcd.core.snapshot.table_task import TableTask
from cdcd.core.transactions.assembler import Assembler
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.position import Position
from cdcd.core.transactions.spool import Spool
from tests.unit.core.engine.tables import Facts, relation, table
from tests.unit.core.transactions import wire

OID = 7
NAME = "public.t"
TOPIC = "p.public.t"
PUBLISHED = {OID: NAME}
DESCRIBED = TableDescription(primary_key=("id",))
ENVELOPE = EncoderSettings(version="1", prefix="p", database="d", schemas_topic=None)
START = Checkpoint("1", 1, "", Position(50, 60), 60)
UNIX_US = 10**15


def row(number: int, note: str | None = "x", *, oid: int = OID, xid: int | None = None) -> bytes:
    return wire.frame(Insert(xid, oid, (b"%d" % number, None if note is None else note.encode())))


def described(name: str = "t", oid: int = OID) -> bytes:
    return wire.frame(relation(oid, name))


def requested(signal: Signal, lsn: int = 0) -> bytes:
    """A request; alone, if it has a position."""
    content = signal.encode().encode()
    return wire.frame(LogicalMessage(None, not lsn, lsn or 1, PREFIX, content), lsn)


def transaction(xid: int, lsn: int, *frames: bytes) -> list[bytes]:
    return [wire.begin(xid, lsn), *frames, wire.commit(lsn)]


SNAPSHOT = {
    "snapshot_mode": "mode",
    **{name: name for name in ("chunk_bytes", "parallelism", "added_tables", "signals", "tables_ahead")},
}
HEARTBEAT = {"heartbeat_s": "interval_s", "heartbeat_query": "has_query", "watermark_s": "watermark_s"}


def taken(settings: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The settings of a group, which are taken out of all settings, by their names in the group."""
    return {name: settings.pop(known) for known, name in names.items() if known in settings}


ALL_TABLES = TableSelection()


class Daemon:
    """An engine with a shell that does what it says, if the test wants it."""

    def __init__(
        self,
        directory: Path,
        start: Checkpoint = START,
        *,
        exported: list[SourceTable] | None = None,
        unstreamed_until: int = 0,
        published: dict[int, str] | None = None,
        encoding: EncoderSettings = ENVELOPE,
        tables: TableSelection = ALL_TABLES,
        routes: tuple[TableRoutes, ...] = (),
        outbox: Outbox = NO_OUTBOX,
        **settings: Any,
    ) -> None:
        self.now = 0.0
        self.facts = Facts()
        self.ledger = Ledger(start.position.end_lsn)
        encoder = shaped(
            record_stream(encoding, False, self.facts),
            outbox,
            encoding,
            self.facts,
            fails_over_bytes=settings.get("fails_over_bytes", 0),
            made_topics=start.topics,
        )
        encoder = routed(encoder, routes, encoding, self.facts)
        self.assembler = Assembler(
            self.ledger, Spool(str(directory), 1 << 20), start.position, encoder.draft_all, abort_info=False
        )
        self.published = PUBLISHED if published is None else published
        self.after = 0
        """LSN behind the commits that the list of published tables includes."""
        batches = {
            "bytes_max": 100_000,
            "records_max": 1000,
            "queue_bytes_max": 300_000,
            "whole_bytes_max": 1 << 30,
        }
        options: dict[str, Any] = {
            "name": "shop",
            "status_interval_s": 10.0,
            "batches": BatchSettings(**{name: settings.pop(name, value) for name, value in batches.items()}),
            "snapshot": SnapshotSettings(**taken(settings, SNAPSHOT)),
            "heartbeat": HeartbeatSettings(**taken(settings, HEARTBEAT)),
            **settings,
        }
        begins = SessionStart(
            EngineSettings(**options),
            start,
            encoding,
            self.published,
            unstreamed_until=unstreamed_until,
            tables=tables,
            outbox=outbox,
            exported=None
            if exported is None
            else ExportedTables(
                {each.oid: each for each in exported},
                {each.oid: DESCRIBED for each in exported},
                BUILTIN_TYPES,
            ),
        )
        self.rows = routed(record_stream(encoding, False, self.facts), routes, encoding, self.facts)
        self.engine = Engine(begins, self.assembler, encoder, self.rows, self.facts, self.now)
        self.shipped: list[Ship] = []
        self.told: list[StatusUpdate] = []
        self.asked: list[Any] = []
        self.topics: list[str] = []
        self.tables: dict[int, SourceTable] = {}
        self.end: End | None = None
        if exported is None:
            self.engine.stream_begun(self.now)

    def next(self) -> Action:
        return self.engine.next_action(self.now, UNIX_US + int(self.now * 1e6))

    def until(self, *kinds: type[Action]) -> Any:
        """Carry out actions up to the first one of these kinds, which is returned and not carried out."""
        for _ in range(10_000):
            action = self.next()
            if isinstance(action, Wait) and action.until is not None and action.until <= self.now:
                continue
            if isinstance(action, kinds):
                return action
            assert not isinstance(action, Wait | End), f"{action} where {kinds} were expected"
            self.carry_out(action)
        raise AssertionError("there is no end of it")

    def idle(self) -> Wait:
        """Carry out everything that can be done now."""
        found: Wait = self.until(Wait)
        return found

    def carry_out(self, action: Action) -> None:
        engine, now = self.engine, self.now
        if isinstance(action, Ship):
            self.shipped.append(action)
            engine.delivered(action.batch, now)
        elif isinstance(action, Status):
            self.told.append(read_status(action.data))
        elif isinstance(action, Describe):
            engine.described(action.relation, DESCRIBED, BUILTIN_TYPES, now)
        elif isinstance(action, EnsureTopics):
            self.topics += action.topics
            engine.topics_ready(action.topics, now)
        elif isinstance(action, BeginStream):
            engine.stream_begun(now)
        elif isinstance(action, Ask):
            self.asked.append(action.question)
            engine.answered(action.ticket, self.answer(action.question), now)

    def answer(self, question: Any) -> Any:
        seen = Visibility(100, 100)
        match question:
            case ListPublished():
                return Published(self.published, self.after, {})
            case Look():
                return Looked(self.tables.get(question.oid), DESCRIBED, BUILTIN_TYPES, "", seen)
            case FindWriters():
                return Writers(frozenset(), seen)
            case Read(exported=True):
                return Rows([b"1\tx\n"], 4)
            case _:
                return Rows([b"1\tx\n"], 4, seen, 0)

    def feed(self, *frames: bytes | Iterable[bytes]) -> None:
        flat: list[bytes] = []
        for each in frames:
            flat += [each] if isinstance(each, bytes) else each
        self.engine.frames_received(flat, self.now)

    def take(self, *frames: bytes | Iterable[bytes]) -> None:
        """Frames come, and all is done that follows from them."""
        self.feed(*frames)
        self.idle()

    # Asked by calls, whose answers a type checker does not take for lasting.

    def wants_frames(self) -> bool:
        return self.engine.wants_frames

    def is_reading(self) -> bool:
        return self.engine.is_reading

    def has_room(self) -> bool:
        return self.engine.queue.room

    @property
    def records(self) -> list[tuple[str, bytes | None, Any]]:
        """Topic, key and value of all that was delivered."""
        return [
            (topic, key, None if value is None else json.loads(value))
            for ship in self.shipped
            for topic, key, value, _ in ship.batch.records
        ]

    @property
    def ids(self) -> list[int]:
        return [value["after"]["id"] for _, _, value in self.records if value and value.get("after")]


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    """In the middle of a quiet session: the first status is sent, the list of tables looked at."""
    found = Daemon(tmp_path)
    found.idle()
    return found


# The path of a change.


def test_a_transaction_becomes_records_with_the_checkpoint_after_it(daemon: Daemon):
    daemon.take(transaction(5, 100, described(), row(1), row(2)))
    (ship,) = [ship for ship in daemon.shipped if ship.batch.records]
    assert [key for _, key, _, _ in ship.batch.records] == [b'{"id":1}', b'{"id":2}']
    assert ship.checkpoint.position == Position(100, 110)
    assert daemon.engine.checkpoint.position == Position(100, 110)
    assert daemon.ledger.flushed == 110


def test_postgresql_hears_of_it_once_the_broker_holds_it_and_not_before(daemon: Daemon):
    daemon.feed(transaction(5, 100, described(), row(1)))
    ship = daemon.until(Ship)
    assert daemon.ledger.sent == 110
    daemon.now += 100
    daemon.idle()
    assert daemon.told[-1].flushed == 60
    daemon.engine.delivered(ship.batch, daemon.now)
    daemon.now += 1
    daemon.idle()
    assert daemon.told[-1].flushed == 110


def test_one_batch_is_out_at_a_time(daemon: Daemon):
    daemon.feed(transaction(5, 100, described(), row(1)))
    out = daemon.until(Ship)
    daemon.idle()
    daemon.feed(transaction(6, 200, row(2)))
    daemon.idle()
    assert daemon.shipped == [] or out not in daemon.shipped
    daemon.engine.delivered(out.batch, daemon.now)
    assert daemon.until(Ship).checkpoint.position == Position(200, 210)


def test_the_server_is_answered_before_the_frames_around_its_question_are_worked_off(daemon: Daemon):
    daemon.feed(transaction(5, 100, described(), row(1)), [wire.keepalive(110, asked=True)])
    assert isinstance(daemon.next(), Status)
    assert isinstance(daemon.next(), Describe)


def test_the_server_hears_at_every_interval_whatever_is_out(daemon: Daemon):
    daemon.feed(transaction(5, 100, described(), row(1)))
    daemon.until(Ship)
    wait = daemon.idle()
    assert wait.until is not None
    assert wait.until <= 10.0
    count = len(daemon.told)
    daemon.now = 10.0
    assert isinstance(daemon.next(), Status)
    daemon.now = 20.0
    assert isinstance(daemon.next(), Status)
    assert len(daemon.told) == count


def test_a_keepalive_moves_the_flushed_position_by_way_of_kafka(daemon: Daemon):
    daemon.take([wire.keepalive(500)])
    assert daemon.ledger.flushed == 60
    assert daemon.engine.server_wal_end == 500
    daemon.now = 10.0
    daemon.idle()
    assert daemon.engine.checkpoint.position == Position(50, 500)
    assert daemon.ledger.flushed == 500
    assert daemon.engine.caught_up


def test_a_keepalive_that_asks_does_not_wait_for_company(daemon: Daemon):
    daemon.take([wire.keepalive(500, asked=True)])
    daemon.now += 1
    daemon.idle()
    assert daemon.told[-1].flushed == 500


def test_a_batch_goes_out_before_frames_are_worked_off(daemon: Daemon):
    daemon.feed(transaction(5, 100, described(), row(1)), transaction(6, 200, row(2)))
    daemon.until(Describe)
    daemon.engine.queue.touch()
    assert isinstance(daemon.next(), Ship)


def test_work_on_many_frames_lets_others_have_their_turn(daemon: Daemon):
    frames = [
        frame for number in range(2000) for frame in transaction(number + 1, 100 + 20 * number, row(number))
    ]
    daemon.take(transaction(1, 80, described(), row(0)))
    daemon.feed(frames)
    turns = 0
    while not daemon.engine._ingest.is_idle:
        action = daemon.next()
        turns += isinstance(action, Turn)
        daemon.carry_out(action)
    assert turns > 2000 // 256


# Large values. The shell calls `next_action` in a thread while `has_large` is true.

NOTE = "large " * 50_000


def has_large(daemon: Daemon) -> bool:
    return daemon.engine.has_large


def encoded(daemon: Daemon) -> int:
    """Bytes of the records that were made so far."""
    return daemon.engine.queue.size + sum(ship.batch.size for ship in daemon.shipped)


def large_daemon(directory: Path, **options: Any) -> Daemon:
    found = Daemon(directory, bytes_max=1 << 20, queue_bytes_max=1 << 21, **options)
    found.idle()
    return found


def test_a_large_message_is_announced_before_it_is_converted(tmp_path: Path):
    daemon = large_daemon(tmp_path)
    daemon.take(transaction(5, 100, described(), row(1)))
    assert not has_large(daemon)
    before = encoded(daemon)
    daemon.feed(wire.begin(6, 200), row(2, NOTE))
    assert has_large(daemon)
    assert encoded(daemon) == before
    daemon.idle()
    assert encoded(daemon) > before + len(NOTE)
    assert not has_large(daemon)
    daemon.take(wire.commit(200))
    assert daemon.ids == [1, 2]


def test_a_large_message_that_the_spool_kept_is_announced_before_it_is_converted(tmp_path: Path):
    # GIVEN a change of a key, which stays a frame until the commit, which is a small message
    daemon = large_daemon(tmp_path)
    daemon.take(transaction(5, 100, described(), row(1)))
    moved = Update(6, OID, "K", (b"1", None), (b"3", NOTE.encode()))
    named = wire.frame(replace(relation(OID, "t"), xid=6))
    daemon.take(wire.block(6, named, row(2, xid=6), wire.frame(moved), row(4, xid=6)))
    assert not has_large(daemon)
    daemon.feed(wire.stream_commit(6, 300))
    steps: list[tuple[bool, int]] = []
    while not daemon.engine._ingest.is_idle:
        was_large, size = has_large(daemon), encoded(daemon)
        daemon.carry_out(daemon.next())
        steps.append((was_large, encoded(daemon) - size))
    assert any(made > len(NOTE) for _, made in steps)
    assert all(was_large for was_large, made in steps if made > len(NOTE))
    daemon.idle()
    assert not has_large(daemon)
    assert daemon.ids == [1, 2, 3, 4]


def test_large_rows_of_a_table_are_converted_by_the_next_action_and_not_with_the_answer(tmp_path: Path):
    one = table(OID, "t")
    daemon = Daemon(tmp_path, initial_of(one), exported=[one], queue_bytes_max=1 << 21)
    ask = daemon.until(Ask)
    while not isinstance(ask.question, Read):
        daemon.carry_out(ask)
        ask = daemon.until(Ask)
    lines = [b"1\tx\n", b"2\t" + NOTE.encode() + b"\n"]
    daemon.engine.answered(ask.ticket, Rows(lines, sum(map(len, lines))), daemon.now)
    assert encoded(daemon) == 0
    assert has_large(daemon)
    daemon.until(BeginStream)
    assert encoded(daemon) > len(NOTE)
    daemon.engine.stream_begun(daemon.now)
    daemon.idle()
    assert not has_large(daemon)
    assert daemon.ids == [1, 2]


# Back-pressure.


def test_frames_are_wanted_while_there_is_room_and_nothing_is_worked_off(daemon: Daemon):
    assert daemon.wants_frames()
    daemon.feed(transaction(5, 100, described(), row(1)))
    assert not daemon.wants_frames()
    daemon.idle()
    assert daemon.wants_frames()


def test_a_full_queue_stops_the_stream_until_something_is_delivered(tmp_path: Path):
    daemon = Daemon(tmp_path, bytes_max=1000, queue_bytes_max=1000)
    daemon.idle()
    daemon.feed(transaction(5, 100, described(), *[row(number) for number in range(20)]))
    out = daemon.until(Ship)
    daemon.idle()
    # THEN frames that came stay as they are, and no others are wanted
    assert not daemon.has_room()
    assert not daemon.wants_frames()
    daemon.engine.delivered(out.batch, daemon.now)
    daemon.idle()
    assert daemon.wants_frames()
    assert len(daemon.ids) + len(out.batch.records) == 20


def test_while_the_queue_is_full_no_table_is_read(tmp_path: Path):
    daemon = Daemon(tmp_path, bytes_max=1000, queue_bytes_max=1000)
    daemon.tables[OID] = table(OID)
    daemon.idle()
    daemon.feed(transaction(5, 100, described(), *[row(number) for number in range(20)]))
    out = daemon.until(Ship)
    daemon.engine.incremental.tasks.add([TableTask(NAME, OID)])
    daemon.idle()
    assert [each for each in daemon.asked if isinstance(each, Look)] == []
    daemon.engine.delivered(out.batch, daemon.now)
    daemon.idle()
    assert [each for each in daemon.asked if isinstance(each, Look)] != []


# Relations and topics.


def test_a_relation_that_is_described_stops_the_frames_and_nothing_else(daemon: Daemon):
    daemon.tables[OID] = table(OID)
    daemon.feed(transaction(4, 80, described(), row(1)), transaction(5, 100, described(), row(2)))
    daemon.carry_out(daemon.until(Describe))
    pending = daemon.until(Describe)
    daemon.engine.incremental.tasks.add([TableTask(NAME, OID)])
    daemon.now = 10.0
    daemon.idle()
    # THEN batches, status updates and tables go on
    assert daemon.ids == [1]
    assert len(daemon.told) == 2
    assert any(isinstance(each, FindWriters) for each in daemon.asked)
    daemon.carry_out(pending)
    daemon.idle()
    assert 2 in daemon.ids


def test_topics_are_made_at_the_first_event_of_a_table_and_not_before(daemon: Daemon):
    daemon.take(transaction(5, 100, described(), described("leaf", 8), row(1)))
    assert daemon.topics == [TOPIC]
    daemon.take(transaction(6, 200, row(2, oid=8)))
    assert daemon.topics == [TOPIC, "p.public.leaf"]


def test_events_wait_for_their_topic(daemon: Daemon):
    daemon.feed(transaction(5, 100, described(), row(1)))
    topics = daemon.until(EnsureTopics)
    daemon.idle()
    assert daemon.ids == []
    assert not daemon.wants_frames()
    daemon.carry_out(topics)
    daemon.idle()
    assert daemon.ids == [1]


ROUTE = "row.note == 'elsewhere'"
ELSEWHERE = "p.public.t-elsewhere"
ROUTES = (TableRoutes("public.t", (Route(ROUTE, parse_expression(ROUTE), ELSEWHERE),), old_row=ASSUMED),)


@pytest.fixture
def routing(tmp_path: Path) -> Daemon:
    encoding = replace(ENVELOPE, routes=(RoutedTopics("public.t", (ELSEWHERE,)),))
    return Daemon(tmp_path, encoding=encoding, routes=ROUTES)


def test_rows_wait_for_all_topics_that_they_may_go_to(routing: Daemon):
    routing.feed(transaction(5, 100, described(), row(1)))
    topics = routing.until(EnsureTopics)
    assert topics.topics == ("p.public.t", ELSEWHERE)
    routing.engine.topics_ready(topics.topics[:1], routing.now)
    routing.idle()
    assert routing.ids == []
    routing.engine.topics_ready(topics.topics[1:], routing.now)
    routing.idle()
    assert routing.ids == [1]


@pytest.mark.parametrize(("refused", "value"), [(TOPIC, "there"), (ELSEWHERE, "x")])
def test_rows_of_a_snapshot_that_routes_send_elsewhere_belong_to_their_table_too(
    tmp_path: Path, refused: str, value: str
):
    # GIVEN a row of a snapshot on its way, of a table that the stream has not described
    encoding = replace(ENVELOPE, routes=(RoutedTopics("public.t", (ELSEWHERE,)),))
    text = f"row.note == '{value}'"
    rules = (TableRoutes("public.t", (Route(text, parse_expression(text), ELSEWHERE),), old_row=ASSUMED),)
    daemon = Daemon(tmp_path, encoding=encoding, routes=rules, sets_aside=True)
    daemon.tables[OID] = table(OID, pages=1)
    daemon.engine.incremental.tasks.add([TableTask(NAME, OID)])
    while True:
        out = daemon.until(Ship)
        if out.batch.records:
            break
        daemon.carry_out(out)
    assert [record[0] for record in out.batch.records] == [refused]

    # WHEN the broker refuses its topic
    daemon.engine.refused(out.batch, {refused: SinkError("no right")}, daemon.now)
    daemon.idle()

    # THEN the row is not delivered
    assert daemon.records == []
    assert [fact.table for fact in daemon.facts.of(TableSetAside)] == ["public.t"]


def test_a_refused_topic_of_a_former_name_sets_the_renamed_table_aside(tmp_path: Path):
    # GIVEN a record in the topic of a table that was renamed right afterwards
    daemon = Daemon(tmp_path, sets_aside=True)
    daemon.idle()
    daemon.feed(transaction(5, 100, described(), row(1)))
    out = daemon.until(Ship)
    daemon.feed(transaction(6, 200, described("u"), row(2)))
    daemon.idle()

    # WHEN the broker refuses the topic
    daemon.engine.refused(out.batch, {"p.public.t": SinkError("no right")}, daemon.now)
    daemon.idle()

    # THEN nothing of the table is delivered in either topic
    assert daemon.records == []
    assert [fact.oid for fact in daemon.facts.of(TableSetAside)] == [OID]


def test_a_row_that_has_gone_elsewhere_overtakes_what_is_read_of_it(routing: Daemon):
    routing.tables[OID] = table(OID, pages=1)
    routing.take(transaction(5, 100, described(), row(1, "elsewhere")))
    assert routing.records[-1][0] == ELSEWHERE
    routing.engine.incremental.tasks.add([TableTask(NAME, OID)])
    while not (isinstance(ask := routing.until(Ask), Ask) and isinstance(ask.question, Read)):
        routing.carry_out(ask)
    routing.take(transaction(200, 200, row(2, "elsewhere"), wire.frame(Delete(None, OID, "K", (b"1", None)))))
    lines = [b"1\telsewhere\n", b"2\tx\n", b"3\telsewhere\n"]
    routing.engine.answered(ask.ticket, Rows(lines, 30, Visibility(150, 150), 0), routing.now)
    while routing.engine.incremental.progress.tasks:
        routing.carry_out(routing.until(Ask, Ship))
    routing.idle()
    read = [
        (topic, value["after"]["id"]) for topic, _, value in routing.records if value and value["op"] == "r"
    ]
    assert read == [(ELSEWHERE, 3)]


def test_a_row_that_comes_from_another_topic_without_a_value_is_read_again_also_behind_all_pages(
    routing: Daemon,
):
    routing.tables[OID] = table(OID, pages=1)
    routing.take(transaction(5, 100, described(), row(1)))
    routing.engine.incremental.tasks.add([TableTask(NAME, OID)])
    while not (isinstance(ask := routing.until(Ask), Ask) and isinstance(ask.question, Read)):
        routing.carry_out(ask)
    # GIVEN a row that is read again by its key, while every page was delivered
    routing.feed(transaction(200, 200, wire.frame(Update(None, OID, "", None, (b"1", UNCHANGED)))))
    again = routing.until(Ask)
    lines = [b"1\told\n", b"2\tother\n"]
    routing.engine.answered(ask.ticket, Rows(lines, 20, Visibility(150, 150), 0), routing.now)
    routing.take([])
    # WHEN an update of another row leaves out the value that the rule asks for
    routing.take(transaction(210, 300, wire.frame(Update(None, OID, "", None, (b"2", UNCHANGED)))))
    routing.engine.answered(again.ticket, Rows([b"1\told\n"], 6, Visibility(201, 201), 0), routing.now)
    # THEN the table is not complete before that row was read by its key
    second = routing.until(Ask)
    assert second.question.query.keys == (((False, b"2"),),)


def test_topics_of_the_tables_that_are_read_next_are_made_with_that_of_the_first(tmp_path: Path):
    # GIVEN more tables to be read beside the stream than topics are made at once
    published = {oid: f"public.t{oid}" for oid in range(1, SLICE + 5)}
    progress = initial(Progress(), published, (), exported=False)
    daemon = Daemon(tmp_path, replace(START, snapshot=progress), published=published, parallelism=1)
    daemon.tables = {oid: table(oid, f"t{oid}") for oid in published}
    # THEN the first table's topic brings those of the next ones
    first = daemon.until(EnsureTopics)
    assert (first.topics, len(first.ahead)) == (("p.public.t1",), SLICE)
    assert first.ahead[0] == "p.public.t1"
    daemon.carry_out(first)
    # AND the topics of the remaining tables are created while the first tables are read
    second = daemon.until(EnsureTopics)
    rest = tuple(f"p.public.t{oid}" for oid in list(published)[SLICE:])
    assert (second.topics, second.ahead) == (("p.public.t2",), rest)
    daemon.carry_out(second)
    # AND the next table's topic, which is there by now, brings no more
    third = daemon.until(EnsureTopics)
    assert (third.topics, third.ahead) == (("p.public.t3",), ())


def test_topics_of_tables_that_were_added_are_made_ahead_whichever_of_them_is_read(daemon: Daemon):
    oids = range(100, 100 + 2 * SLICE)
    daemon.tables = {oid: table(oid, f"t{oid}") for oid in oids}
    daemon.engine.incremental.tasks.await_added({oid: f"public.t{oid}" for oid in oids})
    wanted = [daemon.until(EnsureTopics) for _ in range(2)]
    assert [name for each in wanted for name in each.ahead] == [f"p.public.t{oid}" for oid in oids]


def test_the_topic_of_a_change_brings_no_others_while_no_table_waits(daemon: Daemon):
    daemon.feed(transaction(5, 100, described(), row(1)))
    assert daemon.until(EnsureTopics).ahead == ()


def test_a_relation_that_changed_is_a_fact(daemon: Daemon):
    changed = Relation(None, OID, "public", "t", "d", (Column(1, "id", 23, -1), Column(0, "more", 25, -1)))
    daemon.take(transaction(5, 100, described(), row(1)))
    daemon.take(transaction(6, 200, described(), row(2)))
    assert daemon.facts.of(RelationChanged) == []
    daemon.take(transaction(7, 300, wire.frame(changed), row(3)))
    (told,) = daemon.facts.of(RelationChanged)
    assert told.logged() == {
        "schema": "public", "table": "t", "added": ["more text"], "dropped": ["note text"],
    }  # fmt: skip


def test_a_relation_that_is_streamed_as_it_was_is_no_fact(daemon: Daemon):
    daemon.take(transaction(5, 100, described(), row(1)))
    streamed = replace(relation(OID, "t"), xid=9)
    daemon.take([*wire.block(9, wire.frame(streamed)), wire.stream_commit(9, 200)])
    assert daemon.facts.of(RelationChanged) == []


def caught_up(daemon: Daemon) -> bool | None:
    return daemon.engine.caught_up


def test_changes_that_wait_for_their_topic_are_behind(daemon: Daemon):
    # GIVEN a server that has no more, and a table whose topic cannot be made now
    daemon.take([wire.keepalive(70)])
    assert caught_up(daemon) is True
    daemon.feed(transaction(5, 100, described(), row(1)))
    topics = daemon.until(EnsureTopics)
    daemon.idle()
    assert caught_up(daemon) is False
    # No keepalive has told how far the server is, but the commit is behind what is delivered.
    assert daemon.engine.server_wal_end > 100 > daemon.ledger.flushed
    # WHEN the topic is there, and the server has no more, THEN all is delivered
    daemon.carry_out(topics)
    daemon.idle()
    daemon.take([wire.keepalive(110)])
    assert caught_up(daemon) is True


def test_rows_that_wait_for_the_catalog_are_behind(daemon: Daemon):
    daemon.take([wire.keepalive(70)])
    daemon.feed(transaction(5, 100, described(), row(1)))
    daemon.until(Describe)
    assert caught_up(daemon) is False


def test_a_part_of_a_transaction_that_is_delivered_is_not_all_of_it(tmp_path: Path):
    daemon = Daemon(tmp_path, bytes_max=100, records_max=1, queue_bytes_max=300)
    daemon.take([wire.keepalive(70)])
    daemon.feed([wire.begin(5, 100), described(), row(1)])
    daemon.idle()
    assert daemon.shipped != []
    assert caught_up(daemon) is False


def test_what_waits_behind_an_outage_counts_as_caught_up_once_it_is_delivered(daemon: Daemon):
    # GIVEN a batch that is out when the server says that there is no more
    daemon.feed(transaction(5, 100, described(), row(1)))
    ship = daemon.until(Ship)
    daemon.feed([wire.keepalive(110)])
    daemon.idle()
    assert daemon.engine.caught_up is False
    # WHEN it is delivered, THEN no further keepalive is needed
    daemon.carry_out(ship)
    daemon.idle()
    assert daemon.engine.caught_up is True


def test_a_name_that_a_table_took_back_leaves_nothing_to_its_next_event(tmp_path: Path):
    # GIVEN a table under another one's name, of which every event is rolled back, and its own name again
    daemon = Daemon(tmp_path, published={OID: NAME, 8: "public.u"})
    daemon.idle()
    daemon.take(transaction(5, 100, described(), row(1), described("u", 8), row(1, oid=8)))
    daemon.take(transaction(6, 200, described("u"), described(), row(2)))
    assert daemon.facts.of(TableReplaced) == []
    assert daemon.topics == [TOPIC, "p.public.u"]


# Names.


def test_rows_of_a_table_whose_name_another_one_took_end_where_its_first_event_is(daemon: Daemon):
    daemon.take(transaction(5, 100, described(), row(1)))
    daemon.take(transaction(6, 200, described("t", 9), row(2, oid=9)))
    assert [value["op"] for _, _, value in daemon.records] == ["c", "t", "c"]
    assert daemon.facts.of(TableReplaced) == [
        TableReplaced(table=NAME, former_oid=OID, oid=9, truncated=True, read=True)
    ]
    assert Look(9, NAME) in daemon.asked, "the new table is read"


def test_rows_are_not_ended_where_a_truncate_gives_no_record(tmp_path: Path):
    daemon = Daemon(tmp_path, truncate=False)
    daemon.take(
        transaction(5, 100, described(), row(1)), transaction(6, 200, described("t", 9), row(2, oid=9))
    )
    assert [value["op"] for _, _, value in daemon.records] == ["c", "c"]


def test_the_list_is_looked_at_now_and_then_and_finds_what_no_event_says(daemon: Daemon):
    daemon.published = {9: NAME}
    daemon.tables[9] = table(9, pages=0)
    daemon.now = PUBLISHED_S
    daemon.idle()
    assert [value["op"] for _, _, value in daemon.records] == ["t"]
    assert daemon.topics == [TOPIC], "the record that ends the rows has its topic"
    assert len(daemon.facts.of(TableReplaced)) == 1


def test_a_list_that_is_not_to_be_had_is_asked_for_again(daemon: Daemon):
    for _ in range(3):
        daemon.now += PUBLISHED_S
        ask = daemon.until(Ask)
        assert isinstance(ask.question, ListPublished)
        daemon.engine.answered(ask.ticket, Lost(TransientError("gone")), daemon.now)
    assert daemon.engine.next_action(daemon.now, UNIX_US) != End()


def test_an_added_table_is_a_fact(tmp_path: Path):
    daemon = Daemon(tmp_path, added_tables=True)
    daemon.published = {**PUBLISHED, 9: "public.u"}
    daemon.now = PUBLISHED_S
    daemon.idle()
    assert [(fact.table, fact.read) for fact in daemon.facts.of(TableAdded)] == [("public.u", True)]


# Requests.


def test_a_request_in_a_transaction_counts_with_it_and_makes_no_record(daemon: Daemon):
    daemon.take(transaction(5, 100, described(), requested(Signal("pause")), row(1)))
    assert daemon.facts.of(SnapshotSignalled) == [SnapshotSignalled(action="pause", tables=[])]
    snapshot = daemon.engine.checkpoint.snapshot
    assert snapshot is not None
    assert snapshot.paused
    assert len(daemon.records) == 1
    # THEN it is an event of the transaction like any other
    assert daemon.records[0][2]["source"]["event_serial_no"] == 2


def test_a_request_outside_of_transactions_counts_at_its_place(daemon: Daemon):
    daemon.take([requested(Signal("pause"), 90)])
    assert daemon.engine.checkpoint.snapshot is not None
    assert daemon.engine.checkpoint.snapshot.paused
    assert daemon.engine.checkpoint.position == Position(50, 90)


def test_a_request_counts_once_whenever_the_daemon_is_killed(tmp_path: Path):
    """Each checkpoint on the way is one to resume from: the request is in it, or comes again."""
    frames = [
        described(),
        row(1),
        row(2),
        requested(Signal("start", ("public.a",), request="me")),
        row(3),
        row(4),
    ]
    daemon = Daemon(tmp_path, records_max=2, whole_bytes_max=0)
    daemon.take(transaction(5, 100, *frames))
    checkpoints = [ship.checkpoint for ship in daemon.shipped if ship.batch.closes]
    assert len({each.position for each in checkpoints}) > 2
    for checkpoint in checkpoints:
        again = Daemon(tmp_path, Checkpoint.decode(checkpoint.encode(), ""), records_max=2, whole_bytes_max=0)
        again.engine.incremental.set_paused(True)
        again.take(transaction(5, 100, *frames))
        said = len(again.facts.of(SnapshotSignalled))
        before = checkpoint.snapshot
        known = [] if before is None else [*before.tasks, *before.outcomes]
        assert said + len(known) == 1
    assert len({len(ship.batch.records) for ship in daemon.shipped}) > 1


def test_an_unreadable_request_ends_nothing(daemon: Daemon):
    nonsense = wire.frame(LogicalMessage(None, False, 90, PREFIX, b"\xff"), 90)
    daemon.take([nonsense])
    daemon.take(transaction(5, 100, described(), row(1)))
    assert daemon.ids == [1]


# Large transactions.


def test_a_transaction_that_is_cut_is_a_fact_and_counted(tmp_path: Path):
    daemon = Daemon(tmp_path, records_max=2, whole_bytes_max=0)
    daemon.take(transaction(5, 100, described(), *[row(number) for number in range(7)]))
    assert daemon.facts.of(TransactionLarge) == [TransactionLarge(xid=5, commit_lsn=100)]
    assert daemon.engine.cuts == 1


def test_without_kafka_transactions_nothing_is_told_of_a_transaction_in_several_batches(tmp_path: Path):
    daemon = Daemon(tmp_path, records_max=2, whole_bytes_max=None)
    daemon.take(transaction(5, 100, described(), *[row(number) for number in range(7)]))
    assert len(daemon.shipped) > 1
    assert (daemon.facts.of(TransactionLarge), daemon.engine.cuts) == ([], 0)


def test_a_whole_transaction_has_one_checkpoint_at_its_end(tmp_path: Path):
    daemon = Daemon(tmp_path, records_max=2)
    daemon.take(transaction(5, 100, described(), *[row(number) for number in range(7)]))
    parts = [ship for ship in daemon.shipped if ship.batch.records or ship.batch.tickets]
    assert len(parts) > 1
    assert [ship.batch.closes for ship in parts][-1:] == [True]
    assert not any(ship.batch.closes for ship in parts[:-1])
    assert {ship.checkpoint.position for ship in parts[:-1]} == {Position(50, 60)}
    assert parts[-1].checkpoint.position == Position(100, 110)
    assert daemon.engine.cuts == 0


def test_streaming_is_possible_again_once_the_large_transaction_is_delivered_and_a_while_passed(
    tmp_path: Path,
):
    daemon = Daemon(tmp_path, unstreamed_until=150)
    daemon.take(transaction(5, 100, described(), row(1)))
    daemon.now = UNSTREAMED_S + 1
    daemon.take(transaction(6, 130, row(2)))
    daemon.feed(transaction(7, 150, row(3)))
    end = daemon.until(End)
    assert isinstance(end.error, StreamingAgainError)
    assert daemon.ids == [1, 2, 3]


def test_but_not_before_that_while(tmp_path: Path):
    daemon = Daemon(tmp_path, unstreamed_until=150)
    daemon.take(transaction(7, 150, described(), row(3)))
    daemon.now = UNSTREAMED_S + 1
    daemon.idle()
    daemon.feed(transaction(8, 250, row(4)))
    assert isinstance(daemon.until(End).error, StreamingAgainError)


# Prepared transactions.


def test_an_old_prepared_transaction_is_warned_of_once(tmp_path: Path):
    daemon = Daemon(tmp_path, prepared_warning_age_s=60.0)
    daemon.take(wire.prepared(5, "gid", 100, described(), row(1)))
    prepared_at = wire.TIME + POSTGRES_EPOCH_US
    daemon.engine.tick(0.0, prepared_at + 59_000_000)
    assert daemon.facts.of(PreparedOld) == []
    for age in (60, 61, 3600):
        daemon.engine.tick(0.0, prepared_at + age * 1_000_000)
    assert daemon.facts.of(PreparedOld) == [PreparedOld(gid="gid", age_s=60, held_at="0/3C")]


def test_a_commit_whose_prepare_is_not_known_is_a_fact(tmp_path: Path):
    daemon = Daemon(tmp_path, Checkpoint("1", 1, "", Position(150, 160), 160))
    daemon.take([wire.commit_prepared(5, "gid", 120)])
    assert daemon.facts.of(PrepareMissing) == []


# Ends.


LOST = TransientError("the connection is gone", hint="Reconnecting.")


def test_a_lost_lock_ends_the_session_at_once(daemon: Daemon):
    daemon.feed(transaction(5, 100, described(), row(1)))
    daemon.engine.lock_lost(LOST, "08006", shutting_down=False, now=daemon.now)
    assert daemon.next() == End(LOST)
    assert daemon.facts.of(LockLost) == [LockLost(sqlstate="08006", reason=LOST.message)]


def shut_down(daemon: Daemon) -> None:
    daemon.engine.lock_lost(LOST, "57P01", shutting_down=True, now=daemon.now)


def test_a_shutdown_of_postgresql_waits_for_what_is_being_delivered(daemon: Daemon):
    daemon.feed(transaction(5, 100, described(), row(1)))
    ship = daemon.until(Ship)
    shut_down(daemon)
    wait = daemon.idle()
    assert wait.until is not None
    assert wait.until <= 5.0
    assert daemon.facts.of(PostgresStopping) == [PostgresStopping(sqlstate="57P01", grace_s=5.0)]
    daemon.now = 0.003
    daemon.engine.delivered(ship.batch, daemon.now)
    # THEN the server is told before we let go
    told = daemon.until(Status)
    assert read_status(told.data).flushed == 110
    end = daemon.until(End)
    assert isinstance(end.error, TransientError)
    assert "shutting down" in end.error.message


def test_but_no_longer_than_the_grace(tmp_path: Path):
    daemon = Daemon(tmp_path, shutdown_grace_s=0.005)
    daemon.idle()
    daemon.feed(transaction(5, 100, described(), row(1)))
    daemon.until(Ship)
    shut_down(daemon)
    assert daemon.idle().until == 0.005
    daemon.now = 0.005
    told = daemon.until(Status)
    assert read_status(told.data).flushed == 60
    assert daemon.until(End).error is not None


def test_nor_for_an_undecided_prepare(daemon: Daemon):
    daemon.take(wire.prepared(5, "gid", 100, described(), row(1)))
    shut_down(daemon)
    assert isinstance(daemon.until(End).error, TransientError)
    assert daemon.now == 0.0


def test_nor_where_nothing_is_under_way(daemon: Daemon):
    shut_down(daemon)
    assert isinstance(daemon.until(End).error, TransientError)


def test_a_stop_finishes_the_batch_that_is_out_and_tells_postgresql(daemon: Daemon):
    daemon.feed(transaction(5, 100, described(), row(1)), transaction(6, 200, row(2)))
    ship = daemon.until(Ship)
    daemon.engine.stop()
    assert not daemon.wants_frames()
    daemon.idle()
    daemon.engine.delivered(ship.batch, daemon.now)
    told = daemon.until(Status)
    assert read_status(told.data).flushed == daemon.ledger.flushed >= 110
    assert daemon.until(End) == End(None)


def test_a_stop_before_the_stream_began_ends_at_once(tmp_path: Path):
    daemon = Daemon(tmp_path, initial_of(table(OID)), exported=[table(OID)])
    daemon.engine.stop()
    assert daemon.next() == End(None)


def test_what_the_rows_of_a_table_say_ends_the_session(daemon: Daemon):
    daemon.tables[OID] = table(OID)
    daemon.engine.incremental.tasks.add([TableTask(NAME, OID)])
    while not isinstance(ask := daemon.until(Ask), Ask) or not isinstance(ask.question, Read):
        daemon.carry_out(ask)
    daemon.engine.answered(ask.ticket, Refused("permission denied", "Grant it:"), daemon.now)
    end = daemon.next()
    assert isinstance(end, End)
    assert isinstance(end.error, SourceError)


# Snapshots.


def initial_of(*tables: SourceTable) -> Checkpoint:
    progress = initial(Progress(), {each.oid: each.name for each in tables}, (), exported=True)
    return Checkpoint("1", 1, "", Position(0, 60), 60, snapshot=progress)


def test_an_initial_snapshot_is_read_before_the_stream_begins(tmp_path: Path):
    one = table(OID, pages=1)
    daemon = Daemon(tmp_path, initial_of(one), exported=[one])
    assert daemon.is_reading()
    assert not daemon.wants_frames()
    daemon.until(BeginStream)
    # THEN PostgreSQL was told nothing
    assert daemon.told == []
    assert [type(each) for each in daemon.asked] == [Read]
    daemon.engine.stream_begun(daemon.now)
    daemon.idle()
    assert not daemon.is_reading()
    assert [value["op"] for _, _, value in daemon.records] == ["r"]
    snapshot = daemon.engine.checkpoint.snapshot
    assert snapshot is not None
    assert (snapshot.is_done, snapshot.method, snapshot.event_no) == (True, "incremental", 1)


def test_rows_of_an_initial_snapshot_wait_for_their_topics_and_the_stream_begins_meanwhile(tmp_path: Path):
    tables = [table(OID, "t", pages=1), table(OID + 1, "other", pages=1)]
    daemon = Daemon(tmp_path, initial_of(*tables), exported=tables)
    topics = daemon.until(EnsureTopics)
    daemon.until(BeginStream)
    daemon.engine.stream_begun(daemon.now)
    daemon.idle()
    assert [type(each) for each in daemon.asked if isinstance(each, Read)] == [Read, Read]
    assert daemon.records == []
    # WHEN one of two topics is there
    daemon.engine.topics_ready(topics.topics[:1], daemon.now)
    daemon.idle()
    # THEN the rows of both tables wait, because they are in one batch
    assert daemon.records == []
    daemon.engine.topics_ready(topics.topics[1:], daemon.now)
    daemon.idle()
    assert [topic for topic, _, _ in daemon.records] == list(topics.topics)


def test_the_description_of_a_table_that_is_read_is_kept_until_kafka_holds_its_rows(tmp_path: Path):
    one = table(OID, pages=1)
    daemon = Daemon(tmp_path, initial_of(one), exported=[one])
    topics = daemon.until(EnsureTopics)
    daemon.until(BeginStream)
    daemon.engine.stream_begun(daemon.now)
    daemon.idle()
    # While the rows wait for the topic, their table is found by the topic.
    assert daemon.rows.tables.knows(OID)
    daemon.engine.topics_ready(topics.topics, daemon.now)
    daemon.idle()
    assert not daemon.rows.tables.knows(OID)
    assert daemon.engine.incremental.progress.is_done
    # WHEN the table is read again THEN it is described again
    daemon.tables = {0: one, OID: one}
    daemon.take(requested(Signal("start", (NAME,), request="me"), 200))
    daemon.idle()
    assert [value["op"] for _, _, value in daemon.records] == ["r", "r"]
    assert not daemon.rows.tables.knows(OID)


def test_a_table_whose_rows_were_read_is_set_aside_by_its_name_if_kafka_refuses_its_next_change(
    tmp_path: Path,
):
    one = table(OID, pages=1)
    daemon = Daemon(tmp_path, initial_of(one), exported=[one], sets_aside=True)
    daemon.until(BeginStream)
    daemon.engine.stream_begun(daemon.now)
    daemon.idle()
    assert not daemon.rows.tables.knows(OID)
    daemon.feed(transaction(5, 100, described(), row(1)))
    ship = daemon.until(Ship)
    daemon.engine.refused(ship.batch, {TOPIC: SinkError("no right")}, daemon.now)
    daemon.idle()
    (fact,) = daemon.facts.of(TableSetAside)
    assert fact.table == NAME


def test_rows_whose_topic_is_refused_are_removed_while_they_wait(tmp_path: Path):
    tables = [table(OID, "t", pages=1), table(OID + 1, "other", pages=1)]
    daemon = Daemon(
        tmp_path,
        initial_of(*tables),
        exported=tables,
        published={each.oid: each.name for each in tables},
        sets_aside=True,
    )
    topics = daemon.until(EnsureTopics)
    daemon.until(BeginStream)
    daemon.engine.topics_refused({TOPIC: SinkError("no right")}, daemon.now)
    daemon.engine.topics_ready([topic for topic in topics.topics if topic != TOPIC], daemon.now)
    daemon.until(BeginStream, Wait)
    assert [topic for topic, _, _ in daemon.records] == ["p.public.other"]
    assert [each.oid for each in daemon.engine.checkpoint.tables] == [OID]


def test_the_stream_begins_while_the_last_rows_are_still_out(tmp_path: Path):
    one = table(OID, pages=1)
    daemon = Daemon(tmp_path, initial_of(one), exported=[one])
    while isinstance(action := daemon.next(), Ask | EnsureTopics | Turn | Ship) and not isinstance(
        action, Ship
    ):
        daemon.carry_out(action)
    assert isinstance(action, Ship)
    assert isinstance(daemon.until(BeginStream), BeginStream)
    assert daemon.shipped == []


def test_a_snapshot_of_empty_tables_begins_the_stream_at_once(tmp_path: Path):
    empty = table(OID, pages=0)
    daemon = Daemon(tmp_path, initial_of(empty), exported=[empty])
    daemon.until(BeginStream)
    assert daemon.topics == []


def test_a_connection_that_is_lost_while_the_export_is_read_ends_the_session(tmp_path: Path):
    one = table(OID, pages=1)
    daemon = Daemon(tmp_path, initial_of(one), exported=[one])
    ask = daemon.until(Ask)
    daemon.engine.answered(ask.ticket, Lost(LOST), daemon.now)
    assert daemon.next() == End(LOST)


def test_snapshot_only_ends_when_all_is_read_and_delivered(tmp_path: Path):
    one = table(OID, pages=1)
    daemon = Daemon(tmp_path, initial_of(one), exported=[one], snapshot_mode="only")
    while not isinstance(action := daemon.next(), Ship):
        daemon.carry_out(action)
    for _ in range(20):
        following = daemon.next()
        assert not isinstance(following, End)
        if isinstance(following, BeginStream):
            daemon.carry_out(following)
    daemon.carry_out(action)
    assert daemon.until(End) == End(None)
    assert daemon.ids == [1]
    assert daemon.told != []


def test_rows_that_are_read_stand_between_transactions_of_the_stream(daemon: Daemon):
    daemon.tables[OID] = table(OID, pages=1)
    daemon.take(transaction(5, 100, described(), row(2)))
    daemon.engine.incremental.tasks.add([TableTask(NAME, OID)])
    while not (isinstance(ask := daemon.until(Ask), Ask) and isinstance(ask.question, Read)):
        daemon.carry_out(ask)
    # GIVEN rows that are read in the middle of a transaction, at a snapshot that the stream has not reached
    daemon.take([wire.begin(6, 200), row(3)])
    daemon.engine.answered(ask.ticket, Rows([b"1\tx\n"], 4, Visibility(6, 6), 150), daemon.now)
    daemon.idle()
    assert daemon.ids == [2]
    daemon.take([row(4), wire.commit(200)])
    # THEN they stand after it
    assert daemon.ids == [2, 3, 4, 1]
    source = daemon.records[-1][2]["source"]
    assert (source["snapshot"], source["commit_lsn"], source["lsn"]) == ("incremental", 209, 150)


@pytest.mark.parametrize("deletes", [TOMBSTONE, DELETE_TO_TOMBSTONE, REWRITE])
def test_a_row_that_is_deleted_beside_the_read_does_not_come_back_whatever_record_the_delete_has(
    tmp_path: Path, deletes: str
):
    # GIVEN flattened records, and rows that are being read
    daemon = Daemon(tmp_path, encoding=replace(ENVELOPE, flattening=Flattening(deletes)))
    daemon.tables[OID] = table(OID, pages=1)
    daemon.take(transaction(5, 100, described(), row(1), row(2)))
    daemon.engine.incremental.tasks.add([TableTask(NAME, OID)])
    while not (isinstance(ask := daemon.until(Ask), Ask) and isinstance(ask.question, Read)):
        daemon.carry_out(ask)
    # WHEN a row is deleted and another one gets a new key, which the rows that are read do not see
    gone = wire.frame(Delete(None, OID, "K", (b"1", None)))
    moved = wire.frame(Update(None, OID, "K", (b"2", None), (b"3", b"x")))
    daemon.take(transaction(200, 200, gone, moved))
    daemon.engine.answered(
        ask.ticket, Rows([b"1\told\n", b"2\told\n"], 12, Visibility(150, 150), 0), daemon.now
    )
    daemon.idle()
    # THEN neither comes back
    assert not daemon.engine.incremental.progress.tasks
    last = {key: value for _, key, value in daemon.records}
    present = [key for key, value in last.items() if value is not None and value.get("__deleted") != "true"]
    assert present == [b'{"id":3}']


@pytest.mark.parametrize(
    "update",
    [
        Update(None, OID, "", None, (b"1", UNCHANGED)),
        # PostgreSQL sends a key that is stored apart in the old row only.
        Update(None, OID, "K", (b"1", None), (UNCHANGED, UNCHANGED)),
    ],
)
def test_a_row_that_an_update_left_a_value_of_is_read_again_by_its_key(daemon: Daemon, update: Update):
    daemon.tables[OID] = table(OID, pages=1)
    daemon.take(transaction(5, 100, described(), row(1)))
    daemon.engine.incremental.tasks.add([TableTask(NAME, OID)])
    while not (isinstance(ask := daemon.until(Ask), Ask) and isinstance(ask.question, Read)):
        daemon.carry_out(ask)
    # GIVEN an update that leaves the note alone, which the rows that are read do not see
    daemon.feed(transaction(200, 200, wire.frame(update)))
    again = daemon.until(Ask)
    assert again.question.query.keys == (((False, b"1"),),)
    daemon.engine.answered(ask.ticket, Rows([b"1\told\n"], 6, Visibility(150, 150), 0), daemon.now)
    daemon.engine.answered(again.ticket, Rows([b"1\told\n"], 6, Visibility(201, 201), 0), daemon.now)
    while daemon.engine.incremental.progress.tasks:
        daemon.carry_out(daemon.until(Ask, Ship))
    daemon.idle()
    # THEN the row of the page is left out, and that of the key has the value
    assert [value["op"] for _, _, value in daemon.records] == ["c", "u", "r"]
    assert daemon.records[-1][2]["after"] == {"id": 1, "note": "old"}


def test_the_progress_that_is_shown_is_what_the_broker_holds(tmp_path: Path):
    one = table(OID)
    daemon = Daemon(tmp_path, initial_of(one), exported=[one])
    begun = Progress()
    while not begun.is_done or not begun.ended:
        ship = daemon.until(Ship)
        begun = ship.batch.snapshot or Progress()
        # THEN a table is shown as read, and the log is told of it, when its rows are delivered
        assert daemon.engine.delivered_progress.ended == 0
        assert daemon.facts.of(SnapshotFinished) == []
        daemon.carry_out(ship)
    assert daemon.engine.delivered_progress.is_done
    assert daemon.facts.of(SnapshotFinished) == [SnapshotFinished(rows=1)]
