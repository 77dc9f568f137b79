"""What of librdkafka's log gets through."""

import logging

from cdcd.adapters.kafka.client import LOGGER


def test_without_a_configured_log_it_says_nothing():
    assert any(isinstance(handler, logging.NullHandler) for handler in LOGGER.handlers)
