"""Settings of a stream."""

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from cdcd.core.errors import ConfigError

StreamingOption: TypeAlias = Literal["auto", "off", "on", "parallel"]

SPOOL_MEMORY_BYTES: Final = 64 * 1024 * 1024
"""Default limit of bytes in memory for open streamed and prepared transactions. PostgreSQL itself keeps the same
amount of each (`logical_decoding_work_mem`) before it streams."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Parameters of `connect`, where they are described; `protocol`: pgoutput's version; and `money_digits`: number of
    decimal digits of money, None for the database's default of lc_monetary.
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
            # After ROLLBACK TO SAVEPOINT in a streamed transaction, only the server can tell which of its messages
            # count (`transactions/open_transactions.py`).
            raise ConfigError(
                f"messages=True cannot be combined with streaming={self.streaming!r}.",
                hint="Leave streaming at 'auto': PostgreSQL then keeps open transactions until they commit.",
            )

    @property
    def streaming_mode(self) -> StreamingOption:
        """Mode for the request to the server: off if logical messages are wanted."""
        return "off" if self.messages else self.streaming
