"""What follows a session that has failed."""

import pytest

from cdcd.core.engine.ending import LogDeliveredError, SpoolingBeginsError, StreamingAgainError
from cdcd.core.engine.sessions import Sessions
from cdcd.core.errors import (
    SinkUnavailableError,
    SourceError,
    TransientError,
    WithoutBinaryError,
    WithoutConversionError,
    WithoutStreamingError,
)
from cdcd.core.facts import Fact
from cdcd.core.facts.process import (
    BinaryPaused,
    ConversionPaused,
    ReconnectScheduled,
    StreamingPaused,
    StreamingResumed,
)
from cdcd.core.retry import Backoff

PATIENCE_S = 60.0


class Process:
    def __init__(self) -> None:
        self.told: list[Fact] = []
        self.now = 1000.0
        self.reconnects: dict[str, int] = {}
        self.sessions = Sessions(
            binary=True,
            startup_timeout_s=PATIENCE_S,
            backoffs={"postgres": Backoff(1, 8), "kafka": Backoff(2, 8)},
            reconnects=self.reconnects,
            observe=self.told.append,
            now=self.now,
        )

    def fail(
        self, error: TransientError, *, streamed: bool = False, spools_in_s: float | None = None
    ) -> float:
        spools_at = None if spools_in_s is None else self.now + spools_in_s
        return self.sessions.failed(error, streamed=streamed, draw=1, now=self.now, spools_at=spools_at)


@pytest.fixture
def process() -> Process:
    return Process()


def test_after_a_text_that_cannot_be_converted_the_stream_is_taken_as_it_is_and_a_second_one_is_a_name(
    process: Process,
):
    assert process.sessions.converts
    error = WithoutConversionError("streaming: no", hint="Rename it.")
    assert process.fail(error) == 0
    # Binary values are texts in the server's encoding, too.
    assert (process.sessions.converts, process.sessions.binary) == (False, False)
    assert process.told == [ConversionPaused(message="streaming: no")]
    with pytest.raises(SourceError, match="streaming: no") as ended:
        process.fail(error)
    assert ended.value.hint == "Rename it."


def test_each_side_has_its_own_back_off_until_a_session_streams(process: Process):
    lost, away = TransientError("lost", hint="Wait."), SinkUnavailableError("away")
    assert [process.fail(lost), process.fail(lost), process.fail(away)] == [1, 2, 2]
    # A session that has streamed begins both again.
    assert process.fail(lost, streamed=True) == 1
    assert process.fail(away) == 2
    assert process.reconnects == {"postgres": 3, "kafka": 2}
    assert process.told[0] == ReconnectScheduled(side="postgres", message="lost", hint="Wait.", wait_s=1)


def test_a_process_that_never_streamed_gives_up(process: Process):
    process.now += PATIENCE_S
    process.fail(SinkUnavailableError("away"))
    process.now += 1
    with pytest.raises(SinkUnavailableError, match=r"away \(given up after startup_timeout_s: 60\)") as error:
        process.fail(SinkUnavailableError("away", hint="Look."))
    assert error.value.hint == "Look."


def test_one_that_has_streamed_never_does(process: Process):
    process.fail(TransientError("lost"), streamed=True)
    process.now += 100 * PATIENCE_S
    assert process.fail(TransientError("lost")) == 2


def test_one_that_is_to_go_on_with_the_durable_log_does_not_give_up_for_kafka_and_waits_no_longer(
    process: Process,
):
    process.now += PATIENCE_S + 1
    away = SinkUnavailableError("away")
    assert process.fail(away, spools_in_s=1.5) == 1.5
    assert process.fail(away, spools_in_s=100) == 4
    assert process.fail(away, spools_in_s=-1) == 0
    # If the log cannot go on either, it ends.
    with pytest.raises(SinkUnavailableError, match="given up"):
        process.fail(away)


def test_the_durable_log_does_not_keep_a_process_that_never_reached_postgresql(process: Process):
    process.now += PATIENCE_S + 1
    with pytest.raises(TransientError, match="given up"):
        process.fail(TransientError("refused"), spools_in_s=5)


def test_a_session_for_the_durable_log_begins_and_ends_without_a_pause(process: Process):
    assert process.fail(SpoolingBeginsError("away"), streamed=True) == 0
    assert process.fail(LogDeliveredError("delivered"), streamed=True) == 0
    assert process.reconnects == {}


def test_another_way_to_open_the_stream_is_taken_at_once(process: Process):
    assert process.fail(WithoutStreamingError("spool", hint="", commit_lsn=77), streamed=True) == 0
    assert process.sessions.unstreamed_until == 77
    assert process.fail(StreamingAgainError("delivered")) == 0
    assert process.sessions.unstreamed_until == 0
    assert process.fail(WithoutBinaryError("inet")) == 0
    assert not process.sessions.binary
    assert process.told == [
        StreamingPaused(commit_lsn=77),
        StreamingResumed(commit_lsn=77),
        BinaryPaused(message="inet"),
    ]
    assert process.reconnects == {}
