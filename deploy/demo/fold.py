"""Are the topics, folded into tables, the tables? `compare` says so, as a library and from the command line.

python -m deploy.demo.fold --dsn postgresql://… --bootstrap-servers localhost:9092 --prefix shop
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import psycopg

from deploy.demo.events_log import TABLE as EVENTS_LOG
from deploy.demo.events_log import examine_log
from deploy.demo.history import Violations, examine
from deploy.demo.rows import Table, read_tables
from deploy.demo.tables import Folded, canonical, fold
from deploy.demo.topics import Reader

SHOWN_MAX: Final = 5
WIDTH_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class TableReport:
    """How one table came out. `differences` are for a person; there are `wrong` of them, and not all are shown."""

    name: str
    rows: int
    folded: int
    wrong: int
    differences: tuple[str, ...]
    ops: Counter[str]


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome: equal only if no promise is broken and every table is the same."""

    tables: tuple[TableReport, ...]
    violations: Violations
    records: int
    events: int
    transactions: int
    logged: int
    """Transactions of the randomized workload, of which events_log tells."""

    @property
    def equal(self) -> bool:
        return not self.violations and not any(table.wrong for table in self.tables)

    def lines(self) -> Iterator[str]:
        for table in self.tables:
            verdict = "equal" if not table.wrong else f"{table.wrong} rows differ"
            ops = " ".join(f"{op}:{count}" for op, count in sorted(table.ops.items()))
            yield f"{table.name}: {table.rows} rows, {table.folded} folded from {ops or 'nothing'}: {verdict}"
            yield from (f"    {difference}" for difference in table.differences)
        yield from self.violations.lines()
        yield f"{self.records} records, {self.events} events, {self.transactions} transactions"
        yield "equal" if self.equal else "NOT EQUAL"

    def __str__(self) -> str:
        return "\n".join(self.lines())


def compare(
    dsn: str,
    bootstrap_servers: str,
    prefix: str,
    tables: Sequence[str] | None = None,
    *,
    exactly_once: bool = True,
    whole: bool = True,
    rows_before: bool = False,
    timeout_s: float = 120,
) -> Report:
    """Read all topics of `prefix` and hold them against the tables, which nobody may write to meanwhile.

    The daemon must have delivered everything: await `await_flushed` first.

    Args:
        tables: `schema.table` of each that counts; None: all of the database.
        exactly_once: False: duplicates are left out instead of being violations.
        rows_before: as in `fold`.
        whole: the topics have all of the transactions' events, so that a missing number is a lost event.
    """
    with Reader(bootstrap_servers, prefix) as reader:
        history = examine(reader.read_all(timeout_s), exactly_once=exactly_once, whole=whole)
    violations = history.violations
    folded = fold(history.events, violations, rows_before=rows_before)
    logged = examine_log(history, violations) if any(name == EVENTS_LOG for _, name in folded) else 0
    reports = tuple(
        compare_table(table, folded.get((table.schema, table.name))) for table in read_tables(dsn, tables)
    )
    transactions = sum(1 for _ in history.transactions())
    return Report(reports, violations, history.records, len(history.events), transactions, logged)


def compare_table(table: Table, folded: Folded | None) -> TableReport:
    """Rows that are missing, too many or other, as a multiset."""
    folded = folded or Folded()
    found = folded.rows()
    # A generated column is sent by PostgreSQL 18, if its publication says so.
    columns = [
        column for column in table.columns if not column.generated or all(column.name in row for row in found)
    ]
    real = Counter(canonical({column.name: row[column.name] for column in columns}) for row in table.rows)
    # A row that was not sent since a column came has its default, which PostgreSQL does not write to old rows either.
    ours = Counter(
        canonical({column.name: row.get(column.name, column.default) for column in columns}) for row in found
    )
    missing, extra = list((real - ours).elements()), list((ours - real).elements())
    differences = tuple(islice(_differences(missing, extra, folded.key_columns), SHOWN_MAX))
    wrong = max(len(missing), len(extra))
    name = f"{table.schema}.{table.name}"
    return TableReport(name, len(table.rows), len(found), wrong, differences, folded.ops)


def _differences(missing: list[str], extra: list[str], key: tuple[str, ...]) -> Iterator[str]:
    """Rows of one key are held against each other; the others are shown as they are."""
    ours = {_key(row, key): row for row in map(json.loads, extra)} if key else {}
    for text in missing:
        row = json.loads(text)
        other = ours.pop(_key(row, key), None) if key else None
        if other is None:
            yield f"only in the table: {_short(text)}"
        else:
            said = (
                f"{name} is {_short(repr(value))}, in the topics {_short(repr(other[name]))}"
                for name, value in row.items()
                if value != other[name]
            )
            yield f"{dict(zip(key, _key(row, key), strict=True))}: {'; '.join(said)}"
    for text in extra:
        if not key or _key(json.loads(text), key) in ours:
            yield f"only in the topics: {_short(text)}"


def _key(row: dict[str, Any], key: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(json.dumps(row.get(name)) for name in key)


def _short(text: str) -> str:
    return text if len(text) <= WIDTH_MAX else f"{text[:WIDTH_MAX]}…"


class Flushed:
    """Whether the daemon has confirmed everything that was committed before this was made.

    With a prepared transaction undecided it never does, for that holds the position.
    """

    def __init__(self, dsn: str, slot: str) -> None:
        self._slot = slot
        self._connection = psycopg.connect(dsn, autocommit=True)
        row = self._connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        self._target: str = row[0]
        # WAL that nobody waits for is written in its own time; a commit pushes it.
        self._connection.execute("SELECT txid_current()")

    def close(self) -> None:
        self._connection.close()

    def reached(self) -> bool:
        row = self._connection.execute(
            "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
            (self._target, self._slot),
        ).fetchone()
        return row is not None and bool(row[0])

    def __str__(self) -> str:
        row = self._connection.execute(
            "SELECT confirmed_flush_lsn::text, active FROM pg_replication_slots WHERE slot_name = %s",
            (self._slot,),
        ).fetchone()
        if row is None:
            return f"the slot {self._slot} does not exist"
        reader = "" if row[1] else ", and nobody reads it"
        return f"the slot {self._slot} is at {row[0]}{reader}; {self._target} is awaited"


def await_flushed(dsn: str, slot: str, timeout_s: float = 120) -> None:
    """Wait until the daemon has confirmed everything that is committed now; TimeoutError when it does not."""
    with closing(Flushed(dsn, slot)) as flushed:
        deadline = time.monotonic() + timeout_s
        while not flushed.reached():
            if time.monotonic() > deadline:
                raise TimeoutError(f"After {timeout_s:.0f} s {flushed}.")
            time.sleep(0.1)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when they are equal, 1 when not."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.demo.fold", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--dsn", required=True, help="of the source database")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--prefix", required=True, help="topics are <prefix>.<schema>.<table>")
    parser.add_argument("--slot", help="wait until this slot has confirmed everything")
    parser.add_argument(
        "--table", action="append", metavar="SCHEMA.TABLE", help="only this one; may be repeated"
    )
    parser.add_argument("--at-least-once", action="store_true", help="duplicates are no violation")
    parser.add_argument("--timeout", type=float, default=120, metavar="SECONDS")
    options = parser.parse_args(arguments)
    if options.slot:
        await_flushed(options.dsn, options.slot, options.timeout)
    report = compare(
        options.dsn,
        options.bootstrap_servers,
        options.prefix,
        options.table,
        exactly_once=not options.at_least_once,
        timeout_s=options.timeout,
    )
    print(report)
    return 0 if report.equal else 1


if __name__ == "__main__":
    sys.exit(main())
