"""The durable log: what of the stream lies on local disk because Kafka was away, and what a start makes of it.

Why it exists: without it, PostgreSQL keeps the WAL of an outage of Kafka on its own disk. With `spool.durable: true`,
cdcd writes the stream to a log instead, syncs it to disk, and tells PostgreSQL that it may forget the WAL. From then on
the log is the only place that has these changes, so that the log's disk is a part of the promise.

Theory of operation
-------------------

Three kinds of sessions follow each other, and only one of them runs at a time, under the advisory lock:

```
 live      PostgreSQL ─▶ engine ─▶ Kafka                  the log is empty
 spooling  PostgreSQL ─▶ log, synced ─▶ status update     Kafka is away
 delivery                log ─▶ engine ─▶ Kafka           Kafka is back; PostgreSQL waits
```

*Spooling* writes one **logged session** for each connection: frames as they came, from the slot's position on. The
connection asks for neither streamed nor prepared transactions, so that the log holds committed transactions only, in
the order of their commits, each one whole, and at most one unfinished transaction at the end. PostgreSQL is told the
end of the last commit (or idle keepalive) of which the log is synced: `Boundaries`. Never more: that is why a kill at
any moment, a torn tail or a full disk costs nothing but a further connection.

*Delivery* is an ordinary session whose frames come from one logged session instead of from the server. It starts from
the checkpoint in Kafka like any other session, and skips what the checkpoint covers. So exactly-once does not depend on
the log: records that were delivered from the log are in the checkpoint of the same Kafka transaction. When the
checkpoint has reached the logged session's end, the engine session ends, and the next one takes the next logged
session. Each logged session has an engine of its own, because the server describes relations again for each connection,
and because the unfinished transaction at the end of one comes again in the next one, whole.

*Live* streaming begins when the checkpoint has reached the ends of all logged sessions, and the slot's position. It is
not enough that it has reached the slot's position: a status update of the former connection may be taken in after the
slot was looked at, and it may name any position up to the log's end. What PostgreSQL was not told of after all comes
again, and is skipped. So the log is removed before live streaming begins, and a log that exists always begins at or
before the checkpoint. For the same reason, a spooling session asks for the slot's position when it streams already, so
that nobody else can move the slot.

The rule by which a start judges (`judge`): the logged sessions must cover everything from the checkpoint to the slot's
position. Session by session, the next one must begin at or before the end of the one before it, and the last must end
at or behind the slot's position. What is torn or altered ends a logged session where it stands. If nothing was
confirmed beyond that place, the next connection has the same changes, and nothing is lost. If something was, the chain
is broken, and the start is refused by name. No mark in the log has to be believed for this: the slot says what was
confirmed.

The log belongs to a pipeline, a slot, a server (system_identifier, timeline) and the options of the stream. Another
one's log is refused. A standby on another machine has no log, so it meets a slot beyond the checkpoint, which it
refuses as a gap.
"""

from dataclasses import dataclass, replace
from typing import Final

from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.resuming import Source
from cdcd.core.errors import PositionError
from cdcd.core.protocol.lsn import Lsn

MOVE_AWAY: Final = (
    "Nothing was skipped. If you cannot restore the log: read the tables again into a new pipeline; or "
    "move the folder {folder} away and accept the gap with `cdcd run --accept-gap`."
)


@dataclass(frozen=True, slots=True)
class LogOwner:
    """Whose log it is, and with which options of the stream it was written (`Source.stream`)."""

    pipeline: str
    slot: str
    system_identifier: str
    timeline: int
    stream: str


@dataclass(frozen=True, slots=True)
class LoggedSession:
    """One connection's frames in the log.

    Attributes:
        number: of its first segment.
        owner: None: its beginning cannot be read, so that it holds nothing (`end` is `begin`).
        begin: where the slot stood: nothing that commits before it is in here.
        end: everything that commits from `begin` to here is in here, intact.
        flaw: why the log ends there, if it was not closed in good order: the file, the place, and what is wrong.
    """

    number: int
    owner: LogOwner | None
    begin: int
    end: int
    flaw: str = ""


@dataclass(frozen=True, slots=True)
class DurableLog:
    """The log as it was found. `folder` is for errors."""

    folder: str
    sessions: tuple[LoggedSession, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a start does with the log.

    Attributes:
        source: the server, with the position from which the slot and the log together have everything.
        deliver: the logged session to deliver now; None: stream live.
        remove: numbers of logged sessions that are of no more use.
    """

    source: Source
    deliver: LoggedSession | None
    remove: tuple[int, ...]


def judge(log: DurableLog, owner: LogOwner, checkpoint: Checkpoint | None, source: Source) -> Judgement:
    """Compare the log with the checkpoint and the slot.

    Raises:
        PositionError: PostgreSQL was told of changes that neither Kafka nor the log has.
    """
    every = tuple([session.number for session in log.sessions])
    if not every:
        return Judgement(source, None, ())
    if checkpoint is None:
        raise PositionError(
            f"The durable log {log.folder} holds changes from {Lsn(log.sessions[0].begin)} on, but Kafka has no "
            "checkpoint of this pipeline, so it is not known which of them were delivered.",
            hint="Correct topics.checkpoint or spool.durable_directory. If the pipeline starts from scratch, move "
            f"{log.folder} away.",
        )
    confirmed, reached = source.slot_confirmed, checkpoint.position.end_lsn
    if confirmed is None:
        raise PositionError(
            f"Slot {owner.slot} is not there, and the durable log {log.folder} holds changes that were read from it: "
            "the slot was dropped, or cannot be used any more. Later changes are lost to this pipeline.",
            hint=MOVE_AWAY.format(folder=log.folder),
        )
    problem = foreign(log, owner)
    if problem is not None:
        raise problem
    if checkpoint.system_identifier != source.system_identifier:
        raise PositionError(
            f"The durable log {log.folder} is of the server with system_identifier {source.system_identifier}, and the "
            f"checkpoint in Kafka is of {checkpoint.system_identifier}.",
            hint="Start cdcd with the server that the checkpoint belongs to. If you do not need the log any more, move "
            f"{log.folder} away.",
        )
    sessions = undelivered(log.sessions, reached)
    if not sessions and reached >= confirmed:
        return Judgement(source, None, every)
    problem = broken(log, owner, reached, confirmed)
    if problem is not None:
        raise problem
    # The chain is whole, and something of it is not delivered, so that the first of them goes on from the checkpoint.
    deliver = sessions[0]
    kept = {session.number for session in sessions}
    return Judgement(
        replace(source, slot_confirmed=min(confirmed, deliver.begin)),
        deliver,
        tuple([number for number in every if number not in kept]),
    )


def undelivered(sessions: tuple[LoggedSession, ...], reached: int) -> tuple[LoggedSession, ...]:
    """The logged sessions from the first one on that does not end at or before `reached`."""
    first = 0
    while first < len(sessions) and sessions[first].end <= reached:
        first += 1
    return sessions[first:]


def foreign(log: DurableLog, owner: LogOwner) -> PositionError | None:
    """Why the log is another pipeline's or server's, if so: it is not even to be removed."""
    now = (owner.pipeline, owner.slot, owner.system_identifier)
    for session in log.sessions:
        found = session.owner
        if found is not None and (found.pipeline, found.slot, found.system_identifier) != now:
            return _other_owner(log, found, owner)
    return None


def broken(log: DurableLog, owner: LogOwner, reached: int, confirmed: int) -> PositionError | None:
    """Why the log does not cover everything from `reached` to `confirmed`, if so."""
    for session in undelivered(log.sessions, reached):
        if session.owner is not None and session.owner != owner:
            return _other_owner(log, session.owner, owner)
    covered, flaw, any_flaw = reached, "", ""
    for session in log.sessions:
        if session.begin > covered:
            return _hole(log, covered, session.begin, flaw or any_flaw)
        any_flaw = session.flaw or any_flaw
        if session.end >= covered:
            covered, flaw = session.end, session.flaw
    return _hole(log, covered, confirmed, flaw or any_flaw) if confirmed > covered else None


def _other_owner(log: DurableLog, found: LogOwner, now: LogOwner) -> PositionError:
    return PositionError(
        f"The durable log {log.folder} belongs to another pipeline: {_difference(found, now)}.",
        hint="Start cdcd with the configuration and the server that the log belongs to, until the log is delivered; "
        f"or name another folder in spool.durable_directory. {MOVE_AWAY.format(folder=log.folder)}",
    )


def ended_early(folder: str, session: LoggedSession, covered: int, flaw: str) -> PositionError:
    """While it was delivered, a logged session ended at `covered`, before its end."""
    return PositionError(
        f"The durable log {folder} is damaged: a logged session should reach {Lsn(session.end)}, and ends at "
        f"{Lsn(covered)}. {flaw}",
        hint=MOVE_AWAY.format(folder=folder),
    )


def _hole(log: DurableLog, covered: int, confirmed: int, flaw: str) -> PositionError:
    why = f" {flaw}" if flaw else " A part of the log is missing."
    return PositionError(
        f"The durable log {log.folder} is damaged: PostgreSQL was told that everything up to {Lsn(confirmed)} is on "
        f"disk, but Kafka and the log have the changes only up to {Lsn(covered)}.{why}",
        hint=MOVE_AWAY.format(folder=log.folder),
    )


def _difference(found: LogOwner, now: LogOwner) -> str:
    names = ("pipeline", "slot", "system_identifier", "timeline", "stream")
    pairs = [
        (name, before, after)
        for name, before, after in zip(names, _values(found), _values(now), strict=True)
        if before != after
    ]
    return "; ".join([f"its {name} is {before}, and this start has {after}" for name, before, after in pairs])


def _values(owner: LogOwner) -> tuple[str, ...]:
    return (owner.pipeline, owner.slot, owner.system_identifier, str(owner.timeline), owner.stream)


@dataclass(frozen=True, slots=True)
class SpoolStart:
    """What a spooling session begins with.

    Attributes:
        begin: the slot's position.
        remove: numbers of logged sessions that are of no more use.
    """

    begin: int
    remove: tuple[int, ...] = ()


def start_spooling(
    log: DurableLog, owner: LogOwner, confirmed: int | None, delivered: Checkpoint | None
) -> SpoolStart | str:
    """What a spooling session begins with, or why none may begin: PostgreSQL then keeps the WAL until Kafka is back.

    Kafka cannot be asked for its checkpoint. So a new log begins only where this process has delivered up to the slot's
    position itself, and a log goes on only if it reaches the slot's position.

    Args:
        confirmed: the slot's position, asked for while this connection streams from it; None: there is no slot.
        delivered: the newest checkpoint of which this process knows that Kafka holds it.
    """
    if confirmed is None:
        return f"slot {owner.slot} is not there"
    problem = foreign(log, owner)
    if problem is not None:
        return problem.message
    told = max([confirmed, *[session.end for session in log.sessions]])
    if delivered is not None and _is_of(delivered, owner) and delivered.position.end_lsn >= told:
        return SpoolStart(confirmed, tuple([session.number for session in log.sessions]))
    if not log.sessions:
        if delivered is None:
            return "this process has not reached Kafka since it started, and there is no log that it could continue"
        return f"slot {owner.slot} is at {Lsn(confirmed)}, past what this process has delivered"
    problem = broken(log, owner, log.sessions[0].begin, confirmed)
    return SpoolStart(confirmed) if problem is None else problem.message


def _is_of(checkpoint: Checkpoint, owner: LogOwner) -> bool:
    return checkpoint.system_identifier == owner.system_identifier and checkpoint.timeline == owner.timeline
