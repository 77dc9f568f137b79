"""Bugs that the simulation must find: each is one that this program, or another one, had or nearly had.

They are put in place of the real classes by subclasses that undo one decision. A bug that is not found says that the
models do not exercise what it breaks.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from cdcd.engine import engine
from tests.sim import planted_sink as sink
from tests.sim import planted_snapshots as snapshots
from tests.sim import planted_stream as stream
from tests.sim.session import Parts


def _in_engine(**parts: Any) -> Parts:
    return Parts(engine=engine.Parts(**parts))


def _in_assembler(part: Any) -> Parts:
    return _in_engine(assembler=stream.assembler_with(part))


PLANTED: Final[Mapping[str, Parts]] = MappingProxyType(
    {
        "confirm_on_receive": _in_engine(feedback=stream.ConfirmsOnReceive),
        "ack_before_delivery": _in_engine(ledger=stream.AcksWhenSent),
        "entry_opened_late": _in_engine(ledger=stream.OpensLate),
        "idle_ticket_resealed": _in_engine(ledger=stream.ResealsIdleTickets),
        "bound_past_prepare": _in_engine(ledger=stream.ForgetsHolds),
        "rollback_releases_at_once": _in_engine(assembler=stream.ReleasesAtRollback),
        "flushed_falls": _in_engine(ledger=stream.StartsAtZero),
        "drop_all_on_subtransaction_abort": _in_assembler(stream.DropsAllOnSubtransactionAbort),
        "aborted_subtransaction_kept": _in_assembler(stream.KeepsAbortedSubtransactions),
        "message_of_aborted_subtransaction_kept": _in_assembler(stream.KeepsMessagesOfAborted),
        "relation_of_aborted_subtransaction_dropped": _in_assembler(stream.DropsRelationsOfAborted),
        "old_description_stays": _in_assembler(stream.LeavesOldDescriptions),
        "replay_by_new_description": _in_assembler(stream.ReplaysByNewDescriptions),
        "prepared_not_held": _in_engine(
            assembler=stream.assembler_with(stream.DoesNotHoldPrepared), ledger=stream.AcksTwice
        ),
        "streamed_again_kept": _in_assembler(stream.KeepsWhatIsStreamedAgain),
        "every_keepalive_counts": _in_engine(assembler=stream.CountsEveryKeepalive),
        "skip_one_too_many": Parts(position=stream.SkipsOneTooMany),
        "skip_one_too_few": Parts(position=stream.SkipsOneTooFew),
        "skip_the_next": Parts(position=stream.SkipsTheNext),
        "message_ends_late": _in_engine(queue=stream.EndsMessagesLate),
        "message_sealed_late": _in_engine(assembler=stream.SealsMessagesLate),
        "cut_not_recorded": _in_engine(queue=stream.ForgetsWhatIsDone),
        "records_for_events": _in_engine(queue=stream.CountsRecords),
        "whole_transactions_cut": _in_engine(queue=stream.CutsWhole),
        "rest_never_told": _in_engine(queue=stream.NeverTellsTheRest),
        "producer_kept": Parts(sink=sink.KeepsTheProducer),
        "unknown_taken_for_failed": Parts(sink=sink.TakesUnknownForFailed),
        "no_fencing": Parts(sink=sink.DoesNotFence),
        "checkpoint_before_records": Parts(sink=sink.WritesTheCheckpointFirst),
        "checkpoint_before_records_at_least_once": Parts(sink=sink.NotesFirstAtLeastOnce),
        "part_committed": Parts(sink=sink.CommitsParts),
        "last_part_sent_again": Parts(sink=sink.SendsTheLastPartAgain),
        "unsent_value_forgotten": _in_engine(incremental=snapshots.ForgetsUnsentValues),
        "unsent_value_not_written_down": _in_engine(incremental=snapshots.ForgetsUnsentValuesAtARestart),
        "unsent_value_not_awaited": _in_engine(incremental=snapshots.EndsWithPages),
        "change_not_noted": _in_engine(incremental=snapshots.NotesNothing),
        "chunk_sent_at_once": _in_engine(incremental=snapshots.SendsAtOnce),
        "truncate_not_noted": _in_engine(incremental=snapshots.IgnoresTruncate),
        "writers_not_awaited": _in_engine(incremental=snapshots.AwaitsNobody),
        "window_forgets_too_much": _in_engine(incremental=snapshots.ForgetsTooMuch),
        "chunk_of_former_plan_taken": _in_engine(incremental=snapshots.TakesOldChunks),
        "pages_of_former_file_kept": _in_engine(incremental=snapshots.KeepsPagesOfTheFormerFile),
        "pages_counted_before_delivery": _in_engine(incremental=snapshots.CountsBeforeDelivery),
        "task_known_by_name": _in_engine(incremental=snapshots.MergesByName),
        "changed_chunk_settled": _in_engine(exported=snapshots.SettlesWhatChanged),
        "added_table_known": _in_engine(tables=snapshots.KnowsEverything),
        "table_known_by_name": _in_engine(tables=snapshots.KnowsNoOids),
        "described_table_known": _in_engine(tables=snapshots.AddsOnlyWhatIsListedFirst),
        "malformed_request_ends_the_session": _in_engine(requests=snapshots.FailsOnMalformed),
        "requests_without_limit": _in_engine(requests=snapshots.TakesAnySize),
        "configured_tables_cancelled": _in_engine(requests=snapshots.CancelsEverything),
        "table_read_by_name": Parts(asker=snapshots.asking(snapshots.ByNameClient)),
        "table_read_in_any_file": Parts(asker=snapshots.asking(snapshots.AnyFileClient)),
        "table_read_by_old_columns": Parts(asker=snapshots.asking(snapshots.AnyColumnsClient)),
    }
)
