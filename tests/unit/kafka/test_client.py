"""What of librdkafka's log gets through."""

import logging

from cdcd.kafka.client import LOGGER, REPEATED_S, Sparing


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("librdkafka", logging.ERROR, "", 0, text, (), None)


def refused(instance: int, ms: int, thread: str = "127.0.0.1:9/bootstrap") -> logging.LogRecord:
    return record(
        f"FAIL [rdkafka#producer-{instance}] [thrd:{thread}]: 127.0.0.1:9/bootstrap: Connection refused "
        f"(after {ms}ms in state CONNECT, {instance} identical error(s) suppressed)"
    )


def test_a_message_that_repeats_passes_once_a_minute_with_the_number_of_those_held_back():
    now = 0.0
    sparing = Sparing(lambda: now)
    assert sparing.filter(refused(1, 0))
    assert not any(sparing.filter(refused(number, number, "app")) for number in range(2, 700))
    other = record("FAIL [rdkafka#producer-1]: Authentication failed")
    assert sparing.filter(other)
    now = REPEATED_S
    last = refused(7, 7)
    assert sparing.filter(last)
    assert last.getMessage().endswith("(and 698 more of this kind since)")


def test_a_percent_sign_in_what_librdkafka_says_is_only_that():
    now = 0.0
    sparing = Sparing(lambda: now)
    assert sparing.filter(record("100% done %s"))
    assert not sparing.filter(record("100% done %s"))
    now = REPEATED_S
    last = record("100% done %s")
    assert sparing.filter(last)
    assert last.getMessage() == "100% done %s (and 1 more of this kind since)"


def test_without_a_configured_log_it_says_nothing():
    assert any(isinstance(handler, logging.NullHandler) for handler in LOGGER.handlers)
