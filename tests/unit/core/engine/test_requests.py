"""What strangers may ask of the daemon, and what they may not."""

import json
from collections.abc import Collection
from typing import Any

import pytest

from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.refusals import REFUSALS_MAX
from cdcd.core.engine.requests import HELD_BYTES_MAX, NOT_AUTHORIZED, PENDING_MAX, WORDS_MAX, Requests
from cdcd.core.engine.settings import SnapshotSettings
from cdcd.core.engine.snapshot_tasks import PENDING_BYTES_MAX
from cdcd.core.facts.snapshot import SnapshotSignalled, SnapshotSignalRefused
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.snapshot.outcomes import CANCELLED, OUTCOMES_MAX
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.signals import ADDED, PREFIX, REPLACED, STOP_TABLES, Signal, token_digest
from cdcd.core.snapshot.table_task import TableTask
from cdcd.core.transactions.position import Position
from tests.unit.core.engine.tables import Facts, Rendering, no_fates, tasks


class Daemon:
    """Requests with what they change."""

    def __init__(
        self,
        allowed: str = "without_where",
        progress: Progress | None = None,
        tokens: tuple[str, ...] | None = None,
        rereads_per_hour_max: int = 0,
    ) -> None:
        self.facts, self.changes = Facts(), 0
        self.incremental = Incremental(
            tasks(progress or Progress(), {}, self.facts, self._changed),
            Rendering(),
            SnapshotSettings(chunk_bytes=1000, parallelism=1),
            no_fates(),
            observe=self.facts,
        )
        self.requests = Requests(
            self.incremental,
            SnapshotSettings(signals=allowed, rereads_per_hour_max=rereads_per_hour_max),
            name="shop",
            observe=self.facts,
            tokens=tokens,
            tables={STOP_TABLES: self._stop},
        )
        self.published = {"public.known"}
        self.stopped: list[str] = []

    def _stop(self, names: Collection[str]) -> dict[str, str]:
        self.stopped += [name for name in names if name in self.published]
        return {name: f"{name} is no published table" for name in names if name not in self.published}

    def _changed(self) -> None:
        self.changes += 1

    def take(self, content: bytes | Signal, prefix: str = PREFIX) -> None:
        data = content.encode().encode() if isinstance(content, Signal) else content
        self.requests.take(LogicalMessage(None, False, 1, prefix, data))

    def is_paused(self) -> bool:
        return self.incremental.progress.paused

    @property
    def tasks(self) -> tuple[TableTask, ...]:
        return self.incremental.progress.tasks

    @property
    def refused(self) -> list[str]:
        return [fact.reason for fact in self.facts.of(SnapshotSignalRefused)]


def test_a_table_that_was_created_or_renamed_just_before_the_request_is_found_by_the_next_list():
    daemon = Daemon()
    daemon.take(Signal(STOP_TABLES, ("public.known", "public.renamed", "public.unknown")))
    assert daemon.stopped == ["public.known"]
    # The first list was asked for before the table was renamed.
    daemon.requests.listed()
    assert (daemon.requests.is_pending, daemon.refused) == (True, [])
    daemon.published.add("public.renamed")
    daemon.requests.listed()
    assert daemon.stopped == ["public.known", "public.renamed"]
    assert daemon.refused == ["public.unknown is no published table"]
    daemon.requests.listed()
    assert len(daemon.refused) == 1
    followed = [fact.tables for fact in daemon.facts.of(SnapshotSignalled)]
    assert followed == [["public.known"], ["public.renamed"]]


def test_only_so_many_requests_wait_for_a_list():
    daemon = Daemon()
    for _ in range(PENDING_MAX):
        daemon.take(Signal(STOP_TABLES, ("public.unknown",)))
    assert daemon.refused == []
    daemon.take(Signal(STOP_TABLES, ("public.other",)))
    assert daemon.refused == ["public.other is no published table"]


def test_a_request_with_a_name_has_an_outcome():
    daemon = Daemon()
    daemon.incremental.tasks.unix_s = 50

    def requests() -> list[tuple[str, int, int, int, int]]:
        found = daemon.incremental.progress.requests
        return [(each.id, each.tables, each.complete, each.failed, each.code) for each in found]

    daemon.take(Signal("start", ("a.b", "a.c", "a.b"), request="me"))
    assert requests() == [("me", 2, 0, 0, 0)]
    # WHEN it asks again for a table that waits, that is one table
    daemon.take(Signal("start", ("a.b",), request="me"))
    assert requests() == [("me", 2, 0, 0, 0)]
    # AND another one that asks for the same shares the reading
    daemon.take(Signal("start", ("a.b",), request="too"))
    assert len(daemon.tasks) == 2
    daemon.take(Signal("cancel", ("a.b",)))
    assert requests() == [("me", 2, 0, 1, CANCELLED), ("too", 1, 0, 1, CANCELLED)]
    assert daemon.incremental.progress.requests[1].asked == 50
    # AND one that is refused says so to whoever waits for it
    daemon.take(Signal("start", ("a.b",), where="true", request="no"))
    assert requests()[-1] == ("no", 0, 0, 0, 2)
    assert daemon.incremental.progress.requests[-1].error == "snapshot.signals is without_where"


def test_requests_change_what_is_to_be_read():
    daemon = Daemon()
    daemon.take(Signal("start", ("a.b", "a.c"), request="me"))
    assert daemon.tasks == (
        TableTask("a.b", request="me", askers=("me",)),
        TableTask("a.c", request="me", askers=("me",)),
    )
    daemon.take(Signal("start", ("a.b",)))
    assert len(daemon.tasks) == 2
    daemon.take(Signal("pause"))
    assert daemon.is_paused()
    daemon.take(Signal("resume"))
    assert not daemon.is_paused()
    daemon.take(Signal("cancel", ("a.b",)))
    assert [task.name for task in daemon.tasks] == ["a.c"]
    assert daemon.incremental.progress.outcomes[0].error == "cancelled"
    daemon.take(Signal("cancel"))
    assert daemon.incremental.progress.is_done
    assert daemon.refused == []
    assert [fact.action for fact in daemon.facts.of(SnapshotSignalled)] == [
        "start", "start", "pause", "resume", "cancel", "cancel"
    ]  # fmt: skip


def test_a_request_is_written_down_as_taken_also_where_it_asked_for_nothing():
    daemon = Daemon()
    daemon.take(b"nonsense")
    daemon.take(Signal("cancel"))
    assert daemon.changes == 2


@pytest.mark.parametrize(
    ("allowed", "signal", "followed"),
    [
        ("all", Signal("start", ("a.b",), "id > 1"), True),
        ("without_where", Signal("start", ("a.b",), "id > 1"), False),
        ("without_where", Signal("start", ("a.b",)), True),
        ("off", Signal("start", ("a.b",)), False),
        ("off", Signal("pause"), False),
    ],
)
def test_the_operator_says_which_requests_are_followed(allowed: str, signal: Signal, followed: bool):
    daemon = Daemon(allowed)
    daemon.take(signal)
    assert bool(daemon.facts.of(SnapshotSignalled)) == followed
    assert daemon.refused == ([] if followed else [f"snapshot.signals is {allowed}"])
    assert followed or not daemon.tasks


def test_what_is_malformed_is_refused_and_changes_nothing():
    daemon = Daemon()
    for content in (b"", b"\xff", b"[]", b'{"action": "drop"}', b"[" * 100_000, b'{"action": "start"}'):
        daemon.take(content)
    assert len(daemon.refused) == 6
    assert daemon.incremental.progress == Progress()


def test_a_request_for_another_pipeline_is_none():
    daemon = Daemon()
    daemon.take(Signal("start", ("a.b",), pipeline="other"))
    assert (daemon.tasks, daemon.facts.all, daemon.changes) == ((), [], 0)
    daemon.take(Signal("start", ("a.b",), pipeline="shop"))
    assert len(daemon.tasks) == 1


def test_other_messages_are_none():
    daemon = Daemon()
    daemon.take(Signal("start", ("a.b",)), prefix="cdcd.watermark")
    assert daemon.facts.all == []


def test_a_senders_words_are_cut_short():
    daemon = Daemon()
    daemon.take(json.dumps({"action": "pause", "x" * 100_000: 1}).encode())
    daemon.take(Signal("start", tuple(f"a.table_{number}" for number in range(50))))
    assert len(daemon.refused[0]) == WORDS_MAX + 1
    assert len(daemon.facts.of(SnapshotSignalled)[0].tables) == 10


def test_requests_that_wait_have_a_limit_together():
    daemon = Daemon("all")
    for number in range(1000):
        daemon.take(Signal("start", (f"a.t{number}",), "x" * 1000))
    # All but these are counted: the log has a limit, too.
    assert len(daemon.refused) == REFUSALS_MAX
    assert len(daemon.tasks) < 20
    assert "bytes of the checkpoint" in daemon.refused[0]
    # THEN there is room again when they are done
    daemon.take(Signal("cancel"))
    daemon.take(Signal("start", ("a.b",)))
    assert [task.name for task in daemon.tasks] == ["a.b"]


def test_a_transaction_full_of_requests_holds_a_limited_part_of_them():
    daemon = Daemon()
    content = Signal("start", ("a.b",)).encode().encode()
    count = HELD_BYTES_MAX // len(content)
    message = LogicalMessage(None, True, 1, PREFIX, content)
    held = [request for _ in range(count) if (request := daemon.requests.hold(message)) is not None]
    huge = LogicalMessage(None, True, 1, PREFIX, b"x" * HELD_BYTES_MAX)
    if (refused := daemon.requests.hold(huge)) is not None:
        held.append(refused)
    # Nothing counts before the transaction ends.
    assert (daemon.facts.all, daemon.tasks) == ([], ())
    for request in held:
        request()
    assert len(held) < count
    assert [task.name for task in daemon.tasks] == ["a.b"]
    left_out = count - (len(held) - 1) + 1
    assert daemon.refused == [
        f"{left_out} requests of one transaction are left out: {HELD_BYTES_MAX} bytes of it are followed"
    ]
    # AND the next transaction has all the room
    assert daemon.requests.hold(message) is not None
    assert daemon.requests.hold(LogicalMessage(None, True, 1, "cdcd.watermark", content)) is None


def test_what_the_configuration_asks_for_does_not_count_against_strangers():
    own = [TableTask(f"a.{'x' * 90}{number}", number, request=ADDED) for number in range(1, 500)]
    daemon = Daemon(progress=Progress().add(own))
    daemon.take(Signal("start", ("a.b",)))
    assert daemon.refused == []


@pytest.mark.parametrize("letter", ["x", "ß", "\U0001f600", "\x01", '"'])
def test_strangers_can_not_fill_the_checkpoint_whatever_they_send(letter: str):
    daemon = Daemon("all")
    for number in range(3 * OUTCOMES_MAX):
        names = tuple(f"a.{letter * 190}{number}_{each}" for each in range(3))
        daemon.take(Signal("start", names, letter * 300, request=letter * 200))
        if number % 2:
            daemon.take(Signal("cancel"))
    record = Checkpoint("7", 1, "", Position(), 0, snapshot=daemon.incremental.progress)
    assert len(record.encode()) < 64_000


@pytest.mark.parametrize("request_", ["", ADDED, REPLACED])
def test_what_the_configuration_asks_for_is_not_cancelled(request_: str):
    own = TableTask("a.own", 1, request=request_)
    daemon = Daemon(progress=Progress().add([own, TableTask("a.b", request="me")]))
    daemon.take(Signal("cancel", ("a.own",)))
    assert "snapshot.mode: never" in daemon.refused[0]
    assert len(daemon.tasks) == 2
    daemon.take(Signal("cancel"))
    assert [task.name for task in daemon.tasks] == ["a.own"]
    assert len(daemon.refused) == 1


@pytest.mark.parametrize("request_", ["", ADDED, REPLACED])
def test_nobody_can_call_a_request_as_the_daemon_calls_its_own(request_: str):
    daemon = Daemon()
    daemon.take(Signal("start", ("a.b",), request=request_))
    daemon.take(Signal("cancel"))
    assert daemon.tasks == ()


def test_a_limit_is_a_limit_of_bytes():
    daemon = Daemon("all")
    wide: list[Any] = []
    for number in range(100):
        daemon.take(Signal("start", (f"a.t{number}",), "ß" * 1000))
        wide = list(daemon.tasks)
    assert len(wide) == PENDING_BYTES_MAX // 2050


# Who may ask.

TOKEN, OTHER_TOKEN = "t" * 32, "o" * 32
KNOWN = (token_digest(TOKEN), token_digest(OTHER_TOKEN))


@pytest.mark.parametrize("token", ["", "t", TOKEN + "t", TOKEN[:-1], TOKEN.upper(), token_digest(TOKEN)])
@pytest.mark.parametrize("action", ["start", "pause", "resume", "cancel"])
def test_a_request_without_a_known_token_changes_nothing(action: str, token: str):
    daemon = Daemon(tokens=KNOWN)
    daemon.take(Signal("start", ("a.b",), request="mine", token=TOKEN))
    before, changes = daemon.incremental.progress, daemon.changes
    tables = ("a.c",) if action == "start" else ()
    daemon.take(Signal(action, tables, request="theirs", token=token))
    assert (daemon.incremental.progress, daemon.changes) == (before, changes)
    assert daemon.refused == [NOT_AUTHORIZED]


@pytest.mark.parametrize("token", [TOKEN, OTHER_TOKEN])
def test_one_with_a_known_token_is_followed(token: str):
    daemon = Daemon(tokens=KNOWN)
    daemon.take(Signal("pause", token=token))
    assert daemon.is_paused()
    daemon.take(Signal("resume", token=token))
    assert not daemon.is_paused()
    assert daemon.refused == []


def test_without_tokens_nobody_is_followed_and_without_the_rule_everybody_is():
    daemon = Daemon(tokens=())
    daemon.take(Signal("pause"))
    assert not daemon.is_paused()
    daemon = Daemon(tokens=None)
    daemon.take(Signal("pause", token="anything"))
    assert daemon.is_paused()


def test_a_token_shows_in_no_words():
    assert TOKEN not in repr(Signal("pause", token=TOKEN))


def test_many_refusals_are_few_facts_with_a_count():
    daemon = Daemon(tokens=KNOWN)
    tasks = daemon.incremental.tasks
    tasks.unix_s = 1000
    for _ in range(5000):
        daemon.take(b"{")
    assert len(daemon.refused) == REFUSALS_MAX
    tasks.unix_s = 1001
    for _ in range(5000):
        daemon.take(Signal("pause"))
    facts = daemon.facts.of(SnapshotSignalRefused)
    assert (len(facts), facts[-1].left_out) == (REFUSALS_MAX + 1, 5000 - REFUSALS_MAX)
    # A clock that goes back lets nobody through for longer.
    tasks.unix_s = 10
    daemon.take(b"{")
    assert len(daemon.refused) == REFUSALS_MAX + 1
    tasks.unix_s = 13
    daemon.take(b"{")
    assert daemon.facts.of(SnapshotSignalRefused)[-1].left_out == 5000


def test_a_table_is_read_by_request_a_limited_number_of_times_an_hour():
    daemon = Daemon(rereads_per_hour_max=2)
    for second in (1000, 1010):
        daemon.incremental.tasks.unix_s = second
        daemon.take(Signal("start", ("public.a",)))
    assert daemon.refused == []
    # What is refused reads nothing, also not the other tables of the request, and counts for none of them.
    daemon.incremental.tasks.unix_s = 4599
    before = daemon.tasks
    daemon.take(Signal("start", ("public.b", "public.a")))
    (reason,) = daemon.refused
    assert "public.a was asked for 2 times within an hour" in reason
    assert "rereads_per_hour_max is 2" in reason
    assert daemon.tasks == before
    daemon.incremental.tasks.unix_s = 4600
    daemon.take(Signal("start", ("public.b", "public.a")))
    daemon.take(Signal("start", ("public.b",)))
    assert len(daemon.refused) == 1


def test_each_refusal_is_counted_whether_the_log_says_so_or_not():
    daemon = Daemon()
    for _ in range(REFUSALS_MAX + 40):
        daemon.take(b"nonsense")
    assert daemon.requests.refused == REFUSALS_MAX + 40
    assert len(daemon.facts.of(SnapshotSignalRefused)) == REFUSALS_MAX
