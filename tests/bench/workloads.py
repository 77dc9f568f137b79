"""Backlogs: content of the WAL that several slots hold, so that several readers drain the same bytes."""

from dataclasses import dataclass
from typing import Final

TABLE: Final = """
CREATE TABLE item (
    id bigint PRIMARY KEY,
    customer integer NOT NULL,
    status text NOT NULL,
    amount numeric(12,2) NOT NULL,
    ratio double precision NOT NULL,
    paid boolean NOT NULL,
    created timestamptz NOT NULL,
    due date NOT NULL,
    reference uuid NOT NULL,
    note text NOT NULL
)
"""

ROW: Final = (
    "{id}, {id} % 9973, 'shipped', ({id} % 100000) / 100.0, {id} * 0.25, {id} % 3 = 0, "
    "timestamptz '2026-01-01 00:00:00.123456+00' + {id} * interval '1 ms', date '2026-01-01' + ({id} % 365)::int, "
    "md5({id}::text)::uuid, 'delivered to the neighbour of customer ' || {id} % 9973"
)


@dataclass(frozen=True, slots=True)
class Workload:
    """`body` is PL/pgSQL for transaction number `n`, of `rows` row changes each; the first find `missing` rows less."""

    name: str
    title: str
    rows: int
    body: str
    missing: int = 0


WORKLOADS: Final = {
    workload.name: workload
    for workload in (
        Workload(
            "inserts",
            "single-row inserts in transactions of 100",
            100,
            f"INSERT INTO item SELECT {ROW.format(id='i')} FROM generate_series(n * 100, n * 100 + 99) AS s(i);",
        ),
        Workload(
            "mixed",
            "transactions of 10 rows: 40 % insert, 50 % update, 10 % delete",
            10,
            f"INSERT INTO item SELECT {ROW.format(id='i')} FROM generate_series(n * 4, n * 4 + 3) AS s(i);"
            "UPDATE item SET status = 'returned', amount = amount + 1 WHERE id BETWEEN n * 4 - 5 AND n * 4 - 1;"
            "DELETE FROM item WHERE id = n * 4 - 6;",
            missing=8,
        ),
        Workload("single", "single-row transactions", 1, f"INSERT INTO item SELECT {ROW.format(id='n')};"),
    )
}


def load_statement(workload: Workload, rows: int) -> str:
    """A DO block that commits after each transaction."""
    return (
        "DO $$ BEGIN SET synchronous_commit = off; "
        f"FOR n IN 1..{rows // workload.rows} LOOP {workload.body} COMMIT; END LOOP; END $$"
    )
