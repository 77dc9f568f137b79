"""Carries out the requests that programs write into a topic of Kafka (`snapshot.signal_topic`).

A thread of its own reads the topic while this instance is the active one, and makes each request by the same function
as `cdcd snapshot` and the HTTP server, which writes it into the WAL. There it has its place in the stream.

The rule: a record is done when its requests are in the WAL, or are refused for good. While PostgreSQL does not answer,
the record waits. So a record is carried out at least once: after a crash in between, tables may be read twice.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.signal_topic import SignalTopic
from cdcd.config.models import Config
from cdcd.config.reloading import reread
from cdcd.core.engine.refusals import Sparing
from cdcd.core.errors import CdcdError, TransientError
from cdcd.core.facts import Observer, cut_short
from cdcd.core.facts.snapshot import SignalsRead, SignalsUnread, SnapshotSignalRefused
from cdcd.core.snapshot.debezium_signals import read_signals
from cdcd.core.snapshot.signals import Signal
from cdcd.telemetry.state import Telemetry

POLL_S: Final = 0.5
AGAIN_S: Final = 5.0
"""Seconds until the topic or PostgreSQL is asked again after a failure."""

TOLD_S: Final = 60.0
"""Seconds between two events about a topic that cannot be read."""

WORDS_MAX: Final = 200
END_S: Final = 0.2


class SignalWatch:
    """Runs from `start` to `stop`.

    Args:
        topic: the topic.
        ask: checks a request and writes it into the WAL. It raises CdcdError.
        is_active: whether this instance is the active one.
    """

    def __init__(
        self,
        config: Config,
        topic: str,
        ask: Callable[[Config, Signal], object],
        observe: Observer,
        is_active: Callable[[], bool],
    ) -> None:
        self._config = config
        self._topic = topic
        self._ask = ask
        self._observe = observe
        self._is_active = is_active
        self._sparing = Sparing()
        self._told_at = -TOLD_S
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)

    def start(self) -> None:
        """Start to read as soon as the instance is the active one."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            if not self._is_active():
                continue
            try:
                self._read()
            except CdcdError as error:
                self._tell(error)
                self._stop.wait(AGAIN_S)

    def _read(self) -> None:
        """Carry out what comes, while the instance is the active one. CdcdError: Kafka refuses, or is away."""
        config = reread(self._config)
        connection, _ = client.configured(config.kafka)
        group = f"cdcd_{config.name}_signals"
        with SignalTopic(connection, self._topic, group, stopping=self._stop, refuse=self._refuse) as topic:
            topic.begin()
            self._observe(SignalsRead(topic=self._topic))
            while self._is_active() and not self._stop.is_set():
                message = topic.read(POLL_S)
                if message is None:
                    continue
                # The key names the connector, or the pipeline, that a signal is for.
                if message.key() == config.topics.prefix.encode():
                    self._carry_out(config, message.value() or b"")
                if self._stop.is_set():
                    return
                topic.done(message)

    def _carry_out(self, config: Config, content: bytes) -> None:
        """Make the requests of a signal, or report why it is refused. Wait for a PostgreSQL that does not answer."""
        try:
            signals = read_signals(content, config.name)
        except ValueError as error:
            self._refuse(str(error))
            return
        for signal in signals:
            while not self._stop.is_set():
                try:
                    self._ask(config, signal)
                except TransientError as error:
                    self._tell(error)
                    self._stop.wait(AGAIN_S)
                except CdcdError as error:
                    self._refuse(error.message)
                    break
                else:
                    break

    def _refuse(self, reason: str) -> None:
        left_out = self._sparing.admit(int(time.time()))
        if left_out is not None:
            said = f"a signal in {self._topic}: {reason}"
            self._observe(SnapshotSignalRefused(reason=cut_short(said, WORDS_MAX), left_out=left_out))

    def _tell(self, error: CdcdError) -> None:
        now = time.monotonic()
        if now - self._told_at >= TOLD_S:
            self._told_at = now
            self._observe(SignalsUnread(topic=self._topic, message=error.message, hint=error.hint))


def signals_of(
    config: Config, ask: Callable[[Config, Signal], object], observe: Observer, telemetry: Telemetry
) -> SignalWatch | None:
    """Return what carries out the requests in the topic; None if the configuration names no topic."""
    topic = config.snapshot.signal_topic
    if topic is None:
        return None
    return SignalWatch(
        config, topic, ask, observe, lambda: telemetry.role == "active" and telemetry.streaming
    )
