"""Committed PostgreSQL changes to Kafka, exactly once, in commit order."""

from typing import Final

__version__: Final = "0.1.0"
