"""Compares what the topics hold with the clients' histories and with the source's tables. Pure.

The rule: an operation was committed if the source's table `ops` has it. Whatever the client saw, each write of a
committed operation is in the topics once, and no write of any other operation is.

A record names its operation, but for a delete. A delete belongs to the operation of the other records with its
commit_lsn: each transaction writes a row of `ops`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.trial.history import Operation, Outcome, Record, Row, Sample, Source, Write

SHOWN_MAX: Final = 200
"""Characters of an anomaly's text."""


class Kind(Enum):
    """What can be wrong."""

    LOST = "lost"
    DOUBLED = "doubled"
    REORDERED = "reordered"
    TORN = "torn transaction"
    ABORTED = "aborted read"
    EARLY = "confirmed too early"
    DIFFERENT = "different"
    SOURCE = "the source itself"
    """The database does not have what it told a client: no fault of the pipeline."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that is wrong, with what is known of it."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.text[:SHOWN_MAX]}"


def check(
    history: Sequence[Operation], source: Source, records: Iterable[Record], samples: Iterable[Sample] = ()
) -> list[Anomaly]:
    """All anomalies. The pipeline must have delivered everything that was committed.

    Args:
        records: of each partition in the order of its offsets.
    """
    found = list(records)
    return [
        *_check_source(history, source),
        *_check_operations(history, source, found),
        *_check_order(found),
        *_check_state(source, found),
        *_check_confirmed(found, samples),
    ]


def _check_source(history: Sequence[Operation], source: Source) -> Iterator[Anomaly]:
    committed = source.committed()
    for operation in history:
        there = operation.op in committed
        if there != (operation.outcome is Outcome.OK) and operation.outcome is not Outcome.UNKNOWN:
            said = "is" if there else "is not"
            yield Anomaly(
                Kind.SOURCE, f"operation {operation.op}: {operation.outcome.value}, but it {said} there"
            )


def _check_operations(
    history: Sequence[Operation], source: Source, records: Sequence[Record]
) -> Iterator[Anomaly]:
    committed = source.committed()
    operations = {operation.op: operation for operation in history}
    found, strays = _by_operation(records)
    for record in strays:
        yield Anomaly(Kind.TORN, f"{_place(record)}: a delete whose transaction has no other record")
    for op, writes in found.items():
        operation = operations.get(op)
        if operation is None:
            yield Anomaly(Kind.DIFFERENT, f"operation {op} is in the topics, and nobody carried it out")
        elif op not in committed:
            yield Anomaly(Kind.ABORTED, f"operation {op} was not committed, and has {writes.total()} records")
        else:
            yield from _compare(operation, writes)
    for operation in history:
        if operation.op in committed and operation.op not in found:
            yield Anomaly(
                Kind.LOST, f"operation {operation.op} has no record of {len(operation.writes)} writes"
            )


def _by_operation(records: Sequence[Record]) -> tuple[dict[int, Counter[Write]], list[Record]]:
    owners = {record.commit_lsn: record.write.row.op for record in records if record.write.row is not None}
    found: dict[int, Counter[Write]] = defaultdict(Counter)
    strays = []
    for record in records:
        op = owners.get(record.commit_lsn) if record.write.row is None else record.write.row.op
        if op is None:
            strays.append(record)
        else:
            found[op][record.write] += 1
    return found, strays


def _compare(operation: Operation, found: Counter[Write]) -> Iterator[Anomaly]:
    """The records of a committed operation, which has at least one."""
    expected = Counter(operation.writes)
    undone = frozenset(operation.undone)
    missing = expected - found
    doubled = [write for write in expected if found[write] > expected[write]]
    if missing:
        yield Anomaly(
            Kind.TORN,
            f"operation {operation.op} lacks {missing.total()} of {expected.total()} writes, "
            f"first {next(iter(missing))}",
        )
    if doubled:
        yield Anomaly(
            Kind.DOUBLED,
            f"operation {operation.op}: {len(doubled)} writes have several records, first {doubled[0]}",
        )
    for write in found:
        if write not in expected:
            kind = Kind.ABORTED if write in undone else Kind.DIFFERENT
            yield Anomaly(kind, f"operation {operation.op} has a record of {write}")


def _check_order(records: Sequence[Record]) -> Iterator[Anomaly]:
    """The order of commits within a partition, of events within a transaction, and one partition for each key.

    A record that came before does not count again: it is doubled, not reordered.
    """
    partitions: dict[tuple[str, str], int] = {}
    last: dict[tuple[str, int], tuple[int, int]] = {}
    seen: set[tuple[str, str, int, int]] = set()
    for record in records:
        name = (record.topic, record.write.key)
        if partitions.setdefault(name, record.partition) != record.partition:
            yield Anomaly(Kind.REORDERED, f"{_place(record)}: key {name[1]} is in another partition too")
        identity = (*name, record.commit_lsn, record.serial)
        if identity in seen:
            continue
        seen.add(identity)
        partition, place = (record.topic, record.partition), (record.commit_lsn, record.serial)
        if place < last.get(partition, (0, 0)):
            yield Anomaly(Kind.REORDERED, f"{_place(record)}: {place} comes after {last[partition]}")
        else:
            last[partition] = place


def _check_state(source: Source, records: Sequence[Record]) -> Iterator[Anomaly]:
    """Each record fits the one of its key before it; in the end the rows are the source's."""
    state: dict[str, dict[str, Row]] = defaultdict(dict)
    ordered = sorted(records, key=lambda record: (record.commit_lsn, record.serial))
    seen: set[tuple[str, int, int]] = set()
    total: int | None = None
    for number, record in enumerate(ordered):
        write = record.write
        identity = (record.topic, record.commit_lsn, record.serial)
        if identity not in seen:
            seen.add(identity)
            yield from _step(record, state[write.table].get(write.key))
            if write.row is None:
                state[write.table].pop(write.key, None)
            else:
                state[write.table][write.key] = write.row
        is_last = number + 1 == len(ordered) or ordered[number + 1].commit_lsn != record.commit_lsn
        if is_last and state["accounts"]:
            now = sum(int(row.value) for row in state["accounts"].values())
            if total is not None and now != total:
                yield Anomaly(
                    Kind.TORN, f"after commit_lsn {record.commit_lsn} the accounts have {now}, not {total}"
                )
            total = now
    for table, rows in source.tables.items():
        yield from _compare_rows(table, rows, state[table])


def _step(record: Record, before: Row | None) -> Iterator[Anomaly]:
    write = record.write
    if write.change == "c":
        if before is not None:
            yield Anomaly(Kind.DIFFERENT, f"{_place(record)}: an insert of key {write.key}, which is there")
        return
    if before is None:
        yield Anomaly(
            Kind.LOST, f"{_place(record)}: '{write.change}' of key {write.key} without a row before it"
        )
        return
    if write.row is None:
        return
    if write.row.version != before.version + 1:
        yield Anomaly(
            Kind.LOST,
            f"{_place(record)}: version {write.row.version} of {write.key} follows {before.version}",
        )
    if write.table == "lists" and write.row.value.rpartition(",")[0] != before.value:
        yield Anomaly(Kind.LOST, f"{_place(record)}: list {write.key} is not the former one and an element")


def _compare_rows(table: str, rows: Mapping[str, Row], folded: Mapping[str, Row]) -> Iterator[Anomaly]:
    wrong = [key for key in {*rows, *folded} if rows.get(key) != folded.get(key)]
    if wrong:
        key = min(wrong)
        yield Anomaly(
            Kind.DIFFERENT,
            f"{table}: {len(wrong)} of {len(rows)} rows differ, first {key}: {rows.get(key)} in the source, "
            f"{folded.get(key)} in the topics",
        )


def _check_confirmed(records: Sequence[Record], samples: Iterable[Sample]) -> Iterator[Anomaly]:
    """No record lies behind the end of its partition at a moment when PostgreSQL had been told of its commit.

    confirmed_flush_lsn is the end of a WAL record. So a commit record that begins before it ends before it, too. If a
    record is there twice, the first one counts.
    """
    # By partition: the records by commit_lsn, and the highest offset up to each.
    partitions: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    seen: set[tuple[str, int, int]] = set()
    for record in records:
        identity = (record.topic, record.commit_lsn, record.serial)
        if identity not in seen:
            seen.add(identity)
            partitions[record.topic, record.partition].append((record.commit_lsn, record.offset))
    # Samples come in the order of time, in which neither number falls: each record is passed once.
    passed: Counter[tuple[str, int]] = Counter()
    highest: dict[tuple[str, int], int] = {}
    for places in partitions.values():
        places.sort()
    confirmed = 0
    told: set[tuple[str, int, int]] = set()
    for sample in samples:
        confirmed = max(confirmed, sample.confirmed)
        for partition, end in sample.ends.items():
            places = partitions.get(partition, [])
            while passed[partition] < len(places) and places[passed[partition]][0] < confirmed:
                offset = places[passed[partition]][1]
                highest[partition] = max(highest.get(partition, -1), offset)
                passed[partition] += 1
            place = (*partition, highest.get(partition, -1))
            if place[2] >= end and place not in told:
                told.add(place)
                yield Anomaly(
                    Kind.EARLY,
                    f"at {sample.at_s:.1f} s: {confirmed} was confirmed, and {partition[0]}[{partition[1]}] ended at "
                    f"{end}, before offset {place[2]}",
                )


def _place(record: Record) -> str:
    return f"{record.topic}[{record.partition}]@{record.offset}"
