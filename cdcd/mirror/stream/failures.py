"""What Spark and Java raise, as failures of cdcd: which of them may pass."""

import re
from typing import Final

from cdcd.core.errors import CdcdError, FatalError
from cdcd.mirror.platform.kafka_admin import records_gone
from cdcd.mirror.platform.read_ends import kafka_failure
from cdcd.mirror.watching.progress import first_lines

_KAFKA: Final = re.compile(r"org\.apache\.kafka\.common\.errors|KafkaException|TimeoutException: Timeout of")
_LOST: Final = re.compile(
    r"data may have been lost|data loss|OffsetOutOfRange|UnknownTopicOrPartition", re.IGNORECASE
)


def classified(error: Exception, servers: str) -> CdcdError | None:
    """What Spark or Java raised, if it is about Kafka."""
    text = str(error)
    if _LOST.search(text):
        return records_gone(first_lines(error))
    if _KAFKA.search(text):
        return kafka_failure(first_lines(error), servers)
    return None


def unexpected(error: Exception) -> FatalError:
    """An exception that neither cdcd nor Spark has a name for, as the failure of the table that raised it."""
    return FatalError(
        f"Unexpected {type(error).__name__}: {first_lines(error)}",
        hint="The other tables continue, and the next start retries this table. If it fails again, read the table"
        " again: cdcd mirror mirror.yaml --snapshot <table>",
    )
