"""Sessions of somebody else: one that reads a slot, one that only takes a walsender's place."""

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import pq
from psycopg.conninfo import make_conninfo


@contextmanager
def walsender(dsn: str, application_name: str = "somebody") -> Iterator[pq.abc.PGconn]:
    """A replication connection, idle, that the server never gives up."""
    wanted = {"replication": "database", "options": "-c wal_sender_timeout=0"}
    info = make_conninfo(dsn, application_name=application_name, **wanted)
    connection: pq.abc.PGconn = pq.PGconn.connect(info.encode())
    assert connection.status == pq.ConnStatus.OK, connection.get_error_message()
    try:
        yield connection
    finally:
        connection.finish()


@contextmanager
def slot_holder(dsn: str, slot: str, publication: str, application_name: str = "somebody") -> Iterator[int]:
    """Reads the slot and confirms nothing; gives the process id of its walsender."""
    with walsender(dsn, application_name) as connection:
        options = f"(proto_version '1', publication_names '{publication}')"
        result = connection.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 {options}".encode())
        assert result.status == pq.ExecStatus.COPY_BOTH, connection.get_error_message()
        yield connection.backend_pid
