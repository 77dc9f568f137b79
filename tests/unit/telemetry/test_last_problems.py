from datetime import UTC, datetime

from cdcd.core.facts import ConfigRefused, Fact, LockLost, ReconnectScheduled, ShutdownForced, Started
from cdcd.telemetry.last_problems import PROBLEMS_MAX, TEXT_MAX, LastProblems


def scheduled(message: str, wait_s: float = 1.0) -> ReconnectScheduled:
    return ReconnectScheduled(side="kafka", message=message, hint="Look.", wait_s=wait_s)


def test_warnings_are_kept_newest_first_and_information_is_not():
    problems = LastProblems()
    for fact in (Started(name="shop", http=""), scheduled("a"), ConfigRefused(message="b", hint="Mend it.")):
        problems.note(fact)
    assert [(each.event, each.level, each.message, each.hint) for each in problems.found] == [
        ("config.refused", "error", "b", "Mend it."),
        ("reconnect.scheduled", "warning", "a", "Look."),
    ]


def test_what_repeats_is_counted_and_keeps_its_last_time():
    times = iter(
        [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)]
    )
    problems = LastProblems(lambda: next(times))
    for wait_s, message in ((1, "a"), (2, "b"), (3, "a")):
        problems.note(scheduled(message, wait_s))
    first, second = problems.found
    assert (first.message, first.count, first.at.day) == ("a", 2, 3)
    assert (second.message, second.count) == ("b", 1)


def test_there_are_never_more_than_the_limit():
    problems = LastProblems()
    for number in range(10 * PROBLEMS_MAX):
        problems.note(scheduled(f"number {number} {'x' * 10_000}"))
    assert len(problems.found) == PROBLEMS_MAX
    assert all(len(each.message) <= TEXT_MAX + 1 for each in problems.found)


def test_secrets_are_masked_as_in_the_log():
    problems = LastProblems()
    problems.note(scheduled("cannot connect to postgresql://cdcd:hunter2@db/shop password=hunter2"))
    assert "hunter2" not in str(problems.found)


def test_an_event_without_a_message_shows_its_fields():
    problems = LastProblems()
    problems.note(LockLost(sqlstate="57P01", reason="ended"))
    problems.note(ShutdownForced(timeout_s=3, flushed_lsn=0x16B3748))
    assert [each.message for each in problems.found] == [
        "timeout_s 3, flushed_lsn 0/16B3748",
        "sqlstate 57P01, reason ended",
    ]


def test_every_fact_is_passed_on():
    seen: list[Fact] = []
    problems = LastProblems()
    observe = problems.observing(seen.append)
    facts = [Started(name="shop", http=""), scheduled("a")]
    for fact in facts:
        observe(fact)
    assert seen == facts
