"""What follows a failed session: another session, with options that avoid the failure, or the end of the process.

The rule: a transient failure ends a session but not the process. Until a session has streamed, the process gives up
after `startup_timeout_s`, so that the operator notices a wrong address. It does not give up because of Kafka while
a spooling session may follow, because such a session needs no Kafka; and it does not wait beyond the time at which
the spooling session may begin.
"""

from cdcd.core.engine.ending import LogDeliveredError, SpoolingBeginsError, StreamingAgainError
from cdcd.core.engine.renewal import RenewalError
from cdcd.core.errors import (
    SinkUnavailableError,
    SourceError,
    TransientError,
    WithoutBinaryError,
    WithoutConversionError,
    WithoutStreamingError,
)
from cdcd.core.facts import Observer, Side
from cdcd.core.facts.process import (
    BinaryPaused,
    ConversionPaused,
    ReconnectScheduled,
    StreamingPaused,
    StreamingResumed,
)
from cdcd.core.facts.transactions import StreamRenewed
from cdcd.core.retry import Backoff


class Sessions:
    """Decides how and when the next session of this process begins.

    Args:
        binary: whether values are asked for in binary form (`postgres.binary`).
        startup_timeout_s: seconds after which the process gives up if no session has streamed.
        backoffs: the wait between attempts, by the side that failed.
        reconnects: number of sessions that followed a wait, by the side that failed. This object counts it up.
        now: when the process began, in monotonic seconds.

    Attributes:
        binary: whether the next session asks for values in binary form.
        converts: whether PostgreSQL converts the texts of the next session's stream to UTF-8.
        unstreamed_until: a commit LSN; until its transaction is delivered, the next session receives no transaction
            before its commit. 0: sessions receive large transactions while they are open.
    """

    def __init__(
        self,
        *,
        binary: bool,
        startup_timeout_s: float,
        backoffs: dict[Side, Backoff],
        reconnects: dict[str, int],
        observe: Observer,
        now: float,
    ) -> None:
        self.binary = binary
        self.converts = True
        self.unstreamed_until = 0
        self._startup_timeout_s = startup_timeout_s
        self._backoffs = backoffs
        self._reconnects = reconnects
        self._observe = observe
        self._began = now
        self._has_streamed = False

    def failed(
        self,
        error: TransientError,
        *,
        streamed: bool,
        draw: float,
        now: float,
        spools_at: float | None = None,
    ) -> float:
        """Note that a session has failed, and return the seconds to wait before the next one.

        Args:
            streamed: whether the session had begun to stream.
            draw: a random number from 0 to 1, which spreads the reconnects of many processes.
            spools_at: when a spooling session begins if Kafka is still away (monotonic seconds); None if none will.

        Raises:
            TransientError: no session has streamed within the time, so the process ends. The error has the class of
                `error`.
            SourceError: PostgreSQL cannot convert a name or a default, even without converting the stream.
        """
        if isinstance(error, WithoutStreamingError):
            self.unstreamed_until = error.commit_lsn
            self._observe(StreamingPaused(commit_lsn=error.commit_lsn))
            return 0.0
        if isinstance(error, WithoutBinaryError):
            self.binary = False
            self._observe(BinaryPaused(message=error.message))
            return 0.0
        if isinstance(error, WithoutConversionError):
            if not self.converts:
                # The text that cannot be converted is not part of the stream, so there is nothing else to try.
                raise SourceError(error.message, hint=error.hint) from error
            self.converts = self.binary = False
            self._observe(ConversionPaused(message=error.message))
            return 0.0
        if isinstance(error, StreamingAgainError):
            self._observe(StreamingResumed(commit_lsn=self.unstreamed_until))
            self.unstreamed_until = 0
            return 0.0
        if isinstance(error, RenewalError):
            self._observe(StreamRenewed(reason=error.message))
            return 0.0
        if isinstance(error, LogDeliveredError | SpoolingBeginsError):
            return 0.0
        if streamed:
            self._has_streamed = True
            for backoff in self._backoffs.values():
                backoff.reset()
        side: Side = "kafka" if isinstance(error, SinkUnavailableError) else "postgres"
        if side == "postgres":
            spools_at = None
        patience_s = self._startup_timeout_s
        if spools_at is None and not self._has_streamed and now - self._began > patience_s:
            raise type(error)(
                f"{error.message} (given up after startup_timeout_s: {patience_s:g})", hint=error.hint
            ) from error
        wait_s = self._backoffs[side].next(draw)
        if spools_at is not None:
            wait_s = min(wait_s, max(0.0, spools_at - now))
        self._reconnects[side] = self._reconnects.get(side, 0) + 1
        self._observe(
            ReconnectScheduled(side=side, message=error.message, hint=error.hint, wait_s=round(wait_s, 3))
        )
        return wait_s
