"""The shell of `import cdcd`: one stream of committed transactions, and the tasks beside its reader.

```
 connect ─▶ async with: two connections, slot ─▶ async for: frames ─▶ Assembler ─steps─▶ Handover ─▶ reader
                     ▲                                                                         │
                     └── status updates ◀── Reports ◀── Ledger ◀── acknowledge, end of a transaction
```

The reader pulls: frames are received only while the reader waits for a transaction or a change, so a slow reader
stops only the socket. A separate task sends status updates, also while the reader is busy. Another task asks the
server for signs of life, so that a busy reader does not delay PostgreSQL's shutdown.

A failure ends the stream. Every later call raises the same error. The stream never reconnects, because only the
program knows what it has done with a partly read transaction.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, Self

from cdcd.core.errors import CdcdError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.transactions.assembler import Assembler
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.position import Position
from cdcd.core.transactions.spool import Spool
from cdcd.core.transactions.steps import CommitWithoutPrepare
from cdcd.scratch import temporary_directory
from cdcd.stream.changes import Change
from cdcd.stream.decoding import ChangeDecoder, Decoder
from cdcd.stream.handover import Advance, DescriptionWanted, Handed, Handover
from cdcd.stream.reports import Reports
from cdcd.stream.settings import SPOOL_MEMORY_BYTES, StreamingOption, StreamSettings
from cdcd.stream.wording import in_our_words

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from cdcd.adapters.postgres.answers import Answer
    from cdcd.adapters.postgres.slot import SlotWait
    from cdcd.stream.source import StreamSource

    E = TypeVar("E", default=Change)
else:
    from typing import TypeVar

    E = TypeVar("E")

READ_BYTES: Final = 262_144
"""Bytes of frames that are received from libpq at a time, which is about the memory for a transaction."""

DESCRIBE_S: Final = 0.01
"""Seconds until the catalog is queried again, if it does not show a table yet as the stream has described it."""

FINISH_S: Final = 1.0
"""Seconds at the end of a stream for sending the last status update, and then for the server's confirmation."""

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=timezone.utc)  # noqa: UP017  the name that documents know

_LOG: Final = logging.getLogger("cdcd")


@dataclass(frozen=True, slots=True, eq=False)
class Transaction(Generic[E]):
    """A committed transaction. Iterate over it to get its changes: `async for change in transaction`.

    The changes are received during the iteration, so a transaction may be larger than memory. They can be iterated
    once. Unread changes are skipped when the next transaction is requested.

    Attributes:
        xid: id of the transaction; 0 for a non-transactional message.
        commit_lsn: position of its commit in the WAL. It grows from transaction to transaction, without repetition.
        commit_time: time of its commit, by the server's clock. For a non-transactional message, which has no
            commit: the time at which the server sent it.
    """

    xid: int
    commit_lsn: Lsn
    commit_time: datetime
    _handed: Handed = field(repr=False)
    _stream: "Stream[E]" = field(repr=False)

    def __aiter__(self) -> AsyncIterator[E]:
        return self

    async def __anext__(self) -> E:
        return await self._stream._next_change(self._handed)

    async def acknowledge(self) -> None:
        """See `Stream.acknowledge`."""
        await self._stream.acknowledge(self)


class Stream(Generic[E]):
    """Committed transactions in the order of their commits. `connect` creates it.

    Use it in `async with`, and iterate over it with `async for` in one task. The iteration never ends by itself.
    """

    def __init__(
        self,
        settings: StreamSettings,
        decoder: "Callable[[StreamSource], Decoder[E]]",
        *,
        on_wait: "Callable[[SlotWait], None] | None" = None,
    ) -> None:
        self._settings = settings
        self._make_decoder = decoder
        self._on_wait = on_wait or _log_wait
        self._source: StreamSource | None = None
        self._assembler: Assembler | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: CdcdError | None = None
        self._closed = False
        self._busy = False
        self._reports: Reports
        self._handover: Handover[E]

    @property
    def slot(self) -> str:
        """Name of the slot that the stream reads; empty before the stream is entered."""
        return "" if self._source is None else self._source.slot

    @property
    def slot_created(self) -> bool:
        """True if the slot was created when the stream was entered, so that the stream has no earlier commits."""
        return self._source is not None and self._source.slot_created

    @property
    def confirmed_lsn(self) -> Lsn:
        """Position that was confirmed to PostgreSQL, so that PostgreSQL may remove the WAL before it."""
        return Lsn() if self._source is None else Lsn(self._reports.told)

    async def __aenter__(self) -> Self:
        """Connect and start the stream, at the present (temporary slot) or after the confirmed position.

        Raises:
            ConfigError: the DSN cannot be read, or the server lacks a requested feature.
            SourceError: the publication or slot does not exist, or the role may not use it.
            PositionError: the slot has lost changes.
            TransientError: the server is unreachable, or accepts no connections now.
        """
        if self._source is not None:
            raise RuntimeError("A stream is entered once: call cdcd.connect again.")
        from cdcd.stream.source import open_source  # noqa: PLC0415  psycopg takes a tenth of a second

        settings = self._settings
        try:
            source = await open_source(settings, self._on_wait, _log_warning)
        except CdcdError as error:
            raise in_our_words(error) from None
        self._source = source
        spool = Spool(
            settings.spool_directory or temporary_directory(),
            settings.spool_memory_bytes,
            settings.spool_disk_bytes_max,
        )
        ledger = Ledger(source.start_lsn)
        self._assembler = Assembler(
            ledger, spool, Position(), lambda rows, _relations: rows, source.abort_info
        )
        self._handover = Handover(
            self._assembler,
            ledger,
            self._make_decoder(source),
            waits_for_reader=settings.slot is not None,
        )
        reports = self._reports = Reports(source, ledger, self._fail)
        self._tasks = [
            asyncio.create_task(reports.send_when_due(), name="cdcd feedback"),
            asyncio.create_task(reports.watch(), name="cdcd watch"),
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Confirm the acknowledged transactions to PostgreSQL, and close the connections.

        PostgreSQL drops a temporary slot then.
        """
        source, assembler = self._source, self._assembler
        if source is None or assembler is None:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            if self._settings.slot is not None:
                # This also runs after a failure, which may be the program's or the disk's while the connection works.
                with suppress(CdcdError, TimeoutError):
                    async with asyncio.timeout(FINISH_S):
                        await self._reports.send_now()
                    await source.replication.finish(FINISH_S)
        finally:
            assembler.close()
            await source.close()
        for each in ended:
            if isinstance(each, Exception) and error is None:
                raise each

    def __aiter__(self) -> AsyncIterator[Transaction[E]]:
        return self

    async def __anext__(self) -> Transaction[E]:
        """Return the next committed transaction. Unread changes of the transaction before are skipped.

        Raises:
            TransientError: the connection is lost. Connect again: a permanent slot continues after the acknowledged
                transactions.
            FatalError: an operator must act; nothing after the acknowledged transactions was confirmed.
        """
        with self._reading() as handover:
            await self._skip_rest(handover)
            while True:
                said = await self._advance(handover)
                if isinstance(said, Handed):
                    break
        commit_time = _EPOCH + timedelta(microseconds=said.commit_time)
        return Transaction(said.xid, Lsn(said.commit_lsn), commit_time, said, self)

    async def acknowledge(self, transaction: Transaction[E]) -> None:
        """Acknowledge that the program is done with the transaction, so that PostgreSQL need not send it again.

        The end of the longest run of acknowledged transactions is confirmed to PostgreSQL within a tenth of a
        second, and at the end of the stream. An acknowledgement out of order counts when all earlier transactions
        are acknowledged. Unread changes of the transaction are skipped. With a temporary slot, which is never
        resumed, the call has no further effect.

        Raises:
            TransientError, FatalError: the stream has failed before. The transaction will be sent again.
        """
        handed = transaction._handed
        if transaction._stream is not self:
            raise ValueError("The transaction is of another stream, so it cannot be acknowledged here.")
        handover = self._check()
        if handed is handover.current:
            with self._reading():
                await self._skip_rest(handover)
        handover.acknowledge(handed)
        self._reports.wake()

    # Steps of the reader's calls.

    async def _next_change(self, handed: Handed) -> E:
        if handed.is_skipped:
            raise RuntimeError(
                "The rest of the transaction was skipped, when it was acknowledged or the next one was asked for."
            )
        with self._reading() as handover:
            while handover.current is handed:
                if handover.changes:
                    return handover.changes.popleft()
                await self._advance(handover)
        raise StopAsyncIteration

    async def _skip_rest(self, handover: Handover[E]) -> None:
        """Skip to the end of the current transaction."""
        handed = handover.current
        if handed is None:
            return
        handed.is_skipped = handover.skips = True
        handover.changes.clear()
        while handover.current is handed:
            await self._advance(handover)

    async def _advance(self, handover: Handover[E]) -> Advance | Handed:
        """Work until there is an item for the reader. If this call is cancelled, nothing is lost."""
        source = self._source
        assert source is not None
        while True:
            said = handover.advance()
            if said is Advance.FRAMES:
                frames = await source.replication.receive(READ_BYTES)
                handover.receive(frames)
                self._reports.received(frames)
                # Data that has already arrived is received without a wait, so other tasks must get a turn.
                await asyncio.sleep(0)
            elif isinstance(said, DescriptionWanted):
                await self._describe(source, handover, said)
            elif isinstance(said, CommitWithoutPrepare):
                _log_missing_prepare(said)
            elif isinstance(said, Handed):
                return said
            else:
                await asyncio.sleep(0)
                return said

    async def _describe(
        self, source: "StreamSource", handover: Handover[E], asked: DescriptionWanted
    ) -> None:
        while True:
            description, types, seen = await source.look_up(asked.relation)
            if seen is None or asked.xid is None or seen.sees(asked.xid):
                handover.described(description, types)
                return
            await asyncio.sleep(DESCRIBE_S)

    def _check(self) -> Handover[E]:
        """Return the handover, or raise the error if the stream cannot be used."""
        if self._failure is not None:
            raise self._failure
        if self._source is None or self._assembler is None:
            raise RuntimeError("The stream is not entered: use `async with cdcd.connect(…) as stream`.")
        if self._closed:
            raise RuntimeError("The stream is closed: what was not acknowledged comes again.")
        for task in self._tasks:
            if task.done():
                task.result()
        return self._handover

    @contextmanager
    def _reading(self) -> Iterator[Handover[E]]:
        """Ensure that one task reads at a time, and keep the first failure."""
        handover = self._check()
        if self._busy:
            raise RuntimeError("Another task is reading this stream: read it in one task.")
        self._busy = True
        try:
            yield handover
        except CdcdError as error:
            raise self._fail(error) from None
        finally:
            self._busy = False

    def _fail(self, error: CdcdError) -> CdcdError:
        """Return the first failure of the stream, in the words of a program."""
        if self._failure is None:
            self._failure = in_our_words(error)
        return self._failure


def _log_wait(wait: "SlotWait") -> None:
    holder = f"prepared transaction {wait.gid}" if wait.gid else f"server process {wait.pid}"
    _LOG.warning("Slot %s waits for an open transaction to end (%s).", wait.slot, holder)


def _log_warning(answer: "Answer") -> None:
    _LOG.warning("PostgreSQL warns: %s %s", answer.text, answer.hint)


def _log_missing_prepare(step: CommitWithoutPrepare) -> None:
    _LOG.warning(
        "COMMIT PREPARED %r at %s came without its PREPARE. If the transaction changed rows, they are missing.",
        step.gid,
        Lsn(step.commit_lsn),
    )


def connect(
    dsn: str,
    *,
    publication: str,
    slot: str | None = None,
    create_slot: bool = False,
    password_command: tuple[str, ...] = (),
    messages: bool = False,
    streaming: StreamingOption = "auto",
    spool_directory: str | None = None,
    spool_memory_bytes: int = SPOOL_MEMORY_BYTES,
    spool_disk_bytes_max: int | None = None,
    connect_timeout_s: float = 10.0,
    application_name: str = "cdcd",
) -> Stream[Change]:
    """Read the committed transactions of a publication, in the order of their commits.

    Use `async with cdcd.connect(…) as stream:` and, in it, `async for transaction in stream:`.

    The connection is opened when the stream is entered. Without `slot`, the stream has the commits after that
    moment, and nothing remains on the server afterwards. With `slot`, the stream continues after the acknowledged
    transactions.

    Args:
        dsn: a libpq URI or key=value string. libpq's environment variables and password file apply, too.
        publication: name of an existing publication.
        slot: name of a permanent pgoutput slot. PostgreSQL keeps the WAL after the acknowledged transactions, also
            while no program runs. None: a temporary slot, which PostgreSQL drops at the end of the session.
        create_slot: True to create the permanent slot if it is missing. The stream has no changes from before its
            creation.
        password_command: a program with its arguments. It prints the password or a token, and runs before each
            connection. Empty: there is no command.
        messages: True to receive logical messages too (`pg_logical_emit_message`, PostgreSQL 14 and up).
        streaming: when PostgreSQL sends transactions larger than `logical_decoding_work_mem`. "on", "parallel":
            before their commit, into the spool. "off": after their commit. "auto": before their commit if the
            server can, but "off" with `messages`. The stream is the same in every case.
        spool_directory: folder for open transactions that exceed the memory limit. None: the system's temporary
            folder.
        spool_memory_bytes: bytes of open transactions that are kept in memory.
        spool_disk_bytes_max: bytes of open transactions on disk above which LimitError is raised. None: the free
            space of the file system.
        connect_timeout_s: seconds for each address of each host.
        application_name: name in `pg_stat_activity` and `pg_stat_replication`.

    Raises:
        ConfigError: parameters contradict each other.
    """
    settings = StreamSettings(
        dsn=dsn,
        publication=publication,
        slot=slot,
        create_slot=create_slot,
        password_command=password_command,
        messages=messages,
        streaming=streaming,
        spool_directory=spool_directory,
        spool_memory_bytes=spool_memory_bytes,
        spool_disk_bytes_max=spool_disk_bytes_max,
        connect_timeout_s=connect_timeout_s,
        application_name=application_name,
    )
    return Stream(settings, lambda source: ChangeDecoder(source.money_digits))
