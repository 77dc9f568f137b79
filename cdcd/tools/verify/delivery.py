"""Checks before a comparison: the choice of the tables, the refusal of pipelines that cannot be compared, and whether a
pipeline has delivered everything that a snapshot of the source may see.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from cdcd.adapters.kafka.checkpoint import CheckpointTopic, peek_checkpoint
from cdcd.adapters.kafka.client import Properties
from cdcd.adapters.postgres.connection import Connection, Dsn, connect, emit_message, parse_dsn
from cdcd.adapters.postgres.shared_snapshot import SharedTable
from cdcd.adapters.postgres.tables import published_tables
from cdcd.config.loading import Config
from cdcd.core.catalog.patterns import TablePattern, parse_pattern
from cdcd.core.catalog.routing import table_named
from cdcd.core.catalog.sharing import is_share
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.resuming import refuse_other_server
from cdcd.core.errors import ConfigError, TransientError
from cdcd.core.pasted import resume_table
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.encoder import SKIPPABLE
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.signals import WATERMARK
from cdcd.daemon.settings import checkpoint_records
from cdcd.tools.operations.sides import system_identifier

ANSWER_S: Final = 15.0
LOOK_S: Final = 0.5

Notice = Callable[[str], None]


class NotDeliveredError(TransientError):
    """The data to compare was not delivered in time."""

    exit_code = 9


class TopicDelivery:
    """Waits for the deliveries of a pipeline.

    Args:
        client: librdkafka properties for Kafka.
        timeout_s: seconds that the pipeline may take to deliver commits from before a snapshot.
        notice: called with a sentence about a long wait.
    """

    def __init__(self, config: Config, client: Properties, timeout_s: float, notice: Notice) -> None:
        self._config = config
        self._topic = CheckpointTopic(client, config.topics.checkpoint, checkpoint_records(config), ANSWER_S)
        self._timeout_s = timeout_s
        self._notice = notice
        self._server = ""
        """system_identifier of the server that is compared."""

    async def begin(self) -> None:
        """Determine the server that is compared. PositionError: the pipeline reads another server, with other LSNs."""
        self._server = await system_identifier(self._config, "verify")
        self._peek()

    @property
    def application(self) -> str:
        """application_name of the connections to PostgreSQL."""
        return f"{self._config.name} verify"

    def dsn(self) -> Dsn:
        return parse_dsn(*self._config.postgres.access())

    async def published(self) -> list[str]:
        """Return the pipeline's tables that are published now, as `schema.table`."""
        has = self._config.tables.selection.test()
        sql = await self._connect()
        try:
            found = await published_tables(sql, self._config.postgres.publication)
            return sorted(name for name in found.values() if has(name))
        finally:
            await sql.close()

    async def nudge(self) -> None:
        """Write a message into the WAL, so that an idle pipeline gets past the snapshot."""
        sql = await self._connect()
        try:
            await emit_message(sql, WATERMARK, "verify")
        finally:
            await sql.close()

    async def _connect(self) -> Connection:
        return await connect(
            self.dsn(),
            application_name=self.application,
            connect_timeout_s=self._config.postgres.connect_timeout_s,
        )

    def _peek(self) -> Checkpoint | None:
        """Return the newest checkpoint. PositionError: the checkpoint is of another server."""
        found = peek_checkpoint(self._topic)
        refuse_other_server(found, self._server)
        return found

    async def wait(self, lsn: int) -> Checkpoint:
        """Wait for a checkpoint at or after the LSN: everything before the LSN is then in Kafka.

        `begin` must be called before.
        """
        deadline = time.monotonic() + self._timeout_s
        said = False
        while True:
            found = self._peek()
            if found is not None and found.position.end_lsn >= lsn:
                return found
            if time.monotonic() > deadline:
                at = "no checkpoint" if found is None else f"at {Lsn(found.position.end_lsn)}"
                raise NotDeliveredError(
                    f"The pipeline has not delivered up to {Lsn(lsn)} within {self._timeout_s:g} s: it is {at}.",
                    hint="Find the reason with `cdcd status`, or allow more time (--timeout).",
                )
            if not said:
                said = True
                self._notice(f"Waits until the pipeline has delivered up to {Lsn(lsn)}.")
            await asyncio.sleep(LOOK_S)


def stopped(checkpoint: Checkpoint, oid: int, name: str) -> str:
    """Return why the table with this oid cannot be compared, because it is set aside; "": it is not."""
    for each in checkpoint.tables:
        if each.oid == oid:
            return (
                f"the table is stopped: it is set aside since {Lsn(each.since_lsn)} (fault: {each.fault}), so its "
                f"topic lacks later changes. `{resume_table(name)}` lets it come back (docs/tables.md)"
            )
    return ""


def unread(checkpoint: Checkpoint, table: SharedTable) -> str:
    """Return why the topic may lack rows that the pipeline has not read; "" if the table is not being read."""
    progress = checkpoint.snapshot or Progress()
    oid, name = table.source.oid, table.source.name
    open_task = any(task.oid == oid or task.name == name for task in progress.tasks)
    if open_task or oid in progress.waiting.oids[progress.begun :]:
        return "the table is still being read (`cdcd snapshot status`)"
    return ""


def is_meant(
    name: str,
    patterns: Sequence[TablePattern],
    outbox: Collection[str],
    filtered: Sequence[TablePattern] = (),
) -> bool:
    """Return True if a published table is compared.

    Args:
        patterns: patterns of the chosen tables; () for all.
        outbox: tables whose rows are events, tables that are read by a query, and tables that share a topic. No topic
            has all of these rows and no others, so they cannot be compared.
        filtered: patterns of tables whose topic has only some of their rows.
    """
    if name in outbox or any(pattern.matches_name(name) for pattern in filtered):
        return False
    return not patterns or any(pattern.matches_name(name) for pattern in patterns)


def check_records(config: Config) -> None:
    """Raise ConfigError if the records lack transaction ids, or the topics leave out operations."""
    if config.event_flattening.enabled:
        raise ConfigError(
            "The pipeline's records are flattened (event_flattening), so they do not tell which transactions they are"
            " of.",
            hint="Compare a mirror of the topics: cdcd verify --target mirror --mirror mirror.yaml. Without a mirror, "
            "compare the rows with a consumer of your own.",
        )
    skipped = [op for op in SKIPPABLE if op in config.topics.skipped_operations]
    if skipped:
        raise ConfigError(
            f"The topics leave out the operations {', '.join(skipped)} (topics.skipped_operations), so they cannot"
            " be equal to the tables.",
            hint="Verify a pipeline that writes all operations.",
        )


def tell_left_out(config: Config, notice: Notice) -> None:
    """Report tables that are not compared because they are outboxes, or because topics lack some of their rows."""
    for name in config.outbox.tables:
        notice(f"{name} is an outbox table (outbox.tables): its rows are events, and are not compared.")
    for name in config.snapshot.queries:
        notice(f"{name} is read by a query (snapshot.queries), and is not compared.")
    for pattern in config.filters.tables:
        notice(f"Tables that match {pattern} have a filter (filters.tables), and are not compared.")
    for pattern in config.routes.tables:
        notice(
            f"Rows of tables that match {pattern} are in several topics (routes.tables), and are not compared."
        )
    for topic, shared in config.topics.shared.items():
        notice(
            f"Tables that match {', '.join(shared.tables)} share topic {topic} (topics.shared), and are not compared."
        )


def chosen(
    config: Config,
    published: Sequence[str],
    patterns: Sequence[TablePattern],
    wanted: Callable[[str], bool] = lambda _: True,
) -> list[str]:
    """Return the published tables that are compared.

    Args:
        wanted: returns True if the target has a table.

    Raises:
        ConfigError: no table is left.
    """
    filtered = [parse_pattern(pattern, "filters.tables") for pattern in config.filters.tables]
    filtered += [parse_pattern(pattern, "routes.tables") for pattern in config.routes.tables]
    names = config.topic_names()
    shared = [name for name in published if is_share(names.share_named(name))]
    outbox = {*map(table_named, config.outbox.tables), *config.snapshot.query_texts, *shared}
    has = config.tables.selection.test()
    meant = [
        name
        for name in published
        if has(name) and is_meant(name, patterns, outbox, filtered) and wanted(name)
    ]
    if not meant:
        raise ConfigError(
            f"The publication {config.postgres.publication} publishes no table that is meant and can be compared.",
            hint="`cdcd check` lists the published tables; --table takes schema.table, * and ?. Tables with a filter "
            "(filters.tables), routes (routes.tables), a query (snapshot.queries) or a shared topic (topics.shared) "
            "and outbox tables are not compared.",
        )
    return meant
