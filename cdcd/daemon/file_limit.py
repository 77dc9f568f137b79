"""The number of files and connections that cdcd needs, and the limit of the process (docs/sizing.md).

The rule: if the limit is lower than every daemon needs, the start ends at once with exit code 8. If a running
process has no descriptor left, the call that fails raises the error. librdkafka and the HTTP server only retry, so
the daemon also calls `exhausted` regularly.
"""

import os
import resource
from typing import Final

from cdcd.config.loading import Config
from cdcd.core.errors import FILES_HINT, LimitError, out_of_files

FILES_MIN: Final = 40
"""Minimum number of descriptors for every daemon. At most 37 were open with one broker and one reader of tables."""

BASE_FILES: Final = 40
"""Number of descriptors that do not depend on the configuration: standard streams, event loops, three connections to
PostgreSQL, the wake-up pipes of Kafka's clients, the spool, and files that are open for a moment."""

OF_EACH_BROKER: Final = 6
"""Number of connections to each broker: producer, admin clients, consumers, and clients that check for an outage."""

OF_HTTP: Final = 32
"""Number of connections to the HTTP server at the same time."""


def files_needed(config: Config, brokers: int) -> int:
    """Return the maximum number of descriptors that cdcd has open."""
    pages = OF_HTTP if config.http.enabled else 0
    return BASE_FILES + OF_EACH_BROKER * brokers + config.snapshot.parallelism + pages


def file_limit() -> int | None:
    """Return the hard limit of descriptors, to which this process may raise its soft limit; None: no limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def raise_file_limit() -> None:
    """Raise the soft limit to the hard one.

    Raises:
        LimitError: no daemon can run with the hard limit.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < FILES_MIN:
        raise LimitError(
            f"This process may have {hard} files and connections open, and cdcd needs {FILES_MIN} at least.",
            hint=FILES_HINT,
        )


def exhausted() -> LimitError | None:
    """Return an error if this process cannot open another file or connection now, else None."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return out_of_files(error)
    return None
