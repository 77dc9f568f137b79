"""Builds the parts of a session and connects them.

The rule: each part is given the other parts that it needs, and a function where one of them does not exist yet. What
the parts decide together, `Engine` decides.
"""

from cdcd.core.engine.beside_stream import BesideStream
from cdcd.core.engine.between_transactions import BetweenTransactions
from cdcd.core.engine.change_records import ChangeRecords
from cdcd.core.engine.context import Contexts
from cdcd.core.engine.current_transaction import CurrentTransaction
from cdcd.core.engine.delivery import Delivery
from cdcd.core.engine.described import DescribedRelations
from cdcd.core.engine.ending import Ending
from cdcd.core.engine.fates import Fates
from cdcd.core.engine.ingest import Ingest
from cdcd.core.engine.labels import EnumQuestions
from cdcd.core.engine.left_out import LeftOutTables
from cdcd.core.engine.message_records import MessageRecords
from cdcd.core.engine.questions import Questions
from cdcd.core.engine.queue import BatchQueue
from cdcd.core.engine.renewal import Renewal
from cdcd.core.engine.requests import Requests
from cdcd.core.engine.session_start import SessionStart
from cdcd.core.engine.table_faults import TableFaults
from cdcd.core.engine.timed_records import Timetable
from cdcd.core.engine.topic_tables import TopicTables
from cdcd.core.engine.topics import Topics
from cdcd.core.errors import CdcdError
from cdcd.core.facts import Observer
from cdcd.core.records.encoder import Encoder
from cdcd.core.snapshot.progress import Progress
from cdcd.core.transactions.assembler import Assembler
from cdcd.core.transactions.position import Counts, Position


class SessionParts:
    """The parts of a session. The arguments are those of `Engine`."""

    def __init__(
        self,
        start: SessionStart,
        assembler: Assembler,
        encoder: Encoder,
        rows: Encoder,
        observe: Observer,
        now: float,
    ) -> None:
        settings, checkpoint, bindings = start.settings, start.checkpoint, start.encoding.bindings
        self._encoder = encoder
        self.ending = Ending(
            unstreamed_until=start.unstreamed_until,
            logged_until=start.logged_until,
            grace_s=settings.shutdown_grace_s,
            observe=observe,
            now=now,
        )
        # The durable log has no connection.
        self.renewal = Renewal(0 if start.logged_until else settings.large_bytes, settings.quiet_s)
        self.fates = Fates(
            checkpoint.tables,
            start.published,
            observe=observe,
            has_requests=settings.has_requests,
            fault=self._fault if settings.sets_aside else None,
        )
        self.queue = BatchQueue(
            checkpoint.position,
            settings.batches,
            idle_s=settings.status_interval_s,
            progress=self._progress,
            before_cut=self._before_cut,
            counts=self._counts,
            aside=self.fates.table,
        )
        self.topics = Topics(start.outbox, marked=settings.heartbeat.watermark_s > 0)
        beside = self.beside = BesideStream(start, rows, self.queue, self.topics, self.fates, observe)
        rendering, incremental = beside.rendering, beside.incremental
        relations = DescribedRelations(
            encoder=encoder,
            incremental=incremental,
            tables=beside.tables,
            topics=self.topics,
            observe=observe,
            fates=self.fates,
            start=checkpoint.position.end_lsn,
        )
        self.current = CurrentTransaction(
            encoder, self.queue, self.topics, observe, schemas_topic=start.encoding.schemas_topic
        )
        owners = TopicTables(relations, beside, self.topics, self.fates, start.published)
        notes = start.aside_notes
        self.faults = TableFaults(self.fates, owners, self.current, beside, self.topics, notes)
        self.requests = Requests(
            incremental,
            settings.snapshot,
            name=settings.name,
            observe=observe,
            tokens=settings.request_tokens,
            tables=self.faults.requests,
        )
        self.contexts = None if settings.context is None else Contexts(settings.context, observe)
        self.delivery = Delivery(
            self.queue,
            assembler.order.ledger,
            checkpoint,
            bindings,
            None if notes is None else self.faults.records,
            lambda: encoder.shapes.made_topics,
        )
        bindings.touched = self.queue.touch
        if bindings.text(checkpoint.position.end_lsn) != checkpoint.bindings:
            # A table that was looked at before the session began is protected after the next start, too.
            self.queue.touch()
        if settings.heartbeat.watermark_s:
            self.topics.note_checked(map(rendering.topic_named, start.published.values()))
        self.timed = Timetable(
            settings.heartbeat, encoder, self.queue, self.topics, held=self._held, marked=owners.marked
        )
        self.between = BetweenTransactions(
            self.queue,
            rendering,
            incremental,
            beside.tables,
            beside.labels,
            self.timed,
            self.faults.come_back,
        )
        self.ingest = Ingest(
            assembler,
            self.current,
            ChangeRecords(self.current, relations, incremental, beside.tables, self.fates, beside.limits),
            MessageRecords(self.current, self.requests, self.contexts, settings.message_prefixes, observe),
            self.between,
            LeftOutTables(None if start.tables.is_all else start.tables.test(), self.fates),
            self.renewal,
        )
        exported = start.exported
        self.questions = Questions(
            incremental,
            None if exported is None else beside.before_stream(exported, self.faults.undefined),
            beside.tables,
            EnumQuestions(beside.labels, incremental, beside.tables, rendering, relations, self.fates),
            rendering=rendering,
            fates=self.fates,
            now=now,
        )
        self.faults.attach(self.ingest, self.questions)

    def _fault(self, oid: int, fault: str, error: CdcdError) -> None:
        self.faults.fault(oid, fault, error)

    def _held(self) -> Position:
        return self.delivery.checkpoint.position

    def _before_cut(self) -> None:
        self.current.apply_effects()

    def _counts(self) -> Counts:
        metadata = self._encoder.metadata
        return () if metadata is None else metadata.counts()

    def _progress(self) -> Progress | None:
        return self.beside.incremental.watched.write_down()
