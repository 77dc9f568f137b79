"""Carries a schedule of faults out, and keeps the instances running, as an operator's service manager does.

An instance that ends is started again. Its exit code must be one that its faults explain: what else ends is kept in
`Player.ended`, which counts as an anomaly.
"""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import psycopg
from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient

from cdcd.core.errors import FencedError, LimitError
from tests.ha.wire import Wire
from tests.trial.faults import FAILOVER, Fault
from tests.trial.world import SLOT, Instance, World

TICK_S: Final = 0.05
CLOCK_S: Final = 7200.0
"""The farthest that a clock jumps."""

DELAY_S: Final = 0.2
"""The slowest that a link gets: for each piece of up to 64 kB."""

STOP_S: Final = 20.0
ANSWER_S: Final = 5.0
HEALED_S: Final = 180.0

Undo = Callable[[], None]


class Player:
    """`play` the faults, then `heal`. `counts` has the faults that came about, `ended` what ended without a reason.

    Args:
        tell: is given a line for each thing that happens.
    """

    def __init__(self, world: World, faults: Sequence[Fault], tell: Callable[[str], None]) -> None:
        self.world = world
        self.counts: Counter[str] = Counter()
        self.ended: list[str] = []
        self.takeovers = 0
        self.active = 0
        self._tell = tell
        self._faults = list(faults)
        self._open: list[tuple[Fault, Undo]] = []
        self._streams = [self._count_streams(each) for each in world.instances]
        self._away: set[int] = set()
        """Instances that stay down until their fault ends."""
        self._excused: dict[int, set[int]] = {number: set() for number in range(len(world.instances))}
        self._began = time.monotonic()

    def play(self, seconds: float) -> None:
        """Until the time is over. A fault that takes its time makes the next ones late."""
        while (now := time.monotonic() - self._began) < seconds:
            while self._faults and self._faults[0].at_s <= now:
                fault = self._faults.pop(0)
                # Also where both are late: what shall be over by then is over.
                self._end_until(fault.at_s)
                self._begin(fault)
            self._end_until(now)
            self._tend()
            time.sleep(TICK_S)

    def heal(self) -> None:
        """End all faults, and wait until all brokers and an instance are there again."""
        for each in list(self._open):
            self._end(each)
        for broker in self.world.brokers:
            broker.await_started(HEALED_S)
        deadline = time.monotonic() + HEALED_S
        while not self._is_streaming() and time.monotonic() < deadline:
            self.rest()

    def rest(self) -> None:
        """For a moment, only keep the instances running."""
        self._tend()
        time.sleep(TICK_S)

    def _begin(self, fault: Fault) -> None:
        number = self.active
        undo = BEGINNINGS[fault.kind](self, fault, number)
        if undo is None:
            self._tell(f"{self._now()} {fault.kind}: not possible now")
            return
        self.counts[fault.kind] += 1
        self._tell(f"{self._now()} {fault.kind} for {fault.lasts_s:.1f} s, instance {number}")
        self._open.append((fault, undo))

    def _end_until(self, at_s: float) -> None:
        for each in [each for each in self._open if each[0].ends_s <= at_s]:
            self._end(each)

    def _end(self, each: tuple[Fault, Undo]) -> None:
        self._open.remove(each)
        each[1]()
        self._tell(f"{self._now()} {each[0].kind} is over")

    def _now(self) -> str:
        return f"{time.monotonic() - self._began:7.2f}"

    def _tend(self) -> None:
        for number, instance in enumerate(self.world.instances):
            streams = self._count_streams(instance)
            if streams > self._streams[number]:
                self._streams[number] = streams
                self.takeovers += self.active != number
                self.active = number
            if number in self._away or instance.daemon.is_running():
                continue
            if instance.daemon.is_awaited:
                code = instance.daemon.wait()
                self._tell(f"{self._now()} instance {number} ended with {code}")
                if code not in {FencedError.exit_code, *self._excused[number]}:
                    self.ended.append(
                        f"instance {number} ended with exit code {code}: {instance.daemon.last_words()}"
                    )
            self._excused[number].clear()
            instance.daemon.start()

    @staticmethod
    def _count_streams(instance: Instance) -> int:
        return sum(event["event"] == "stream.started" for event in list(instance.daemon.events))

    def _is_streaming(self) -> bool:
        daemon = self.world.instances[self.active].daemon
        return daemon.is_running() and daemon.saw("stream.started")

    # The faults of the daemon. Each returns how it ends; None: it cannot come about now.

    def kill_daemon(self, fault: Fault, number: int) -> Undo | None:
        self._away.add(number)
        self.world.instances[number].daemon.kill()
        return lambda: self._away.discard(number)

    def freeze_daemon(self, fault: Fault, number: int) -> Undo | None:
        daemon = self.world.instances[number].daemon
        if not daemon.is_running():
            return None
        daemon.pause()
        return daemon.resume

    def stop_daemon(self, fault: Fault, number: int) -> Undo | None:
        daemon = self.world.instances[number].daemon
        if not daemon.is_running():
            return None
        # A second signal during its start ends it at once; the first one may come before it listens for it.
        self._excused[number] |= {0, 130, 143, -signal.SIGTERM}
        daemon.terminate()
        return lambda: None

    def move_clock(self, fault: Fault, number: int) -> Undo | None:
        clock = self.world.instances[number].clock
        clock.set(fault.amount * CLOCK_S)
        return lambda: clock.set(0)

    def fill_disk(self, fault: Fault, number: int) -> Undo | None:
        instance = self.world.instances[number]
        if not instance.daemon.is_running():
            return None
        instance.limit_files(True)
        self._excused[number].add(LimitError.exit_code)
        return lambda: instance.limit_files(False)

    # Of the links.

    def cut_postgres(self, fault: Fault, number: int) -> Undo | None:
        return self._cut(number, self.world.instances[number].postgres_wires)

    def slow_postgres(self, fault: Fault, number: int) -> Undo | None:
        return self._slow(number, fault, self.world.instances[number].postgres_wires)

    def cut_kafka(self, fault: Fault, number: int) -> Undo | None:
        return self._cut(number, self.world.instances[number].kafka_wires)

    def cut_one_kafka(self, fault: Fault, number: int) -> Undo | None:
        return self._cut(number, [self.world.instances[number].kafka_wires[fault.target]])

    def slow_kafka(self, fault: Fault, number: int) -> Undo | None:
        return self._slow(number, fault, self.world.instances[number].kafka_wires)

    def _cut(self, number: int, wires: Sequence[Wire]) -> Undo:
        for wire in wires:
            wire.cut()

        def mend() -> None:
            for wire in wires:
                wire.mend()

        return mend

    def _slow(self, number: int, fault: Fault, wires: Sequence[Wire]) -> Undo:
        def delay(seconds: float) -> None:
            for wire in wires:
                wire.delay_s = seconds

        delay(abs(fault.amount) * DELAY_S)
        return lambda: delay(0)

    # Of Kafka.

    def kill_broker(self, fault: Fault, number: int) -> Undo | None:
        broker = self.world.brokers[fault.target]
        broker.kill()
        return broker.begin

    def freeze_broker(self, fault: Fault, number: int) -> Undo | None:
        broker = self.world.brokers[fault.target]
        broker.pause()
        return broker.resume

    def stop_broker(self, fault: Fault, number: int) -> Undo | None:
        broker = self.world.brokers[fault.target]
        os.kill(broker.pid, signal.SIGTERM)

        def restart() -> None:
            broker.stop()
            broker.begin()

        return restart

    def move_leaders(self, fault: Fault, number: int) -> Undo | None:
        admin = AdminClient({"bootstrap.servers": self.world.bootstrap_servers, "log_level": 0})
        try:
            # Without a timeout: confluent_kafka 2.16 fails on its own argument.
            elected = admin.elect_leaders(ElectionType.PREFERRED).result(ANSWER_S)
        except (KafkaException, TimeoutError):
            return None
        return (lambda: None) if any(error is None for error in elected.values()) else None

    # Of PostgreSQL.

    def kill_postgres(self, fault: Fault, number: int) -> Undo | None:
        server = self.world.primary
        server.kill()
        return server.start

    def freeze_postgres(self, fault: Fault, number: int) -> Undo | None:
        server = self.world.primary
        server.pause()
        return server.resume

    def restart_postgres(self, fault: Fault, number: int) -> Undo | None:
        server = self.world.primary
        server.ask_to_stop("fast")

        def start() -> None:
            # It waits for walsenders, and the client of one may be frozen or cut off.
            try:
                server.wait_stopped(STOP_S)
            except subprocess.TimeoutExpired:
                server.kill()
            server.start()

        return start

    def freeze_standby(self, fault: Fault, number: int) -> Undo | None:
        self.world.pair.standby.pause()
        return self.world.pair.standby.resume

    def fail_over(self, fault: Fault, number: int) -> Undo | None:
        pair = self.world.pair
        copy = f"""SELECT FROM pg_replication_slots
                   WHERE slot_name = '{SLOT}' AND synced AND NOT temporary AND invalidation_reason IS NULL"""
        with suppress(psycopg.Error):
            if pair.standby.execute(copy):
                pair.fail_over()
                self.world.primary = pair.standby
                return lambda: None
        return None


BEGINNINGS: Final[Mapping[str, Callable[[Player, Fault, int], Undo | None]]] = {
    "daemon killed": Player.kill_daemon,
    "daemon frozen": Player.freeze_daemon,
    "daemon stopped": Player.stop_daemon,
    "clock jumped": Player.move_clock,
    "disk full": Player.fill_disk,
    "postgres link cut": Player.cut_postgres,
    "postgres link slow": Player.slow_postgres,
    "kafka links cut": Player.cut_kafka,
    "one kafka link cut": Player.cut_one_kafka,
    "kafka links slow": Player.slow_kafka,
    "broker killed": Player.kill_broker,
    "broker frozen": Player.freeze_broker,
    "broker stopped": Player.stop_broker,
    "leaders moved": Player.move_leaders,
    "postgres killed": Player.kill_postgres,
    "postgres frozen": Player.freeze_postgres,
    "postgres restarted": Player.restart_postgres,
    "standby frozen": Player.freeze_standby,
    FAILOVER: Player.fail_over,
}
