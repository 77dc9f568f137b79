"""The server's state of a pipeline: its slot, instances, publication and prepared transactions, and the position of its
stream before a start.

The state is read once over one connection, without changing anything. `cdcd status`, `cdcd drop` and `cdcd reset`
use it.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from cdcd.adapters.postgres.answers import translated
from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.lock import PEER, lock_condition
from cdcd.adapters.postgres.publication import Publication, is_ours, read_publication
from cdcd.adapters.postgres.replication import Identity, ReplicationStream
from cdcd.adapters.postgres.slot import SlotState, read_slot
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.resuming import Source


@dataclass(frozen=True, slots=True)
class Instance:
    """A session of an instance of the pipeline.

    Attributes:
        since: start of the session.
        client: address of the client; "" for a local client, or if the role may not see the address.
    """

    pid: int
    application_name: str
    client: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared transaction of the database."""

    gid: str
    since: datetime


@dataclass(frozen=True, slots=True)
class PipelineState:
    """The server's state of a pipeline at one moment.

    Attributes:
        at: time of the server's clock.
        slot_reader: application_name of the session that reads the slot; "" if no session reads it.
        keep_bytes: max_slot_wal_keep_size in bytes; None: no limit is set.
        active: the session that holds the pipeline's lock; None: no instance is active.
        standbys: the other sessions that wait for the lock.
        publication_is_ours: True if cdcd created the publication.
        publication_owner: role that owns the publication, if cdcd's role may not act as this role; "": it may.
    """

    at: datetime
    version: str
    database: str
    slot: SlotState | None
    slot_reader: str
    keep_bytes: int | None
    active: Instance | None
    standbys: tuple[Instance, ...]
    publication: Publication | None
    publication_is_ours: bool
    prepared: tuple[Prepared, ...]
    publication_owner: str = ""


_SERVER: Final = """
SELECT now(), current_setting('server_version'), current_database(),
       (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size')
"""

# Any role may acquire an advisory lock or choose an application_name.
_INSTANCES: Final = f"""
SELECT a.pid, coalesce(a.application_name, ''), coalesce(host(a.client_addr), ''), a.backend_start,
       EXISTS (SELECT FROM pg_locks WHERE {{lock}} AND pg_locks.pid = a.pid AND pg_locks.database = a.datid)
  FROM pg_stat_activity a
 WHERE a.datname = current_database()
   AND (a.application_name = %s OR a.pid IN (SELECT pid FROM pg_locks WHERE {{lock}})) AND {PEER}
 ORDER BY a.backend_start
"""

_OWNER: Final = """
SELECT pg_get_userbyid(pubowner) FROM pg_publication WHERE pubname = %s AND NOT pg_has_role(pubowner, 'USAGE')
"""

_PREPARED: Final = """
SELECT gid, prepared FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared
"""


async def read_state(connection: Connection, pipeline: str, slot: str, publication: str) -> PipelineState:
    """Read the state from the server. Raises TransientError and SourceError."""

    async def rows(query: str, *parameters: object) -> Any:
        return await (await connection.execute(query.encode(), parameters)).fetchall()

    state = await read_slot(connection, slot)
    published = await read_publication(connection, publication)
    ours = published is not None and await is_ours(connection, publication)
    with translated("looking at the pipeline", {}):
        ((at, version, database, keep_mb),) = await rows(_SERVER)
        reader = await rows(
            "SELECT application_name FROM pg_stat_activity WHERE pid = %s", state and state.active_pid
        )
        query = _INSTANCES.format(lock=lock_condition(slot))
        sessions = [
            (Instance(pid, name, client, since), holds)
            for pid, name, client, since, holds in await rows(query, f"{pipeline} lock")
        ]
        prepared = await rows(_PREPARED)
        owner = await rows(_OWNER, publication)
    return PipelineState(
        at=at,
        version=version,
        database=database,
        slot=state,
        slot_reader=(reader[0][0] or "") if reader else "",
        keep_bytes=None if keep_mb < 0 else keep_mb << 20,
        active=next((each for each, holds in sessions if holds), None),
        standbys=tuple(each for each, holds in sessions if not holds),
        publication=published,
        publication_is_ours=ours,
        prepared=tuple(Prepared(gid, since) for gid, since in prepared),
        publication_owner=owner[0][0] if owner else "",
    )


async def read_source(
    stream: ReplicationStream,
    identity: Identity,
    slot_confirmed: int | None,
    found: Checkpoint | None,
    *,
    slot_name: str,
    options: str,
) -> Source:
    """Return the server's state, as far as it matters for the checkpoint that was found.

    Args:
        slot_confirmed: confirmed_flush_lsn of the slot; None: the slot does not exist.
        options: the options that decide which events the server sends (`Source.stream`): publication, messages,
            origin.

    Raises:
        TransientError: the connection is lost.
    """
    before = identity.timeline if found is None else found.timeline
    return Source(
        system_identifier=identity.system_identifier,
        timeline=identity.timeline,
        wal_end=identity.flushed,
        slot_confirmed=slot_confirmed,
        stream=options,
        branched_at=await stream.branched_at(before, identity.timeline),
        slot=slot_name,
    )
