"""Stage 3, second part: the valid description of each relation, undecided transactions, and their replay at the commit.

The rule: of two descriptions of a relation, the one that was received last is valid, also if it belongs to a
transaction that commits before or after the other's.

The last Relation message of the server defines the columns of rows, and the server remembers what it has sent
(`pgoutput.c`, `maybe_send_schema`): once in the normal order, which includes Begin Prepare … Prepare, and once more
in every streamed transaction, which joins the normal order at its commit. So each description gets the number of
its arrival, and an undecided transaction keeps its own descriptions with these numbers.

The rule: no output contains changes that were rolled back, wholly or in part.

Streamed transactions (`streamed_transactions.py`) and prepared ones (`prepared_transactions.py`) are kept in the
spool until they are decided, as frames or as drafts of rows (`drafts.py`). The commit replays them: without changes
of aborted subtransactions, without changes that the checkpoint covers, and with the transaction's own descriptions
of relations. Descriptions from an aborted subtransaction count, because the server does not send them again.

A transactional Message in a stream names the transaction, whichever subtransaction wrote it (`pgoutput_message`).
So after the abort of a subtransaction, cdcd cannot tell which earlier Messages were rolled back with it. The server
can, once the transaction is committed: `UndecidableMessageError` causes the transaction to be sent again, not
streamed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from cdcd.core.errors import WithoutStreamingError
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import Origin, Relation, Type
from cdcd.core.protocol.peek import CHANGES, MESSAGE, tag_of, xid_of
from cdcd.core.protocol.reader import read_message
from cdcd.core.transactions.commits import CommitOrder
from cdcd.core.transactions.drafts import Draft, SpoolItem, row_count, without_first, xid_of_draft
from cdcd.core.transactions.position import COVERED
from cdcd.core.transactions.spool import Spool
from cdcd.core.transactions.steps import (
    TURN,
    Changes,
    Described,
    OriginChanged,
    Step,
    TransactionalMessage,
)

Arrived = tuple[int, Relation]
"""(number of its arrival, description)."""


class RelationCache:
    """Descriptions of the normal order, by oid."""

    def __init__(self) -> None:
        self._arrived: dict[int, Arrived] = {}
        self._arrivals = 0

    def get(self, oid: int) -> Arrived | None:
        """Return the description in force; None if the server has sent none."""
        return self._arrived.get(oid)

    def in_force(self) -> list[Relation]:
        """Return all descriptions in force, in the order of their arrival."""
        return [relation for _, relation in sorted(self._arrived.values(), key=_number)]

    def number(self, relation: Relation) -> Arrived:
        """Return a new description with the number of its arrival; this does not put it in force."""
        self._arrivals += 1
        return self._arrivals, relation

    def describe(self, frame: bytes) -> Iterable[Step]:
        """Handle a Relation or Type message in the normal order."""
        return (self.take(frame),)

    def take(self, frame: bytes) -> Described:
        """Handle a description as `describe`, and return its step."""
        message = read_message(frame, XLOG_HEADER)
        assert isinstance(message, Relation | Type)
        if isinstance(message, Relation):
            self._arrived[message.oid] = self.number(message)
        return Described(message)

    def after_replay(self, own: Mapping[int, Arrived]) -> Iterator[Step]:
        """After the replay of a transaction with its `own` descriptions, yield the others that are in force again."""
        for oid, arrived in own.items():
            current = self._arrived.get(oid)
            if current is None or current[0] < arrived[0]:
                self._arrived[oid] = arrived
            elif current[1] != arrived[1]:
                yield Described(current[1])

    def without_replay(self, own: Mapping[int, Arrived]) -> Iterator[Step]:
        """After skipping a delivered transaction, yield those of its `own` descriptions that are valid."""
        for oid, arrived in own.items():
            current = self._arrived.get(oid)
            if current is None or current[0] < arrived[0]:
                self._arrived[oid] = arrived
                yield Described(arrived[1])


def _number(arrived: Arrived) -> int:
    return arrived[0]


class OpenTransaction:
    """A transaction in the spool: streamed (with an xid in each message) or prepared in one piece.

    Attributes:
        aborted: xids of its rolled-back subtransactions.
        relations: its own descriptions of relations, by oid.
        brought: descriptions that were in force when it was prepared; the replay begins with them.
        has_message: True if a logical message was streamed.
        doubtful: True if a subtransaction was rolled back after a logical message.
        gid, prepare_time, ticket: data of its PREPARE; the ticket keeps the flushed position before it.
    """

    def __init__(self, xid: int, in_stream: bool) -> None:
        self.xid = xid
        self.in_stream = in_stream
        self.aborted: set[int] = set()
        self.relations: dict[int, Arrived] = {}
        self.brought: list[Relation] = []
        self.has_message = False
        self.doubtful = False
        self.gid = ""
        self.prepare_time = 0
        self.ticket = -1


class UndecidableMessageError(WithoutStreamingError):
    """A committed transaction has Messages, and only the server knows which of them were rolled back."""

    def __init__(self, xid: int, commit_lsn: int) -> None:
        super().__init__(
            f"The streamed transaction {xid} (commit {Lsn(commit_lsn)}) has logical messages and an aborted savepoint.",
            hint="It is received once more, not streamed: then PostgreSQL itself leaves out what was rolled back.",
            commit_lsn=commit_lsn,
        )


class TransactionReplay:
    """Converts the kept contents of a transaction to steps when it commits, and frees its space in the spool."""

    def __init__(self, order: CommitOrder, relations: RelationCache, spool: Spool) -> None:
        self._order = order
        self._relations = relations
        self._spool = spool

    def check_messages(self, transaction: OpenTransaction, commit_lsn: int) -> None:
        """Raise UndecidableMessageError if the transaction's messages cannot be delivered without guessing."""
        if transaction.doubtful and not self._order.is_covered(commit_lsn):
            raise UndecidableMessageError(transaction.xid, commit_lsn)

    def steps(self, transaction: OpenTransaction) -> Iterator[Step]:
        """Yield the transaction's changes with the needed descriptions, between `CommitOrder.open` and `close`."""
        if self._order.skip == COVERED:
            self._spool.drop(transaction.xid)
            yield from self._relations.without_replay(transaction.relations)
            return
        for relation in transaction.brought:
            yield Described(relation)
        for items in self._spool.replay(transaction.xid):
            yield from self._list(transaction, items)
        self._spool.drop(transaction.xid)
        yield from self._relations.after_replay(transaction.relations)

    def _list(self, transaction: OpenTransaction, items: list[SpoolItem]) -> Iterator[Step]:
        order, aborted, in_stream = self._order, transaction.aborted, transaction.in_stream
        run: list[SpoolItem] = []
        for item in items:
            if not isinstance(item, bytes):
                if xid_of_draft(item) not in aborted:
                    self._add_draft(item, run)
                continue
            tag = tag_of(item)
            if tag in CHANGES:
                if aborted and xid_of(item) in aborted:
                    continue
                if order.skip:
                    order.skip -= 1
                    continue
                run.append(item)
                continue
            if run:
                yield Changes(run, in_stream)
                run = []
            if tag == MESSAGE:
                yield TransactionalMessage(item, in_stream, is_delivered=not order.take_event())
            else:
                yield from self._other(item, in_stream)
        # A list without events to send also took work: a transaction may be half delivered and large.
        yield Changes(run, in_stream) if run else TURN

    def _add_draft(self, draft: Draft, run: list[SpoolItem]) -> None:
        skipped = min(self._order.skip, row_count(draft))
        self._order.skip -= skipped
        if skipped < row_count(draft):
            run.append(without_first(draft, skipped) if skipped else draft)

    def _other(self, frame: bytes, in_stream: bool) -> Iterator[Step]:
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
        if isinstance(message, Relation | Type):
            yield Described(replace(message, xid=None))
        elif isinstance(message, Origin):
            yield OriginChanged(message.name, message.commit_lsn)
