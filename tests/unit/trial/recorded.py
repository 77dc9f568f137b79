"""A history, the source that came of it, and topics without an anomaly: for tests to spoil."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.trial.checker import Anomaly, Kind, check
from tests.trial.history import TABLES, Operation, Outcome, Record, Row, Sample, Source, Write

PARTITIONS = 2


@dataclass
class Recorded:
    """What the checker gets."""

    history: list[Operation] = field(default_factory=list)
    tables: dict[str, dict[str, Row]] = field(default_factory=lambda: {name: {} for name in TABLES})
    records: list[Record] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def check(self) -> list[Anomaly]:
        return check(self.history, Source(self.tables), self.records, self.samples)

    def kinds(self) -> set[Kind]:
        return {anomaly.kind for anomaly in self.check()}

    def commit(
        self,
        writes: Sequence[Write],
        outcome: Outcome = Outcome.OK,
        undone: Sequence[Write] = (),
    ) -> None:
        """A transaction that the source committed, and its records."""
        op = len(self.history) + 1
        own = Write("ops", str(op), "c", Row(1, "", op))
        operation = Operation(op, (own, *writes), outcome, tuple(undone))
        self.history.append(operation)
        for serial, write in enumerate(operation.writes, 1):
            if write.row is None:
                del self.tables[write.table][write.key]
            else:
                self.tables[write.table][write.key] = write.row
            self.deliver(write, op * 100, serial)

    def fail(self, writes: Sequence[Write], outcome: Outcome = Outcome.FAILED) -> None:
        """A transaction that the source did not commit."""
        self.history.append(Operation(len(self.history) + 1, tuple(writes), outcome))

    def deliver(self, write: Write, commit_lsn: int, serial: int) -> None:
        partition = sum(write.key.encode()) % PARTITIONS
        topic = f"t.public.{write.table}"
        offset = sum((topic, partition) == (each.topic, each.partition) for each in self.records)
        self.records.append(Record(topic, partition, offset, write, commit_lsn, serial))

    def at(self, op: int, table: str) -> list[int]:
        """Where the records of an operation in a table are."""
        return [
            number
            for number, record in enumerate(self.records)
            if record.commit_lsn == op * 100 and record.write.table == table
        ]

    def drop(self, choose: Callable[[Record], bool]) -> None:
        self.records = [record for record in self.records if not choose(record)]

    def sample(self, confirmed: int) -> None:
        """A sample of now."""
        ends: dict[tuple[str, int], int] = {}
        for record in self.records:
            ends[record.topic, record.partition] = record.offset + 1
        self.samples.append(Sample(float(len(self.samples)), confirmed, ends))


def recorded() -> Recorded:
    """Some of everything."""
    made = Recorded()
    made.commit([Write("accounts", key, "c", Row(1, "100", 1)) for key in ("a", "b", "c")])  # operation 1
    for write in _appends(2, 5):
        made.commit([write])  # operations 2 to 4
    made.fail([Write("lists", "k", "u", Row(4, "9", 5))])
    made.commit(
        [
            Write("registers", "r", "c", Row(1, "1", 6)),
            Write("accounts", "a", "u", Row(2, "90", 6)),
            Write("accounts", "b", "u", Row(2, "110", 6)),
        ],
        Outcome.UNKNOWN,
    )
    made.fail([Write("registers", "r", "u", Row(2, "2", 7))], Outcome.UNKNOWN)
    made.commit([Write("uniques", "u", "c", Row(1, "", 8))])
    made.commit([Write("uniques", "u", "d", None)])
    made.commit(
        [Write("bulk", f"10-{number}", "c", Row(1, "x", 10)) for number in range(5)],
        undone=[Write("bulk", f"10-{number}", "c", Row(1, "undone", 10)) for number in range(5, 8)],
    )
    made.commit([Write("registers", "r", "u", Row(2, "2", 11))])
    return made


def _appends(first: int, end: int) -> Iterator[Write]:
    value = ""
    for version, op in enumerate(range(first, end), 1):
        value = f"{value},{op}"
        yield Write("lists", "k", "c" if version == 1 else "u", Row(version, value, op))


def moved(record: Record, *, offset: int) -> Record:
    return replace(record, offset=offset)
