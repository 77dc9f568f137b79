"""Writers that pgbench runs beside a test until its block ends."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.local import PostgresServer
from deploy.local.postgres_packages import client_program
from tests.integration.daemon import until

CLIENTS: Final = 4

_LONG_S: Final = 8_640_000


@contextmanager
def pgbench(
    server: PostgresServer, database: str, rate: float, options: Sequence[str | Path], errors: Path
) -> Iterator[None]:
    """Transactions at this rate until the block ends. After the block none of them is open.

    Args:
        rate: transactions a second.
        options: further options of pgbench, such as its scripts.
        errors: the file that gets what pgbench says. AssertionError with its text: pgbench has ended by itself.
    """
    command: list[str | Path] = [
        *(client_program("pgbench"), "--no-vacuum", "--client", str(CLIENTS), "--rate", f"{rate:g}"),
        *("--time", str(_LONG_S), *options),
        *("--host", "127.0.0.1", "--port", str(server.port), "--username", "postgres", database),
    ]
    with errors.open("w") as log:
        writers = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
            assert writers.poll() is None, errors.read_text()
        finally:
            writers.kill()
            writers.wait()
    # A server process ends a moment after its client, and may have committed meanwhile.
    gone = "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'pgbench')"
    until(lambda: server.execute(gone) or None, "pgbench's sessions did not end")
