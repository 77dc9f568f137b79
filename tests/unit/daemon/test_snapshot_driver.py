"""What the engine is answered when PostgreSQL is not there; its other answers are of integration tests."""

import asyncio
import socket
from contextlib import AsyncExitStack

import pytest

from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.config.loading import parse_config
from cdcd.core.engine.actions import Answer, FindWriters, ListPublished, Look, Lost, Question, Read
from cdcd.core.snapshot.reading import KeyQuery
from cdcd.daemon.partition_watch import PartitionWatch
from cdcd.daemon.snapshot_driver import SnapshotDriver
from tests.unit.core.engine.tables import table

T = table(1, "public.t", pages=2)
QUESTIONS = [
    ListPublished(frozenset()),
    Look(0, "public.t"),
    FindWriters((1,)),
    Read(KeyQuery(T, (), ()), 1000),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: type(question).__name__)
def test_a_question_that_cannot_be_asked_is_answered_so(question: Question):
    """The engine decides what a lost connection means; nothing is raised past it."""
    with socket.socket() as taken:
        # Nobody listens here, and nobody else can get the port.
        taken.bind(("127.0.0.1", 0))
        dsn = f"postgresql://127.0.0.1:{taken.getsockname()[1]}/none"
        config = parse_config(
            f"name: shop\npostgres: {{dsn: '{dsn}'}}\nkafka: {{bootstrap_servers: '127.0.0.1:1'}}", {}
        )

        async def answer() -> Answer:
            async with AsyncExitStack() as stack:
                partitions = PartitionWatch(config, observe=lambda fact: None)
                driver = SnapshotDriver(config, parse_dsn(dsn), stack, lambda fact: None, partitions)
                return await driver.answer(question)

        assert isinstance(asyncio.run(answer()), Lost)
