"""Watches the partitions of tables that are published as a whole (`core/catalog/partitions.py`) in a session."""

import time
from typing import Final

from cdcd.adapters.credentials.tokens import PROCESS_TOKEN
from cdcd.adapters.postgres.connection import Connection, emit_message
from cdcd.adapters.postgres.partition_tree import count_attached, read_names, read_partitions
from cdcd.config.loading import Config
from cdcd.core.catalog.partitions import Partitions, gone, happened, recalled, remembered, to_read_again
from cdcd.core.facts import Observer
from cdcd.core.facts.tables import PartitionsUnremembered
from cdcd.core.snapshot.signals import PREFIX, REREAD_TABLES, Signal

PARTITIONS_S: Final = 30.0
"""Seconds between two reads of the partitions of published tables."""


class PartitionWatch:
    """Reports partitions that were attached, detached or truncated; by choice, lets their tables be read again.

    Attributes:
        remembered: the partitions that were read last, for the checkpoint; None: they were not read yet. It follows
            after the requests to read tables again, so that a killed session leaves these to the next one.
    """

    def __init__(self, config: Config, observe: Observer) -> None:
        self.remembered: str | None = None
        self._config = config
        self._observe = observe
        self._last: Partitions | None = None
        self._next_at = 0.0
        self._left_out: list[str] = []

    async def look(self, sql: Connection, former: str) -> None:
        """Compare the partitions with those that were read last, if it is time to.

        Args:
            former: the partitions in the checkpoint that the session began with; "": it has none.

        Raises:
            TransientError, SourceError: PostgreSQL does not answer, or refuses the queries.
        """
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + PARTITIONS_S
        found = await read_partitions(sql, self._config.postgres.publication)
        before = recalled(former) if self._last is None else self._last
        found = await count_attached(sql, before, found)
        left = gone(before, found)
        facts = happened(before, found, await read_names(sql, left) if left else {})
        for fact in facts:
            self._observe(fact)
        if self._config.snapshot.changed_partitions == "read":
            for table in to_read_again(facts):
                signal = Signal(REREAD_TABLES, (table,), pipeline=self._config.name, token=PROCESS_TOKEN)
                await emit_message(sql, PREFIX, signal.encode())
        self._last = found
        self.remembered, left_out = remembered(found)
        if left_out != self._left_out:
            self._left_out = left_out
            if left_out:
                self._observe(PartitionsUnremembered(tables=left_out))
