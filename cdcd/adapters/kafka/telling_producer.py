"""A producer whose calls raise the fatal error that ended it, and never a SystemError in its place.

A producer meets a fatal error, for example, if another producer uses its transactional id. confluent_kafka then sets a
Python exception, which the call raises when it returns (confluent_kafka.c, error_cb). Before the call returns,
confluent_kafka calls `on_delivery` for the failed records while that exception is set (Producer.c, dr_msg_cb). Python
then raises a SystemError whose cause is the exception. If `on_delivery` raises and catches an exception of its own, the
first exception is lost, and the SystemError has no cause.
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
            # After a fatal error, `begin_transaction` does nothing but raise that error (rdkafka_txnmgr.c,
            # rd_kafka_txn_require_states0). A producer without transactions has no call that names its fatal error.
            self.begin_transaction()
        except KafkaException as told:
            if told.args[0].fatal():
                return told
        return KafkaException(KafkaError(KafkaError._FATAL, "librdkafka ended the producer", True))
