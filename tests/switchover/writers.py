"""Who writes during a handover: `deploy/demo/workload.py` for variety, and pgbench for the rest of the rate."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.demo.workload import Features, Workload
from deploy.local import PostgresServer
from tests.pgbench import CLIENTS, pgbench

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
    options: list[str | Path] = ["--file", script, "--define", "sequence=0", "--define", f"base={base}"]
    with (
        Workload(server.dsn(), seed, FEATURES, rate=rate * VARIED),
        pgbench(server, "postgres", rate * (1 - VARIED), options, errors),
    ):
        yield
