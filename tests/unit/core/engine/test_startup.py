"""The start of a session: what is done before what, and what it decides, with answers made by hand."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cdcd.core.catalog.oids import Oids
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.routing import TopicNames
from cdcd.core.engine.checkpoint import Checkpoint, RecordSettings, Seal
from cdcd.core.engine.logged import DurableLog, LoggedSession, LogOwner
from cdcd.core.engine.record_settings import ASKED_MESSAGES, CHANGES, FORMS, ROOTS
from cdcd.core.engine.resuming import Source
from cdcd.core.engine.session_start import ExportedTables
from cdcd.core.engine.settings import SnapshotSettings
from cdcd.core.engine.startup import STEPS, Start
from cdcd.core.engine.startup_requests import (
    BindColumns,
    CheckCreation,
    ConnectCatalog,
    ConnectStream,
    CreateSlot,
    DropSlot,
    EndFormerStream,
    EndTwoPhase,
    EnsurePublication,
    Fence,
    ImportSnapshot,
    ListTables,
    LookAtLog,
    LookAtSlot,
    PeekCheckpoint,
    PrepareSink,
    ReadMoneyDigits,
    ReadRoots,
    ReadSource,
    RemoveLogged,
    Request,
    SetFailover,
    SlotMade,
    SlotSeen,
    StreamEarly,
    TakeLock,
    WriteCheckpoint,
)
from cdcd.core.engine.startup_rules import (
    HEALED_OR_LEFT_HINT,
    HEALED_ROWS_HINT,
    LEFT_ROWS_HINT,
    FormerSessions,
    GapChoice,
    Ready,
    ReplicationSettings,
    StartSettings,
)
from cdcd.core.errors import PositionError, SinkError, TransientError
from cdcd.core.facts import Fact
from cdcd.core.facts.snapshot import SnapshotNeeded, SnapshotResumed
from cdcd.core.facts.start import GapAccepted, RecordSettingChanged, TwoPhaseEnded, TwoPhaseKept
from cdcd.core.facts.transactions import MessagesKept
from cdcd.core.protocol.versions import StreamingMode
from cdcd.core.snapshot.progress import EXPORTED, INCREMENTAL, Progress
from cdcd.core.snapshot.signals import ADDED
from cdcd.core.transactions.position import Position

SERVER, STREAM = "7000", "publication=cdcd"
SLOT = SlotSeen(100)
TOPICS = TopicNames("shop", {}, "messages", None, "checkpoint", None)
WANTED = ReplicationSettings("cdcd", "cdcd")
SETTINGS = StartSettings(WANTED, "checkpoint", TOPICS)
HERE = Checkpoint(SERVER, 1, STREAM, Position(90, 100), 100)
INVALID = PositionError("The slot has been invalidated.")
EXPORT = ExportedTables({}, {}, {})


class World:
    """A server with a slot, a broker with a checkpoint, and everything that the start asked of them."""

    def __init__(
        self, *, slot: SlotSeen | None = SLOT, found: Checkpoint | None = HERE, **server: Any
    ) -> None:
        self.slot, self.found = slot, found
        self.source = Source(SERVER, 1, 500, None, STREAM, slot="cdcd")
        self.version = 180000
        self.is_standby = False
        self.money_digits = 2
        self.published = {1: "public.t"}
        self.via_root: bool | None = None
        self.exported = EXPORT
        self.bindings = ""
        """The columns that rules are bound to after this start has looked at the tables."""
        self.listed: dict[int, str] | None = None
        """What is published when the slot is there; None: the same."""
        self.log: DurableLog | None = None
        self.peeked: list[Checkpoint | None] = []
        """What readers see of the checkpoint before the fence, one look after the other, and then `found`."""
        self.newest: list[Checkpoint | None] = []
        """The newest checkpoint that was written, one look after the other, and then `found`."""
        self.seen: list[SlotSeen | None] = []
        """What is seen of the slot, one look after the other, and then `slot`."""
        for name, value in server.items():
            assert hasattr(self, name)
            setattr(self, name, value)
        self.asked: list[Request[Any]] = []
        self.facts: list[Fact] = []

    def look(self) -> SlotSeen | None:
        return self.seen.pop(0) if self.seen else self.slot

    def start(self, settings: StartSettings = SETTINGS, **more: Any) -> Ready:
        gap = GapChoice(more.pop("accept_gap", False), more.pop("heals_now", False))
        requests = Start(settings, self.facts.append, FormerSessions(**more), gap).run()
        answer: Any = None
        while True:
            try:
                request = requests.send(answer)
            except StopIteration as end:
                ready: Ready = end.value
                return ready
            self.asked.append(request)
            answer = ANSWERS.get(type(request), _nothing)(self, request)

    @property
    def order(self) -> list[type[Request[Any]]]:
        return [type(request) for request in self.asked]

    def the(self, kind: type[Any]) -> Any:
        (one,) = [request for request in self.asked if type(request) is kind]
        return one

    def said(self, kind: type[Fact]) -> list[Fact]:
        return [fact for fact in self.facts if type(fact) is kind]


def _nothing(_world: World, _request: Any) -> Any:
    return None


def _peeked(world: World, request: PeekCheckpoint) -> Any:
    looks = world.newest if request.newest else world.peeked
    return looks.pop(0) if looks else world.found


ANSWERS: dict[type[Any], Callable[[World, Any], Any]] = {
    ConnectCatalog: lambda world, _: world.is_standby,
    ReadMoneyDigits: lambda world, _: world.money_digits,
    CheckCreation: lambda world, _: world.published if world.found is None else {},
    ConnectStream: lambda world, _: world.version,
    LookAtSlot: lambda world, _: world.look(),
    PeekCheckpoint: _peeked,
    Fence: lambda world, _: world.found,
    ReadSource: lambda world, request: replace(world.source, slot_confirmed=request.slot_confirmed),
    LookAtLog: lambda world, _: world.log,
    EnsurePublication: lambda world, _: world.published,
    ReadRoots: lambda world, _: world.via_root,
    ListTables: lambda world, _: world.published if world.listed is None else world.listed,
    CreateSlot: lambda _, request: SlotMade(SlotSeen(300), "0003-1" if request.export else None),
    ImportSnapshot: lambda world, _: world.exported,
    BindColumns: lambda world, _: world.bindings,
}


def test_a_start_that_goes_on_asks_in_this_order_and_writes_nothing():
    world = World(found=replace(HERE, snapshot=None))
    ready = world.start()
    assert world.order == [
        TakeLock,
        ConnectCatalog,
        ReadMoneyDigits,
        EndFormerStream,
        ConnectStream,
        StreamEarly,
        CheckCreation,
        PrepareSink,
        LookAtSlot,
        PeekCheckpoint,
        ReadSource,
        LookAtLog,
        ReadRoots,
        Fence,
        LookAtSlot,
        ReadSource,
        LookAtLog,
        EnsurePublication,
        ReadRoots,
    ]
    assert ready.checkpoint == HERE
    assert ready.exported is None
    assert ready.published == {1: "public.t"}


@pytest.mark.parametrize(
    ("first", "then", "because"),
    [
        (Start.take_lock, Start.connect_stream, "a standby disturbs no stream"),
        (Start.check_creation, Start.prepare_sink, "a start that fails creates no topic"),
        (Start.judge, Start.fence, "who must refuse to start shuts nobody out"),
        (Start.judge, Start.ensure_publication, "who must refuse to start creates nothing"),
        (Start.fence, Start.remove_delivered_logs, "what is delivered is known for good"),
        (Start.fence, Start.ensure_slot, "a former instance cannot move the slot any more"),
        (Start.refuse_collisions, Start.ensure_slot, "a slot that nobody uses would hold WAL"),
        (Start.ensure_publication, Start.ensure_slot, "a slot decodes what is published when it was made"),
        (Start.ensure_slot, Start.import_snapshot, "the slot exports it"),
        (
            Start.import_snapshot,
            Start.choose_tables,
            "tables may be added while the creation of the slot waits",
        ),
        (Start.choose_tables, Start.write_checkpoint, "the checkpoint says which tables are read"),
        (Start.import_snapshot, Start.write_checkpoint, "the snapshot goes with the next command"),
        (Start.fence, Start.write_checkpoint, "the checkpoint is written by the one writer"),
    ],
)
def test_the_steps_have_their_order(first: Any, then: Any, because: str):
    assert STEPS.index(first) < STEPS.index(then), because


def test_the_lock_is_first_and_the_checkpoint_last():
    assert STEPS[0] is Start.take_lock
    assert STEPS[-1] is Start.write_checkpoint
    assert len(set(STEPS)) == len(STEPS)


@pytest.mark.parametrize("slot", [SLOT, None], ids=["restart", "first start"])
def test_the_first_checkpoint_of_a_session_has_the_bindings_of_all_published_tables(slot: SlotSeen | None):
    """A kill before anything was delivered must not forget which columns are protected."""
    world = World(slot=slot, found=HERE if slot else None, bindings='{"version":1,"columns":"x"}')
    ready = world.start(replace(SETTINGS, protects=True))
    asked = world.the(BindColumns)
    assert asked.published == {1: "public.t"}
    assert asked.exported is (None if slot else EXPORT)
    assert world.order[-2:] == [BindColumns, WriteCheckpoint]
    assert world.the(WriteCheckpoint).checkpoint == ready.checkpoint
    assert ready.checkpoint.bindings == world.bindings


def test_bindings_that_the_checkpoint_has_already_are_not_written_again():
    text = '{"version":1,"columns":"x"}'
    world = World(found=replace(HERE, bindings=text), bindings=text)
    ready = world.start(replace(SETTINGS, protects=True))
    assert world.the(BindColumns).checkpoint.bindings == text
    assert WriteCheckpoint not in world.order
    assert ready.checkpoint.bindings == text


def test_without_rules_nothing_is_bound():
    world = World(found=replace(HERE, bindings='{"version":1,"columns":"x"}'))
    assert world.start().checkpoint.bindings == ""
    assert BindColumns not in world.order


def test_two_tables_with_one_topic_are_refused_before_anything_is_created():
    world = World(slot=None, found=None, published={1: "public.a_b", 2: "public.a.b"})
    with pytest.raises(SinkError, match="collides"):
        world.start()
    assert world.order[-1] is CheckCreation
    assert PrepareSink not in world.order


def test_a_standby_is_refused_before_a_stream_is_ended():
    world = World(is_standby=True)
    with pytest.raises(TransientError, match="standby"):
        world.start()
    assert world.order == [TakeLock, ConnectCatalog]


REFUSED = [
    World(source=Source("another", 1, 500, None, STREAM)),
    World(slot=None),
    World(slot=SlotSeen(200)),
    World(slot=SlotSeen(100, problem=INVALID)),
]


@pytest.mark.parametrize("world", REFUSED)
def test_who_must_refuse_disturbs_nobody(world: World):
    with pytest.raises(PositionError):
        world.start()
    assert not {Fence, EnsurePublication, DropSlot, CreateSlot, WriteCheckpoint} & set(world.order)


LATER = replace(HERE, position=Position(190, 200), flushed_lsn=200)


def test_a_checkpoint_that_readers_do_not_see_yet_is_not_refused():
    world = World(slot=SlotSeen(200), found=LATER)
    world.peeked = [HERE]
    assert world.start().checkpoint == LATER
    assert [one for one in world.asked if isinstance(one, PeekCheckpoint)] == [
        PeekCheckpoint(told=200),
        PeekCheckpoint(newest=True, told=200),
    ]


def test_the_slot_is_looked_at_again_before_the_newest_checkpoint():
    """Another instance may have delivered, and moved the slot, since the first look."""
    world = World(slot=SlotSeen(200), found=LATER)
    world.seen, world.peeked = [SlotSeen(150)], [HERE]
    assert world.start().checkpoint == LATER


def test_who_must_refuse_looks_for_a_newer_checkpoint_and_disturbs_nobody():
    world = World(slot=SlotSeen(200))
    with pytest.raises(PositionError, match="confirmed up to"):
        world.start()
    assert world.order.count(PeekCheckpoint) == 2
    assert Fence not in world.order


def test_a_newer_checkpoint_that_was_aborted_is_refused_by_the_comparison_that_counts():
    world = World(slot=SlotSeen(200))
    world.newest = [LATER]
    with pytest.raises(PositionError, match="confirmed up to"):
        world.start()
    assert Fence in world.order


def test_the_fence_hears_what_postgresql_was_told_because_of_kafka():
    world = World(slot=SlotSeen(100))
    world.start()
    assert world.the(Fence) == Fence(100)


def test_what_a_durable_log_confirmed_does_not_count_for_that():
    owner = LogOwner("", "cdcd", SERVER, 1, STREAM)
    world = World(slot=SlotSeen(150), found=replace(HERE, position=Position(110, 120), flushed_lsn=120))
    world.log = DurableLog("log", (LoggedSession(1, owner, 110, 160), LoggedSession(2, owner, 150, 170)))
    world.start(replace(SETTINGS, stream=replace(WANTED, slot="cdcd")))
    assert world.the(Fence) == Fence(110)


def test_the_judgement_after_the_fence_is_the_one_that_counts():
    """A former instance delivered more, and moved the slot, until it was shut out."""
    later = replace(HERE, position=Position(140, 150), flushed_lsn=150)
    world = World(found=later)
    world.peeked = [HERE]
    assert world.start().checkpoint.position == Position(140, 150)


def test_an_accepted_gap_goes_on_from_the_slot_and_says_so():
    world = World(slot=SlotSeen(200))
    ready = world.start(accept_gap=True)
    assert ready.checkpoint.position == Position(0, 200)
    assert world.said(GapAccepted)
    assert world.the(WriteCheckpoint).checkpoint == ready.checkpoint


@pytest.mark.parametrize("options", [{}, {"accept_gap": True}])
def test_a_sealed_pipeline_does_not_start_and_disturbs_nobody(options: dict[str, Any]):
    world = World(found=replace(HERE, seal=Seal(100, "7002", 50, "pg_16400", 0, "token")))
    with pytest.raises(PositionError, match="sealed"):
        world.start(**options)
    assert not {Fence, CreateSlot, WriteCheckpoint} & set(world.order)


def test_when_needed_reads_the_tables_again_where_the_slot_is_lost():
    world = World(slot=None)
    ready = world.start(replace(SETTINGS, snapshot=SnapshotSettings(mode="when_needed")))
    assert len(world.said(SnapshotNeeded)) == 1
    assert world.the(CreateSlot).export
    assert ready.exported is EXPORT
    assert ready.checkpoint.snapshot is not None
    assert ready.checkpoint.snapshot.outdated == Oids((1,))


def test_a_gap_is_told_with_its_ends_and_the_tables_whose_former_rows_end():
    world = World(slot=SlotSeen(200))
    world.start(replace(SETTINGS, snapshot=SnapshotSettings(mode="when_needed")))
    (said,) = world.said(GapAccepted)
    assert isinstance(said, GapAccepted)
    assert (said.begins, said.ends, said.tables, said.ended) == ("0/64", "0/C8", ["public.t"], 1)


def test_without_truncate_records_former_rows_stay_and_the_event_says_so():
    world = World(slot=None)
    ready = world.start(replace(SETTINGS, snapshot=SnapshotSettings(mode="when_needed"), truncate=False))
    assert ready.checkpoint.snapshot is not None
    assert ready.checkpoint.snapshot.outdated == Oids(())
    (said,) = world.said(SnapshotNeeded)
    assert isinstance(said, SnapshotNeeded)
    assert said.hint == LEFT_ROWS_HINT


def test_healing_without_truncate_records_tells_which_rows_stay():
    for truncate, hint in ((True, HEALED_ROWS_HINT), (False, HEALED_OR_LEFT_HINT)):
        world = World(slot=None, found=replace(HERE, snapshot=Progress(known=KNOWN)))
        world.start(replace(HEALS, truncate=truncate))
        (said,) = world.said(SnapshotNeeded)
        assert isinstance(said, SnapshotNeeded)
        assert said.hint == hint


def test_a_first_start_ends_no_former_rows():
    ready = World(slot=None, found=None).start()
    assert ready.checkpoint.snapshot is not None
    assert ready.checkpoint.snapshot.outdated == Oids(())


def test_when_needed_refuses_another_server_and_leaves_its_slot():
    """An invalidated slot of a server that is not the checkpoint's may be needed by those who know it."""
    world = World(slot=SlotSeen(100, problem=INVALID), source=Source("another", 1, 500, None, STREAM))
    with pytest.raises(PositionError, match="another cluster"):
        world.start(replace(SETTINGS, snapshot=SnapshotSettings(mode="when_needed")))
    assert not {DropSlot, Fence} & set(world.order)


def test_when_needed_drops_an_invalidated_slot_after_the_fence():
    world = World(slot=SlotSeen(100, problem=INVALID))
    world.start(replace(SETTINGS, snapshot=SnapshotSettings(mode="when_needed")))
    assert world.order.index(Fence) < world.order.index(DropSlot) < world.order.index(CreateSlot)
    assert [fact.message for fact in world.said(SnapshotNeeded)] == [INVALID.message]  # type: ignore[attr-defined]
    # It was invalidated, and not dropped.
    assert [fact.message for fact in world.said(GapAccepted)] == [INVALID.message]  # type: ignore[attr-defined]


def test_published_tables_are_listed_again_only_if_the_creation_of_the_slot_may_have_waited():
    later = {1: "public.t", 2: "public.later"}
    there = World(listed=later)
    assert there.start().published == {1: "public.t"}
    assert ListTables not in there.order
    missing = World(slot=None, found=None, listed=later)
    assert missing.start().published == later


def test_two_tables_with_one_topic_are_refused_before_there_is_a_slot():
    world = World(slot=None, found=None, published={1: "public.a_b", 2: "public_a.b"})
    names = replace(TOPICS, names={("public", "a_b"): "shop.x_y", ("public_a", "b"): "shop.x.y"})
    with pytest.raises(SinkError, match="collides"):
        world.start(replace(SETTINGS, topics=names))
    assert CreateSlot not in world.order


def test_a_new_pipeline_exports_a_snapshot_and_imports_it_at_once():
    world = World(slot=None, found=None)
    ready = world.start(replace(SETTINGS, stream=replace(WANTED, failover=True)))
    at = world.order.index(CreateSlot)
    assert world.order[at:] == [CreateSlot, ImportSnapshot, ListTables, WriteCheckpoint], (
        "no other command comes between"
    )
    assert world.the(ImportSnapshot).name == "0003-1"
    assert ready.exported is EXPORT
    assert ready.checkpoint.position == Position(0, 300)
    assert ready.checkpoint.snapshot is not None
    assert ready.checkpoint.snapshot.method == EXPORTED


def test_a_locked_table_without_a_key_ends_the_start_unless_it_is_excluded():
    """It could not be read beside the stream, so the start is tried again until the lock is free."""
    described = {1: TableDescription(primary_key=("id",)), 2: TableDescription()}
    exported = ExportedTables(
        {}, described, {}, {1: "locked by server process 7", 2: "locked by server process 8"}
    )
    published = {1: "public.t", 2: "public.u"}
    with pytest.raises(TransientError, match=r"public\.u is locked by server process 8"):
        World(slot=None, found=None, published=published, exported=exported).start()
    world = World(slot=None, found=None, published=published, exported=exported)
    assert (
        world.start(replace(SETTINGS, snapshot=SnapshotSettings(exclude=("public.u",)))).exported is exported
    )
    # With a key it is left to be read beside the stream.
    only = replace(exported, locked={1: "locked"})
    assert World(slot=None, found=None, published=published, exported=only).start().exported is only


@pytest.mark.parametrize(
    "settings",
    [
        replace(SETTINGS, snapshot=SnapshotSettings(method=INCREMENTAL)),
        replace(SETTINGS, snapshot=SnapshotSettings(mode="never")),
    ],
)
def test_nothing_is_exported_that_nobody_reads(settings: StartSettings):
    world = World(slot=None, found=None)
    ready = world.start(settings)
    assert not world.the(CreateSlot).export
    assert ready.exported is None
    assert ImportSnapshot not in world.order


def test_a_snapshot_that_was_interrupted_goes_on_and_says_so():
    interrupted = Progress(waiting=Oids([1]), method=EXPORTED)
    world = World(found=replace(HERE, snapshot=interrupted))
    ready = world.start()
    assert [fact.was for fact in world.said(SnapshotResumed)] == [EXPORTED]  # type: ignore[attr-defined]
    assert ready.checkpoint.snapshot == replace(interrupted, method=INCREMENTAL)


def test_a_writer_that_kafka_does_not_fence_is_counted():
    world = World()
    ready = world.start(replace(SETTINGS, counts_epochs=True))
    assert ready.checkpoint == replace(HERE, epoch=HERE.epoch + 1)
    assert world.the(WriteCheckpoint).checkpoint == ready.checkpoint


@pytest.mark.parametrize(
    ("version", "wanted", "slot_has", "told", "fact"),
    [
        (180000, True, False, True, None),
        (180000, True, True, True, None),
        (180000, False, False, False, None),
        (180000, False, True, False, TwoPhaseEnded),
        (170000, False, True, True, TwoPhaseKept),
    ],
)
def test_two_phase_is_as_configured_where_the_server_can_change_it(
    version: int, wanted: bool, slot_has: bool, told: bool, fact: type[Fact] | None
):
    world = World(version=version, slot=replace(SLOT, two_phase=slot_has))
    ready = world.start(replace(SETTINGS, stream=replace(WANTED, two_phase=wanted)))
    assert (EndTwoPhase in world.order) is (fact is TwoPhaseEnded)
    assert (("two_phase", "true") in ready.options.options) is told
    assert [type(one) for one in world.facts if isinstance(one, TwoPhaseEnded | TwoPhaseKept)] == (
        [fact] if fact else []
    )


# The settings that decide how rows become records.

FORMER = (("filters.tables", 1), ("key.columns", 2), ("topics.prefix", 3))
NOW = (("filters.tables", 9), ("routes.tables", 4), ("topics.prefix", 3))


def test_settings_of_records_that_are_not_those_of_the_checkpoint_are_told_once():
    world = World(found=replace(HERE, settings=FORMER))
    ready = world.start(replace(SETTINGS, records=NOW))
    assert world.said(RecordSettingChanged) == [
        RecordSettingChanged(setting=name, effect=CHANGES[name].effect, hint=CHANGES[name].hint)
        for name in ("filters.tables", "key.columns", "routes.tables")
    ]
    assert world.the(WriteCheckpoint).checkpoint == ready.checkpoint == replace(HERE, settings=NOW)
    again = World(found=ready.checkpoint)
    again.start(replace(SETTINGS, records=NOW))
    assert (again.said(RecordSettingChanged), WriteCheckpoint in again.order) == ([], False)


@pytest.mark.parametrize("found", [None, HERE])
def test_nothing_is_told_where_no_checkpoint_says_what_was(found: Checkpoint | None):
    world = World(found=found)
    assert world.start(replace(SETTINGS, records=NOW)).checkpoint.settings == NOW
    assert world.said(RecordSettingChanged) == []


def test_a_setting_that_only_a_newer_version_knows_is_told_too():
    world = World(found=replace(HERE, settings=(("format.colour", 1),)))
    world.start(replace(SETTINGS, records=()))
    assert world.said(RecordSettingChanged) == [
        RecordSettingChanged(setting="format.colour", effect=FORMS.effect, hint=FORMS.hint)
    ]


@pytest.mark.parametrize("via_root", [True, False])
def test_partitioned_tables_that_would_change_their_topics_are_refused(via_root: bool):
    found = World(found=HERE, via_root=via_root).start(replace(SETTINGS, records=NOW)).checkpoint
    assert dict(found.settings or ())[ROOTS] == via_root
    world = World(found=found, via_root=not via_root)
    with pytest.raises(PositionError) as refusal:
        world.start(replace(SETTINGS, records=NOW))
    assert f"SET (publish_via_partition_root = {str(via_root).lower()});" in refusal.value.hint
    assert not {Fence, EnsurePublication, WriteCheckpoint} & set(world.order)
    # A gap that is accepted is told, and the checkpoint has what is published now.
    accepted = World(found=found, via_root=not via_root)
    ready = accepted.start(replace(SETTINGS, records=NOW), accept_gap=True)
    assert [fact.message for fact in accepted.said(GapAccepted)] == [refusal.value.message]  # type: ignore[attr-defined]
    assert dict(ready.checkpoint.settings or ())[ROOTS] == (not via_root)
    assert accepted.said(RecordSettingChanged) == []


def test_a_publication_without_partitioned_tables_keeps_what_the_checkpoint_knows():
    found = World(found=HERE, via_root=True).start(replace(SETTINGS, records=NOW)).checkpoint
    between = World(found=found, via_root=None).start(replace(SETTINGS, records=NOW)).checkpoint
    with pytest.raises(PositionError):
        World(found=between, via_root=False).start(replace(SETTINGS, records=NOW))


def test_other_digits_of_money_are_told_once_and_are_in_the_checkpoint():
    world = World(found=replace(HERE, settings=()), money_digits=0)
    ready = world.start(replace(SETTINGS, records=()))
    assert (ready.money_digits, ready.checkpoint.settings) == (0, (("money.digits", 0),))
    told = CHANGES["money.digits"]
    assert world.said(RecordSettingChanged) == [
        RecordSettingChanged(setting="money.digits", effect=told.effect, hint=told.hint)
    ]
    again = World(found=ready.checkpoint, money_digits=0)
    again.start(replace(SETTINGS, records=()))
    assert again.said(RecordSettingChanged) == []
    back = World(found=ready.checkpoint)
    assert back.start(replace(SETTINGS, records=())).checkpoint.settings == ()
    assert len(back.said(RecordSettingChanged)) == 1


@pytest.mark.parametrize("slot_has", [True, False])
def test_a_slot_is_given_to_standbys_once(slot_has: bool):
    world = World(slot=replace(SLOT, failover=slot_has))
    world.start(replace(SETTINGS, stream=replace(WANTED, failover=True)))
    assert (SetFailover in world.order) is not slot_has


def test_streaming_is_off_while_a_transaction_has_to_be_received_whole():
    world = World()
    ready = world.start(unstreamed_until=170)
    assert ready.options.streaming is StreamingMode.OFF
    assert StreamEarly not in world.order


@pytest.mark.parametrize(("version", "messages"), [(130000, False), (180000, True)])
def test_the_topic_of_messages_is_needed_only_where_the_server_sends_them(version: int, messages: bool):
    world = World(version=version)
    world.start()
    assert world.the(PrepareSink).messages is messages


def test_postgresql_is_told_no_less_than_before_and_no_more_than_the_checkpoint_allows():
    found = replace(HERE, position=Position(140, 150), flushed_lsn=120)
    assert World(found=found).start(flushed=110).flushed == 110
    assert World(found=found).start(flushed=150).flushed == 120
    assert World(found=found).start(flushed=0).flushed == 100


def test_a_table_that_is_added_while_the_slots_creation_waits_is_read_beside_the_stream():
    world = World(slot=None, found=None, listed={1: "public.t", 2: "public.later"})
    ready = world.start()
    assert ready.published == {1: "public.t", 2: "public.later"}
    assert ready.checkpoint.snapshot is not None
    assert list(ready.checkpoint.snapshot.waiting.oids) == [1]
    assert [(task.oid, task.request) for task in ready.checkpoint.snapshot.tasks] == [(2, ADDED)]


def test_a_slot_that_another_instance_made_since_it_was_looked_at_is_looked_at_again():
    world = World(seen=[None])
    assert world.start().slot_confirmed == SLOT.confirmed
    assert world.order.count(LookAtSlot) == 3
    assert CreateSlot not in world.order


LOGGED = LoggedSession(3, LogOwner("", "cdcd", SERVER, 1, STREAM), 80, 150)


def test_what_a_durable_log_holds_is_delivered_before_the_stream():
    world = World(slot=SlotSeen(140), log=DurableLog("/log", (LOGGED,)))
    ready = world.start()
    assert (ready.logged, ready.checkpoint.position) == (LOGGED, HERE.position)
    # PostgreSQL is never told less than the slot has.
    assert ready.flushed == 140
    assert RemoveLogged not in world.order


def test_a_durable_log_that_is_delivered_is_removed_before_the_stream():
    world = World(slot=SlotSeen(100), log=DurableLog("/log", (replace(LOGGED, end=100),)))
    assert world.start().logged is None
    assert world.the(RemoveLogged) == RemoveLogged((3,))
    assert world.order.index(Fence) < world.order.index(RemoveLogged)


def test_a_damaged_log_is_refused_also_where_a_gap_is_accepted():
    world = World(slot=SlotSeen(200), log=DurableLog("/log", (LOGGED,)))
    with pytest.raises(PositionError, match="/log is damaged"):
        world.start(accept_gap=True)
    assert Fence not in world.order


def test_a_new_pipeline_delivers_only_messages_that_are_asked_for_and_says_so_in_its_checkpoint():
    settings = replace(SETTINGS, delivers_messages=None, records=NOW)
    world = World(found=None, slot=None)
    ready = world.start(settings)
    assert not ready.delivers_messages
    assert not world.the(PrepareSink).messages
    assert ASKED_MESSAGES in (ready.checkpoint.settings or ())
    again = World(found=ready.checkpoint)
    assert not again.start(settings).delivers_messages
    assert again.said(MessagesKept) == []
    assert again.said(RecordSettingChanged) == []


@pytest.mark.parametrize("settings", [None, NOW])
def test_a_pipeline_that_delivered_all_messages_goes_on_and_says_so(settings: RecordSettings | None):
    wanted = replace(SETTINGS, delivers_messages=None, records=NOW)
    world = World(found=replace(HERE, settings=settings))
    for _ in range(2):
        ready = world.start(wanted)
        assert ready.delivers_messages
        assert ASKED_MESSAGES not in (ready.checkpoint.settings or ())
        assert world.said(MessagesKept) == [MessagesKept(topic="messages")]
        world = World(found=ready.checkpoint)


@pytest.mark.parametrize("delivers", [True, False])
def test_what_the_configuration_says_of_messages_counts_whatever_the_checkpoint_is(delivers: bool):
    world = World()
    assert world.start(replace(SETTINGS, delivers_messages=delivers)).delivers_messages == delivers
    assert world.said(MessagesKept) == []


def test_events_of_an_outbox_need_the_topic_for_those_that_are_refused():
    world = World()
    world.start(replace(SETTINGS, delivers_messages=False, publishes_messages=True))
    assert world.the(PrepareSink).messages


HEALS = replace(SETTINGS, snapshot=SnapshotSettings(mode="when_needed", heals=True))
KNOWN = Oids({1: "public.t"}, {1: "public.t"})


def test_a_lost_slot_is_healed_with_the_lsn_at_which_the_gap_begins():
    world = World(slot=None, found=replace(HERE, snapshot=Progress(known=KNOWN)))
    ready = world.start(HEALS)
    assert ready.checkpoint.snapshot is not None
    assert (ready.checkpoint.snapshot.healing, ready.checkpoint.snapshot.gap) == (Oids((1,)), 100)
    assert Checkpoint.decode(ready.checkpoint.encode(), "").snapshot == ready.checkpoint.snapshot


def test_a_slot_that_was_moved_is_replaced_because_only_a_new_one_exports_a_snapshot():
    world = World(slot=SlotSeen(200), found=replace(HERE, snapshot=Progress(known=KNOWN)))
    world.start(HEALS)
    assert world.order.index(Fence) < world.order.index(DropSlot) < world.order.index(CreateSlot)


def test_an_attempt_that_did_not_end_begins_again_with_a_new_slot():
    interrupted = replace(HERE, snapshot=Progress(known=KNOWN, healing=Oids((1,)), gap=7))
    world = World(found=interrupted)
    ready = world.start(HEALS)
    assert world.order.index(Fence) < world.order.index(DropSlot) < world.order.index(CreateSlot)
    assert ready.checkpoint.snapshot is not None
    assert (ready.checkpoint.snapshot.healing, ready.checkpoint.snapshot.gap) == (Oids((1,)), 7)
    # Without healing, the slot stays, and the tables are read beside the stream.
    world = World(found=interrupted)
    ready = world.start()
    assert DropSlot not in world.order
    assert ready.checkpoint.snapshot is None or not ready.checkpoint.snapshot.healing


def test_cdcd_heal_replaces_a_slot_that_could_be_used():
    world = World(found=replace(HERE, snapshot=Progress(known=KNOWN)))
    ready = world.start(heals_now=True)
    assert {DropSlot, CreateSlot} <= set(world.order)
    assert ready.checkpoint.snapshot is not None
    assert ready.checkpoint.snapshot.healing == Oids((1,))


def test_cdcd_heal_refuses_a_pipeline_that_has_delivered_nothing():
    world = World(found=None)
    with pytest.raises(PositionError, match="no checkpoint") as refused:
        world.start(heals_now=True)
    assert "cdcd run" in refused.value.hint
    assert not {DropSlot, CreateSlot, Fence} & set(world.order)


def test_after_cdcd_heal_was_killed_cdcd_run_names_the_command_or_reads_the_tables_again():
    interrupted = replace(HERE, snapshot=Progress(known=KNOWN, healing=Oids((1,)), gap=7, waiting=Oids((1,))))
    world = World(found=interrupted)
    settings = replace(SETTINGS, snapshot=replace(SETTINGS.snapshot, heals=True))
    with pytest.raises(PositionError, match="did not end") as refused:
        world.start(settings)
    assert "cdcd heal --yes" in refused.value.hint
    assert not {DropSlot, Fence} & set(world.order)
    # With --accept-gap, the slot stays, and the tables are read beside the stream.
    world = World(found=interrupted)
    ready = world.start(settings, accept_gap=True)
    assert DropSlot not in world.order
    assert ready.checkpoint.snapshot is not None
    assert not len(ready.checkpoint.snapshot.healing)
    assert ready.checkpoint.snapshot.waiting == Oids((1,))


def test_cdcd_heal_refuses_another_server_and_leaves_its_slot():
    world = World(source=Source("another", 1, 500, 100, STREAM))
    with pytest.raises(PositionError, match="another cluster"):
        world.start(heals_now=True)
    assert not {DropSlot, Fence} & set(world.order)
