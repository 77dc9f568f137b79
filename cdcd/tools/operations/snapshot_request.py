"""Snapshot requests to the daemon: logical messages that are checked before they are sent.

The rule: a request that the daemon would refuse is refused here, by the same queries with which the daemon finds
and reads tables. So the table is looked up in the publication, its condition is planned, and a chunk without pages
is read of each part, which needs the same rights as reading rows.
"""

import asyncio
import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

from cdcd.adapters.postgres.connection import Connection, Dsn, emit_message, parse_dsn
from cdcd.adapters.postgres.lock import read_token
from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.adapters.postgres.snapshot_catalog import CatalogTimeouts, SnapshotCatalog
from cdcd.adapters.postgres.snapshot_reader import SnapshotReader
from cdcd.adapters.postgres.tables import published_tables, relatives
from cdcd.config.loading import Config
from cdcd.core.catalog.relations import key_columns
from cdcd.core.catalog.routing import table_named
from cdcd.core.catalog.table_rules import ChosenKeys
from cdcd.core.errors import CdcdError, ConfigError, SourceError
from cdcd.core.pasted import identifier, on_table, qualified
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.snapshot.chunks import Chunk, page_query
from cdcd.core.snapshot.reading import Changed, Refused, SourceTable
from cdcd.core.snapshot.signals import PREFIX, RESUME_TABLES, STOP_TABLES, Signal
from cdcd.core.snapshot.table_task import TableTask
from cdcd.core.table_names import split_table
from cdcd.tools.operations.sides import connect_to

MESSAGES_SINCE: Final = 140000
"""First server version whose pgoutput sends logical messages."""

_NOTHING_READ_BYTES: Final = 1 << 20
"""Limit in bytes for the answer to a query over no pages, which is always empty."""

Notice = Callable[[str], None]


def ask(config: Config, signal: Signal, notice: Notice) -> tuple[Signal, Lsn]:
    """Check the request and write it into the WAL.

    Args:
        notice: called with a sentence for each difference between the request as sent and as given.

    Returns:
        The request as it was sent, with leaves in place of a partitioned table, and its position in the WAL.

    Raises:
        ConfigError: the daemon would not follow the request.
        TransientError, SourceError: PostgreSQL does not answer, or refuses.
    """
    if not config.hears_messages or config.snapshot.signals == "off":
        raise ConfigError(
            "The daemon does not accept requests: postgres.messages is false or snapshot.signals is off.",
            hint="Change that, and restart the daemon.",
        )
    if signal.where and config.snapshot.signals != "all":
        raise ConfigError(
            "snapshot.signals does not allow --where.", hint="Set it to all, and restart the daemon."
        )
    return asyncio.run(_ask(config, signal, notice))


async def _ask(config: Config, signal: Signal, notice: Notice) -> tuple[Signal, Lsn]:
    dsn = parse_dsn(*config.postgres.access())
    async with AsyncExitStack() as stack:
        sql = await connect_to(config, "snapshot request")
        stack.push_async_callback(sql.close)
        if sql.info.server_version < MESSAGES_SINCE:
            raise ConfigError(
                "PostgreSQL 13 sends no logical messages to its clients, so the daemon would not receive the request.",
                hint="Requests need PostgreSQL 14 or newer. On 13, snapshot.added_tables reads tables that are added "
                "to the "
                "publication.",
            )
        signal = replace(signal, tables=tuple(map(table_named, signal.tables)))
        if signal.action == "start":
            signal = await _checked(config, dsn, sql, signal, stack, notice)
        elif signal.action in (STOP_TABLES, RESUME_TABLES):
            await _check_published(config, sql, signal.tables)
        signal = replace(signal, token=await _token(config, sql))
        try:
            Signal.decode(signal.encode().encode())
        except ValueError as error:
            raise ConfigError(f"The daemon would refuse the request: {error}.") from None
        return signal, await emit_message(sql, PREFIX, signal.encode())


async def _token(config: Config, sql: Connection) -> str:
    """Return the token that proves to the daemon that the request comes from the pipeline's role.

    ConfigError: the token is not available.

    An instance of an earlier version has no token, and refuses a request with one.
    """
    snapshot = config.snapshot
    if snapshot.signals_from == "anybody":
        return ""
    is_active, token = await read_token(sql, config.postgres.slot)
    if token or is_active:
        return token
    if snapshot.signal_token is not None:
        return snapshot.signal_token.get_secret_value()
    raise ConfigError(
        "No instance of the pipeline is active, so there is no token for the request.",
        hint="Start the pipeline and run the command again. Or set snapshot.signal_token_file, with which requests are "
        "sent while no instance runs.",
    )


async def _checked(
    config: Config, dsn: Dsn, sql: Connection, signal: Signal, stack: AsyncExitStack, notice: Notice
) -> Signal:
    """Return the request with the published tables that it names.

    Raises CdcdError if the daemon would refuse the request.
    """
    name, patience_s = f"{config.name} snapshot request", config.postgres.connect_timeout_s
    catalog = SnapshotCatalog(
        dsn,
        config.postgres.publication,
        application_name=name,
        timeouts=CatalogTimeouts(patience_s),
        selection=config.tables.selection,
    )
    stack.push_async_callback(catalog.close)
    published = await catalog.published()
    oids: list[int] = []
    keys = ChosenKeys(config.key.rules)
    ends_rows = config.writes_truncates
    left_out = {name for oid, name in (await catalog.sent()).items() if oid not in published}
    for table in signal.tables:
        if table in left_out:
            raise ConfigError(
                f"{table} is left out by tables.include or tables.exclude, so the daemon does not read it.",
                hint="Change the patterns and restart the daemon. With snapshot.added_tables: true, cdcd then reads "
                "the rows of the table.",
            )
        found = await _find(sql, published, table, config.postgres.publication)
        if [published[oid] for oid in found] != [table]:
            notice(
                f"{table} is published through its partitions, so they are read: "
                f"{', '.join(published[oid] for oid in found)}"
            )
        oids += [oid for oid in found if oid not in oids]
    reader = await SnapshotReader.open(dsn, application_name=name, connect_timeout_s=patience_s)
    stack.callback(reader.close)
    for oid in oids:
        await _check_table(
            catalog, reader, oid, published[oid], signal.where, notice, keys=keys, ends_rows=ends_rows
        )
    return replace(signal, tables=tuple(published[oid] for oid in oids))


async def _check_published(config: Config, sql: Connection, tables: Sequence[str]) -> None:
    """Raise ConfigError if one of these tables is not published under its name."""
    published = await published_tables(sql, config.postgres.publication)
    for table in tables:
        found = [published[oid] for oid in await _find(sql, published, table, config.postgres.publication)]
        if found != [table]:
            raise ConfigError(
                f"{table} is published through its partitions, and each partition is a table of its own.",
                hint=f"Name the partitions: {', '.join(found[:10])}{'' if len(found) <= 10 else ' and others'}.",
            )


def _check_keyless(name: str, where: str, *, repeats: bool, ends_rows: bool) -> None:
    """Raise CdcdError if the daemon cannot read the table, whose rows no key tells apart."""
    reason = (
        f"Several rows of {name} may have the same key (key.columns)"
        if repeats
        else f"{name} has no primary key"
    )
    hint = (
        f"Add the columns of the primary key of {name} to key.columns, and restart the daemon."
        if repeats
        else f"Add a primary key to {name}, not a DEFERRABLE one, or a replica identity by a unique index."
    )
    if not ends_rows:
        raise SourceError(
            f"{reason}, and such a table can be read again only with a truncate record, which topics.truncate or "
            f"topics.skipped_operations turns off.",
            hint=f"{hint} Or write truncate records (topics.truncate: true).",
        )
    if where:
        raise ConfigError(
            f"{reason}, so it is read as a whole: a truncate record ends the former rows of its topic.",
            hint="Ask for the table without --where.",
        )


async def _find(sql: Connection, published: Mapping[int, str], table: str, publication: str) -> list[int]:
    """Return the oids of the published tables that the name stands for. ConfigError: there is no such table."""
    exact = [oid for oid, name in published.items() if name == table]
    if exact:
        return exact
    found = await relatives(sql, table)
    if found is None:
        raise ConfigError(f"There is no table {table}.", hint=_meant(published, table))
    parts = [oid for oid in found.leaves if oid in published]
    if found.kind == "p" and parts:
        return parts
    parents = [published[oid] for oid in found.ancestors if oid in published]
    if parents:
        raise ConfigError(
            f"{table} is a partition of {parents[0]}, and its rows are published as rows of that table.",
            hint=f"Ask for the whole table: {on_table('--table', parents[0])}; --where selects among its rows.",
        )
    if found.kind in "vmf":
        raise ConfigError(
            f"{table} is not a table: PostgreSQL does not publish views, materialized views and foreign tables.",
            hint="Name the tables that have the rows.",
        )
    raise ConfigError(
        f"{table} is not in publication {publication}.",
        hint=f"ALTER PUBLICATION {identifier(publication)} ADD TABLE {qualified(table)}; with snapshot.added_tables: "
        f"true, cdcd then reads its rows.",
    )


def _meant(published: Mapping[int, str], table: str) -> str:
    """Return a hint with existing names for a name that no table has."""
    names = sorted(published.values())
    same = [name for name in names if split_table(name)[1] in (table, table.rpartition(".")[2])]
    near = same or difflib.get_close_matches(table, names, n=3)
    if near:
        options = [on_table("--table", name) for name in near]
        return f"Write the schema and the table: {' or '.join(options)}."
    return f"Published are: {', '.join(names[:10])}{'' if len(names) <= 10 else ' and others'}."


async def _check_table(
    catalog: SnapshotCatalog,
    reader: SnapshotReader,
    oid: int,
    name: str,
    where: str,
    notice: Notice,
    *,
    keys: ChosenKeys,
    ends_rows: bool,
) -> None:
    """Tell what becomes of a table without a key. Raise CdcdError if the daemon could not read the table."""
    try:
        look = await catalog.look([oid])
        if not look.tables:
            raise ConfigError(f"{name} was dropped a moment ago.", hint="Check the names of the tables.")
        table = look.tables[0]
        described = keys.applied(table.relation, (await catalog.describe([oid]))[oid])
        if described.repeats or not key_columns(table.relation, described):
            _check_keyless(name, where, repeats=described.repeats, ends_rows=ends_rows)
            notice(
                f"{name} has no key that identifies its rows. So a truncate record ends the former rows of its topic, "
                "and all rows follow."
            )
        problem = await catalog.examine(table, where) if where else ""
        if problem:
            raise ConfigError(
                f"The condition cannot be used on {name}: {problem}",
                hint="--where takes a condition for one table, as after WHERE in SQL.",
            )
        await _try_to_read(reader, table, where)
    except TableBusyError as error:
        notice(
            f"{name} could not be examined, because somebody has locked it: {error.message} The daemon waits for it."
        )


async def _try_to_read(reader: SnapshotReader, table: SourceTable, where: str) -> None:
    """Read a chunk without pages of each part."""
    names = table.sql_names
    for each in table.parts:
        chunk = Chunk(TableTask(table.name, table.oid), each.part.oid, each.part.filenode, 0, 0)
        answer = await reader.read(page_query(table, names[each.part.oid], chunk, where), _NOTHING_READ_BYTES)
        if isinstance(answer, Refused):
            raise _unreadable(table.name, answer)
        if isinstance(answer, Changed):
            raise TableBusyError(f"{table.name}: {answer.reason}.")


def _unreadable(name: str, answer: Refused) -> CdcdError:
    return SourceError(f"The rows of {name} cannot be read: {answer.reason}", hint=answer.hint)
