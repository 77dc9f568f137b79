"""How many files and connections cdcd has open at most, and how many the process may have (docs/sizing.md).

The rule: a start that cannot have what every daemon needs ends at once, with exit code 8. Later, a process that runs
out of descriptors is told of by the call that failed, or, because librdkafka and the HTTP server only try again, by
`is_exhausted`.
"""

import os
import resource
from typing import Final

from cdcd.config.loading import Config
from cdcd.core.errors import FILES_HINT, LimitError, out_of_files

FILES_MIN: Final = 40
"""Descriptors without which no daemon streams: 37 were open at the most with one broker and one reader of tables."""

BASE_FILES: Final = 40
"""Descriptors besides those that the configuration adds to: standard streams, event loops, three connections to
PostgreSQL, the wake-up pipes of Kafka's clients, spool, files that are open for a moment."""

OF_EACH_BROKER: Final = 6
"""Connections of the producer, of the clients that ask and read, and of those that look whether Kafka answers."""

OF_HTTP: Final = 32
"""Connections to the HTTP server at the same time."""


def files_needed(config: Config, brokers: int) -> int:
    """The number of descriptors that cdcd has open at most."""
    pages = OF_HTTP if config.http.enabled else 0
    return BASE_FILES + OF_EACH_BROKER * brokers + config.snapshot.parallelism + pages


def file_limit() -> int | None:
    """The number of descriptors that this process may have open, if it raises its soft limit; None: no limit."""
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
    """The error of this process if it may open no further file or connection now; None: it may."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return out_of_files(error)
    return None
