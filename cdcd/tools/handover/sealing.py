"""The checkpoint of a pipeline that changes its server: when it may be sealed, and its contents afterwards.

This module has no I/O.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from cdcd.core.catalog.oids import Oids
from cdcd.core.engine.checkpoint import Checkpoint, Seal, tables_sum
from cdcd.core.engine.resuming import refuse_other_server, refuse_sealed
from cdcd.core.errors import ConfigError, PositionError
from cdcd.core.pasted import identifier
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.transactions.position import Position


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription on the new server, which receives the changes of the former server.

    Attributes:
        origin: replication origin of the changes that it applies.
        slot: name of its slot on the former server.
        unready: tables that it does not follow yet.
        without: published tables that the subscription lacks.
    """

    name: str
    origin: str
    slot: str
    enabled: bool
    unready: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


def refuse_unfit(subscription: Subscription, former: Collection[str], new: Collection[str]) -> None:
    """Raise ConfigError unless the subscription brings all tables of the pipeline to the new server.

    Args:
        former, new: names of the pipeline's published tables on the two servers.
    """
    if set(former) != set(new):
        only = [(name, "former") for name in sorted(set(former) - set(new))]
        only += [(name, "new") for name in sorted(set(new) - set(former))]
        named = ", ".join(f"{name} (on the {which} server)" for name, which in only[:5])
        raise ConfigError(
            f"{len(only)} tables are published on only one of the two servers: {named}.",
            hint="Make both publications publish the same tables, use the same tables.include and tables.exclude in "
            "both configurations, and run the command again.",
        )
    if not subscription.enabled or not subscription.slot:
        raise ConfigError(
            f"Subscription {subscription.name} is not enabled, or has no slot.",
            hint=f"ALTER SUBSCRIPTION {identifier(subscription.name)} ENABLE on the new server, and run the "
            "command again.",
        )
    if subscription.without:
        raise ConfigError(
            f"Subscription {subscription.name} does not have {', '.join(subscription.without[:5])}.",
            hint="Changes of all tables of the pipeline must come by one subscription, because only one has them in "
            "the order of their commits. Add them on the former server, and ALTER SUBSCRIPTION … REFRESH PUBLICATION.",
        )
    if subscription.unready:
        raise ConfigError(
            f"Subscription {subscription.name} still copies {', '.join(subscription.unready[:5])}.",
            hint="Wait until pg_subscription_rel.srsubstate is r for each of its tables, and run the command again.",
        )


def refuse_same_oids(
    former: Mapping[int, str],
    new: Mapping[int, str],
    columns: tuple[Mapping[int, str], Mapping[int, str]],
    *,
    accept: bool,
) -> None:
    """Raise ConfigError if `cdcd mirror` would confuse columns of the new server with columns of the former one.

    A mirror identifies a table by its oid and a column by its number. If both are the same, the mirror continues;
    if the table has another oid, it stops with an error. If the oid is the same by chance and the numbers differ,
    the mirror would be silently wrong.

    Args:
        former, new: names of the published tables on the two servers, by oid.
        columns: descriptions of their columns on the two servers, by the oid of the table.
    """
    there, here = columns
    mixed = [
        name
        for oid, name in sorted(former.items())
        if new.get(oid) == name and there.get(oid) != here.get(oid)
    ]
    if mixed and not accept:
        raise ConfigError(
            f"{len(mixed)} tables have the same oid on both servers, but other numbers, types or labels of columns: "
            f"{', '.join(mixed[:5])}.",
            hint="cdcd mirror would take one column for another. Create these tables again on the new server, so that "
            "they get other oids (DROP TABLE, CREATE TABLE, ALTER SUBSCRIPTION … REFRESH PUBLICATION), and run the "
            "command again. If no mirror reads the topics, add --accept-same-oids.",
        )


def refuse_other_numbers(
    former: Mapping[str, Mapping[str, int]], new: Mapping[str, Mapping[str, int]], *, accept: bool
) -> None:
    """Raise ConfigError if columns have other attribute numbers on the new server, which Protobuf's fields use.

    A table that was restored from a dump has no gaps of dropped columns, so its numbers may belong to other
    columns.

    Args:
        former, new: numbers of columns, by the name of the table and of the column.
    """
    moved = [
        f"{table}.{column} ({number}, there {new[table][column]})"
        for table, columns in sorted(former.items())
        for column, number in sorted(columns.items(), key=lambda pair: pair[1])
        if table in new and new[table].get(column, number) != number
    ]
    if moved and not accept:
        raise ConfigError(
            f"{len(moved)} columns have another attribute number on the new server, and so another field number in "
            f"Protobuf: {', '.join(moved[:5])}.",
            hint="Programs that were compiled with the schemas of the former server would take one column for another. "
            "Create these tables again on the new server with a column in each place of a dropped one, and drop "
            "those (ALTER TABLE … DROP COLUMN). ALTER SUBSCRIPTION … REFRESH PUBLICATION, and run the command again. "
            "If all programs use the schema that each record names, add --accept-other-numbers.",
        )


def refuse_lower(former: int, slot: int, *, accept: bool) -> None:
    """Raise PositionError if LSNs of the new server are not higher than those that consumers have seen.

    Args:
        former: end of the former server's WAL, as an LSN.
        slot: position at which the pipeline's slot on the new server begins.
    """
    if slot > former or accept:
        return
    raise PositionError(
        f"The slot on the new server begins at {Lsn(slot)}, and the former server's WAL is at {Lsn(former)}. Consumers "
        "that order changes by LSN, as cdcd mirror does, would mistake new changes for old ones.",
        hint="If the new server's WAL is higher by now, drop the slot there (SELECT pg_drop_replication_slot), and run "
        "the command again. Else raise it: stop the new server, and let pg_resetwal --next-wal-file begin a WAL file "
        "far behind that of the former one, before a slot is made there. If no consumer orders by LSN: "
        "--accept-lower-lsns.",
    )


def refuse_unsealable(checkpoint: Checkpoint | None, system_identifier: str) -> None:
    """Raise PositionError unless this checkpoint of the former server can be sealed."""
    if checkpoint is None:
        raise PositionError(
            "The pipeline has no checkpoint, so it has delivered nothing.",
            hint="Point it at the new server, and start it there with `cdcd run`.",
        )
    refuse_sealed(checkpoint)
    refuse_other_server(checkpoint, system_identifier)
    snapshot = checkpoint.snapshot
    if snapshot is not None and not (snapshot.is_done and not snapshot.unlisted):
        raise PositionError(
            f"Tables are still being read ({snapshot.tables_left} are left).",
            hint="Wait until `cdcd snapshot status` shows none, and run the command again.",
        )
    if checkpoint.tables:
        raise PositionError(
            f"{len(checkpoint.tables)} tables are set aside, so the topics lack their changes, and the new server does "
            "not have the tables under the same oids.",
            hint="`cdcd tables` names the tables. Let them come back with `cdcd tables resume`, and run the command "
            "again.",
        )


def sealed(checkpoint: Checkpoint | None, system_identifier: str, fence_lsn: int, seal: Seal) -> Checkpoint:
    """Return the checkpoint with the seal. PositionError: the checkpoint has moved since the fence was determined."""
    refuse_unsealable(checkpoint, system_identifier)
    assert checkpoint is not None
    position = checkpoint.position
    if position.end_lsn != fence_lsn or position.events_done:
        raise PositionError(
            f"The checkpoint is at {position}, and was at {Lsn(fence_lsn)}: an instance was still active.",
            hint="Stop all instances of the pipeline, and run the command again.",
        )
    return replace(checkpoint, seal=seal, epoch=checkpoint.epoch + 1)


def unsealed(checkpoint: Checkpoint | None, system_identifier: str) -> Checkpoint:
    """Return the checkpoint of the former server without the seal.

    PositionError: the server is not the former one, or there is no seal.
    """
    if checkpoint is None or checkpoint.seal is None:
        refuse_other_server(checkpoint, system_identifier)
        raise PositionError(
            "The pipeline is not sealed, so there is nothing to cancel.",
            hint="`cdcd run` continues with the former server.",
        )
    if checkpoint.system_identifier != system_identifier:
        raise PositionError(
            f"The pipeline was sealed on system_identifier {checkpoint.system_identifier}, the server's is "
            f"{system_identifier}.",
            hint="Give --config the configuration of the former server.",
        )
    return replace(checkpoint, seal=None, epoch=checkpoint.epoch + 1)


def seal_for(
    checkpoint: Checkpoint | None, system_identifier: str, slot_lsn: int | None, published: Mapping[int, str]
) -> Seal:
    """Return the seal if it is for this server.

    PositionError: it is for another server, or the publication or slot has changed since.

    Args:
        slot_lsn: confirmed position of the pipeline's slot on this server; None: there is no slot.
    """
    seal = None if checkpoint is None else checkpoint.seal
    if seal is None:
        raise PositionError(
            "The pipeline is not sealed.",
            hint="Run `cdcd handover prepare` first, with the configuration of the former server.",
        )
    if seal.system_identifier != system_identifier:
        raise PositionError(
            f"The pipeline was sealed for system_identifier {seal.system_identifier}, the server's is "
            f"{system_identifier}.",
            hint="Give --config the configuration of the new server.",
        )
    if slot_lsn != seal.slot_lsn:
        where = "is gone" if slot_lsn is None else f"is at {Lsn(slot_lsn)}"
        raise PositionError(
            f"The slot on the new server {where}, and was created at {Lsn(seal.slot_lsn)}. The changes in between are "
            f"not known.",
            hint="Find out who moved or dropped it. Then `cdcd handover cancel` with the configuration of the former "
            "server, and prepare again.",
        )
    if tables_sum(published) != seal.tables:
        raise PositionError(
            "The new server publishes other tables than when the handover was prepared.",
            hint="Publish the tables of that time, run adopt, and add other tables afterwards.",
        )
    return seal


def adopted(
    checkpoint: Checkpoint, system_identifier: str, timeline: int, position: int, published: Mapping[int, str]
) -> Checkpoint:
    """Return the checkpoint with which the pipeline continues at this position of the new server.

    Its tables have other oids there. All rows of the published tables were delivered from the former server.
    """
    snapshot = checkpoint.snapshot
    if snapshot is not None and snapshot.known is not None:
        # Labels of enums are read again, because types have other oids too.
        snapshot = replace(
            snapshot,
            known=Oids(published, published),
            waiting=Oids(()),
            begun=0,
            unlisted=Oids(()),
            labels=0,
            partitions="",
            newest_member=0,
        )
    return replace(
        checkpoint,
        system_identifier=system_identifier,
        timeline=timeline,
        position=Position(end_lsn=position),
        flushed_lsn=position,
        epoch=checkpoint.epoch + 1,
        snapshot=snapshot,
        seal=None,
        # Both contain oids.
        bindings="",
        tables=(),
    )
