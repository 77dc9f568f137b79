"""`cdcd.connect`."""

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

    `async with cdcd.connect(…) as stream:` and, in it, `async for transaction in stream:`.

    Nothing is connected before the stream is entered. Without `slot`, the stream has what commits after it was entered,
    and leaves nothing behind. With `slot`, it goes on behind what was acknowledged before.

    Args:
        dsn: a libpq URI or key=value string. libpq's environment variables and password file count too.
        publication: the publication's name, which must exist.
        slot: the name of a lasting slot of pgoutput. PostgreSQL keeps the WAL behind what was acknowledged, also while
            no program runs. None: a temporary slot, which PostgreSQL drops when the session ends, however it ends.
        create_slot: create the lasting slot if there is none. Changes from before its creation do not come.
        password_command: a program and its arguments. It prints the password or a token, and is run before each
            connection. Empty: there is none.
        messages: logical messages too (`pg_logical_emit_message`, PostgreSQL 14 and up).
        streaming: how PostgreSQL sends transactions larger than `logical_decoding_work_mem`. "on", "parallel": before
            their commit, into the spool. "off": after their commit. "auto": the first as far as the server has it, but
            "off" with `messages`. The stream is the same in every case.
        spool_directory: where open transactions go that do not fit into memory. None: the system's temporary folder.
        spool_memory_bytes: how much of open transactions is kept in memory.
        spool_disk_bytes_max: LimitError where open transactions need more on disk. None: what the file system has.
        connect_timeout_s: seconds for each address of each host.
        application_name: what `pg_stat_activity` and `pg_stat_replication` show.

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
