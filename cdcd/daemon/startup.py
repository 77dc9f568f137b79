"""Creation of a session from a configuration, and clean-up at its end.

This module decides nothing: `engine/startup.py` contains the order of the steps and all refusals.
`start_requests.py` carries out the requests. `wiring.py` assembles their results.
"""

import asyncio
from typing import Final

from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.registry.client import Registrar
from cdcd.config.loading import Config
from cdcd.core.engine.leavings import Leaving
from cdcd.core.engine.startup import Start
from cdcd.core.engine.startup_rules import FormerSessions, GapChoice, Ready
from cdcd.core.errors import CdcdError
from cdcd.core.facts import Observer
from cdcd.core.facts.start import SlotDropped
from cdcd.core.records.schema_registrations import SchemaIds
from cdcd.core.transactions.ledger import Ledger
from cdcd.daemon.kafka_side import KafkaSide
from cdcd.daemon.pipeline import Pipeline
from cdcd.daemon.postgres_side import PostgresSide
from cdcd.daemon.rules.start import look_at_rules
from cdcd.daemon.settings import start_settings
from cdcd.daemon.snapshot_driver import MakeComparer
from cdcd.daemon.start_requests import StartRequests
from cdcd.daemon.tables import tell_tables
from cdcd.daemon.wiring import Wiring, connect_pipeline, start_replication
from cdcd.telemetry.state import Telemetry

LEAVE_S: Final = 10.0
"""Seconds for dropping a slot that a failed start has created."""


class Startup:
    """Owner of everything that a session holds open. Call `open` once, and `close` in any case.

    Args:
        former: what former sessions of the process found out.
        gap: what the command says about a gap.
        make_comparer: makes what compares topics with tables; None: no topic can be compared.
    """

    def __init__(
        self,
        config: Config,
        telemetry: Telemetry,
        observe: Observer,
        kafka: KafkaSide,
        former: FormerSessions,
        gap: GapChoice,
        make_comparer: MakeComparer | None = None,
    ) -> None:
        self.config = config
        self.telemetry = telemetry
        self.observe = observe
        self.postgres = PostgresSide(config, telemetry, observe)
        self.kafka = kafka
        self.dsn = parse_dsn(*config.postgres.access())
        self._start = Start(start_settings(config), observe, former, gap)
        self._former = former
        self._made = StartRequests(
            config,
            telemetry,
            observe,
            postgres=self.postgres,
            kafka=self.kafka,
            former=former,
            make_comparer=make_comparer,
        )
        self.stack = self._made.stack
        self._pipeline: Pipeline | None = None
        self._ledger: Ledger | None = None
        self._schema_ids = SchemaIds()
        self._registrar: Registrar | None = None

    @property
    def lapsed(self) -> frozenset[int]:
        """Server processes that held the lock for this process when the lease ran out.

        Another instance may be active now.
        """
        if self._made.lock is None:
            return self._former.lapsed
        return frozenset({self._made.lock.backend_pid}) if self._made.lock.lapsed else frozenset()

    @property
    def has_lock(self) -> bool:
        """True if this instance is the active one."""
        return self._made.lock is not None

    @property
    def flushed(self) -> int:
        """Highest position that was confirmed to PostgreSQL so far. The next session must not confirm a lower one."""
        return self._former.flushed if self._ledger is None else self._ledger.flushed

    def give_up(self) -> None:
        """Make every call that waits for Kafka return with a `TransientError`."""
        self.kafka.calls.giving_up.set()

    async def close(self) -> None:
        """Close everything, and wait until the Kafka thread has finished with this session's sink.

        The stream is closed first, because a PostgreSQL that shuts down waits for it, but must not wait for Kafka.
        """
        self.give_up()
        if self._made.stream is not None:
            self._made.stream.close()
        await self.stack.aclose()

    async def leave(self, error: BaseException | None) -> str:
        """End the session after `error` (None: it was stopped), and drop a slot that it created if no session needs it.

        Call this once, before `close`.

        Returns:
            Reason why a slot that this session created stays; empty if there is none.
        """
        has_shipped = self._pipeline is not None and self._pipeline.has_shipped
        unknown = self._made.sink is not None and self._made.sink.outcome_unknown
        leaving = self._start.leaves(error, has_shipped=has_shipped, outcome_unknown=unknown)
        if leaving is Leaving.NOTHING:
            return ""
        if leaving is Leaving.KEEP:
            # An operator who stops a streaming pipeline knows that its slot stays.
            streams = self._pipeline is not None and not self._pipeline.is_reading
            return "" if error is None and streams else leaving.value
        self.give_up()
        if self._made.stream is not None:
            self._made.stream.close()
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._take_back(leaving)
        except TimeoutError:
            return f"it could not be dropped: no answer in {LEAVE_S:g} s"
        except CdcdError as failure:
            return f"it could not be dropped: {failure.message}"
        self.observe(SlotDropped(slot=self.config.postgres.slot))
        return ""

    async def _take_back(self, leaving: Leaving) -> None:
        """Remove the checkpoint first: a start accepts a slot without checkpoint, but not a checkpoint without slot."""
        assert self._made.lock is not None
        assert self._made.sql is not None
        await self._made.lock.verify(LEAVE_S)
        if leaving is Leaving.FORGET:
            await self.kafka.forget()
        await self.postgres.end_former_stream(self._made.sql)
        await self._made.lock.verify(LEAVE_S)
        await self.postgres.drop_slot(self._made.sql)

    async def open(self) -> Pipeline:
        """Carry out the start up to a running stream, or up to an initial snapshot that can be read.

        Raises:
            TransientError: PostgreSQL or Kafka does not answer, or is not ready.
            FatalError: configuration, privileges or positions are wrong, and an operator must act.
        """
        ready = await self._made.carry_out(self._start.run())
        if self.config.needs_registry:
            # Now no other instance can add an id.
            await self._know_schemas()
        assert self._made.sql is not None
        assert self._made.snapshots is not None
        await tell_tables(
            self.config,
            self._made.sql,
            self._made.snapshots,
            ready.published,
            self.observe,
            bindings=self._made.bindings,
        )
        if self.config.heartbeat.watermark_interval_s:
            names = self.config.topic_names()
            await self.kafka.topics.check_marked(
                {names.qualified(table) for table in ready.published.values()}
            )
        await self.kafka.topics.release_claims(ready.published.values())
        await self._look_at_rules(ready)
        self._ledger = Ledger(ready.flushed)
        self.telemetry.durable_from = None if ready.logged is None else ready.checkpoint.position.end_lsn
        wiring = self._wiring(ready)
        pipeline = self._pipeline = connect_pipeline(wiring, self._ledger)
        if ready.exported is None and ready.logged is None:
            await start_replication(wiring)
        return pipeline

    async def _know_schemas(self) -> None:
        """Load the ids of schemas that former runs used, if the registry still has them."""
        ids = SchemaIds(self.config.registry.address)
        self._schema_ids = ids
        self._registrar = Registrar(self.config, ids, self.telemetry.reach, self.observe)
        await self.kafka.read_schema_ids(ids)
        await self._registrar.verify()

    async def _look_at_rules(self, ready: Ready) -> None:
        """Refuse rules that do not fit their tables, and report rules without effect."""
        assert self._made.sql is not None
        found = await look_at_rules(
            self.config,
            self._made.sql,
            ready.published,
            self._made.bindings,
            hears_messages=ready.options.messages,
        )
        found.apply(self.observe)

    def _wiring(self, ready: Ready) -> Wiring:
        assert self._made.lock is not None
        assert self._made.sql is not None
        assert self._made.stream is not None
        assert self._made.sink is not None
        assert self._made.identity is not None
        assert self._made.snapshots is not None
        return Wiring(
            config=self.config,
            telemetry=self.telemetry,
            observe=self.observe,
            postgres=self.postgres,
            kafka=self.kafka,
            stack=self.stack,
            dsn=self.dsn,
            lock=self._made.lock,
            sql=self._made.sql,
            stream=self._made.stream,
            wal_sender_timeout_s=self._made.wal_sender_timeout_s,
            sink=self._made.sink,
            database=self._made.identity.database,
            snapshots=self._made.snapshots,
            ready=ready,
            unstreamed_until=self._former.unstreamed_until,
            binary=self._former.binary,
            schema_ids=self._schema_ids,
            registrar=self._registrar,
            bindings=self._made.bindings,
            log=self._made.log,
        )
