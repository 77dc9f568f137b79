"""The model of the server by itself: what it streams and what it lets read belong together."""

from collections.abc import Sequence

import pytest

from cdcd.records.envelope import EnvelopeSettings
from cdcd.records.formats.snapshot_rows import Place, SnapshotEncoder
from cdcd.snapshots.reading import PageQuery, Rows, SourceTable
from cdcd.snapshots.visibility import Visibility
from tests.sim.client import TYPES, Client
from tests.sim.expected import TOPIC_PREFIX, PromiseBrokenError, Record
from tests.sim.world import World

pytestmark = pytest.mark.sim

EVERYTHING = 1 << 60


class NaiveReader:
    """Takes all published tables at one snapshot, in one piece."""

    def __init__(self, world: World, snapshot: Visibility) -> None:
        self.world = world
        self.snapshot = snapshot
        self.client = Client(world.postgres.wal, world.postgres.workload)
        self.encoder = SnapshotEncoder(EnvelopeSettings("0", TOPIC_PREFIX, "db"))
        self.tables = {table.oid: table for table in self.client.look()[0]}

    def read(self, tables: Sequence[SourceTable]) -> list[Record]:
        records: list[Record] = []
        for table in tables:
            self.encoder.define(table.relation, self.client.describe([table.oid])[table.oid], TYPES)
            (source,) = table.parts
            query = PageQuery(
                source.sql_name, table.oid, source.part.filenode, 0, source.part.pages, table
            )
            rows = self.client.read(query, self.snapshot, EVERYTHING)
            assert isinstance(rows, Rows)
            self.encoder.encode_rows(table.oid, rows.lines, Place(0, 0, "true", "true", "true"), 0, records, set())
        return records


def run_naively(seed: int, directory: str, *, late: bool = False) -> int:
    """Run a seed, with what was there before read first; the number of tables that could be compared."""
    world = World(seed, directory)
    database = world.database
    snapshot = database.transactions.historic(database.next_xid)
    reader = NaiveReader(world, snapshot)
    records = reader.read(list(reader.tables.values()))
    if not late:
        world.oracle.append(records)
    names = dict(reader.client.published())
    world.run()
    if world.refused:
        return 0
    if late:
        world.oracle.append(records)
    removed = world.postgres.workload.removed
    last = database.transactions.snapshot()
    compared = 0
    for oid, name in reader.client.published().items():
        if names.get(oid) == name and oid not in removed and world.oracle.truncates:
            assert world.oracle.fold is not None
            world.oracle.fold.compare(database.definitions[oid], last)
            compared += 1
    return compared


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_a_snapshot_and_the_stream_give_the_tables(first, tmp_path):
    compared = 0
    for seed in range(first, first + 100):
        try:
            compared += run_naively(seed, str(tmp_path))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert compared > 100


def test_rows_that_are_read_at_an_old_snapshot_and_sent_late_are_noticed(tmp_path):
    found = 0
    for seed in range(50):
        try:
            run_naively(seed, str(tmp_path), late=True)
        except PromiseBrokenError as error:
            assert "G9" in str(error)
            found += 1
    assert found > 20
