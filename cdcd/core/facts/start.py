"""Facts about the start of a pipeline: the lock, the slot, the publication, the checkpoint, the stream."""

from dataclasses import field
from typing import ClassVar, Literal

from cdcd import __version__
from cdcd.build import is_compiled, note
from cdcd.core.facts import Fact, Level, fact


@fact
class Started(Fact):
    """The process has read its configuration and begins to connect. `http` is the address that it serves, or empty.

    `note` says what it costs if the code is not compiled.
    """

    event: ClassVar[str] = "daemon.started"
    name: str
    http: str
    version: str = __version__
    compiled: bool = field(default_factory=is_compiled)
    note: str = field(default_factory=note)


@fact
class StandbyWaiting(Fact):
    """Another instance holds the advisory lock. This instance takes over when the other one releases the lock."""

    event: ClassVar[str] = "standby.waiting"
    slot: str
    holder_pid: int | None
    holder: str
    client: str = ""
    """The address of the other instance, as PostgreSQL sees it."""


@fact
class LockForeign(Fact):
    """A session of a role without REPLICATION holds the pipeline's advisory lock. cdcd goes on without this lock, and
    other instances of this version respect it all the same. Instances of earlier versions wait for the session to end.
    Find out why `role` does this. `holder` is the name that the session gives itself.
    """

    event: ClassVar[str] = "lock.foreign"
    level: ClassVar[Level] = "warning"
    slot: str
    pid: int | None
    role: str
    holder: str
    client: str
    hint: str


@fact
class OwnersUntrusted(Fact):
    """With these findings of `cdcd check`, `security.strict` would refuse the first start. A pipeline that ran before
    starts, because owners of tables can cause them. cdcd's own role reads no table of an owner that is not trusted:
    such a table fails by its name. Do what `hint` says.
    """

    event: ClassVar[str] = "owners.untrusted"
    level: ClassVar[Level] = "warning"
    found: str
    hint: str


@fact
class LockAcquired(Fact):
    """This instance now holds the advisory lock of the slot: it is the active one, and only it may write."""

    event: ClassVar[str] = "lock.acquired"
    slot: str


@fact
class LockLost(Fact):
    """The connection that held the advisory lock ended. `sqlstate` is empty if the server gave no reason."""

    event: ClassVar[str] = "lock.lost"
    level: ClassVar[Level] = "warning"
    sqlstate: str
    reason: str


@fact
class SessionEnded(Fact):
    """cdcd ended a session that a former active instance had left behind. `held` says what the session held: the
    advisory lock (it was silent for longer than the lease), or the replication stream.
    """

    event: ClassVar[str] = "session.ended"
    level: ClassVar[Level] = "warning"
    held: Literal["lock", "stream"]
    pid: int | None
    silent_s: float


@fact
class SlotCreated(Fact):
    """cdcd created the replication slot. Transactions that commit after `position` are delivered."""

    event: ClassVar[str] = "slot.created"
    slot: str
    position: str


@fact
class SlotDropped(Fact):
    """cdcd dropped the slot that this start had made, because the start failed before anything was delivered. The slot
    holds no WAL any more, and the next start makes a new one.
    """

    event: ClassVar[str] = "slot.dropped"
    slot: str


@fact
class SlotKept(Fact):
    """The process ends after its first start, and the slot that it made stays. PostgreSQL keeps WAL for the slot.
    `reason` says why the slot stays.
    """

    event: ClassVar[str] = "slot.kept"
    level: ClassVar[Level] = "warning"
    slot: str
    reason: str
    hint: str


@fact
class TwoPhaseEnded(Fact):
    """cdcd took two_phase from the slot, because postgres.two_phase is false. Prepared transactions are sent at their
    COMMIT PREPARED from now on.
    """

    event: ClassVar[str] = "twophase.ended"
    slot: str


@fact
class TwoPhaseKept(Fact):
    """postgres.two_phase is false, but the slot has two_phase, and PostgreSQL before 18 cannot take it away. The server
    sends prepared transactions at PREPARE. cdcd still delivers them at COMMIT PREPARED, and nothing is lost.
    """

    event: ClassVar[str] = "twophase.kept"
    level: ClassVar[Level] = "warning"
    slot: str


@fact
class RecordSettingChanged(Fact):
    """Somebody has changed a `setting` that decides how rows become records, since the pipeline ran last. The records
    that are in the topics stay as they are. `effect` says what that means for readers.
    """

    event: ClassVar[str] = "settings.changed"
    level: ClassVar[Level] = "warning"
    setting: str
    effect: str
    hint: str


@fact
class SlotWaiting(Fact):
    """The slot cannot be used yet, because a walsender holds it, or because its creation waits for open
    transactions.
    """

    event: ClassVar[str] = "slot.waiting"
    level: ClassVar[Level] = "warning"
    slot: str
    message: str


@fact
class PublicationCreated(Fact):
    """cdcd created the publication."""

    event: ClassVar[str] = "publication.created"
    publication: str


@fact
class CheckpointRead(Fact):
    """The position from which this session resumes. `found` is false if there is no checkpoint, so that
    the position is the one of the slot.
    """

    event: ClassVar[str] = "checkpoint.read"
    topic: str
    found: bool
    position: str


@fact
class GapAccepted(Fact):
    """The slot does not continue where the checkpoint ends, and --accept-gap or snapshot.mode: when_needed accepts
    that. The changes between `begins` and `ends` are not delivered. With when_needed, the topics of
    `ended` tables are healed, or truncate records end their former rows and they are read again; `tables` names the
    first ones.
    """

    event: ClassVar[str] = "gap.accepted"
    level: ClassVar[Level] = "warning"
    message: str
    position: str
    begins: str = ""
    ends: str = ""
    tables: list[str] = field(default_factory=list)
    ended: int = 0


@fact
class StreamStarted(Fact):
    """PostgreSQL sends changes. cdcd skips those before `position`, because the broker has them already."""

    event: ClassVar[str] = "stream.started"
    slot: str
    server_version: int
    protocol: int
    streaming: str
    position: str
