"""Where a session goes on: the checkpoint is compared with the server, its timeline and the slot."""

from dataclasses import dataclass, replace
from typing import Final

from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import PositionError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.transactions.position import Position

MISSING_SLOT_HINT: Final = (
    "Correct postgres.slot if it names another one. Otherwise read the tables again into a new pipeline, or accept "
    "the gap with `cdcd run --accept-gap`, which creates the slot again."
)
"""Hint about a slot that is gone. The survey, the start and `cdcd check` use it."""

_WHERE_LOGGED: Final = (
    "The durable log {log} does not have these changes either. Perhaps another instance, or this instance on another "
    "machine or disk, wrote a durable log while Kafka was away. If so, start cdcd where that log is, so that the log "
    "is delivered first. "
)


def refuse_sealed(checkpoint: Checkpoint | None) -> None:
    """Raise PositionError if the pipeline was sealed for a handover, so that nothing more may be delivered."""
    if checkpoint is None or checkpoint.seal is None:
        return
    seal = checkpoint.seal
    raise PositionError(
        f"The pipeline is sealed at {Lsn(seal.fence_lsn)} for a handover to the server with system_identifier "
        f"{seal.system_identifier} (token {seal.token}). Nothing more is delivered from the former server.",
        hint="To finish the handover: `cdcd handover adopt` with the configuration of the new server. Or cancel it: "
        "`cdcd handover cancel` with the configuration of the former server.",
    )


def refuse_other_server(checkpoint: Checkpoint | None, system_identifier: str) -> None:
    """Raise PositionError if the pipeline reads another server than this one."""
    if checkpoint is None or checkpoint.system_identifier == system_identifier:
        return
    raise PositionError(
        f"The pipeline reads another server: its checkpoint is of system_identifier {checkpoint.system_identifier}, "
        f"this server's is {system_identifier}.",
        hint="Give --config the configuration of the server that the pipeline reads. After `cdcd handover adopt`, that "
        "is the new server.",
    )


@dataclass(frozen=True, slots=True)
class Source:
    """What the server says of itself before the stream starts; LSNs as plain integers.

    `slot_confirmed` is None where there is no slot yet; `slot` is its name, for errors. `branched_at` is where the
    server's history left the checkpoint's timeline: None when it is on that timeline still, or never was. `log` is the
    folder of the durable log; "": there is none.
    """

    system_identifier: str
    timeline: int
    wal_end: int
    slot_confirmed: int | None
    stream: str
    branched_at: int | None = None
    slot: str = ""
    log: str = ""


def resume(checkpoint: Checkpoint | None, source: Source, *, accept_gap: bool) -> Checkpoint:
    """The checkpoint to resume from, or the reason why the checkpoint that was found does not fit the slot.

    Without a checkpoint the stream starts where the slot stands. With one, the slot must be there and not ahead of
    it: changes between the two were confirmed by somebody else and are gone (a slot dropped, created again, or
    advanced by hand), which `accept_gap` accepts, once, for the person who knows. Nor may the slot be past what
    cdcd ever confirmed: so every PREPARE that is undecided comes again.

    An accepted gap ends where the slot stands, or where the server's history left the checkpoint's, if the checkpoint
    is beyond that fork: Kafka holds what lies before the fork only then. A slot that is past an undecided PREPARE
    leaves the position as it is: the slot still sends everything but that transaction.

    Raises:
        PositionError: another server, a server that lost WAL, a gap, or other options inside a transaction.
    """
    start = source.slot_confirmed or 0
    begin = Checkpoint(
        source.system_identifier, source.timeline, source.stream, Position(end_lsn=start), start
    )
    if checkpoint is None:
        return begin
    begin = replace(begin, epoch=checkpoint.epoch, topics=checkpoint.topics, authentic=checkpoint.authentic)
    if checkpoint.system_identifier == source.system_identifier:
        # Another server has other oids.
        begin = replace(begin, bindings=checkpoint.bindings, tables=checkpoint.tables)
    gap = _gap(checkpoint, source)
    if gap is not None:
        if not accept_gap:
            raise gap
        if checkpoint.system_identifier == source.system_identifier and _is_past_fork(checkpoint, source):
            begin = replace(begin, position=Position(end_lsn=max(start, source.branched_at or 0)))
        return begin
    lost = _lost_prepare(checkpoint, source)
    if lost is not None and not accept_gap:
        raise lost
    position = checkpoint.position
    if position.events_done and checkpoint.stream != source.stream:
        raise PositionError(
            f"The last run stopped inside the transaction {Lsn(position.commit_lsn)} with other options "
            f"({checkpoint.stream}) than now ({source.stream}). With the present options, its events have other "
            f"numbers.",
            hint="Run once with the former options until the transaction is delivered, then change them.",
        )
    return replace(begin, position=position, flushed_lsn=max(start, checkpoint.flushed_lsn))


def only_slot_is_lost(checkpoint: Checkpoint, source: Source) -> bool:
    """True if server, timeline and WAL match the checkpoint and only the slot is missing or ahead of it."""
    position = checkpoint.position
    if checkpoint.system_identifier != source.system_identifier:
        return False
    if checkpoint.timeline != source.timeline and source.branched_at is None:
        return False
    if position.needed_wal > min(source.wal_end, source.branched_at or source.wal_end):
        return False
    return source.slot_confirmed is None or source.slot_confirmed > position.end_lsn


def _gap(checkpoint: Checkpoint, source: Source) -> PositionError | None:
    """Why the slot does not go on where the checkpoint ends, if so."""
    position = checkpoint.position
    if checkpoint.system_identifier != source.system_identifier:
        return PositionError(
            f"The checkpoint belongs to system_identifier {checkpoint.system_identifier}, but the server has "
            f"{source.system_identifier}: it is another cluster, or was initialized again.",
            hint="After `cdcd handover adopt`, start cdcd with the configuration of the new server. If there was no "
            "handover, point postgres.dsn at the old cluster, or give the pipeline a new name. If the old cluster is "
            "gone: "
            "`cdcd run --accept-gap` continues at the slot's position and leaves out the changes in between; "
            f"`cdcd reset --checkpoint-of {checkpoint.system_identifier}` lets the pipeline begin again.",
        )
    if checkpoint.timeline != source.timeline and source.branched_at is None:
        return PositionError(
            f"The checkpoint ({position}) is of timeline {checkpoint.timeline}, which is not in the history of the "
            f"server's timeline {source.timeline}: a former primary came back, or the server is another branch of the "
            f"cluster.",
            hint="Point postgres.dsn at the primary that has the checkpoint's timeline, or accept with `cdcd run "
            "--accept-gap` that Kafka and this server differ. cdcd then continues from the slot's position.",
        )
    if source.branched_at is not None and _is_past_fork(checkpoint, source):
        return PositionError(
            f"The checkpoint ({position}) is ahead of the position at which this server left timeline "
            f"{checkpoint.timeline} ({Lsn(source.branched_at)}): the server is a promoted standby that lacked "
            f"changes, or was restored to an earlier point.",
            hint="Kafka holds changes that this server never had. Bring back the server that has them, or accept the "
            "difference with `cdcd run --accept-gap`, which continues from the position where both diverged.",
        )
    if position.needed_wal > source.wal_end:
        return PositionError(
            f"The checkpoint ({position}) is ahead of the server's WAL ({Lsn(source.wal_end)}): the server was "
            "restored from a backup, or lost its last changes.",
            hint="Kafka holds changes that this server lost. Bring back the server that has them, or accept the "
            "difference with `cdcd run --accept-gap`, which continues from the slot's position.",
        )
    if source.slot_confirmed is None:
        return PositionError(
            f"Slot {source.slot} is not there, but Kafka holds changes up to {position}: the slot was dropped, and "
            f"changes since then are lost to this pipeline.",
            hint=MISSING_SLOT_HINT,
        )
    if source.slot_confirmed > position.end_lsn:
        return PositionError(
            f"Slot {source.slot} is confirmed up to {Lsn(source.slot_confirmed)} but Kafka holds changes only up to "
            f"{position}: the slot was dropped and created again, or moved by somebody else, and the changes in "
            f"between are lost to this pipeline.",
            hint=_WHERE_LOGGED.format(log=source.log) * bool(source.log)
            + "Read the tables again into a new pipeline, or accept the gap with `cdcd run --accept-gap`.",
        )
    return None


def _is_past_fork(checkpoint: Checkpoint, source: Source) -> bool:
    """Whether Kafka holds changes that were written on the checkpoint's timeline after the server had left it."""
    return source.branched_at is not None and checkpoint.position.needed_wal > source.branched_at


def _lost_prepare(checkpoint: Checkpoint, source: Source) -> PositionError | None:
    """Why an undecided PREPARE does not come again, if so."""
    if source.slot_confirmed is not None and source.slot_confirmed > checkpoint.flushed_lsn:
        return PositionError(
            f"Slot {source.slot} is confirmed up to {Lsn(source.slot_confirmed)} but cdcd confirmed nothing past "
            f"{Lsn(checkpoint.flushed_lsn)}, before a PREPARE that was not decided: the slot was moved by somebody "
            "else, and the server does not send such a transaction again when it commits.",
            hint="Read the tables of those prepared transactions again into a new pipeline, or accept the missing "
            "changes with `cdcd run --accept-gap`.",
        )
    return None
