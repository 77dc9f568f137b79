"""What follows a session that has failed: another session, and how it is opened, or the end of the process.

The rule: a transient failure ends a session, not the process. Until a session has streamed, the process gives up after
`startup_timeout_s`, so that a wrong address is noticed. It does not give up for Kafka while the stream is to go to the
durable log, because that session needs no Kafka; and it does not wait longer than until that session may begin.
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
from cdcd.core.facts import (
    BinaryPaused,
    ConversionPaused,
    Observer,
    ReconnectScheduled,
    Side,
    StreamingPaused,
    StreamingResumed,
    StreamRenewed,
)
from cdcd.core.retry import Backoff


class Sessions:
    """The sessions of a process.

    Args:
        binary: whether values are asked for in binary form (`postgres.binary`).
        startup_timeout_s: seconds until the process gives up, if no session has streamed.
        backoffs: by the side that failed.
        reconnects: by the side that failed, the number of sessions that followed a back-off. It is counted up here.
        now: when the process began, in seconds of a monotonic clock.

    Attributes:
        binary: the next session asks for values in binary form.
        converts: PostgreSQL converts the texts of the next session's stream to UTF-8.
        unstreamed_until: the next session receives transactions without streaming until the one with this commit LSN
            is delivered; 0: with streaming.
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
        """A session has failed. Returns the seconds to wait before the next one.

        Args:
            streamed: whether the session had begun to stream.
            draw: from 0 to 1; it spreads the reconnects of many processes.
            spools_at: when the stream goes to the durable log if Kafka is still away; None: it does not.

        Raises:
            TransientError: no session has streamed in time, so the process ends. It has the class of `error`.
            SourceError: a name or a default cannot be converted, also without conversion of the stream.
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
                # What cannot be converted is no text of the stream: nothing comes after this place.
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
