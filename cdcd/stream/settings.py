"""What a stream is asked for."""

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from cdcd.core.errors import ConfigError

StreamingOption: TypeAlias = Literal["auto", "off", "on", "parallel"]

SPOOL_MEMORY_BYTES: Final = 64 * 1024 * 1024
"""What open streamed and prepared transactions may have in memory. PostgreSQL itself keeps as much of each
(`logical_decoding_work_mem`) before it streams."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The parameters of `connect`, which says what they mean, `protocol`: pgoutput's version, and `money_digits`: the
    digits of money behind the point; None: as the database's default of lc_monetary has them.
    """

    dsn: str = field(repr=False)
    publication: str
    slot: str | None = None
    create_slot: bool = False
    password_command: tuple[str, ...] = field(default=(), repr=False)
    messages: bool = False
    streaming: StreamingOption = "auto"
    spool_directory: str | None = None
    spool_memory_bytes: int = SPOOL_MEMORY_BYTES
    spool_disk_bytes_max: int | None = None
    connect_timeout_s: float = 10.0
    application_name: str = "cdcd"
    protocol: int | Literal["auto"] = "auto"
    money_digits: int | None = None

    def __post_init__(self) -> None:
        if self.create_slot and self.slot is None:
            raise ConfigError(
                "create_slot=True without slot: a temporary slot is always created.",
                hint='Pass slot="name" for a lasting slot, or leave create_slot out.',
            )
        if self.messages and self.streaming in ("on", "parallel"):
            # After ROLLBACK TO SAVEPOINT in a streamed transaction nobody but the server can tell which of its messages
            # count (`transactions/open_transactions.py`).
            raise ConfigError(
                f"messages=True cannot be combined with streaming={self.streaming!r}.",
                hint="Leave streaming at 'auto': PostgreSQL then keeps open transactions until they commit.",
            )

    @property
    def streaming_mode(self) -> StreamingOption:
        """The mode to ask the server for: off where logical messages are wanted."""
        return "off" if self.messages else self.streaming
