"""Requests to Kafka once a second, to see if it answers, from a separate thread and client.

The sink cannot tell: an idle daemon sends nothing, and librdkafka reports a frozen or disconnected broker only when
a request has timed out, after a minute. So the watch asks a broker for the leader of the checkpoint's partition,
which every batch needs, and then the leaders of the topics of the batch in flight. It waits at most `ANSWER_S`
seconds for all answers together. `engine/reachability.py` decides what an answer, or a missing answer, means. After an
outage, the watch also checks that readers see what was committed (`kafka/outage.py`).
"""

import threading
import time
from collections.abc import Callable, Collection, Container
from typing import Final

from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.errors import Partition
from cdcd.adapters.kafka.outage import HangingTransactions, Settling
from cdcd.adapters.kafka.topic_watch import AddedPartitions, Leaders, PartitionCounts
from cdcd.config.models import Config
from cdcd.config.reloading import reread
from cdcd.core.catalog.sharing import whole_topic
from cdcd.core.errors import CdcdError

ASK_S: Final = 1.0
"""Seconds between two requests."""

ANSWER_S: Final = 3.0
"""Seconds to wait for the answers. With `ASK_S`, an outage is reported within five seconds."""

RENEW_S: Final = 20.0
"""Seconds without an answer after which a new client is created. Once, on a busy machine, a client got no answer for
two minutes after the broker had returned. The sink delivered to that broker meanwhile."""

COUNT_S: Final = 30.0
"""Seconds between two checks of the numbers of partitions. The answer names all topics of the cluster. Producers
look for new partitions only every five minutes (topic.metadata.refresh.interval.ms)."""

END_S: Final = 0.2
"""Seconds to wait for the end of the thread. It is a daemon thread, so it does not delay the process if it is still
waiting."""

Report = Callable[[float, CdcdError | None], None]
"""Called with the time of the request (monotonic seconds), and the error; None: Kafka has answered."""


class KafkaWatch:
    """Runs from `start` to `stop`, and calls `report` from its own thread after each request.

    Args:
        written: returns the topics that are being written now, in several sets.
        topics: all topics that this process has written to or checked. The caller adds to them.
        settling: notified of each result, because transactions wait for it.
        added: called in the thread with topics that got further partitions.
        hanging: called in the thread with the partitions in which a hanging transaction was found now, and with all
            partitions with a hanging transaction.
    """

    def __init__(
        self,
        config: Config,
        report: Report,
        written: Callable[[], Collection[Collection[str]]],
        settling: Settling | None = None,
        *,
        topics: Container[str] = (),
        hanging: Callable[[list[Partition], dict[Partition, int]], None] = lambda _found, _all: None,
        added: Callable[[list[AddedPartitions]], None] = lambda _added: None,
    ) -> None:
        self._config = config
        self._report = report
        self._written = written
        self.settling = Settling() if settling is None else settling
        self._tell_hanging = hanging
        self._tell_added = added
        self._counts = PartitionCounts(config.topics.prefix, topics)
        self._count_at = 0.0
        self._transactions = HangingTransactions()
        self._stop = threading.Event()
        self._admin: Admin | None = None
        self._leaders: Leaders | None = None
        self._given: dict[str, client.Value] = {}
        self._renew_at = 0.0
        self._thread = threading.Thread(target=self._run, name="kafka watch", daemon=True)

    def start(self) -> None:
        """Start the requests after `ASK_S`, so that the start of the daemon is not slowed down."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the requests."""
        self._stop.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        while not self._stop.wait(ASK_S):
            asked_at = time.monotonic()
            failure = self._attempt()
            if not self._stop.is_set():
                self._report(asked_at, failure)
            if failure is None:
                self._look_for_hanging()
                self._count_partitions()

    def _attempt(self) -> CdcdError | None:
        """Ask once. Returns the error; None if Kafka has answered."""
        try:
            self._ask()
        except CdcdError as error:
            self.settling.failed()
            self._transactions.failed(self._written_now())
            return error
        self.settling.answered(time.monotonic())
        return None

    def _ask(self) -> None:
        """Ask Kafka; raise CdcdError if an answer is missing."""
        if self._admin is None:
            self._connect()
        assert self._admin is not None
        assert self._leaders is not None
        deadline = time.monotonic() + ANSWER_S
        try:
            self._admin.ask(self._config.topics.checkpoint)
            written = self._written_now()
            if written:
                self._leaders.ask(written, deadline)
        except CdcdError:
            # A client keeps the credentials with which it was created, and the present ones may differ.
            if time.monotonic() >= self._renew_at or self._given != self._properties():
                self._admin = None
            raise
        self._renew_at = time.monotonic() + RENEW_S

    def _written_now(self) -> frozenset[str]:
        # The copy is one step, because the thread that produces the batch adds to the last set.
        return frozenset(map(whole_topic, frozenset[str]().union(*self._written())))

    def _look_for_hanging(self) -> None:
        """After an outage, check that readers see what was committed."""
        topics = self._transactions.answered(self._written_now(), time.monotonic())
        if not topics or self._admin is None:
            return
        before = self._transactions.hanging
        try:
            ends = self._admin.ends(sorted(topics))
        except CdcdError:
            return  # The next question tells whether Kafka answers.
        # The written topics are read again, because a transaction may have begun before Kafka returned the ends.
        found = self._transactions.looked(ends, self._written_now(), time.monotonic())
        if self._transactions.hanging != before and not self._stop.is_set():
            self._tell_hanging(found, self._transactions.hanging)

    def _count_partitions(self) -> None:
        """Check if partitions were added to a topic of the pipeline."""
        now = time.monotonic()
        if now < self._count_at or self._admin is None:
            return
        self._count_at = now + COUNT_S
        try:
            added = self._counts.look(self._admin.partition_counts())
        except CdcdError:
            return  # The next question tells whether Kafka answers.
        if added and not self._stop.is_set():
            self._tell_added(added)

    def _connect(self) -> None:
        self._given = self._properties()
        self._admin = Admin(self._given, ANSWER_S, self._stop)
        self._leaders = Leaders(self._admin)
        self._renew_at = time.monotonic() + RENEW_S

    def _properties(self) -> dict[str, client.Value]:
        connection, _ = client.configured(reread(self._config).kafka)
        return connection
