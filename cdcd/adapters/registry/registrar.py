"""Has schemas registered for a session, beside the event loop, and waits for a registry that is away.

The rule: a schema whose id is known is never asked for. So while the registry is away, tables in known forms go on,
also after a restart. Only a new form waits, and everything behind it in the stream.
"""

import asyncio
import random
import time
from collections.abc import Collection

from cdcd.adapters.registry.client import Registry
from cdcd.config.models import Config
from cdcd.core.engine.reachability import Reachability
from cdcd.core.errors import RegistryUnavailableError
from cdcd.core.facts import Observer
from cdcd.core.facts_operation import SchemaIdsForgotten, SchemaRegistered
from cdcd.core.records.schema_registrations import SchemaIds, SchemaUse
from cdcd.core.retry import Backoff


class Registrar:
    """Registers schemas, and puts their ids into `ids`.

    Raises ConfigError if a certificate of the configuration cannot be used.
    """

    def __init__(self, config: Config, ids: SchemaIds, reach: Reachability, observe: Observer) -> None:
        self._registry = Registry(config)
        self._ids = ids
        self._reach = reach
        self._observe = observe
        self._retry = config.kafka.retry

    async def verify(self) -> None:
        """Forget ids that the registry does not have any more. One that is away is not waited for.

        Raises:
            SinkError: the registry refuses to answer.
        """
        newest = self._ids.newest()
        if newest is None:
            return
        try:
            known = await asyncio.to_thread(self._registry.has, newest)
        except RegistryUnavailableError:
            return
        if not known:
            self._observe(
                SchemaIdsForgotten(registry=self._registry.url, id=newest, count=self._ids.forget())
            )

    async def ensure(self, uses: Collection[SchemaUse]) -> None:
        """Have these schemas registered. Waits for as long as the registry is away.

        Raises:
            SinkError: the registry refuses a schema.
        """
        backoff = Backoff(self._retry.initial_s, self._retry.max_s)
        for use in uses:
            while self._ids.get(use) is None:
                asked_at = time.monotonic()
                try:
                    schema_id = await asyncio.to_thread(self._registry.register, use)
                except RegistryUnavailableError as error:
                    now = time.monotonic()
                    self._reach.failed(
                        "registry", error, asked_at=asked_at, patience_s=now - asked_at, now=now
                    )
                    await asyncio.sleep(backoff.next(random.random()))  # noqa: S311  spreads attempts, guards nothing
                    continue
                self._ids.put(use, schema_id)
                self._reach.answered("registry", time.monotonic())
                self._observe(SchemaRegistered(subject=use.subject, id=schema_id))
        self._reach.answered("registry", time.monotonic())
