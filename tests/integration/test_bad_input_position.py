"""Slot, checkpoint and server that do not belong together: refused with exit code 6, gone on with when told to.

Each test first delivers rows 1 and 2, then makes a gap, and shows that nothing is made, confirmed or delivered beyond
it before a person says so.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from deploy.local import KafkaBroker, PostgresServer
from tests.integration.conftest import Database
from tests.integration.daemon import WAIT_S
from tests.integration.faults.trial import Outcome, Trial

pytestmark = pytest.mark.postgres(only=18)


@pytest.fixture
def one(trial: Callable[..., Trial], database: Database, broker: KafkaBroker) -> Trial:
    """A pipeline that delivered rows 1 and 2 and is stopped."""
    made = trial(database.dsn(), broker.bootstrap_servers)
    deliver_two(made)
    return made


def deliver_two(one: Trial) -> None:
    one.start()
    one.insert(1, 2)
    one.deliver(1, 2)


def refused(one: Trial, *arguments: str) -> Outcome:
    """It ends with exit code 6 and says how to go on; the topic holds what it held."""
    said = one.fail(*arguments)
    assert said.code == 6, said.output
    assert "--accept-gap" in said.hint
    assert one.read() == one.delivered
    check = one.check()
    assert check.code == 10
    assert check.error("position")["fix"] == said.hint
    return said


def test_a_dropped_slot_is_a_gap_and_no_new_one_is_made(one: Trial):
    one.insert(3)
    one.drop_slot()
    said = refused(one)
    assert f"Slot {one.slot} is not there, but Kafka holds changes up to" in said.message
    assert not one.has_slot()
    one.start("--accept-gap")
    gap = one.daemon.await_event("gap.accepted")
    assert gap["message"] == said.message
    one.insert(4)
    one.deliver(4)
    one.insert(5)
    one.deliver(5)


def test_a_slot_created_again_is_a_gap(one: Trial):
    one.drop_slot()
    one.insert(3)
    one.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", one.slot)
    before = one.insert(4)
    said = refused(one)
    assert "dropped and created again, or moved by somebody else" in said.message
    one.assert_unconfirmed(before)
    one.deliver(4, arguments=("--accept-gap",))


def test_a_slot_that_somebody_moved_is_a_gap(one: Trial):
    one.insert(3)
    one.advance_slot()
    before = one.insert(4)
    said = refused(one)
    assert "moved by somebody else" in said.message
    one.assert_unconfirmed(before)
    one.deliver(4, arguments=("--accept-gap",))


def test_a_gap_is_accepted_once_and_not_for_ever(one: Trial):
    one.insert(3)
    one.advance_slot()
    one.start("--accept-gap")
    one.daemon.pause()
    one.execute("SELECT pg_terminate_backend(%s, 60000)", one.walsender())
    one.drop_slot()
    one.daemon.resume()
    assert "is not there" in refused(one).message


def test_another_cluster_is_refused_and_nothing_is_made_on_it(
    one: Trial, private_postgres: Callable[..., PostgresServer]
):
    other = private_postgres(18, own_identity=True)
    own_dsn, one.dsn = one.dsn, other.dsn()
    one.create_table()
    one.insert(3)
    one.configure(postgres={"dsn": other.dsn()})
    said = refused(one)
    assert "it is another cluster, or was initialized again" in said.message
    assert not one.has_slot()
    assert not one.execute("SELECT FROM pg_publication")
    # Meant: the pipeline moves to that cluster, from now on.
    one.start("--accept-gap")
    one.insert(4)
    one.deliver(4)
    # And back at the old one it is the same thing again.
    one.dsn = own_dsn
    one.configure(postgres={"dsn": own_dsn})
    assert "another cluster" in refused(one).message


def test_a_server_restored_from_an_old_copy_is_refused(
    trial: Callable[..., Trial], broker: KafkaBroker, private_postgres: Callable[..., PostgresServer]
):
    server = private_postgres(18)
    one = trial(server.dsn(), broker.bootstrap_servers)
    deliver_two(one)
    copy = cold_copy(server)
    one.insert(3, 4, note="x" * 10_000)
    one.deliver(3, 4)
    restore(copy, server)
    server.start()
    before = one.wal_end()
    said = refused(one)
    assert "is ahead of the server's WAL" in said.message
    one.assert_unconfirmed(before)
    # Row 3 is another one now, and comes once more.
    one.start("--accept-gap")
    one.insert(3)
    one.deliver(3)


def test_a_standby_that_lacked_changes_is_refused_although_its_wal_is_longer(
    trial: Callable[..., Trial], broker: KafkaBroker, private_postgres: Callable[..., PostgresServer]
):
    server = private_postgres(18)
    one = trial(server.dsn(), broker.bootstrap_servers)
    deliver_two(one)
    copy = cold_copy(server)
    one.insert(3)
    one.deliver(3)
    end = one.wal_end()
    restore(copy, server)
    promote(server)
    before = one.insert(4, note="x" * 10_000)
    one.execute("SELECT pg_switch_wal()")
    one.insert(5)
    assert one.wal_end() > end
    said = refused(one)
    assert "is ahead of the position at which this server left timeline 1" in said.message
    one.assert_unconfirmed(before)
    one.deliver(4, 5, arguments=("--accept-gap",))


def test_a_promoted_standby_that_has_everything_is_gone_on_with(
    trial: Callable[..., Trial], broker: KafkaBroker, private_postgres: Callable[..., PostgresServer]
):
    server = private_postgres(18)
    one = trial(server.dsn(), broker.bootstrap_servers)
    deliver_two(one)
    one.insert(3)
    server.stop()
    promote(server)
    one.insert(4)
    one.deliver(3, 4)
    one.insert(5)
    one.deliver(5)


def cold_copy(server: PostgresServer) -> Path:
    """A copy of its data folder, of which the server knows nothing; it runs on."""
    copy = server.data_dir.with_name(f"{server.data_dir.name}-copy")
    server.stop()
    subprocess.run(["cp", "--archive", server.data_dir, copy], check=True)
    server.start()
    return copy


def restore(copy: Path, server: PostgresServer) -> None:
    """Stop the server and put the copy in the place of its data."""
    server.stop()
    shutil.rmtree(server.data_dir)
    copy.rename(server.data_dir)


def promote(server: PostgresServer) -> None:
    """Start it as a standby and promote it: a new timeline begins where its WAL ends."""
    (server.data_dir / "standby.signal").touch()
    server.start()
    server.execute("SELECT pg_promote()")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"{", "cannot be read: its brackets do not match"),
        (b'{"format":3,"system_identifier":"1","end_lsn":"0/1"}', "has format 3, this cdcd reads 2 and 1"),
        (
            b'{"format":1,"system_identifier":"1","timeline":1,"stream":"s","commit_lsn":"0/1","end_lsn":"zero"}',
            "is not an LSN",
        ),
    ],
    ids=["not-json", "newer", "not-an-lsn"],
)
def test_a_checkpoint_that_cannot_be_read_is_no_beginning(one: Trial, value: bytes, message: str):
    last = one.records(f"{one.name}.checkpoint")[-1][1]
    before = one.insert(3)
    # cdcd ignores a damaged record if there is a valid one, but never ignores a record of a newer format.
    if b'"format":3' not in value:
        write_checkpoint(one, None)
    write_checkpoint(one, value)
    said = one.fail()
    assert said.code == 6
    assert message in said.message
    assert f"{one.name}.checkpoint[0]@" in said.message
    assert one.check().error("position")["fix"] == said.hint
    one.assert_unconfirmed(before)
    write_checkpoint(one, last)
    one.deliver(3)


def write_checkpoint(one: Trial, value: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": one.reader_servers})
    producer.produce(f"{one.name}.checkpoint", value, one.name, partition=0)
    assert producer.flush(WAIT_S) == 0
