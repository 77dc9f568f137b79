"""Bugs that the simulation must find: each is one that this program, or another one, had or nearly had.

They are put in place of the real classes by subclasses that undo one decision. A bug that is not found says that the
models do not exercise what it breaks. One that needs several rare things at once is looked for in seeds that share the
settings which bring them about (`Planted.focus`): all else is drawn as ever.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from cdcd.core.engine.startup_positions import first_flush
from cdcd.core.engine.startup_rules import StartRules
from cdcd.core.records.encoder import Encoder
from tests.sim import planted_aside as aside
from tests.sim import planted_descriptions as descriptions
from tests.sim import planted_durable as durable
from tests.sim import planted_events as events
from tests.sim import planted_filtered as filtering
from tests.sim import planted_heartbeats as heartbeats
from tests.sim import planted_large as large
from tests.sim import planted_left_out as left_out
from tests.sim import planted_metadata as metadata
from tests.sim import planted_parted as parted
from tests.sim import planted_protected as protected
from tests.sim import planted_published as published
from tests.sim import planted_routed as routing
from tests.sim import planted_shared as shared
from tests.sim import planted_sink as sink
from tests.sim import planted_snapshots as snapshots
from tests.sim import planted_start as start
from tests.sim import planted_stream as stream
from tests.sim import planted_watermarks as watermarks
from tests.sim.planted_focuses import (
    ADDED_MEANWHILE,
    ALTERED,
    AT_LEAST_ONCE,
    CONDITIONS,
    CUT,
    DESCRIBED,
    DESCRIBED_BETWEEN,
    FILTERED,
    FILTERED_AND_CUT,
    FROZEN_AT_THE_START,
    HEARTBEATS,
    HEARTBEATS_AT_A_SHUTDOWN,
    HOSTILE,
    LARGE_MESSAGES,
    LOCKED_BESIDE_THE_STREAM,
    LOCKED_WHILE_EXPORTED,
    METADATA_AND_CUT,
    MOVED,
    MOVED_BEHIND_PREPARES,
    OWED_AND_KILLED,
    PARTED,
    PARTED_AND_CUT,
    PARTED_BESIDE_CHUNKS,
    PROTECTED,
    PROTECTED_AND_DROPPED,
    PROTECTED_AND_SWAPPED,
    PROTECTED_AND_TABLES_DROPPED,
    PUBLISHING,
    PUBLISHING_AND_CUT,
    RENAMED,
    RENAMED_NOT_ADDED,
    RESTARTED_AT_REST,
    REWRITTEN,
    REWRITTEN_WHILE_EXPORTED,
    ROUTED,
    ROUTED_AND_CUT,
    ROUTED_AND_SWAPPED,
    ROUTED_BESIDE_THE_STREAM,
    SHARED,
    SHARED_BESIDE_THE_STREAM,
    STREAMED_AGAIN,
    STREAMED_SUBTRANSACTIONS,
    SWAPPED,
    TAKEN_OVER,
    TRUNCATED,
    UNKNOWN_AND_REFUSED,
    UNSEEN,
    UNSEEN_VALUES,
    WATERMARKS,
)
from tests.sim.planted_healed import HEALING_BUGS, HEALING_STARTS
from tests.sim.planted_keyless import KEYLESS_BUGS
from tests.sim.session import Parts
from tests.sim.settings import (
    DURABLE,
    HANGING,
    HEALED,
    HEALED_AND_KILLED,
    KEYLESS,
    KEYLESS_AND_QUIET,
    LEAVING_OUT,
    LEAVING_OUT_AND_READING,
    LOST_SLOTS,
    PARTITIONED,
    REFUSED,
    REFUSED_MARKERS,
    SKIPPING,
    SLOW_TOPICS,
    TABLE_FAULTS,
    TABLE_FAULTS_AND_KILLS,
    TABLE_FAULTS_AND_ROUTES,
    TABLE_FAULTS_WHILE_BATCHES_WAIT,
)


@dataclass(frozen=True, slots=True)
class Planted:
    """The classes with the bug, and the settings of all seeds that look for it; None: as each seed draws them."""

    parts: Parts
    focus: Mapping[str, Any] | None = None


def made_of(**parts: Any) -> dict[str, Any]:
    """Classes by the names of those that they replace in the engine. The keywords are the modules of these classes."""
    return {
        next(base.__name__ for base in part.__mro__ if base.__module__ == f"cdcd.core.engine.{module}"): part
        for module, part in parts.items()
    }


def _in_engine(focus: Mapping[str, Any] | None = None, **parts: Any) -> Planted:
    return Planted(Parts(engine=made_of(**parts)), focus)


def _in_assembler(part: Any, focus: Mapping[str, Any] | None = None) -> Planted:
    return _in_session(focus, assembler=stream.assembler_with(part))


def _in_incremental(*parts: snapshots.Part, focus: Mapping[str, Any] | None = None) -> Planted:
    return _in_engine(focus, incremental=snapshots.incremental_with(*parts))


def _shaped_by(planted: Callable[..., Any]) -> Any:
    """Return what puts the planted shape in front of a stream, as `filtered` and its like do with the shape itself."""

    def put(encoder: Encoder, *given: Any) -> Encoder:
        shape = planted(*given)
        shape.stream = encoder
        encoder.shapes.put(shape)
        return encoder

    return put


def _in_session(focus: Mapping[str, Any] | None = None, **parts: Any) -> Planted:
    return Planted(Parts(**parts), focus)


def _in_start(focus: Mapping[str, Any] | None = None, **rules: Any) -> Planted:
    return Planted(Parts(start=StartRules(**rules)), focus)


PLANTED: Final[Mapping[str, Planted]] = MappingProxyType(
    {
        "binding_forgotten_at_restart": _in_session(PROTECTED, bindings=protected.ForgetsAtTheStart),
        "binding_after_the_start": _in_session(PROTECTED, bindings=protected.BindsLate),
        "renamed_column_not_followed": _in_session(PROTECTED, bindings=protected.FollowsNoRename),
        "renamed_table_not_followed": _in_session(PROTECTED, bindings=protected.FollowsNoTable),
        "swapped_columns_by_names": _in_session(PROTECTED_AND_SWAPPED, bindings=protected.NumbersByNames),
        "columns_by_order_of_now": _in_session(PROTECTED_AND_DROPPED, bindings=protected.NumbersByOrder),
        "dropped_table_forgotten": _in_session(
            PROTECTED_AND_TABLES_DROPPED, bindings=protected.ForgetsTablesTooEarly
        ),
        "dropped_column_forgotten": _in_session(PROTECTED_AND_DROPPED, bindings=protected.ForgetsWhatIsGone),
        "renewed_before_it_is_confirmed": _in_engine(LARGE_MESSAGES, renewal=large.RenewsUnconfirmed),
        "message_of_the_largest_size_shortened": _in_session(LARGE_MESSAGES, limits=large.ShortensTheLargest),
        "digest_of_the_whole_message": _in_session(LARGE_MESSAGES, limits=large.DigestsTheMessage),
        "digest_delivered_as_the_content": _in_engine(
            LARGE_MESSAGES, message_records=large.DeliversTheDigest
        ),
        "confirm_on_receive": _in_engine(feedback=stream.ConfirmsOnReceive),
        "rows_counted_before_delivery": _in_engine(delivery=stream.CountsWhatIsShipped),
        "waits_and_looks_delivered": _in_engine(ingest=stream.LooksDelivered),
        "ack_before_delivery": _in_session(ledger=stream.AcksWhenSent),
        "entry_opened_late": _in_session(ledger=stream.OpensLate),
        "idle_ticket_resealed": _in_session(ledger=stream.ResealsIdleTickets),
        "bound_past_prepare": _in_session(MOVED_BEHIND_PREPARES, ledger=stream.ForgetsHolds),
        "told_before_the_checkpoint": _in_session(STREAMED_AGAIN, ledger=stream.Unlimited),
        "rollback_releases_at_once": _in_session(
            assembler=stream.ReleasesAtRollback, ledger=stream.Unlimited
        ),
        "flushed_falls": _in_session(ledger=stream.StartsAtZero),
        "drop_all_on_subtransaction_abort": _in_assembler(stream.DropsAllOnSubtransactionAbort),
        "aborted_subtransaction_kept": _in_assembler(stream.KeepsAbortedSubtransactions),
        "message_of_aborted_subtransaction_kept": _in_assembler(stream.KeepsMessagesOfAborted),
        "relation_of_aborted_subtransaction_dropped": _in_assembler(
            stream.DropsRelationsOfAborted, STREAMED_SUBTRANSACTIONS
        ),
        "old_description_stays": _in_assembler(stream.LeavesOldDescriptions, DESCRIBED_BETWEEN),
        "replay_by_new_description": _in_assembler(stream.ReplaysByNewDescriptions, DESCRIBED_BETWEEN),
        "prepared_not_held": _in_session(
            assembler=stream.assembler_with(stream.DoesNotHoldPrepared), ledger=stream.AcksTwice
        ),
        "streamed_again_kept": _in_assembler(stream.KeepsWhatIsStreamedAgain, STREAMED_AGAIN),
        "every_keepalive_counts": _in_session(assembler=stream.CountsEveryKeepalive),
        "skip_one_too_many": _in_session(position=stream.SkipsOneTooMany),
        "skip_one_too_few": _in_session(CUT, position=stream.SkipsOneTooFew),
        "skip_the_next": _in_session(position=stream.SkipsTheNext),
        "message_ends_late": _in_engine(queue=stream.EndsMessagesLate),
        "message_sealed_late": _in_session(assembler=stream.SealsMessagesLate),
        "published_not_counted": _in_session(PUBLISHING, shaped=_shaped_by(published.DoesNotCountPublished)),
        "published_counted_twice": _in_session(PUBLISHING, shaped=_shaped_by(published.CountsPublishedTwice)),
        "published_twice": _in_session(PUBLISHING, shaped=_shaped_by(published.PublishesTwice)),
        "refused_event_lost": _in_session(PUBLISHING, shaped=_shaped_by(published.LosesWhatIsRefused)),
        "published_left_out_of_the_position": _in_engine(
            PUBLISHING_AND_CUT, queue=published.LeavesPublishedOut
        ),
        "filtered_not_counted": _in_session(
            FILTERED_AND_CUT, filtered=_shaped_by(filtering.DoesNotCountFiltered)
        ),
        "left_row_not_deleted": _in_session(FILTERED, filtered=_shaped_by(filtering.LeavesWhatLeaves)),
        "unknown_row_not_deleted": _in_session(
            FILTERED, filtered=_shaped_by(filtering.TakesUnknownForOutside)
        ),
        "snapshot_not_filtered": _in_session(FILTERED, filtered_rows=filtering.reads_all),
        "moved_row_not_deleted": _in_session(PARTED, partitioned=_shaped_by(parted.LeavesMovedRows)),
        "moved_row_deleted_elsewhere": _in_session(
            PARTED, partitioned=_shaped_by(parted.DeletesInTheNewPartition)
        ),
        "moved_row_counted_twice": _in_session(
            PARTED_AND_CUT, partitioned=_shaped_by(parted.CountsBothHalves)
        ),
        "snapshot_parted_by_key": _in_session(PARTED_BESIDE_CHUNKS, partitioned_rows=parted.reads_by_key),
        "snapshot_parted_by_number": _in_session(
            PARTED_BESIDE_CHUNKS, partitioned_rows=_shaped_by(parted.IgnoresWhatIsLeftOut)
        ),
        "routed_row_not_deleted": _in_session(ROUTED, routed=_shaped_by(routing.LeavesWhatMoves)),
        "routed_row_counted_twice": _in_session(ROUTED_AND_CUT, routed=_shaped_by(routing.CountsParts)),
        "truncate_in_one_topic": _in_session(ROUTED, routed=_shaped_by(routing.TruncatesItsOwnTopic)),
        "former_rows_end_in_one_topic": _in_session(
            ROUTED_AND_SWAPPED, routed=_shaped_by(routing.EndsRowsInItsOwnTopic)
        ),
        "snapshot_in_one_topic": _in_session(ROUTED, routed_rows=routing.reads_into_its_own_topic),
        "routed_change_not_noted": _in_incremental(
            routing.WatchesTheOwnTopic, focus=ROUTED_BESIDE_THE_STREAM
        ),
        "key_names_a_former_table": _in_session(SHARED, encoder=shared.FirstIdentifierStream),
        "change_in_a_shared_topic_not_noted": _in_session(
            SHARED_BESIDE_THE_STREAM, encoder=shared.WholeTopicsStream
        ),
        "counts_not_in_the_position": _in_engine(METADATA_AND_CUT, queue=metadata.ForgetsCounts),
        "end_cut_off": _in_engine(METADATA_AND_CUT, queue=metadata.CutsOffTheEnd),
        "begin_comes_again": _in_session(METADATA_AND_CUT, encoder=metadata.BeginsAgainEncoder),
        "heartbeat_names_its_batch": _in_engine(HEARTBEATS, timed_records=heartbeats.NamesItsBatch),
        "heartbeat_query_without_the_lock": _in_engine(
            HEARTBEATS_AT_A_SHUTDOWN, timed_records=heartbeats.GoesOnWithoutTheLock
        ),
        "watermark_before_its_records": Planted(
            Parts(engine=made_of(timed_records=watermarks.NamesItsBatch), sink=watermarks.MarksFirst),
            WATERMARKS,
        ),
        "numbers_guessed": _in_session(DESCRIBED, encoder=descriptions.GuessesNumbers),
        "events_named_by_the_change": _in_session(encoder=events.NamesEventsByTheChange),
        "cut_not_recorded": _in_engine(CUT, queue=stream.ForgetsWhatIsDone),
        "records_for_events": _in_engine(CUT, queue=stream.CountsRecords),
        "whole_transactions_cut": _in_engine(queue=stream.CutsWhole),
        "rest_never_told": _in_engine(RESTARTED_AT_REST, queue=stream.NeverTellsTheRest),
        "skipped_events_without_a_number": _in_session(SKIPPING, encoder=stream.NumbersOnlyRecords),
        "left_out_without_a_number": _in_engine(LEAVING_OUT, left_out=left_out.DoesNotCount),
        "left_out_counted_in_runs": _in_engine(LEAVING_OUT, left_out=left_out.CountsRuns),
        "left_out_for_ever": _in_engine(LEAVING_OUT, left_out=left_out.StaysOut),
        "left_out_and_forgotten": _in_engine(LEAVING_OUT_AND_READING, left_out=left_out.ForgetsWhoWentOut),
        "left_out_is_gone": _in_incremental(
            snapshots.TakesWhatIsLeftOutForGone, focus=LEAVING_OUT_AND_READING
        ),
        "truncate_left_out_whole": _in_engine(LEAVING_OUT, left_out=left_out.LeavesOutWholeTruncates),
        "aside_back_without_the_end": _in_engine(TABLE_FAULTS, tables=aside.ReturnsWithoutTheEnd),
        "aside_back_unread": _in_engine(TABLE_FAULTS, tables=aside.ReturnsUnread),
        "aside_not_written_down": _in_engine(TABLE_FAULTS, fates=aside.IsNotWrittenDown),
        "aside_undescribed": _in_engine(TABLE_FAULTS, fates=aside.ForgetsDescriptions),
        "aside_events_without_a_number": _in_engine(TABLE_FAULTS, left_out=left_out.DoesNotCount),
        "aside_fault_counted_twice": _in_engine(TABLE_FAULTS, change_records=aside.CountsTheFaultTwice),
        "aside_rest_lost": _in_engine(TABLE_FAULTS, ingest=aside.LosesWhatFollows),
        "aside_held_step_lost": _in_engine(TABLE_FAULTS, ingest=aside.SetsTheHeldStepFree),
        "aside_request_refused_whole": _in_engine(TABLE_FAULTS, fates=aside.RefusesTheRequestWhole),
        "aside_read_on": _in_engine(TABLE_FAULTS, incremental=aside.ReadsOn),
        "aside_since_the_fault": _in_engine(TABLE_FAULTS, fates=aside.StaysAtItsFault),
        "aside_back_without_a_name": _in_engine(TABLE_FAULTS, fates=aside.ComesBackWithoutAName),
        "aside_forgotten_at_the_start": _in_engine(TABLE_FAULTS, fates=aside.IsForgottenAtTheStart),
        "aside_dropped_and_kept": _in_engine(TABLE_FAULTS_AND_KILLS["drops"], fates=aside.KeepsDroppedTables),
        "aside_dropped_too_soon": _in_engine(TABLE_FAULTS_AND_KILLS["drops"], fates=aside.LetsGoTooSoon),
        "aside_first_return_not_noted": _in_engine(
            TABLE_FAULTS_AND_KILLS["descriptions"], delivery=aside.NotesNothingThatReturnsAtOnce
        ),
        "aside_return_not_noted": _in_engine(
            TABLE_FAULTS_AND_KILLS["descriptions"], delivery=aside.NotesNoReturn
        ),
        "aside_back_inside": _in_engine(TABLE_FAULTS, between_transactions=aside.ReturnsInsideATransaction),
        "aside_rest_of_the_step": _in_engine(TABLE_FAULTS, ingest=aside.SendsTheRestOfTheStep),
        "aside_precedents_lost": _in_engine(TABLE_FAULTS, change_records=aside.LosesWhatPrecedes),
        "aside_counted_in_runs": _in_engine(TABLE_FAULTS, left_out=aside.CountsRunsOfEvents),
        "aside_stays_out": _in_engine(TABLE_FAULTS, left_out=aside.StaysOut),
        "refused_batch_stripped_of_all": _in_engine(TABLE_FAULTS, queue=aside.StripsAll),
        "refused_batch_stripped_of_one_topic": _in_engine(
            TABLE_FAULTS_AND_ROUTES, queue=aside.StripsOwnTopicsAlone
        ),
        "refused_batch_dropped": _in_engine(TABLE_FAULTS, delivery=aside.DropsTheRefusedBatch),
        "refused_batch_sent_whole": _in_engine(TABLE_FAULTS, queue=aside.SendsTheBatchWhole),
        "refused_batch_with_tables_of_now": _in_engine(
            TABLE_FAULTS_WHILE_BATCHES_WAIT, queue=aside.TakesTheTablesOfNow
        ),
        "rows_of_a_refused_topic_sent": _in_engine(SLOW_TOPICS, queue=aside.KeepsRowsOfRefusedTopics),
        "refused_batch_stripped_alone": _in_engine(TABLE_FAULTS, queue=aside.StripsTheBatchAlone),
        "logged_confirmed_before_sync": _in_session(DURABLE, log=durable.ConfirmsBeforeSync),
        "logged_open_transaction_confirmed": _in_session(DURABLE, log=durable.ConfirmsOpenTransactions),
        "logged_sessions_joined": _in_session(DURABLE, log=durable.JoinsSessions),
        "logged_removed_before_delivery": _in_session(DURABLE, log=durable.RemovesBeforeDelivery),
        "logged_removed_by_the_slot": _in_start(DURABLE, steps=start.LOG_REMOVED_BY_THE_SLOT),
        "logged_tail_forgotten": _in_session(DURABLE, log=durable.ForgetsTheTail),
        "producer_kept": _in_session(sink=sink.KeepsTheProducer),
        "unknown_taken_for_failed": _in_session(sink=sink.TakesUnknownForFailed),
        "last_record_counts": _in_session(sink=sink.CountsTheLastRecord),
        "unproven_condition_run": _in_start(
            CONDITIONS, without_conditions=lambda progress, _authentic: (progress, ())
        ),
        "no_fencing": _in_session(TAKEN_OVER, sink=sink.DoesNotFence),
        "checkpoint_before_records": _in_session(sink=sink.WritesTheCheckpointFirst),
        "checkpoint_before_records_at_least_once": _in_session(
            AT_LEAST_ONCE, sink=sink.NotesFirstAtLeastOnce
        ),
        "part_committed": _in_session(sink=sink.CommitsParts),
        "last_part_sent_again": _in_session(sink=sink.SendsTheLastPartAgain),
        "first_part_forgotten": _in_session(sink=sink.ForgetsTheFirstPart),
        "fenced_before_judged": _in_start(MOVED, steps=start.FENCED_FIRST),
        "former_flush_at_two_phase": _in_start(
            first_flush=lambda told, checkpoint, slot, two_phase: first_flush(
                told, checkpoint, slot, two_phase=False
            )
        ),
        "not_judged_before_fencing": _in_start(MOVED, steps=start.NOT_JUDGED),
        "judged_by_what_readers_see": _in_start(HANGING, steps=start.JUDGED_BY_READERS),
        "hanging_taken_for_committed": _in_session(HANGING, sink=sink.CommitsWhatHangs),
        "topics_that_refuse_markers": _in_session(REFUSED_MARKERS, sink=sink.ChecksNoMarkers),
        "hanging_taken_for_aborted": _in_session(HANGING, sink=sink.AbortsWhatHangs),
        "checkpoint_read_before_fencing": _in_start(TAKEN_OVER, steps=start.READ_BEFORE_FENCE),
        "slot_looked_at_once": _in_start(FROZEN_AT_THE_START, steps=start.LOOKED_AT_ONCE),
        "roots_lost": _in_start(steps=start.ROOTS_LOST),
        "settings_untold": _in_start(steps=start.SETTINGS_UNTOLD),
        "started_without_the_lock": _in_start(steps=start.NOT_LOCKED),
        "drops_a_slot_that_delivered": _in_start(focus=REFUSED, first=start.DropsWhatDelivered),
        "drops_a_slot_of_another_start": _in_start(focus=REFUSED, first=start.DropsAnySlot),
        "drops_a_slot_that_the_checkpoint_names": _in_start(
            focus=REFUSED, first=start.DropsWhatTheCheckpointNames
        ),
        "drops_a_slot_after_an_unknown_commit": _in_start(
            focus=UNKNOWN_AND_REFUSED, first=start.TakesARefusalForTheOutcome
        ),
        "unsent_value_forgotten": _in_incremental(snapshots.ForgetsUnsentValues),
        "unsent_value_not_written_down": _in_incremental(
            snapshots.ForgetsUnsentValuesAtARestart, focus=OWED_AND_KILLED
        ),
        "unsent_value_not_awaited": _in_incremental(snapshots.EndsWithPages, focus=OWED_AND_KILLED),
        "unseen_change_not_owed": _in_incremental(snapshots.OwesFromThePlanOn, focus=UNSEEN_VALUES),
        "change_not_noted": _in_incremental(snapshots.NotesNothing, focus=UNSEEN),
        "chunk_sent_at_once": _in_incremental(snapshots.SendsAtOnce),
        "table_that_never_ends": _in_incremental(snapshots.EndsWithItsLastAnswer, focus=TRUNCATED),
        "truncate_not_noted": _in_incremental(snapshots.IgnoresTruncate, focus=TRUNCATED),
        "writers_not_awaited": _in_incremental(snapshots.AwaitsNobody, focus=UNSEEN),
        "window_forgets_too_much": _in_incremental(snapshots.ForgetsTooMuch),
        "chunk_of_former_plan_taken": _in_incremental(
            snapshots.KeepsOldChunks, snapshots.TakesOldChunks, focus=REWRITTEN
        ),
        "pages_of_former_file_kept": _in_incremental(snapshots.KeepsPagesOfTheFormerFile, focus=REWRITTEN),
        "table_told_before_delivery": _in_incremental(snapshots.TellsBeforeDelivery),
        "read_table_forgotten_before_delivery": _in_incremental(
            snapshots.ForgetsTablesWhoseRowsWait, focus=SLOW_TOPICS
        ),
        "pages_counted_before_delivery": _in_incremental(snapshots.CountsBeforeDelivery),
        "task_known_by_name": _in_incremental(snapshots.MergesByName),
        "rows_sent_before_their_topic": _in_engine(SLOW_TOPICS, queue=snapshots.SendsBeforeTheTopic),
        "changed_chunk_settled": _in_engine(REWRITTEN_WHILE_EXPORTED, exported=snapshots.SettlesWhatChanged),
        "exported_waits_for_a_lock": _in_engine(LOCKED_WHILE_EXPORTED, exported=snapshots.WaitsForTheLock),
        "locked_table_forgotten": _in_engine(LOCKED_WHILE_EXPORTED, exported=snapshots.ForgetsWhatWasLocked),
        "locked_table_keeps_its_turn": _in_engine(
            LOCKED_BESIDE_THE_STREAM, incremental=snapshots.KeepsTheTurnOfLockedTables
        ),
        "partitions_not_read": _in_incremental(snapshots.ExpandsNothing, focus=PARTITIONED),
        "one_partition_read": _in_incremental(snapshots.ReadsOnePartition, focus=PARTITIONED),
        "added_table_known": _in_engine(tables=snapshots.KnowsEverything),
        "added_table_in_place_of_others": _in_incremental(snapshots.ForgetsWhoWaits),
        "table_known_by_name": _in_engine(tables=snapshots.KnowsNoOids),
        "described_table_known": _in_engine(tables=snapshots.AddsOnlyWhatIsListedFirst),
        "free_name_not_written_down": _in_engine(RENAMED, tables=snapshots.ForgetsWhoTookFreeNames),
        "rows_left_under_the_former_name": _in_engine(
            RENAMED_NOT_ADDED, tables=snapshots.LeavesRowsUnderTheFormerName
        ),
        "own_name_taken_back": _in_engine(RENAMED, tables=snapshots.TakesItsOwnNameBack),
        "rows_under_a_name_to_come": _in_engine(RENAMED, incremental=snapshots.ReadsUnderAnyName),
        "tables_listed_too_early": _in_start(ADDED_MEANWHILE, first_tables=snapshots.listed_too_early),
        "tables_listed_too_late": _in_start(ADDED_MEANWHILE, first_tables=snapshots.listed_too_late),
        "malformed_request_ends_the_session": _in_engine(requests=snapshots.FailsOnMalformed),
        "requests_without_limit": _in_engine(HOSTILE, requests=snapshots.TakesAnySize),
        "configured_tables_cancelled": _in_engine(requests=snapshots.CancelsEverything),
        "table_read_by_name": _in_session(SWAPPED, asker=snapshots.asking(snapshots.ByNameClient)),
        "table_read_in_any_file": _in_session(REWRITTEN, asker=snapshots.asking(snapshots.AnyFileClient)),
        "former_rows_not_ended": _in_start(LOST_SLOTS, end_former_rows=snapshots.ends_nothing),
        **{name: _in_engine(HEALED, healing=part) for name, part in HEALING_BUGS.items()},
        "healing_goes_on_with_the_slot": _in_start(HEALED_AND_KILLED, steps=HEALING_STARTS),
        "former_rows_ended_twice": _in_engine(LOST_SLOTS, tables=snapshots.EndsFormerRowsAtEachStart),
        "former_rows_ended_after_the_new": _in_engine(LOST_SLOTS, tables=snapshots.EndsFormerRowsLate),
        **{
            name: _in_incremental(part, focus=KEYLESS_AND_QUIET if name == "keyless_change_lost" else KEYLESS)
            for name, part in KEYLESS_BUGS.items()
        },
        "table_read_by_old_columns": Planted(
            Parts(
                engine=made_of(incremental=snapshots.KeepsThePlan),
                asker=snapshots.asking(snapshots.AnyColumnsClient),
            ),
            ALTERED,
        ),
    }
)
