"""Every failure that the wire, the broker, the disk or the operator can cause, as a type with a hint.

Two kinds decide what the daemon does: a `TransientError` is answered by reconnecting and resuming, a
`FatalError` stops the process because a person must act. The class of a `FatalError` is also the process's
exit code, so that a service manager and a runbook can tell the kinds apart. Our own bugs are assertions and
other built-in exceptions: they end the process with code 1 and a traceback.
"""

import errno
from typing import ClassVar, Final


class CdcdError(Exception):
    """A failure with a message that names what and where, and a hint that says what to do."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} Hint: {self.hint}" if self.hint else self.message


class TransientError(CdcdError):
    """Likely to pass by itself: reconnect with back-off and resume from the checkpoint.

    The exit code is for a start that never succeeded, and says PostgreSQL unless the subclass says otherwise.
    """

    exit_code = 3


class WithoutStreamingError(TransientError):
    """Replication must be started again without streaming, until the transaction with that commit LSN is delivered."""

    def __init__(self, message: str, *, hint: str, commit_lsn: int) -> None:
        super().__init__(message, hint=hint)
        self.commit_lsn = commit_lsn


class WithoutBinaryError(TransientError):
    """Replication must be started again without the option `binary`.

    Values of some column cannot be read in binary form, or the server cannot send them so.
    """


class WithoutConversionError(TransientError):
    """PostgreSQL must send texts in the server's encoding, because it cannot convert one of them to UTF-8."""


class SinkUnavailableError(TransientError):
    """Kafka does not answer; the exit code is for a start that never succeeded."""

    exit_code = 4


class RegistryUnavailableError(SinkUnavailableError):
    """The schema registry does not answer."""


class FatalError(CdcdError):
    """A person must act; nothing is confirmed past the point where it was raised."""

    exit_code = 1


class ConfigError(FatalError):
    """The configuration or the command line is wrong, or asks for what the server does not have."""

    exit_code = 2


class WithheldError(ConfigError):
    """Records of a table could show protected values, because it is not certain which column a rule protects."""


class SourceError(FatalError):
    """PostgreSQL refuses the daemon, or lacks something that a person must give it."""

    exit_code = 3


class UndecodableNameError(SourceError):
    """A name that belongs to a table has bytes that cannot be decoded to UTF-8."""


class SinkError(FatalError):
    """Kafka refuses the daemon or one of its records."""

    exit_code = 4


class RecordTooLargeError(SinkError):
    """A record is larger than Kafka takes."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            hint="Raise max.message.bytes of the topic (message.max.bytes of the broker) and message.max.bytes in "
            "kafka.properties, or set kafka.oversized to claim_check or dead_letter.",
        )


class TopicRefusedError(SinkError):
    """Kafka refuses records of some topics, or the topics themselves.

    Attributes:
        topics: the topics that may be meant.
    """

    def __init__(self, message: str, *, hint: str, topics: frozenset[str]) -> None:
        super().__init__(message, hint=hint)
        self.topics = topics


class ClaimedError(SinkError):
    """A topic belongs to another pipeline."""


class ProtocolError(FatalError):
    """Bytes on the wire are not what the manual says: unknown tag or flag, short or left-over bytes."""

    exit_code = 5


class PositionError(FatalError):
    """Slot, checkpoint and server do not belong together: going on would skip changes in silence."""

    exit_code = 6


class FencedError(FatalError):
    """Another instance of the same pipeline is the writer now."""

    exit_code = 7


class LimitError(FatalError):
    """A limit on disk, memory or size is reached and waiting cannot help."""

    exit_code = 8


class ConnectError(FatalError):
    """Kafka Connect refuses `cdcd adopt`, or could not be reached."""

    exit_code = 11


EXIT_CODES: dict[int, str] = {
    0: "stopped as asked",
    1: "a bug in cdcd",
    2: "configuration or command line",
    3: "PostgreSQL refuses or lacks something, or could not be reached at the start",
    4: "Kafka refuses the daemon or a record, or could not be reached at the start",
    5: "corrupted or unknown bytes from the server, or in a recording",
    6: "slot, checkpoint and server do not belong together",
    7: "another instance is the writer",
    8: "a limit on disk, memory or size is reached",
    9: "the awaited request was cancelled, or took longer than --timeout",
    10: "`cdcd check`, `cdcd status` or `cdcd mirror status` found an error, `cdcd verify` a difference, "
    "`cdcd adopt` an option that it cannot take over, or `cdcd trace` no record",
    11: "Kafka Connect refuses `cdcd adopt`, or could not be reached",
    12: "`cdcd verify` found no difference, but could not compare everything",
    13: "`cdcd status` and `cdcd tables` found tables that are set aside, and nothing else wrong",
}


OUT_OF_FILES: Final = "Too many open files"
"""Message of the C library (libpq and librdkafka repeat it) if a process may open no further file or connection."""

FILES_HINT: Final = (
    "Raise the limit: LimitNOFILE=65536 in the systemd unit, `ulimit -n 65536` in a shell, or that of the container. "
    "`cdcd check` says how many files and connections cdcd needs."
)


def out_of_files(error: BaseException) -> LimitError | None:
    """The error of a process that may open no further file or connection; None: `error` is another one."""
    if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
        return None
    whose = "this process" if error.errno == errno.EMFILE else "all processes of this machine together"
    return LimitError(f"{error.strerror}: {whose} cannot open another file or connection.", hint=FILES_HINT)


NOT_BY_A_RESTART: Final = frozenset({2, 5, 6, 8, 10})
"""Exit codes after which another start ends in the same way, until a person has acted.

A service manager should not start cdcd again after these (`RestartPreventExitStatus` of the systemd unit). 3 and 4 are
not among them, because they are also the codes of a server that is still away when `startup_timeout_s` is over.
"""


def cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one failure of several concurrent ones that says most: a bug, then what is fatal, then what is transient."""
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop()
        if isinstance(error, BaseExceptionGroup):
            pending.extend(error.exceptions)
        else:
            leaves.append(error)
    return min(leaves, key=_rank)


def _rank(error: BaseException) -> int:
    if out_of_files(error) is not None:
        return 1
    if not isinstance(error, CdcdError):
        return 0
    return 1 if isinstance(error, FatalError) else 2
