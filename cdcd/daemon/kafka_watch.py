"""Asks Kafka once a second whether it answers, from a thread and a client of its own.

The sink cannot tell: an idle daemon sends nothing, and librdkafka reports a broker that is frozen or cut off only when
a request has timed out, after a minute. So the watch asks a broker who leads the checkpoint's partition, which every
batch needs, and then the leaders of the topics of the batch that is on its way. It waits `ANSWER_S` for all answers
together. `engine/reachability.py` decides what an answer, or none, means.
"""

import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from cdcd.config.models import Config
from cdcd.config.secrets import reread
from cdcd.errors import CdcdError
from cdcd.kafka import client
from cdcd.kafka.admin import Admin
from cdcd.kafka.leaders import Leaders

ASK_S: Final = 1.0
"""Seconds between two questions."""

ANSWER_S: Final = 3.0
"""Seconds to wait for an answer. With `ASK_S`, an outage is told within five seconds."""

RENEW_S: Final = 20.0
"""Seconds without an answer after which another client asks. Once, on a busy machine, a client got no answer for two
minutes after the broker had come back. The sink delivered to that broker meanwhile."""

END_S: Final = 0.2
"""Seconds to wait for the thread at the end. It is a daemon thread, so it holds nothing up if it still waits."""

Report = Callable[[float, CdcdError | None], None]
"""Is given when the question was asked (monotonic seconds), and why there was no answer; None: there was one."""


class KafkaWatch:
    """Runs from `start` to `stop`, and calls `report` from its own thread after each question.

    Args:
        written: gives the topics that are being written at this moment.
    """

    def __init__(self, config: Config, report: Report, written: Callable[[], Collection[str]]) -> None:
        self._config = config
        self._report = report
        self._written = written
        self._stop = threading.Event()
        self._admin: Admin | None = None
        self._leaders: Leaders | None = None
        self._given: dict[str, client.Value] = {}
        self._renew_at = 0.0
        self._thread = threading.Thread(target=self._run, name="kafka watch", daemon=True)

    def start(self) -> None:
        """Begin to ask, after `ASK_S`: a start is not slowed down by it."""
        self._thread.start()

    def stop(self) -> None:
        """Stop asking."""
        self._stop.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        while not self._stop.wait(ASK_S):
            asked_at = time.monotonic()
            failure: CdcdError | None = None
            try:
                self._ask()
            except CdcdError as error:
                failure = error
            if not self._stop.is_set():
                self._report(asked_at, failure)

    def _ask(self) -> None:
        """Raises CdcdError: there was no answer."""
        if self._admin is None:
            self._connect()
        assert self._admin is not None
        assert self._leaders is not None
        deadline = time.monotonic() + ANSWER_S
        try:
            self._admin.ask(self._config.topics.checkpoint)
            # A copy in one step, because the thread that hands the batch over adds to the set.
            written = frozenset(self._written())
            if written:
                self._leaders.ask(written, deadline)
        except CdcdError:
            # A client keeps the credentials that it was made with. Those of now may be others.
            if time.monotonic() >= self._renew_at or self._given != self._properties():
                self._admin = None
            raise
        self._renew_at = time.monotonic() + RENEW_S

    def _connect(self) -> None:
        self._given = self._properties()
        self._admin = Admin(self._given, ANSWER_S, self._stop)
        self._leaders = Leaders(self._admin)
        self._renew_at = time.monotonic() + RENEW_S

    def _properties(self) -> dict[str, client.Value]:
        connection, _ = client.configured(reread(self._config).kafka)
        return connection
