"""Who writes during a handover: `deploy/demo/workload.py` for variety, and pgbench for the rest of the rate."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.demo.workload import Features, Workload
from deploy.local import PostgresServer
from deploy.local.postgres_packages import client_program
from tests.integration.daemon import until

FEATURES: Final = Features(
    # Native logical replication carries rows only: no definitions, no messages. It sends prepared ones at their commit.
    ddl=False,
    truncate=False,
    large=False,
    messages=False,
    prepared=False,
    new_tables=False,
)

VARIED: Final = 0.2
"""The part of the rate that is varied: Python's sessions would take the processor from what is tested."""

FORMER: Final = "former"
NEW: Final = "new"

CLIENTS: Final = 4

# A variable keeps its value from one transaction of a client to its next. The 2 are the changes beside the logged row.
# Numbers below zero, because the varied writers take the others.
_SCRIPT: Final = """\
\\set sequence :sequence + 1
\\set id -:sequence - :client_id * 10000000 - :base
BEGIN;
INSERT INTO events_log VALUES ('{session}.' || :client_id, :sequence, :sequence, 'steady', false, 2, 0, '{{}}');
INSERT INTO blind VALUES (:id, 'steady');
INSERT INTO heap_full VALUES (:id, 'steady', NULL);
COMMIT;
"""


@contextmanager
def writing(server: PostgresServer, seed: int, rate: float, folder: Path, session: str) -> Iterator[None]:
    """Transactions at this rate until the block ends. Then none of them is open any more.

    Args:
        session: FORMER or NEW: each session counts its transactions, so the two need names of their own.
    """
    script = folder / f"{session}.sql"
    script.write_text(_SCRIPT.format(session=session))
    errors = folder / f"{session}.log"
    base = 0 if session == FORMER else CLIENTS * 10_000_000
    command: list[str | Path] = [
        *(
            client_program("pgbench"),
            "--no-vacuum",
            "--client",
            str(CLIENTS),
            "--rate",
            f"{rate * (1 - VARIED):g}",
        ),
        *(
            "--time",
            "86400",
            "--file",
            script,
            "--define",
            "sequence=0",
            "--define",
            f"base={base}",
        ),
        *("--host", "127.0.0.1", "--port", str(server.port), "--username", "postgres", "postgres"),
    ]
    with errors.open("w") as log, Workload(server.dsn(), seed, FEATURES, rate=rate * VARIED):
        steady = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
            assert steady.poll() is None, errors.read_text()
        finally:
            steady.kill()
            steady.wait()
    # A server process ends a moment after its client, and may have committed meanwhile.
    gone = "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'pgbench')"
    until(lambda: server.execute(gone) or None, "pgbench's sessions did not end")
