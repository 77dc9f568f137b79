"""Which warnings of the server say that changes are left out, and how a large message is noticed before it is read."""

import math
import mmap
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.adapters.postgres import replication
from cdcd.adapters.postgres.answers import Answer
from cdcd.adapters.postgres.coming import MappedMemory
from cdcd.adapters.postgres.replication import ReplicationStream, skips_publication

IN_GERMAN = "Laden der Publikation »p« wurde übersprungen"


@pytest.mark.parametrize(
    ("answer", "skips"),
    [
        pytest.param(Answer("55000", IN_GERMAN, function="LoadPublications"), True, id="in any language"),
        pytest.param(Answer("55000", 'skipped loading publication "p"'), True, id="without the function"),
        pytest.param(
            Answer(
                "55000", 'replication slot "s" does not have active_pid', function="StandbySlotsHaveCaughtup"
            ),
            False,
            id="a standby that is waited for",
        ),
        pytest.param(Answer("01000", "something"), False, id="another warning"),
    ],
)
def test_a_publication_is_skipped_if_the_server_says_so_and_not_by_the_sqlstate_alone(
    answer: Answer, skips: bool
):
    assert skips_publication(answer) is skips


def test_memory_is_counted_when_it_is_mapped_and_not_when_it_is_used():
    memory = MappedMemory()
    before = memory.mapped_bytes()
    with mmap.mmap(-1, 64 << 20):
        grown = memory.mapped_bytes() - before
    memory.close()
    memory.close()
    assert grown >= 64 << 20
    assert memory.mapped_bytes() == 0


def test_each_growth_counts_once_and_a_smaller_address_space_is_no_growth():
    memory = MappedMemory()
    memory.growth_bytes()
    with mmap.mmap(-1, 64 << 20):
        first, second = memory.growth_bytes(), memory.growth_bytes()
    shrunk = memory.growth_bytes()
    memory.close()
    assert first >= 64 << 20
    assert second < 16 << 20
    assert shrunk < 0


@pytest.mark.parametrize(("now", "counts"), [(0.0, True), (math.inf, False)])
def test_growth_counts_from_the_last_look_until_that_is_too_old(now: float, counts: bool):
    memory = MappedMemory()
    memory.growth_bytes()
    with mmap.mmap(-1, 64 << 20):
        memory.begin(now)
        assert (memory.growth_bytes() >= 64 << 20) == counts
    memory.close()


class Connection:
    """The part of libpq that a pass over the socket uses. Each read brings the next item of `coming`.

    A large message makes libpq map memory when it takes frames from its buffer, as pqCheckInBufferSpace does.
    """

    def __init__(self, *coming: list[bytes], large_after: int = 0) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.socket = self.ours.fileno()
        self.ssl_in_use = self.used_gssapi = False
        self.reads = 0
        self.mapped: list[mmap.mmap] = []
        self._coming = list(coming)
        self._frames: list[bytes] = []
        self._large_after = large_after

    def get_copy_data(self, _: int) -> tuple[int, memoryview]:
        if self._frames:
            frame = self._frames.pop(0)
            return len(frame), memoryview(frame)
        if self._large_after and self.reads == self._large_after and not self.mapped:
            self.mapped.append(mmap.mmap(-1, 64 << 20))
        return 0, memoryview(b"")

    def consume_input(self) -> None:
        self.reads += 1
        self._frames = self._coming.pop(0) if self._coming else []


@contextmanager
def passing(connection: Connection) -> Iterator[Any]:
    session: Any = SimpleNamespace(pgconn=connection, names={}, on_notice=lambda _: None)
    stream: Any = ReplicationStream(session, silence_s_max=60.0, pause_s=0.0, warned=lambda _: None)
    try:
        yield stream
    finally:
        stream._coming.memory.close()
        for mapped in connection.mapped:
            mapped.close()
        connection.ours.close()
        connection.theirs.close()


def test_memory_is_looked_at_once_after_each_read(monkeypatch):
    monkeypatch.setattr(replication, "_BUDGET_S", 60.0)  # A busy machine would end the pass earlier.
    connection = Connection([b"w1"], [b"w2"])
    looks: list[int] = []

    def grown() -> int:
        looks.append(connection.reads)
        return 0

    with passing(connection) as stream:
        stream._coming.memory.growth_bytes = grown
        assert stream._take(1 << 20) == [b"w1", b"w2"]
        assert connection.reads == 4, "two reads without a frame end the pass"
    assert looks == [0, 1, 2, 3, 4], "the first look is the start of a measurement"


def test_a_large_message_behind_whole_ones_is_reported_before_libpq_reads_more_of_it():
    connection = Connection([b"w1"], [], [], large_after=1)
    connection.theirs.send(b"the next part of the large message")
    reported: list[tuple[int, int]] = []
    with passing(connection) as stream:
        stream.on_coming = lambda size: reported.append((connection.reads, size))
        assert stream._take(1 << 20) == [b"w1"]
        assert len(reported) == 1
        assert reported[0][0] == 1, "reported after the first read, before the second one"
        assert reported[0][1] >= 32 << 20
