"""`cdcd verify` against real parts: no false difference while writers and kills go on."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from cdcd.config.loading import load_config
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.records.schemas import TableForm
from cdcd.tools.verify.columns import TopicDescriptions
from cdcd.tools.verify.comparing import SourceRow, TableComparison
from cdcd.tools.verify.delivery import TopicDelivery
from cdcd.tools.verify.report import EQUAL, PARTIAL, VerifyReport, lines
from cdcd.tools.verify.topics import ComparisonOptions, TopicsTarget
from deploy.demo.workload import Features, Workload
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.created_topics import create_topics
from tests.integration.daemon import WAIT_S, Daemon, configuration

Verify = Callable[..., VerifyReport]


@pytest.fixture
def verify(tmp_path: Path) -> Iterator[Callable[..., VerifyReport]]:
    """`verify(file, …)`: what one comparison finds, with a new target each time."""
    with ExitStack() as stack:

        def run(file: Path, **options: object) -> VerifyReport:
            folder = tmp_path / f"verify-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            target = TopicsTarget(load_config(file, {}), ComparisonOptions(**options), folder, print)  # type: ignore[arg-type]
            stack.callback(target.close)
            report = asyncio.run(target.verify())
            print("\n".join(lines(report, shown=5, values=True)))
            return report

        yield run


@pytest.mark.timeout(900)
@pytest.mark.postgres(only=18, also=[13])
def test_nothing_differs_while_everything_is_written_and_the_daemon_is_killed(
    database: Database, broker: KafkaBroker, daemon: Callable[..., Daemon], unique: str, verify: Verify
):
    # GIVEN a workload of everything that this server has, in topics with several partitions
    workload = Workload(
        database.dsn(), seed=database.version, features=Features(new_tables=False), rate=40, sessions=3
    )
    workload.create()
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            postgres={"two_phase": database.version >= 15},
            topics={"create": {"partitions": 2}},
            spool={"memory_bytes_max": 65_536},
        )
    )
    process.await_streaming()
    with workload:
        for _ in range(3):
            # WHEN the topics are verified meanwhile
            report = verify(process.config_path, timeout_s=120)

            # THEN every table is equal, at an LSN that is later each time
            assert report.verdict == EQUAL
            assert sum(table.outcome.source_rows for table in report.tables) > 0
            process.kill()
            process.start()
    assert workload.stats["committed"] > 0 or workload.stats


@pytest.mark.postgres(only=18)
def test_a_table_that_is_altered_after_it_was_read_is_compared_at_the_same_snapshot(
    database: Database,
    broker: KafkaBroker,
    daemon: Callable[..., Daemon],
    unique: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    # GIVEN a table, and somebody who rewrites it as soon as the source's rows were read
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    process = daemon(configuration(unique, database.dsn(), broker.bootstrap_servers))
    process.await_streaming()
    database.execute("INSERT INTO t SELECT n, 'a' FROM generate_series(1, 9) n")
    was_read = asyncio.Event()
    add_source, wait = TableComparison.add_source, TopicDelivery.wait

    def add(self: TableComparison, rows: Sequence[SourceRow]) -> None:
        add_source(self, rows)
        was_read.set()

    async def wait_then(self: TopicDelivery, lsn: int) -> Checkpoint:
        await was_read.wait()
        database.execute("TRUNCATE t; ALTER TABLE t DROP COLUMN note")
        return await wait(self, lsn)

    monkeypatch.setattr(TableComparison, "add_source", add)
    monkeypatch.setattr(TopicDelivery, "wait", wait_then)
    # WHEN it is verified
    said: list[str] = []
    with closing(
        TopicsTarget(load_config(process.config_path, {}), ComparisonOptions(), tmp_path, said.append)
    ) as target:
        report = asyncio.run(target.verify())
    # THEN it is equal, and one snapshot was enough
    assert [(table.verdict, table.outcome.source_rows) for table in report.tables] == [(EQUAL, 9)]
    assert not any("another snapshot" in each for each in said), said


@pytest.mark.postgres(only=18)
def test_a_description_whose_transaction_is_still_open_is_waited_for(broker: KafkaBroker, unique: str):
    # GIVEN a description that no read_committed reader sees yet
    topic, described = f"{unique}.schemas", TableForm("public", "t", f"{unique}.public.t", (), (), 16384)
    create_topics(broker.bootstrap_servers, topic)
    writer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": unique})
    writer.init_transactions(WAIT_S)
    writer.begin_transaction()
    key, value = described.record()
    writer.produce(topic, key=key, value=value)
    writer.flush(WAIT_S)
    descriptions = TopicDescriptions({"bootstrap.servers": broker.bootstrap_servers}, unique, topic, WAIT_S)
    forms = descriptions.of(described.topic)
    with closing(descriptions), ThreadPoolExecutor(1) as pool:
        reading = pool.submit(descriptions.read)
        with pytest.raises(TimeoutError):
            reading.result(1)
        # WHEN it is committed, THEN it was read
        writer.commit_transaction(WAIT_S)
        reading.result(WAIT_S)
    assert forms == {described.fingerprint: described}


@pytest.mark.postgres(only=18)
def test_a_table_that_may_not_be_read_is_named_and_the_others_are_compared(
    database: Database,
    broker: KafkaBroker,
    daemon: Callable[..., Daemon],
    unique: str,
    stranger: str,
    verify: Verify,
):
    # GIVEN two delivered tables, and a role that loses its right to read one of them
    database.execute(f"ALTER ROLE {stranger} REPLICATION")
    for table in ("open", "closed"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY); INSERT INTO {table} VALUES (1), (2)")
    database.execute(f"CREATE PUBLICATION cdcd_{unique} FOR TABLE open, closed")
    database.execute(f"GRANT SELECT ON open, closed TO {stranger}")
    process = daemon(
        configuration(
            unique, database.dsn(user=stranger), broker.bootstrap_servers, snapshot={"mode": "initial"}
        )
    )
    process.await_streaming()
    process.await_event("snapshot.finished")
    database.execute(f"REVOKE SELECT ON closed FROM {stranger}")

    # WHEN the topics are verified
    report = verify(process.config_path, timeout_s=120)

    # THEN the other table is equal, and the report does not call everything equal
    opened, closed = sorted(report.tables, key=lambda each: each.name, reverse=True)
    assert (opened.verdict, opened.outcome.source_rows) == (EQUAL, 2)
    assert report.verdict == closed.verdict == PARTIAL
    assert "permission denied for table closed" in closed.limits[0]
    assert "GRANT SELECT ON" in closed.limits[0]
