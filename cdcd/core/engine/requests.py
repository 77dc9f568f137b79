"""Requests to the daemon, which are logical messages with the prefix `cdcd.snapshot`.

Everybody who may connect to the database can send them.

A request needs a token that the daemon knows, unless the configuration allows requests from everybody. A request
without a token changes nothing, and what it can cause to be logged is limited.

The rule: a request only decides whether tables are read. No request ends a session. The bytes that requests add to
the checkpoint are limited, and so is the memory for a transaction full of requests. A refused request is reported,
with the sender's words shortened. A request can pause what the configuration asks for (the initial snapshot, tables
that were added or replaced), but cannot cancel it.
"""

import hmac
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.refusals import Sparing
from cdcd.core.engine.settings import SnapshotSettings
from cdcd.core.engine.snapshot_tasks import excess
from cdcd.core.errors import ConfigError
from cdcd.core.facts import Observer, cut_short
from cdcd.core.facts.snapshot import SnapshotSignalled, SnapshotSignalRefused
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.snapshot.outcomes import CANCELLED
from cdcd.core.snapshot.signals import (
    CONTENT_MAX,
    OWN_REQUESTS,
    PREFIX,
    Signal,
    token_digest,
)
from cdcd.core.snapshot.table_task import TableTask

HELD_BYTES_MAX: Final = 262_144
"""Maximum of bytes that the requests of one transaction may hold until it ends; further requests are refused
together.

They are handled in one step, which this limit keeps below a fraction of a second.
"""

_HELD: Final = 100
"""Bytes that count for a held request besides its content."""

WORDS_MAX: Final = 200
"""Maximum number of characters of a sender's words that a report repeats."""


HOUR_S: Final = 3600

TABLES_MAX: Final = 10_000
"""Number of tables whose readings are remembered. If there are more, readings older than an hour are forgotten."""

NOT_AUTHORIZED: Final = (
    "it has no token that this instance knows: send it by `cdcd snapshot`, or with snapshot.signal_token"
)


LISTS: Final = 2
"""Number of lists of the published tables after which a name that is still unknown is refused. The first list may have
been made before the request, so it may lack a table that was created or renamed just before the request."""

PENDING_MAX: Final = 1000
"""Number of requests that wait for a list at a time. Further ones are refused at once."""


@dataclass(slots=True)
class _Pending:
    """Tables of a request that were refused, until the published tables were listed again."""

    action: str
    tables: tuple[str, ...]
    lists: int = 0


class Requests:
    """Handles requests; `take` must be called in the order of the stream.

    Args:
        name: name of this pipeline, because a request may be for another one.
        settings: which requests are accepted (`signals`: all, without_where or off), and how many
            (`rereads_per_hour_max`).
        tokens: digests of tokens (`token_digest`), one of which a request must have; None if it needs none.
        tables: by action, what sets tables aside, or brings them back. It returns the reason for each table for which
            this is not possible. Such a table is tried again when the published tables have been listed.
    """

    def __init__(
        self,
        incremental: Incremental,
        settings: SnapshotSettings,
        *,
        name: str,
        observe: Observer,
        tokens: tuple[str, ...] | None = None,
        tables: Mapping[str, Callable[[Collection[str]], dict[str, str]]],
    ) -> None:
        self._tables = tables
        self._pending: list[_Pending] = []
        self.refused = 0
        """Number of refused requests, reported or not."""
        self._rereads_max = settings.rereads_per_hour_max
        self._read_at: dict[str, list[int]] = {}
        """Times of the readings that requests started within the last hour, in Unix seconds, by table."""
        self._incremental = incremental
        self._name = name
        self._allowed = settings.signals
        self._observe = observe
        self._tokens = tokens
        self._held = 0
        self._left_out = 0
        self._sparing = Sparing()

    def hold(self, message: LogicalMessage) -> Callable[[], None] | None:
        """Return the function to call when the message's transaction ends, where the request counts; None if there is
        none.
        """
        if message.prefix != PREFIX:
            return None
        size = len(message.content) + _HELD
        if self._held + size <= HELD_BYTES_MAX:
            self._held += size
            return partial(self._take_held, message, size)
        self._left_out += 1
        return self._refuse_left_out if self._left_out == 1 else None

    def _take_held(self, message: LogicalMessage, size: int) -> None:
        self._held -= size
        self.take(message)

    def _refuse_left_out(self) -> None:
        count, self._left_out = self._left_out, 0
        reason = (
            f"{count} requests of one transaction are left out: {HELD_BYTES_MAX} bytes of it are followed"
        )
        self._report(reason)
        self._incremental.tasks.touch()

    def _report(self, reason: str) -> None:
        """Report a refusal, unless there were many, because everybody who may connect can send any
        number of requests.
        """
        self.refused += 1
        left_out = self._sparing.admit(self._incremental.tasks.unix_s)
        if left_out is not None:
            self._observe(SnapshotSignalRefused(reason=cut_short(reason, WORDS_MAX), left_out=left_out))

    def take(self, message: LogicalMessage) -> None:
        """Carry out the request, or report why it is refused."""
        if message.prefix != PREFIX:
            return
        try:
            signal = Signal.decode(message.content)
            if signal.pipeline not in ("", self._name):
                return
        except ValueError as error:
            self._report(str(error))
            if self._tokens is None:
                self._incremental.tasks.touch()
            return
        if not self._is_authorized(signal):
            self._report(NOT_AUTHORIZED)
            return
        try:
            if self._allowed == "off" or (signal.where and self._allowed != "all"):
                raise ValueError(f"snapshot.signals is {self._allowed}")
            if signal.action in self._tables:
                self._take_named(_Pending(signal.action, signal.tables))
                self._incremental.tasks.touch()
                return
            _ACTIONS[signal.action](self, signal)
        except ValueError as error:
            if signal.action == "start" and signal.request:
                self._refuse(signal.request, str(error))
            self._report(str(error))
        else:
            self._followed(signal.action, signal.tables)
        # A request counts once, so the checkpoint should pass its position soon, even if the request changed nothing.
        self._incremental.tasks.touch()

    @property
    def is_pending(self) -> bool:
        """True if tables of a request wait for a list of the published tables."""
        return bool(self._pending)

    def listed(self) -> None:
        """Try the waiting tables again, because the published tables were listed."""
        pending, self._pending = self._pending, []
        for each in pending:
            each.lists += 1
            self._take_named(each)

    def _take_named(self, asked: _Pending) -> None:
        """Carry out a request for tables by name. Refused tables are tried again after the next list, then reported."""
        refused = self._tables[asked.action](asked.tables)
        followed = [name for name in asked.tables if name not in refused]
        if followed:
            self._followed(asked.action, followed)
        if not refused:
            return
        if asked.lists < LISTS and len(self._pending) < PENDING_MAX:
            self._pending.append(_Pending(asked.action, tuple(refused), asked.lists))
        else:
            self._report("; ".join(dict.fromkeys(refused.values())))

    def _followed(self, action: str, tables: Sequence[str]) -> None:
        names = [cut_short(name, WORDS_MAX) for name in tables[:10]]
        self._observe(SnapshotSignalled(action=action, tables=names))

    def _is_authorized(self, signal: Signal) -> bool:
        if self._tokens is None:
            return True
        digest = token_digest(signal.token)
        return any(hmac.compare_digest(digest, token) for token in self._tokens)

    def refuse_large(self, size: int) -> None:
        """Report a request of which only the size in bytes was kept, because it is larger than `CONTENT_MAX`."""
        self._report(f"it has {size} bytes, and {CONTENT_MAX} are allowed")
        self._incremental.tasks.touch()

    def _start(self, signal: Signal) -> None:
        request = signal.request or "signal"
        if request in OWN_REQUESTS:
            request += " (requested)"
        own = self._incremental.tasks
        askers = (signal.request,) if signal.request else ()
        tasks = [
            TableTask(name, request=request, where=signal.where, askers=askers, asked=own.unix_s)
            for name in signal.tables
        ]
        problem = excess(self._incremental.progress, tasks) or self._too_often(signal.tables, own.unix_s)
        if problem:
            raise ValueError(problem)
        before = own.progress.awaited(signal.request)
        own.add(tasks)
        # A table that is requested again before its reading began counts once.
        added = own.progress.awaited(signal.request) - before
        if signal.request and added:
            own.replace(own.progress.request(signal.request, added, own.unix_s))

    def _too_often(self, names: Iterable[str], now_s: int) -> str:
        """Return why these tables may not be read now. Return "" if they may, and count a reading of each."""
        if not self._rereads_max:
            return ""
        if len(self._read_at) > TABLES_MAX:
            self._read_at = {
                name: times for name, times in self._read_at.items() if times[-1] > now_s - HOUR_S
            }
        counted = {}
        for name in names:
            times = [each for each in self._read_at.get(name, ()) if each > now_s - HOUR_S]
            if len(times) >= self._rereads_max:
                return (
                    f"{cut_short(name, WORDS_MAX)} was asked for {len(times)} times within an hour, and "
                    f"snapshot.rereads_per_hour_max is {self._rereads_max}"
                )
            counted[name] = [*times, now_s]
        self._read_at |= counted
        return ""

    def _refuse(self, request: str, error: str) -> None:
        own = self._incremental.tasks
        own.replace(own.progress.refuse(request, error, ConfigError.exit_code, own.unix_s))

    def _pause(self, _signal: Signal) -> None:
        self._incremental.set_paused(True)

    def _resume(self, _signal: Signal) -> None:
        self._incremental.set_paused(False)

    def _cancel(self, signal: Signal) -> None:
        kept: list[str] = []
        for task in self._incremental.progress.tasks:
            if signal.tables and task.name not in signal.tables:
                continue
            if task.request in OWN_REQUESTS or task.ended:
                kept.append(task.name)
            else:
                self._incremental.plans.end(task, "cancelled", code=CANCELLED)
        if signal.tables and kept:
            raise ValueError(
                f"the configuration asks for {', '.join(kept[:5])}: snapshot.mode: never goes on without their rows. "
                "Or a table has no key, and its former rows have ended in the topic, so its rows are read to the end"
            )


_ACTIONS: Final[dict[str, Callable[[Requests, Signal], None]]] = {
    "start": Requests._start,
    "pause": Requests._pause,
    "resume": Requests._resume,
    "cancel": Requests._cancel,
}
"""By action: the method that carries it out. It raises ValueError if the request is refused."""
