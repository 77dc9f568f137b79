"""Bugs that the simulation must find: each is one that this program, or another one, had or nearly had.

They are put in place of the real classes by subclasses that undo one decision. A bug that is not found says that the
models do not exercise what it breaks. One that needs several rare things at once is looked for in seeds that share the
settings which bring them about (`Planted.focus`): all else is drawn as ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from cdcd.engine import engine
from tests.sim import planted_sink as sink
from tests.sim import planted_snapshots as snapshots
from tests.sim import planted_start as start
from tests.sim import planted_stream as stream
from tests.sim.session import Parts
from tests.sim.settings import REFUSED, RESTARTS, SNAPSHOT


@dataclass(frozen=True, slots=True)
class Planted:
    """The classes with the bug, and the settings of all seeds that look for it; None: as each seed draws them."""

    parts: Parts
    focus: Mapping[str, Any] | None = None


def _in_engine(focus: Mapping[str, Any] | None = None, **parts: Any) -> Planted:
    return Planted(Parts(engine=engine.Parts(**parts)), focus)


def _in_assembler(part: Any, focus: Mapping[str, Any] | None = None) -> Planted:
    return _in_engine(focus, assembler=stream.assembler_with(part))


def _in_incremental(*parts: snapshots.Part, focus: Mapping[str, Any] | None = None) -> Planted:
    return _in_engine(focus, incremental=snapshots.incremental_with(*parts))


def _in_session(focus: Mapping[str, Any] | None = None, **parts: Any) -> Planted:
    return Planted(Parts(**parts), focus)


MOVED_BEHIND_PREPARES: Final[Mapping[str, Any]] = {
    "version": 17,
    "two_phase": "on",
    "slot_exists": False,
    "p_abort": 0.1,
    "p_prepare": 0.7,
    "p_keep_prepared": 0.95,
    "faults": ("move_slot",),
    "p_fault": 0.02,
}
"""Somebody moves the slot while a PREPARE is undecided."""

MOVED: Final[Mapping[str, Any]] = {
    "two_phase": "off",
    "snapshot_mode": "initial",
    "faults": ("move_slot",),
    "p_fault": 0.02,
}
"""Somebody moves the slot."""

DESCRIBED_BETWEEN: Final[Mapping[str, Any]] = {
    "version": 18,
    "streaming": ("off",),
    "two_phase": "on",
    "p_publication": 0.3,
    "p_membership": 0.0,
    "p_ddl": 0.0,
    "p_abort": 0.1,
    "p_prepare": 0.5,
    "p_keep_prepared": 0.7,
    "operations": 250,
    "faults": (),
}
"""A table's column list changes between PREPARE and COMMIT PREPARED."""

STREAMED_AGAIN: Final[Mapping[str, Any]] = {
    "version": 17,
    "streaming": ("on",),
    "two_phase": "later",
    "work_mem_max": 3,
    "operations": 250,
    "p_workload": 0.3,
    "p_decode": 1.0,
    "p_abort": 0.1,
    "p_prepare": 0.7,
    "p_keep_prepared": 0.9,
    "p_message": 0.0,
    "faults": RESTARTS,
    "p_fault": 0.03,
}
"""What was prepared before the slot knew of two phases is streamed once more after a restart, and rolled back."""

AT_LEAST_ONCE: Final[Mapping[str, Any]] = {
    "exactly_once": False,
    "p_hold": 0.5,
    "p_fault": 0.05,
    "faults": ("crash_daemon", "broker_away"),
}
"""Daemons that die between two writes without a Kafka transaction."""

REWRITTEN_WHILE_EXPORTED: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "snapshot_method": "exported",
    "slot_exists": False,
    "ddl": ("cluster",),
    "p_ddl": 0.3,
    "p_vacuum": 0.07,
    "p_end": 0.5,
    "p_workload": 1.0,
    "ask_ticks_max": 10,
    "parallelism": 1,
    "faults": (),
}
"""Files that are rewritten while they are read at the slot's snapshot."""

ALTERED: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "snapshot_method": "incremental",
    "ddl": ("add_column",),
    "p_ddl": 0.15,
    "p_end": 0.3,
    "ask_ticks_max": 10,
    "parallelism": 1,
    "faults": (),
}
"""Columns that are added between two chunks."""

REWRITTEN: Final[Mapping[str, Any]] = {
    **ALTERED,
    "ddl": ("cluster",),
    "p_ddl": 0.3,
    "p_truncate": 0.0,
    "p_decode": 0.2,
}
"""Files that are rewritten between two chunks, with a stream that is behind."""

SWAPPED: Final[Mapping[str, Any]] = {
    **ALTERED,
    "ddl": ("swap",),
    "p_ddl": 0.3,
    "tables": 3,
    "truncate_records": True,
}
"""Names that change hands between two chunks."""

FROZEN_AT_THE_START: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "slot_exists": False,
    "operations": 10,
    "faults": ("freeze", "crash_postgres"),
    "p_fault": 0.1,
}
"""Instances that stand still while they start, and PostgreSQL gone meanwhile: another instance goes on."""

ADDED_MEANWHILE: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "snapshot_method": "exported",
    "slot_exists": False,
    "added_tables": False,
    "ddl": ("create",),
    "p_ddl": 0.2,
    "p_create_published": 0.0,
    "p_publication": 0.6,
    "p_membership": 1.0,
    "operations": 80,
    "p_workload": 1.0,
    "p_end": 0.2,
    "sessions": 4,
    "ask_ticks_max": 10,
    "faults": (),
}
"""Tables that are added to the publication while the creation of the slot waits, or right behind it."""

RENAMED: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "snapshot_method": "incremental",
    "added_tables": True,
    "ddl": ("rename",),
    "p_ddl": 0.6,
    "p_full": 0.0,
    "tables": 3,
    "p_end": 0.6,
    "p_abort": 0.0,
    "p_savepoint": 0.0,
    "p_decode": 1.0,
    "p_membership": 0.0,
    "p_truncate": 0.0,
    "p_workload": 0.3,
    "p_hold": 0.0,
    "p_reject": 0.0,
    "p_unknown": 0.0,
    "p_lost": 0.0,
    "p_keepalive": 0.3,
    "sessions": 2,
    "messages": False,
    "receive_max": 30,
    "ask_ticks_max": 1,
    "unseen_ticks_max": 1,
    "idle_s": 0.0,
    "faults": RESTARTS,
    "p_fault": 0.02,
}
"""Names that are taken for a short while, and daemons that die before they look at the publication."""

TRUNCATED: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "snapshot_method": "incremental",
    "messages": False,
    "sessions": 1,
    "p_truncate": 0.3,
    "p_end": 0.6,
    "p_keepalive": 0.02,
    "p_workload": 1.0,
    "ask_ticks_max": 10,
    "faults": (),
}
"""TRUNCATE right behind the reading of a chunk, with nothing in the stream between them."""

UNSEEN: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "signals": "all",
    "requests": ("start",),
    "p_message": 0.15,
    "p_request": 0.9,
    "p_end": 0.6,
    "sessions": 4,
    "p_decode": 1.0,
    "receive_max": 30,
    "ask_ticks_max": 1,
    "lock_ticks": 100,
    "p_truncate": 0.0,
    "unseen_ticks_max": 120,
    "faults": (),
}
"""Commits that are streamed long before snapshots see them, and tables that are read at that moment."""

UNSEEN_VALUES: Final[Mapping[str, Any]] = {
    **UNSEEN,
    "tables": 1,
    "keys_max": 30,
    "p_keep_toast": 0.95,
    "p_insert": 0.05,
    "p_delete": 0.0,
    "p_key_change": 0.0,
    "faults": ("disconnect",),
    "p_fault": 0.01,
}
"""The same, with updates that leave large values alone, and sessions that begin while a commit is not seen yet."""

OWED_AND_KILLED: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "snapshot_method": "incremental",
    "tables": 1,
    "keys_max": 100,
    "p_keep_toast": 0.95,
    "p_insert": 0.05,
    "p_delete": 0.02,
    "p_key_change": 0.0,
    "p_full": 0.0,
    "p_truncate": 0.0,
    "p_end": 0.6,
    "p_decode": 1.0,
    "unseen_ticks_max": 40,
    "ask_ticks_max": 5,
    "parallelism": 2,
    "faults": ("crash_daemon",),
    "p_fault": 0.02,
}
"""Updates that leave TOAST alone beside chunks, and daemons that die before the rows are read again."""

TAKEN_OVER: Final[Mapping[str, Any]] = {
    "exactly_once": True,
    "snapshot_mode": "never",
    "operations": 250,
    "tables": 3,
    "p_end": 0.3,
    "p_abort": 0.0,
    "faults": ("freeze",),
    "p_fault": 0.01,
    "p_aftershock": 0.0,
    "p_reject": 0.0,
    "p_unknown": 0.0,
    "p_workload": 0.3,
    "p_decode": 1.0,
    "p_hold": 0.1,
    "idle_s": 0.0,
}
"""Two instances that take over from each other, with a Kafka transaction in their hands."""

RESTARTED_AT_REST: Final[Mapping[str, Any]] = {
    "messages": False,
    "snapshot_mode": "never",
    "slot_exists": False,
    "operations": 40,
    "p_keepalive": 0.02,
    "idle_s": 0.2,
    "status_interval_s": 1.0,
    "faults": (),
}
"""A daemon that dies when Kafka has everything, and PostgreSQL has not heard so."""

HOSTILE: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "signals": "all",
    "requests": ("hostile",),
    "p_message": 0.2,
    "p_request": 0.9,
    "p_end": 0.4,
    "faults": (),
}
"""Requests that are meant badly."""

UNKNOWN_AND_REFUSED: Final[Mapping[str, Any]] = {
    **REFUSED,
    "p_refuse": 0.2,
    "p_unknown": 0.5,
    "p_lost": 0.3,
}
"""First starts whose commits have no answer, and a broker that then refuses."""

PLANTED: Final[Mapping[str, Planted]] = MappingProxyType(
    {
        "confirm_on_receive": _in_engine(feedback=stream.ConfirmsOnReceive),
        "rows_counted_before_delivery": _in_engine(delivery=stream.CountsWhatIsShipped),
        "ack_before_delivery": _in_engine(ledger=stream.AcksWhenSent),
        "entry_opened_late": _in_engine(ledger=stream.OpensLate),
        "idle_ticket_resealed": _in_engine(ledger=stream.ResealsIdleTickets),
        "bound_past_prepare": _in_engine(MOVED_BEHIND_PREPARES, ledger=stream.ForgetsHolds),
        "rollback_releases_at_once": _in_engine(assembler=stream.ReleasesAtRollback),
        "flushed_falls": _in_engine(ledger=stream.StartsAtZero),
        "drop_all_on_subtransaction_abort": _in_assembler(stream.DropsAllOnSubtransactionAbort),
        "aborted_subtransaction_kept": _in_assembler(stream.KeepsAbortedSubtransactions),
        "message_of_aborted_subtransaction_kept": _in_assembler(stream.KeepsMessagesOfAborted),
        "relation_of_aborted_subtransaction_dropped": _in_assembler(stream.DropsRelationsOfAborted),
        "old_description_stays": _in_assembler(stream.LeavesOldDescriptions),
        "replay_by_new_description": _in_assembler(stream.ReplaysByNewDescriptions, DESCRIBED_BETWEEN),
        "prepared_not_held": _in_engine(
            assembler=stream.assembler_with(stream.DoesNotHoldPrepared), ledger=stream.AcksTwice
        ),
        "streamed_again_kept": _in_assembler(stream.KeepsWhatIsStreamedAgain, STREAMED_AGAIN),
        "every_keepalive_counts": _in_engine(assembler=stream.CountsEveryKeepalive),
        "skip_one_too_many": _in_session(position=stream.SkipsOneTooMany),
        "skip_one_too_few": _in_session(position=stream.SkipsOneTooFew),
        "skip_the_next": _in_session(position=stream.SkipsTheNext),
        "message_ends_late": _in_engine(queue=stream.EndsMessagesLate),
        "message_sealed_late": _in_engine(assembler=stream.SealsMessagesLate),
        "cut_not_recorded": _in_engine(queue=stream.ForgetsWhatIsDone),
        "records_for_events": _in_engine(queue=stream.CountsRecords),
        "whole_transactions_cut": _in_engine(queue=stream.CutsWhole),
        "rest_never_told": _in_engine(RESTARTED_AT_REST, queue=stream.NeverTellsTheRest),
        "producer_kept": _in_session(sink=sink.KeepsTheProducer),
        "unknown_taken_for_failed": _in_session(sink=sink.TakesUnknownForFailed),
        "no_fencing": _in_session(TAKEN_OVER, sink=sink.DoesNotFence),
        "checkpoint_before_records": _in_session(sink=sink.WritesTheCheckpointFirst),
        "checkpoint_before_records_at_least_once": _in_session(
            AT_LEAST_ONCE, sink=sink.NotesFirstAtLeastOnce
        ),
        "part_committed": _in_session(sink=sink.CommitsParts),
        "last_part_sent_again": _in_session(sink=sink.SendsTheLastPartAgain),
        "first_part_forgotten": _in_session(sink=sink.ForgetsTheFirstPart),
        "fenced_before_judged": _in_session(MOVED, steps=start.FENCED_FIRST),
        "not_judged_before_fencing": _in_session(MOVED, steps=start.NOT_JUDGED),
        "checkpoint_read_before_fencing": _in_session(TAKEN_OVER, steps=start.READ_BEFORE_FENCE),
        "slot_looked_at_once": _in_session(FROZEN_AT_THE_START, steps=start.LOOKED_AT_ONCE),
        "started_without_the_lock": _in_session(steps=start.NOT_LOCKED),
        "drops_a_slot_that_delivered": _in_session(focus=REFUSED, first_start=start.DropsWhatDelivered),
        "drops_a_slot_of_another_start": _in_session(focus=REFUSED, first_start=start.DropsAnySlot),
        "drops_a_slot_that_the_checkpoint_names": _in_session(
            focus=REFUSED, first_start=start.DropsWhatTheCheckpointNames
        ),
        "drops_a_slot_after_an_unknown_commit": _in_session(
            focus=UNKNOWN_AND_REFUSED, first_start=start.TakesARefusalForTheOutcome
        ),
        "unsent_value_forgotten": _in_incremental(snapshots.ForgetsUnsentValues),
        "unsent_value_not_written_down": _in_incremental(
            snapshots.ForgetsUnsentValuesAtARestart, focus=OWED_AND_KILLED
        ),
        "unsent_value_not_awaited": _in_incremental(snapshots.EndsWithPages, focus=OWED_AND_KILLED),
        "unseen_change_not_owed": _in_incremental(snapshots.OwesFromThePlanOn, focus=UNSEEN_VALUES),
        "change_not_noted": _in_incremental(snapshots.NotesNothing, focus=UNSEEN),
        "chunk_sent_at_once": _in_incremental(snapshots.SendsAtOnce),
        "truncate_not_noted": _in_incremental(snapshots.IgnoresTruncate, focus=TRUNCATED),
        "writers_not_awaited": _in_incremental(snapshots.AwaitsNobody, focus=UNSEEN),
        "window_forgets_too_much": _in_incremental(snapshots.ForgetsTooMuch),
        "chunk_of_former_plan_taken": _in_incremental(
            snapshots.KeepsOldChunks, snapshots.TakesOldChunks, focus=REWRITTEN
        ),
        "pages_of_former_file_kept": _in_incremental(snapshots.KeepsPagesOfTheFormerFile, focus=REWRITTEN),
        "pages_counted_before_delivery": _in_incremental(snapshots.CountsBeforeDelivery),
        "task_known_by_name": _in_incremental(snapshots.MergesByName),
        "changed_chunk_settled": _in_engine(REWRITTEN_WHILE_EXPORTED, exported=snapshots.SettlesWhatChanged),
        "added_table_known": _in_engine(tables=snapshots.KnowsEverything),
        "table_known_by_name": _in_engine(tables=snapshots.KnowsNoOids),
        "described_table_known": _in_engine(tables=snapshots.AddsOnlyWhatIsListedFirst),
        "free_name_not_written_down": _in_engine(RENAMED, tables=snapshots.ForgetsWhoTookFreeNames),
        "own_name_taken_back": _in_engine(RENAMED, tables=snapshots.TakesItsOwnNameBack),
        "rows_under_a_name_to_come": _in_engine(RENAMED, incremental=snapshots.ReadsUnderAnyName),
        "tables_listed_too_early": _in_session(ADDED_MEANWHILE, first_tables=snapshots.listed_too_early),
        "tables_listed_too_late": _in_session(ADDED_MEANWHILE, first_tables=snapshots.listed_too_late),
        "malformed_request_ends_the_session": _in_engine(requests=snapshots.FailsOnMalformed),
        "requests_without_limit": _in_engine(HOSTILE, requests=snapshots.TakesAnySize),
        "configured_tables_cancelled": _in_engine(requests=snapshots.CancelsEverything),
        "table_read_by_name": _in_session(SWAPPED, asker=snapshots.asking(snapshots.ByNameClient)),
        "table_read_in_any_file": _in_session(REWRITTEN, asker=snapshots.asking(snapshots.AnyFileClient)),
        "table_read_by_old_columns": Planted(
            Parts(
                engine=engine.Parts(incremental=snapshots.KeepsThePlan),
                asker=snapshots.asking(snapshots.AnyColumnsClient),
            ),
            ALTERED,
        ),
    }
)
