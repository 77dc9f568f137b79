"""A producer whose calls raise the fatal error that ended it, and never a SystemError in its place.

After a fatal error, such as another producer with the same transactional id, confluent_kafka has a Python exception to
raise when the call returns (confluent_kafka.c, error_cb). Until then it calls `on_delivery` for the records that failed
(Producer.c, dr_msg_cb), with that exception still set. What comes of that depends on what `on_delivery` does: Python
answers with a SystemError that has the exception as its cause, or the exception is lost, and Python answers with a
SystemError that has none.
"""

from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

R = TypeVar("R")


class TellingProducer(Producer):
    """`Producer`, whose calls that wait raise KafkaException where confluent_kafka lost it."""

    def poll(self, timeout: float = -1) -> int:
        """See `Producer.poll`."""
        return self._telling(super().poll, timeout)

    def flush(self, timeout: float = -1) -> int:
        """See `Producer.flush`."""
        return self._telling(super().flush, timeout)

    def init_transactions(self, timeout: float = -1) -> None:
        """See `Producer.init_transactions`."""
        self._telling(super().init_transactions, timeout)

    def commit_transaction(self, timeout: float = -1) -> None:
        """See `Producer.commit_transaction`."""
        self._telling(super().commit_transaction, timeout)

    def abort_transaction(self, timeout: float = -1) -> None:
        """See `Producer.abort_transaction`."""
        self._telling(super().abort_transaction, timeout)

    def _telling(self, call: Callable[[float], R], timeout: float) -> R:
        try:
            return call(timeout)
        except SystemError as error:
            raise self._fatal_error(error) from None

    def _fatal_error(self, error: SystemError) -> KafkaException:
        if isinstance(error.__cause__, KafkaException):
            return error.__cause__
        try:
            # Of a producer that ended, this has no effect but to raise the fatal error (rdkafka_txnmgr.c,
            # rd_kafka_txn_require_states0). A producer without transactions does not tell it in any way.
            self.begin_transaction()
        except KafkaException as told:
            if told.args[0].fatal():
                return told
        return KafkaException(KafkaError(KafkaError._FATAL, "librdkafka ended the producer", True))
