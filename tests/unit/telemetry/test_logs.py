import io
import json
import logging
import warnings
from datetime import UTC, datetime
from typing import Any

import pytest

from cdcd.config.loading import LogConfig
from cdcd.core.facts import Fact
from cdcd.core.facts.process import (
    ConfigRefused,
    Failed,
    KafkaRetry,
    ReconnectScheduled,
    ShutdownFinished,
    ShutdownForced,
)
from cdcd.core.facts.start import LockLost, SlotCreated, StandbyWaiting, Started
from cdcd.telemetry.logs import PROBLEMS_MAX, REPEAT_S, TEXT_MAX, LastProblems, Repeats, configure_logging


@pytest.fixture(autouse=True)
def _logging_as_before():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


@pytest.fixture
def stream():
    return io.StringIO()


def log(level: str, form: str) -> LogConfig:
    return LogConfig.model_validate({"level": level, "format": form})


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_fact_is_one_line_of_json_with_time_level_and_event_first(stream):
    observe = configure_logging(log("info", "json"), stream)
    observe(ShutdownFinished(flushed_lsn=0x1_6B37_4800))
    (line,) = lines(stream)
    assert list(line) == ["timestamp", "level", "event", "flushed_lsn"]
    assert abs((datetime.fromisoformat(line["timestamp"]) - datetime.now(UTC)).total_seconds()) < 60
    assert line["level"] == "info"
    assert line["event"] == "shutdown.finished"
    assert line["flushed_lsn"] == "1/6B374800"


def test_numbers_and_letters_stay_what_they_are(stream):
    observe = configure_logging(log("info", "json"), stream)
    observe(StandbyWaiting(slot="s", holder_pid=7, holder="ä ß"))
    assert lines(stream)[0]["holder_pid"] == 7
    assert "ä ß" in stream.getvalue()


def test_a_line_stays_one_line_whatever_is_in_it(stream):
    observe = configure_logging(log("info", "json"), stream)
    observe(KafkaRetry(message="a\nb\x1b[31m", hint="", wait_s=1))
    assert stream.getvalue().count("\n") == 1
    assert lines(stream)[0]["message"] == "a\nb\x1b[31m"


@pytest.mark.parametrize("form", ["json", "console"])
def test_passwords_are_masked_wherever_they_come_from(stream, form):
    observe = configure_logging(log("info", form), stream)
    observe(
        Failed(
            error="SourceError",
            message="no: postgresql://a:s3cret@db/x",
            hint="host=b password=s3cret",
            exit_code=3,
        )
    )
    logging.getLogger("psycopg").warning("connecting to %s", "host=db password='s3cret'")
    try:
        raise ValueError("postgres://a:s3cret@b")
    except ValueError:
        logging.getLogger("x").exception("password=s3cret")
    assert "s3cret" not in stream.getvalue()
    assert stream.getvalue().count("***") == 6


def test_what_libraries_log_comes_in_the_same_form(stream):
    configure_logging(log("info", "json"), stream)
    logging.getLogger("librdkafka").warning("broker %s down", 1)
    (line,) = lines(stream)
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert (line["event"], line["level"]) == ("dependency.log", "warning")
    assert (line["logger"], line["message"]) == ("librdkafka", "broker 1 down")


def test_an_exception_of_a_library_has_its_traceback(stream):
    configure_logging(log("info", "json"), stream)
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        logging.getLogger("x").exception("failed")
    assert "RuntimeError: boom" in lines(stream)[0]["exception"]


def test_warnings_are_logged(stream):
    configure_logging(log("info", "json"), stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert "DeprecationWarning: old" in lines(stream)[0]["message"]


def test_lines_below_the_level_are_left_out(stream):
    observe = configure_logging(log("warning", "json"), stream)
    observe(SlotCreated(slot="s", position="0/1"))
    logging.getLogger("x").info("chatter")
    observe(KafkaRetry(message="r", hint="h", wait_s=1))
    assert [line["event"] for line in lines(stream)] == ["kafka.retry"]


def test_starting_again_replaces_what_was_there(stream):
    configure_logging(log("info", "json"), io.StringIO())
    observe = configure_logging(log("info", "json"), stream)
    observe(SlotCreated(slot="s", position="0/1"))
    assert len(lines(stream)) == 1


def test_the_console_form_is_for_people(stream):
    observe = configure_logging(log("info", "console"), stream)
    observe(SlotCreated(slot="cdcd_shop", position="0/1"))
    assert "slot.created" in stream.getvalue()
    assert "position=0/1" in stream.getvalue()


class Terminal(io.StringIO):
    """A terminal, or something else."""

    def __init__(self, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


@pytest.mark.parametrize("tty", [True, False])
def test_the_format_auto_is_for_people_on_a_terminal_and_json_elsewhere(tty):
    stream = Terminal(tty)
    observe = configure_logging(log("info", "auto"), stream)
    observe(ShutdownFinished(flushed_lsn=1))
    assert stream.getvalue().startswith("{") != tty


def test_a_library_that_repeats_itself_is_heard_once_a_minute_with_the_number_of_repetitions():
    now = 100.0
    repeats = Repeats(lambda: now)

    def passes(text: str, name: str = "librdkafka", level: int = logging.ERROR) -> logging.LogRecord | None:
        record = logging.LogRecord(name, level, "", 0, text, (), None)
        return record if repeats.filter(record) else None

    assert passes("127.0.0.1:9092/1: failed after 3 ms")
    for port in range(50):
        assert passes(f"127.0.0.1:{port}/2: failed after 71 ms") is None
    assert passes("another message")
    assert passes("127.0.0.1:9092/1: failed after 3 ms", level=logging.INFO)
    assert passes("127.0.0.1:9092/1: failed after 3 ms", name="psycopg")
    now += REPEAT_S
    again = passes("127.0.0.1:9092/1: failed after 3 ms")
    assert again is not None
    assert again.__dict__["repeated"] == 50
    now += REPEAT_S
    last = passes("127.0.0.1:9092/1: failed after 3 ms")
    assert last is not None
    assert "repeated" not in last.__dict__


def test_a_refused_connection_is_one_message_whatever_thread_and_time_it_names():
    repeats = Repeats(lambda: 0.0)

    def passes(instance: int, ms: int, thread: str) -> bool:
        text = (
            f"FAIL [rdkafka#producer-{instance}] [thrd:{thread}]: 127.0.0.1:9/bootstrap: Connection refused "
            f"(after {ms}ms in state CONNECT, {instance} identical error(s) suppressed)"
        )
        record = logging.LogRecord("librdkafka", logging.ERROR, "", 0, text, (), None)
        return bool(repeats.filter(record))

    assert passes(1, 0, "127.0.0.1:9/bootstrap")
    assert not any(passes(number, number, "app") for number in range(2, 700))


def test_what_is_logged_for_debugging_always_passes():
    repeats = Repeats(lambda: 0.0)
    record = logging.LogRecord("librdkafka", logging.DEBUG, "", 0, "Polling", (), None)
    assert repeats.filter(record)
    assert repeats.filter(record)


def test_events_are_never_left_out(stream):
    observe = configure_logging(log("info", "json"), stream)
    for _ in range(3):
        observe(KafkaRetry(message="m", hint="", wait_s=1))
    assert len(lines(stream)) == 3


def test_the_line_of_a_library_says_how_often_it_was_repeated(stream):
    configure_logging(log("info", "json"), stream)
    record = logging.LogRecord("librdkafka", logging.ERROR, "", 0, "failed", (), None)
    record.repeated = 7
    logging.getLogger("librdkafka").handle(record)
    assert lines(stream)[0]["repeated"] == 7


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
