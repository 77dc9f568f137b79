"""Runs the blocking calls of a session to Kafka, each in the thread that may make it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.descriptions import SchemasTopic
from cdcd.adapters.kafka.errors import fill_names, unavailable
from cdcd.config.loading import Config
from cdcd.core.errors import CdcdError, TransientError
from cdcd.daemon.settings import (
    names,
)

TOPICS_S: Final = 15.0
"""Seconds within which the broker must answer about topics. A shorter `startup_timeout_s` has precedence."""

T = TypeVar("T")


class KafkaCalls:
    """Runs calls in threads, and names this pipeline in the hints of their errors.

    Attributes:
        thread: the only thread that may use the sink.
        giving_up: set when the session must end, so that calls that wait for Kafka end.
        answer_s: seconds within which a broker must answer.
    """

    def __init__(self, config: Config, thread: Executor) -> None:
        self._config = config
        self.thread = thread
        self.giving_up = threading.Event()
        self.answer_s = min(TOPICS_S, max(1.0, config.startup_timeout_s))

    async def call(self, call: Callable[[], T], *, anywhere: bool = False) -> T:
        """Run a blocking call to Kafka.

        Args:
            anywhere: True if the call does not use the sink, so that any thread may run it.

        Raises:
            SinkUnavailableError: no broker answers.
        """
        try:
            if anywhere:
                return await asyncio.to_thread(self._named, call)
            return await self.in_thread(call)
        except TransientError as error:
            raise unavailable(error) from error

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        """Run a call that may use the sink, in the sink's thread."""
        return asyncio.get_running_loop().run_in_executor(self.thread, self._named, call)

    def _named(self, call: Callable[[], T]) -> T:
        """Make the call, and fill the names of this pipeline into the hint of its error."""
        try:
            return call()
        except CdcdError as error:
            fill_names(error, names(self._config))
            raise

    def admin(self) -> Admin:
        """Return a client for the calling thread, which must also drop it, because dropping it may block."""
        connection, _ = client.configured(self._config.kafka)
        return Admin(connection, self.answer_s, self.giving_up)

    def schemas(self) -> SchemasTopic | None:
        """Return the schemas topic; None if the configuration has none."""
        config = self._config
        topic = config.topics.schemas
        if not topic:
            return None
        connection, _ = client.configured(config.kafka)
        return SchemasTopic(topic, connection, config.name, self.answer_s, self.giving_up)
