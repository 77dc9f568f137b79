"""All decisions at the start of a session: it makes requests, takes the answers, and returns what the session begins
with.

`STEPS` has the steps in the only order that is safe. Each step is a generator: it yields a `Request`, is resumed
with the answer, and decides. The daemon (`daemon/start_requests.py`) and the simulator only carry the requests out.

1. Take the advisory lock, which a heartbeat keeps from then on. No other instance of the pipeline is active on this
   server any more, and the stream of an earlier one is ended. Before anything is created, everything that a first
   start may refuse is checked by reading, because a publication without a stream makes PostgreSQL refuse UPDATEs of
   tables without a key.
2. Make sure that the topics exist, and read the checkpoint without changing anything. The checkpoint is compared
   with server, slot and publication before another instance could notice anything. So a daemon that must refuse to
   start, because its configuration names a former primary or another cluster, disturbs no healthy instance.
3. Fence: `init_transactions` shuts out a former instance that is still alive somewhere. Read the checkpoint again,
   because only now it cannot change any more, and compare again. This second comparison is the one that counts.
4. Ensure the publication and the slot, which are created if they are missing. A missing slot is a gap if there is a
   checkpoint. The creation may wait, so afterwards the published tables are listed again.
5. Bind the rules that protect columns, and write the checkpoint to resume from with these bindings, so that a
   column that is renamed after a kill stays protected. Replication is then started from the slot's own position.
   cdcd skips the changes that the checkpoint covers, because a server that starts at a later position would leave
   out prepared transactions that are not decided yet. An initial snapshot is read before replication starts.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any, Final

from cdcd.core.catalog.oids import Oids
from cdcd.core.catalog.routing import collisions
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.checkpoint import Checkpoint, RecordSettings, also_aside
from cdcd.core.engine.leavings import Leaving
from cdcd.core.engine.record_settings import (
    ASKED_MESSAGES,
    ComparedSettings,
    known_roots,
)
from cdcd.core.engine.session_start import ExportedTables
from cdcd.core.engine.startup_positions import StartPositions, Step
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
    ImportSnapshot,
    ListTables,
    PrepareSink,
    ReadMoneyDigits,
    ReadRoots,
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
    NO_CHOICE,
    NO_FORMER_SESSIONS,
    ORDINARY_RULES,
    TABLES_NAMED,
    FormerSessions,
    GapChoice,
    Ready,
    StartRules,
    StartSettings,
    Tables,
    gap_hint,
)
from cdcd.core.errors import PositionError, TransientError
from cdcd.core.facts import Observer, cut_short
from cdcd.core.facts.operation import CheckpointUnsigned
from cdcd.core.facts.snapshot import SnapshotConditionDropped, SnapshotNeeded, SnapshotResumed
from cdcd.core.facts.start import (
    CheckpointRead,
    GapAccepted,
    TwoPhaseEnded,
    TwoPhaseKept,
)
from cdcd.core.facts.transactions import MessagesKept
from cdcd.core.pasted import read_table
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.versions import ALTER_TWO_PHASE_SINCE, Options, StreamingMode, start_options
from cdcd.core.snapshot.beginning import (
    WHEN_NEEDED,
    Beginning,
    begin,
    initial,
    leave_out,
    wanted,
)
from cdcd.core.snapshot.progress import EXPORTED, Progress
from cdcd.core.table_names import split_table


class Start:
    """The start of one session: `run` it once, and answer every request that it yields."""

    def __init__(
        self,
        settings: StartSettings,
        observe: Observer,
        former: FormerSessions = NO_FORMER_SESSIONS,
        gap: GapChoice = NO_CHOICE,
        rules: StartRules = ORDINARY_RULES,
    ) -> None:
        self._rules = rules
        self._former = former
        self._heals_now = gap.heals_now
        self._heals = settings.snapshot.heals or gap.heals_now
        self._mode = WHEN_NEEDED if gap.heals_now else settings.snapshot.mode
        self.settings = settings
        self._observe = observe
        # What the steps find out, in this order.
        self.records = ComparedSettings(settings.records, settings.stream.publication, observe)
        self._server_version = 0
        self._options: Options | None = None
        self._two_phase = settings.stream.two_phase
        self.positions = StartPositions(
            accept_gap=gap.is_accepted,
            when_needed=self._mode == WHEN_NEEDED,
            heals=self._heals,
            replaces=_ASKED if gap.heals_now else None,
            pipeline=settings.name,
            slot_name=settings.stream.slot,
        )
        self._published: Mapping[int, str] = {}
        self.slot_made = False
        """True if this start created the slot."""
        self._snapshot: str | None = None
        self._beginning: Beginning | None = None
        self._progress = Progress()
        self._exported: ExportedTables | None = None
        self._ready: Ready | None = None
        self._first = rules.first()

    def leaves(
        self, error: BaseException | None, *, has_shipped: bool, outcome_unknown: bool = False
    ) -> Leaving:
        """Return what happens to a slot that this start created when the session ends (`FirstStart.leaves`)."""
        return self._first.leaves(error, has_shipped=has_shipped, outcome_unknown=outcome_unknown)

    def run(self) -> Generator[Request[Any], Any, Ready]:
        """Do all steps, and return what the session begins with.

        Raises:
            TransientError: the server is a standby.
            FatalError: configuration or positions are wrong, so a person must act.
        """
        for step in self._rules.steps or STEPS:
            yield from step(self)
        ready, self._ready = self._ready, None
        assert ready is not None
        return ready

    # The steps.

    def take_lock(self) -> Step:
        yield TakeLock()

    def connect_catalog(self) -> Step:
        """Raise TransientError if the server is a standby, which may be promoted at any moment.

        A standby can decode since PostgreSQL 16. But it cannot write the WAL position that orders a snapshot
        against the stream, and its recovery would end the connections that read tables.
        """
        if (yield ConnectCatalog()):
            raise TransientError(
                "The server is a standby.",
                hint="Point postgres.dsn at the primary; with several hosts, add target_session_attrs=read-write.",
            )

    def read_money_digits(self) -> Step:
        self.records.money_digits = yield ReadMoneyDigits()

    def connect_stream(self) -> Step:
        yield EndFormerStream()
        self._server_version = yield ConnectStream()

    def choose_options(self) -> Step:
        self._options = self._options_now()
        if self._options.streaming is not StreamingMode.OFF:
            yield StreamEarly()

    def _options_now(self) -> Options:
        settings = self.settings
        return start_options(
            self._server_version,
            settings.stream.protocol,
            [settings.stream.publication],
            streaming="off" if self._former.unstreamed_until else settings.stream.streaming,
            two_phase=self._two_phase,
            messages=settings.messages,
            origin=settings.stream.origin,
            binary=self._former.binary,
        )

    def check_creation(self) -> Step:
        """Refuse to start before topics, publication and slot are created, if reading shows that the start fails."""
        assert self._options is not None
        self._refuse_collisions((yield CheckCreation(self._options.messages)))

    def prepare_sink(self) -> Step:
        assert self._options is not None
        settings = self.settings
        # If the checkpoint decides and says yes, an earlier version has created the topic.
        have_records = bool(settings.delivers_messages) or settings.publishes_messages
        yield PrepareSink(self._options.messages and have_records)

    def judge(self) -> Step:
        """Refuse to start before another instance is shut out, if the comparison after the fence would refuse too."""
        yield from self.positions.judge()
        if self._heals_now and self.positions.found is None:
            raise PositionError(
                "This pipeline has no checkpoint: it has not delivered anything yet.",
                hint="Start it with `cdcd run`, which reads the tables.",
            )

    def fence(self) -> Step:
        """Compare after the fence, when the checkpoint cannot change any more."""
        yield from self.positions.fence()

    def remove_delivered_logs(self) -> Step:
        """Remove delivered logs before live streaming, because a log that exists must begin at or before the
        checkpoint.
        """
        if self.positions.delivered_logs:
            yield RemoveLogged(self.positions.delivered_logs)

    def ensure_publication(self) -> Step:
        reason = self.positions.reads_because
        if reason is not None:
            hint = gap_hint(heals=self._heals, truncate=self.settings.truncate)
            self._observe(SnapshotNeeded(message=reason.message, hint=hint))
        self._published = yield EnsurePublication(known_roots(self._found_settings()))

    def judge_roots(self) -> Step:
        """Compare how partitioned tables are published before the fence, so that a refusal disturbs
        no other instance.
        """
        yield from self.compare_roots()

    def compare_roots(self) -> Step:
        """Refuse a publication that would send partitioned tables to other topics, unless a gap is accepted."""
        self.records.compare_roots(self._found_settings(), (yield ReadRoots()))
        gap = self.records.roots_gap
        if gap is not None and not self.positions.accept_gap:
            raise gap

    def _found_settings(self) -> RecordSettings | None:
        """Return the settings of records in the checkpoint; None: it has none, or there is no checkpoint."""
        found = self.positions.found
        return None if found is None else found.settings

    def refuse_collisions(self) -> Step:
        """Refuse two tables with the same topic before the slot is created, so that no slot holds back WAL in vain."""
        self._refuse_collisions(self._published)
        yield from ()

    def _refuse_collisions(self, published: Tables) -> None:
        if self.settings.sets_aside:
            return
        for error in collisions(list(map(split_table, published.values())), self.settings.topics):
            raise error

    def ensure_slot(self) -> Step:
        settings, positions = self.settings, self.positions
        found = positions.found
        beginning = self._beginning = begin(
            self._mode,
            self._progress_of(found),
            has_checkpoint=found is not None,
            has_gap=positions.gap is not None,
        )
        if positions.slot is None:
            yield from self._create_slot(beginning)
        else:
            yield from self._settle_two_phase(positions.slot)
        assert positions.slot is not None
        # After a slot was created with an exported snapshot, any other command would end that snapshot.
        if self._snapshot is None and settings.stream.failover and not positions.slot.failover:
            yield SetFailover()

    def _progress_of(self, found: Checkpoint | None) -> Progress | None:
        """Return the progress in the checkpoint, without conditions that somebody else may have written, because
        conditions are run as SQL.
        """
        if found is None or found.snapshot is None:
            return None
        progress, dropped = self._rules.without_conditions(found.snapshot, found.authentic)
        for task in dropped:
            self._observe(
                SnapshotConditionDropped(
                    table=task.name,
                    request=cut_short(task.request, 200),
                    command=read_table(task.name, where=True),
                )
            )
        return progress

    def _create_slot(self, beginning: Beginning) -> Step:
        positions = self.positions
        if positions.unusable is not None:
            yield DropSlot()
        heals = self._heals and positions.found is not None
        export = beginning.initial and (self.settings.snapshot.method == EXPORTED or heals)
        made: SlotMade = yield CreateSlot(export)
        positions.made(made.slot)
        self.slot_made = True
        self._snapshot = made.snapshot
        # This slot replaces a lost one, so the pipeline has delivered before.
        self._first.made = positions.found is None
        self._first.reads_rows = beginning.initial

    def _settle_two_phase(self, slot: SlotSeen) -> Step:
        """Take two_phase away from a slot that has it against the configuration, if the server can do that."""
        if not slot.two_phase or self._two_phase:
            return
        if self._server_version < ALTER_TWO_PHASE_SINCE:
            self._two_phase = True
            self._options = self._options_now()
            self._observe(TwoPhaseKept(slot=self.settings.stream.slot))
        else:
            yield EndTwoPhase()
            self._observe(TwoPhaseEnded(slot=self.settings.stream.slot))

    def import_snapshot(self) -> Step:
        if self._snapshot is None:
            return
        exported: ExportedTables = yield ImportSnapshot(self._snapshot)
        locked = {oid: self._published[oid] for oid in exported.locked if oid in self._published}
        for oid, name in wanted(locked, self.settings.snapshot.exclude).items():
            if not exported.descriptions[oid].primary_key:
                raise TransientError(
                    f"{name} is {exported.locked[oid]}. The table has no primary key, so cdcd can read it only at the "
                    f"slot's snapshot.",
                    hint=f"Trying again. End the transaction that holds the lock. To continue without the table's "
                    f"rows, set snapshot.exclude: [{name}].",
                )
        self._exported = exported

    def choose_tables(self) -> Step:
        """List the published tables again if the slot was created, because that may have taken hours."""
        beginning, exported = self._beginning, self._exported
        assert beginning is not None
        before = self._published
        if self.slot_made:
            self._published = yield ListTables()
        # An attempt to heal that did not end is begun again below, or the tables that it left are read again.
        self._progress = replace(beginning.progress, healing=Oids(()), gap=0)
        if self.settings.snapshot.exclude and not beginning.initial:
            self._progress = leave_out(self._progress, self._published, self.settings.snapshot.exclude)
        if beginning.initial:
            names = None if exported is None else exported.names()
            first, later = self._rules.first_tables(before, self._published, names)
            self._progress = initial(
                self._progress,
                first,
                self.settings.snapshot.exclude,
                exported=exported is not None,
                later=later,
            )
            found = self.positions.found
            if found is not None and self.settings.truncate:
                self._progress = self._rules.end_former_rows(
                    self._progress,
                    found.snapshot or Progress(),
                    {**first, **later},
                    self.settings.snapshot.exclude,
                )
            if found is not None and self._heals and exported is not None:
                read = wanted(first, self.settings.snapshot.exclude)
                former = found.snapshot or Progress()
                healing = self._rules.healable(former, read)
                begins = former.gap if len(former.healing) else found.position.end_lsn
                if len(healing):
                    self._progress = replace(self._progress, healing=healing, gap=begins)
        elif beginning.interrupted:
            self._observe(
                SnapshotResumed(
                    tables=self._progress.tables_left,
                    rows=self._progress.event_no,
                    was=beginning.interrupted,
                )
            )

    def write_checkpoint(self) -> Step:
        """Write the checkpoint with which this session begins, if the last session did not end with it."""
        settings, positions = self.settings, self.positions
        slot = positions.slot
        assert slot is not None
        assert slot.confirmed is not None
        assert self._options is not None
        start = positions.resumed()
        position = start.position
        for gap in filter(None, (positions.gap, self.records.roots_gap)):
            self._observe(self._gap_accepted(gap, str(position)))
        if settings.counts_epochs:
            start = replace(start, epoch=start.epoch + 1)
        if self._former.aside:
            start = replace(start, tables=also_aside(start.tables, self._former.aside))
        snapshot = None if self._progress == Progress() else self._progress
        self.records.report_changes(self._found_settings())
        delivers_messages = self._delivers_messages()
        records = self.records.next(self._found_settings(), delivers_messages=delivers_messages)
        start = replace(start, snapshot=snapshot, settings=records)
        bindings = ""
        if settings.protects:
            bindings = yield BindColumns(start, self._published, self._exported)
        start = replace(start, bindings=bindings)
        self._observe(
            CheckpointRead(
                topic=settings.checkpoint_topic, found=positions.found is not None, position=str(position)
            )
        )
        found = positions.found
        unsigned = settings.authenticates and found is not None and not found.authentic
        if unsigned:
            self._observe(CheckpointUnsigned(topic=settings.checkpoint_topic, position=str(position)))
        if start != found or unsigned:
            self._first.checkpoint = "asked"
            yield WriteCheckpoint(Batch(position, position, snapshot=snapshot), start)
            self._first.checkpoint = "written"
        exported, self._exported = self._exported, None
        self._ready = Ready(
            start,
            self._published,
            exported,
            self._options,
            flushed=self._rules.first_flush(
                self._former.flushed, start, slot.confirmed, two_phase=self._two_phase
            ),
            slot_confirmed=slot.confirmed,
            logged=positions.logged,
            delivers_messages=delivers_messages,
            money_digits=self.records.money_digits,
        )

    def _gap_accepted(self, gap: PositionError, position: str) -> GapAccepted:
        found, slot = self.positions.found, self.positions.slot
        assert slot is not None
        assert slot.confirmed is not None
        outdated = self._progress.outdated.oids
        return GapAccepted(
            message=gap.message,
            position=position,
            begins="" if found is None else str(Lsn(found.position.end_lsn)),
            ends=str(Lsn(slot.confirmed)),
            tables=[self._published[oid] for oid in outdated[:TABLES_NAMED] if oid in self._published],
            ended=len(outdated),
        )

    def _delivers_messages(self) -> bool:
        """Return whether logical messages have records, even if the configuration does not ask for them."""
        found, settings = self.positions.found, self.settings
        if settings.delivers_messages is not None:
            return settings.delivers_messages
        if found is None or (found.settings is not None and ASKED_MESSAGES in found.settings):
            return False
        self._observe(MessagesKept(topic=settings.topics.message or ""))
        return True


_ASKED: Final = PositionError("cdcd creates the slot again to heal the topics (`cdcd heal`).")

STEPS: Final[tuple[Callable[[Start], Step], ...]] = (
    Start.take_lock,
    Start.connect_catalog,
    Start.read_money_digits,
    Start.connect_stream,
    Start.choose_options,
    Start.check_creation,
    Start.prepare_sink,
    Start.judge,
    Start.judge_roots,
    Start.fence,
    Start.remove_delivered_logs,
    Start.ensure_publication,
    Start.compare_roots,
    Start.refuse_collisions,
    Start.ensure_slot,
    Start.import_snapshot,
    Start.choose_tables,
    Start.write_checkpoint,
)
"""The steps before a session runs, in this order."""
