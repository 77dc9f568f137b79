"""Makes records of logical messages, passes requests on, and notes size and digest of a message that is too large.

The rule: a message is an event like any other. A request has no record, and takes effect when its transaction's events
count as delivered.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from cdcd.core.engine.context import PREFIX, Contexts
from cdcd.core.engine.current_transaction import CurrentTransaction
from cdcd.core.engine.requests import Requests
from cdcd.core.facts import Observer
from cdcd.core.facts.transactions import MessageOversized
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.shortened import read_digest
from cdcd.core.records.encoder import HEADER_DIGEST, HEADER_SIZE, LOST_KEY_BYTES_MAX, MESSAGES
from cdcd.core.snapshot.signals import RESERVED, WATERMARK
from cdcd.core.transactions.steps import NonTransactionalMessage, TransactionalMessage

_RESERVED: Final = tuple(prefix.encode() for prefix in RESERVED)
_WATERMARK: Final = WATERMARK.encode()
_CONTEXT: Final = PREFIX.encode()


class MessageRecords:
    """Handles logical messages; call `handle` and `handle_alone` in the order of the stream.

    Args:
        contexts: reads contexts of transactions; None if they are messages like any other.
        prefixes: prefixes of the messages that have records; None if all have records.
    """

    def __init__(
        self,
        current: CurrentTransaction,
        requests: Requests,
        contexts: Contexts | None,
        prefixes: tuple[bytes, ...] | None,
        observe: Observer,
    ) -> None:
        self._current = current
        self._encoder = current.encoder
        self._requests = requests
        self._contexts = contexts
        self._message_prefixes = prefixes
        self._observe = observe

    def handle(self, step: TransactionalMessage) -> bool:
        """Add a message of the open transaction to the queue. Returns False if it must wait for ids of schemas."""
        current, frame, in_stream = self._current, step.frame, step.in_stream
        if self._is_context(frame, in_stream):
            self._take_context(frame, in_stream)
            if not step.is_delivered:
                current.leave_out(1)
            return True
        if step.is_delivered:
            return True
        if self._is_request(frame, in_stream):
            current.leave_out(1)
            request = self._held_request(frame, in_stream)
            if request is not None:
                current.defer(request)
            return True
        if not self._is_delivered(frame, in_stream):
            current.leave_out(1)
            return True
        if not current.has_schemas(MESSAGES):
            return False
        known = len(current.records)
        size = self._encoder.encode(frame, in_stream, current.unix_us, current.records)
        size -= self._without_value(frame, in_stream, known)
        current.submit(size, 1)
        return True

    def handle_alone(self, step: NonTransactionalMessage) -> bool:
        """Add a message between two transactions to the queue, which the caller closes.

        Returns False if the message must wait for ids of schemas.
        """
        current, frame, in_stream = self._current, step.frame, step.in_stream
        is_request = self._is_request(frame, in_stream)
        is_context = self._is_context(frame, in_stream)
        is_delivered = not is_request and not is_context and self._is_delivered(frame, in_stream)
        if is_delivered and not current.has_schemas(MESSAGES):
            return False
        current.queue.begin(step.lsn, 0)
        size = 0
        if is_request:
            self._take_request(frame, in_stream)
        elif is_context:
            self._take_context(frame, in_stream)
        elif is_delivered:
            known = len(current.records)
            size = self._encoder.encode_message(
                frame, in_stream, step.last_commit_lsn, current.unix_us, current.records
            )
            size -= self._without_value(frame, in_stream, known)
        current.queue.enqueue(current.records, size, 1)
        return True

    def _is_context(self, frame: bytes, in_stream: bool) -> bool:
        """Return whether a logical message is the context of its transaction."""
        return self._contexts is not None and peek.message_prefix(frame, in_stream) == _CONTEXT

    def _take_context(self, frame: bytes, in_stream: bool) -> None:
        """Let the context hold for the following events of the open transaction, unless it is refused."""
        contexts, unix_s = self._contexts, self._current.unix_us // 1_000_000
        assert contexts is not None, "it is a context"
        size = peek.shortened_bytes(frame)
        if size >= 0:
            contexts.refuse_large(size, unix_s)
            return
        headers = contexts.headers(_message(frame, in_stream), unix_s)
        if headers is not None:
            self._current.use_context(headers)

    def _is_request(self, frame: bytes, in_stream: bool) -> bool:
        """Return whether a logical message is a request to the daemon."""
        return peek.message_prefix(frame, in_stream) in _RESERVED

    def _held_request(self, frame: bytes, in_stream: bool) -> Callable[[], None] | None:
        """Return the function to call at the end of the request's transaction; None if there is none."""
        if peek.shortened_bytes(frame) < 0:
            return self._requests.hold(_message(frame, in_stream))
        return partial(self._take_request, frame, in_stream)

    def _take_request(self, frame: bytes, in_stream: bool) -> None:
        """Handle the request; if it is too large, only its size is known."""
        size = peek.shortened_bytes(frame)
        if size < 0:
            self._requests.take(_message(frame, in_stream))
        elif peek.message_prefix(frame, in_stream) != _WATERMARK:
            self._requests.refuse_large(size)

    def _is_delivered(self, frame: bytes, in_stream: bool) -> bool:
        """Return whether a logical message that is no request has a record.

        A context has none, also if this pipeline uses no contexts, because it may have the token of another pipeline.
        """
        prefixes, prefix = self._message_prefixes, peek.message_prefix(frame, in_stream)
        return prefix != _CONTEXT if prefixes is None else prefix in prefixes

    def _without_value(self, frame: bytes, in_stream: bool, known: int) -> int:
        """Remove the value from the record of a message of which only size and digest were kept.

        Args:
            known: number of records before the message.

        Returns:
            The bytes by which the record became smaller.
        """
        size = peek.shortened_bytes(frame)
        if size < 0 or len(self._current.records) == known:
            return 0
        topic, key, value, headers = self._current.records[-1]
        digest = read_digest(_message(frame, in_stream).content).hex().encode()
        is_long = key is not None and len(key) > LOST_KEY_BYTES_MAX
        named = [*(headers or ()), (HEADER_SIZE, str(size).encode()), (HEADER_DIGEST, digest)]
        self._current.records[-1] = (topic, None if is_long else key, None, named)
        self._observe(MessageOversized(topic=topic, record_bytes=size))
        return len(value or b"") + (len(key or b"") if is_long else 0)


def _message(frame: bytes, in_stream: bool) -> LogicalMessage:
    """Return the logical message in the frame."""
    message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
    assert isinstance(message, LogicalMessage)
    return message
