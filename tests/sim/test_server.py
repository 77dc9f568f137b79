"""The model of the server by itself: what it streams and what it lets read belong together, whoever reads it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from cdcd.core.protocol.frames import XLogData, read_frame
from cdcd.core.protocol.messages import Begin, Commit, LogicalMessage, Origin, Relation, Type
from cdcd.core.protocol.reader import read_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, SnapshotPosition
from cdcd.core.snapshot.reading import PageQuery, Rows, SourceTable, Visibility
from tests.sim.client import TYPES, Client
from tests.sim.expected import OWN_PREFIXES, TOPIC_PREFIX, PromiseBrokenError, Record
from tests.sim.fold import Fold
from tests.sim.oracle import Oracle
from tests.sim.postgres import Postgres
from tests.sim.settings import draw
from tests.sim.walsender import Options

pytestmark = pytest.mark.sim

EVERYTHING = 1 << 60
HEADER = 25


class NaiveReader:
    """A consumer without any care: all tables at one snapshot, then each frame as it comes."""

    def __init__(self, seed: int) -> None:
        rng = Random(seed)
        # A table whose commit is streamed before the catalog shows it needs some care, and is left out.
        self.settings = replace(draw(rng), unseen_ticks_max=1, p_decode=1.0)
        self.rng = rng
        self.oracle = Oracle(exactly_once=True, truncates=True, whole_bytes=0, part_records=0, part_bytes=0)
        self.postgres = Postgres(self.settings, rng, self.oracle)
        self.workload = self.postgres.workload
        self.database = self.workload.database
        self.oracle.fold = self.fold = Fold(self.database, strict=True)
        self.client = Client(self.postgres.wal, self.workload)
        settings = EncoderSettings("0", TOPIC_PREFIX, "db")
        self.encoder = record_stream(settings)
        self.records: list[Record] = []

    def read(self, tables: Sequence[SourceTable], snapshot: Visibility) -> list[Record]:
        records: list[Record] = []
        for table in tables:
            self.encoder.define(table.relation, self.client.describe([table.oid])[table.oid], TYPES)
            (source,) = table.parts
            query = PageQuery(source.sql_name, table.oid, source.part.filenode, 0, source.part.pages, table)
            rows = self.client.read(query, snapshot, EVERYTHING)
            assert isinstance(rows, Rows)
            place = SnapshotPosition(0, 0, "true", "true", "true")
            self.encoder.encode_rows(table.oid, rows.lines, place, 0, records, set())
        return records

    def take(self, data: bytes) -> None:
        """A frame; a transaction becomes visible when it is whole."""
        framed = read_frame(data)
        if not isinstance(framed, XLogData):
            return
        message = read_message(data, HEADER, in_stream=False)
        match message:
            case Begin():
                self.encoder.begin(message.xid, message.final_lsn, message.commit_time, None)
            case Commit():
                self.oracle.append(self.records)
                self.records.clear()
            case Relation():
                self.encoder.define(message, self.client.describe([message.oid])[message.oid], TYPES)
            case Origin():
                self.encoder.set_origin(message.name, message.commit_lsn)
            case LogicalMessage(prefix=prefix) if prefix in OWN_PREFIXES:
                self.encoder.skip(int(message.transactional))
            case LogicalMessage(transactional=False):
                alone: list[Record] = []
                self.encoder.encode_message(data, False, None, 0, alone)
                self.oracle.append(alone)
            case Type():
                pass
            case _:
                self.encoder.encode(data, False, 0, self.records)

    def run(self, *, late: bool = False, during: Callable[[], None] | None = None) -> int:
        """Rows first, or `late`; then the stream to its end. The number of tables that could be compared."""
        postgres, workload = self.postgres, self.workload
        workload.populate(self.settings.rows)
        snapshot = postgres.make_slot(two_phase=False)
        tables, _ = self.client.look()
        first = self.client.published()
        rows = self.read(tables, snapshot)
        if not late:
            self.oracle.append(rows)
        connection = postgres.start_replication(self, Options("off", False, 100))
        for tick in range(self.settings.operations):
            workload.step()
            if during is not None:
                during()
            postgres.step(tick)
        workload.finish()
        while not connection.walsender.caught_up:
            postgres.step(0)
            for data in connection.receive(1000):
                self.take(data)
        for data in connection.receive(100_000):
            self.take(data)
        self.oracle.finish()
        if late:
            self.oracle.append(rows)
        compared = 0
        for oid, name in self.client.published().items():
            table = self.database.definitions[oid]
            # Where a name changed hands, even for a while, this reader has rows of both tables in one topic.
            alone = first.get(oid) == name and not self.fold.is_shared(table.name)
            if alone and oid not in workload.removed:
                self.fold.compare(table, self.database.transactions.snapshot())
                compared += 1
        return compared


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.again) for first in (100, 200))]
)
def test_a_snapshot_and_the_stream_give_the_tables(first):
    compared = 0
    for seed in range(first, first + 100):
        try:
            compared += NaiveReader(seed).run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert compared > 100


def test_rows_that_are_read_at_an_old_snapshot_and_sent_late_are_noticed():
    found = 0
    for seed in range(50):
        try:
            NaiveReader(seed).run(late=True)
        except PromiseBrokenError as error:
            found += "G9" in str(error)
    assert found > 20


class ForgetsTheHeader(NaiveReader):
    """Loses which values were not sent."""

    def take(self, data: bytes) -> None:
        super().take(data)
        self.records[:] = [(topic, key, value, None) for topic, key, value, _ in self.records]


class SkipsAPage(NaiveReader):
    def read(self, tables: Sequence[SourceTable], snapshot: Visibility) -> list[Record]:
        rows = super().read(tables, snapshot)
        return rows[1:]


@pytest.mark.parametrize("wrong", [ForgetsTheHeader, SkipsAPage])
def test_what_a_careless_reader_loses_is_noticed(wrong):
    found = 0
    for seed in range(50):
        try:
            wrong(seed).run()
        except PromiseBrokenError:
            found += 1
    assert found > 10
