"""What real servers sent, assembled: the same WAL is the same transactions, however it was streamed or prepared."""

from typing import Any

import pytest

from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Insert, LogicalMessage, Relation, Truncate
from cdcd.core.protocol.reader import read_message
from cdcd.core.transactions.assembler import Assembler
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.open_transactions import (
    OpenTransaction,
    TransactionReplay,
    UndecidableMessageError,
)
from cdcd.core.transactions.position import Position
from cdcd.core.transactions.spool import Spool
from cdcd.core.transactions.steps import (
    Changes,
    Closed,
    Described,
    NonTransactionalMessage,
    Opened,
    OriginChanged,
    RolledBack,
    TransactionalMessage,
)
from tests.golden.streams import Golden, captured
from tests.unit.core.transactions.wire import frames_of, undrafted

GOLDENS = [golden for golden in captured() if "binary" not in golden.mode]
VERSIONS = sorted({golden.version for golden in GOLDENS})

Event = tuple[object, ...]
Transaction = tuple[tuple[object, ...], list[Event]]


class Lenient(TransactionReplay):
    """Goes on where the server would be asked to send a transaction again, and says of which it was."""

    doubtful: set[int]

    def check_messages(self, transaction: OpenTransaction, commit_lsn: int) -> None:
        try:
            super().check_messages(transaction, commit_lsn)
        except UndecidableMessageError:
            self.doubtful.add(commit_lsn)


def assembled(
    golden: Golden, directory: Any, position: Position
) -> tuple[list[Transaction], set[int], Ledger]:
    """Every transaction: what it says of itself, and its events as a consumer would see them."""
    ledger = Ledger()
    assembler = Assembler(
        ledger, Spool(str(directory), 20_000), position, undrafted, golden.description().abort_info
    )
    replay: Any = assembler.replay
    replay.__class__ = Lenient
    replay.doubtful = set()
    relations: dict[int, Relation] = {}
    transactions: list[Transaction] = []
    for step in assembler.assemble(golden.frames()):
        match step:
            case Opened():
                transactions.append(((step.xid, step.commit_lsn, step.commit_time), []))
            case OriginChanged():
                transactions[-1][1].append(("origin", step.name))
            case Described(message=Relation() as relation):
                relations[relation.oid] = relation
            case Changes():
                transactions[-1][1].extend(seen(one, step.in_stream, relations) for one in frames_of(step))
            case TransactionalMessage():
                transactions[-1][1].append(seen(step.frame, step.in_stream, relations))
            case Closed() | RolledBack():
                for ticket in step.tickets:
                    ledger.ack(ticket)
            case NonTransactionalMessage():
                transactions.append(((step.lsn,), [seen(step.frame, step.in_stream, relations)]))
                ledger.ack(step.ticket)
    assert (assembler.streamed_open, assembler.prepared_open, ledger.open_entries) == (0, 0, 0)
    assembler.close()
    return transactions, replay.doubtful, ledger


def seen(frame: bytes, in_stream: bool, relations: dict[int, Relation]) -> Event:
    message: Any = read_message(frame, XLOG_HEADER, in_stream=in_stream)
    if isinstance(message, LogicalMessage):
        return ("message", message.prefix, message.content, message.transactional)
    if isinstance(message, Truncate):
        tables = [relations[oid].name for oid in message.relation_oids]
        return ("truncate", tables, message.cascade, message.restart_identity)
    relation = relations[message.relation_oid]
    columns = [column.name for column in relation.columns]
    old = () if isinstance(message, Insert) else (message.old_kind, message.old)
    new = getattr(message, "new", None)
    for row in (new, *old[1:]):
        assert row is None or len(row) == len(columns), (
            "a row is read by the definition that it was written with"
        )
    return (chr(message.tag), relation.namespace, relation.name, columns, *old, new)


def rows_of(transactions: list[Transaction], doubtful: set[int]) -> list[Transaction]:
    """Without the messages that nobody could attribute to a subtransaction, and without empty transactions."""
    kept: list[Transaction] = []
    for about, events in transactions:
        if len(about) == 3 and about[1] in doubtful:
            kept.append((about, [event for event in events if event[0] != "message"]))
        elif events:
            kept.append((about, events))
    return kept


@pytest.mark.parametrize("version", VERSIONS)
def test_every_mode_gives_the_same_transactions(version, tmp_path):
    results = {
        golden.mode: assembled(golden, tmp_path, Position())
        for golden in GOLDENS
        if golden.version == version
    }
    doubtful = set().union(*[one[1] for one in results.values()])
    plain = rows_of(results["v1"][0], doubtful)
    assert len(plain) > 40
    for mode, (transactions, _, _) in results.items():
        assert rows_of(transactions, doubtful) == plain, mode
    assert bool(doubtful) == (version >= 14)
    assert not results["v1"][1]


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_a_restart_at_any_commit_goes_on_behind_it(golden, tmp_path):
    whole, _, ledger = assembled(golden, tmp_path, Position())
    places = [about[1] if len(about) == 3 else about[0] for about, _ in whole]
    assert places == sorted(places)  # type: ignore[type-var]
    for at in range(0, len(whole), 7):
        place = places[at]
        assert isinstance(place, int)
        rest, _, after = assembled(golden, tmp_path, Position(commit_lsn=place, end_lsn=place + 1))
        assert rest == whole[at + 1 :]
        assert after.flushed == ledger.flushed


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_a_restart_inside_of_a_transaction_goes_on_inside_of_it(golden, tmp_path):
    whole, _, _ = assembled(golden, tmp_path, Position())
    (about, events) = max(whole, key=lambda one: len(one[1]))
    place = about[1]
    assert isinstance(place, int)
    done = len(events) // 2
    rest, _, _ = assembled(golden, tmp_path, Position(place, place, done))
    assert rest[0][0] == about
    assert rest[0][1][-(len(events) - done) :] == events[done:]


def test_what_a_savepoint_rolled_back_is_not_guessed_at():
    # The workload emits a message in a savepoint that it rolls back after it was streamed.
    for golden in GOLDENS:
        if "streaming" not in golden.description().options:
            continue
        frames = golden.frames()
        assembler = Assembler(
            Ledger(), Spool("/nonexistent", 1 << 30), Position(), undrafted, golden.description().abort_info
        )
        with pytest.raises(UndecidableMessageError):
            for _ in assembler.assemble(frames):
                pass
