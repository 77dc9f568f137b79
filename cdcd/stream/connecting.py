"""The function `cdcd.connect`."""

from cdcd.stream.changes import Change
from cdcd.stream.decoding import ChangeDecoder
from cdcd.stream.settings import SPOOL_MEMORY_BYTES, StreamingOption, StreamSettings
from cdcd.stream.stream import Stream


def connect(
    dsn: str,
    *,
    publication: str,
    slot: str | None = None,
    create_slot: bool = False,
    password_command: tuple[str, ...] = (),
    messages: bool = False,
    streaming: StreamingOption = "auto",
    spool_directory: str | None = None,
    spool_memory_bytes: int = SPOOL_MEMORY_BYTES,
    spool_disk_bytes_max: int | None = None,
    connect_timeout_s: float = 10.0,
    application_name: str = "cdcd",
) -> Stream[Change]:
    """Read the committed transactions of a publication, in the order of their commits.

    Use `async with cdcd.connect(…) as stream:` and, in it, `async for transaction in stream:`.

    The connection is opened when the stream is entered. Without `slot`, the stream has the commits after that
    moment, and nothing remains on the server afterwards. With `slot`, the stream continues after the acknowledged
    transactions.

    Args:
        dsn: a libpq URI or key=value string. libpq's environment variables and password file apply, too.
        publication: name of an existing publication.
        slot: name of a permanent pgoutput slot. PostgreSQL keeps the WAL after the acknowledged transactions, also
            while no program runs. None: a temporary slot, which PostgreSQL drops at the end of the session.
        create_slot: True to create the permanent slot if it is missing. The stream has no changes from before its
            creation.
        password_command: a program with its arguments. It prints the password or a token, and runs before each
            connection. Empty: there is no command.
        messages: True to receive logical messages too (`pg_logical_emit_message`, PostgreSQL 14 and up).
        streaming: when PostgreSQL sends transactions larger than `logical_decoding_work_mem`. "on", "parallel":
            before their commit, into the spool. "off": after their commit. "auto": before their commit if the
            server can, but "off" with `messages`. The stream is the same in every case.
        spool_directory: folder for open transactions that exceed the memory limit. None: the system's temporary
            folder.
        spool_memory_bytes: bytes of open transactions that are kept in memory.
        spool_disk_bytes_max: bytes of open transactions on disk above which LimitError is raised. None: the free
            space of the file system.
        connect_timeout_s: seconds for each address of each host.
        application_name: name in `pg_stat_activity` and `pg_stat_replication`.

    Raises:
        ConfigError: parameters contradict each other.
    """
    settings = StreamSettings(
        dsn=dsn,
        publication=publication,
        slot=slot,
        create_slot=create_slot,
        password_command=password_command,
        messages=messages,
        streaming=streaming,
        spool_directory=spool_directory,
        spool_memory_bytes=spool_memory_bytes,
        spool_disk_bytes_max=spool_disk_bytes_max,
        connect_timeout_s=connect_timeout_s,
        application_name=application_name,
    )
    return Stream(settings, lambda source: ChangeDecoder(source.money_digits))
