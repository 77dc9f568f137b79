"""docs/tutorial.md is followed literally, except for the step with Spark (tests/spark/test_tutorial.py)."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from deploy.local import KafkaBroker, PostgresServer
from deploy.local.cache import REPOSITORY
from tests.integration.tutorial import BLOCK, PAGE, Reader, moved, sections, shape

SPARK = "8. Mirror"


@pytest.fixture
def reader(
    private_postgres: Callable[..., PostgresServer],
    private_broker: Callable[..., KafkaBroker],
    tmp_path: Path,
) -> Iterator[Reader]:
    server = private_postgres(18)
    server.execute("CREATE DATABASE shop")
    someone = Reader(tmp_path, server, private_broker())
    yield someone
    someone.close()


@pytest.mark.integration
def test_the_tutorial_does_what_it_says_and_leaves_nothing(reader: Reader) -> None:
    followed = [section for section in sections() if not section.startswith(SPARK)]
    assert len(followed) == len(sections()) - 1
    reader.follow(followed)
    assert reader.running == {}
    assert reader.server.execute("SELECT slot_name FROM pg_replication_slots") == []
    topics = (
        AdminClient({"bootstrap.servers": reader.broker.bootstrap_servers}).list_topics(timeout=10).topics
    )
    assert [name for name in topics if name.startswith("shop.")] == []


def test_every_block_of_the_page_is_one_that_a_test_knows() -> None:
    found = [(language, title) for section in sections() for language, title, _ in BLOCK.findall(section)]
    assert len(found) == PAGE.read_text().count("```") / 2
    titles = {"", "in another terminal", "Ctrl-C", "output", "such as", "mirror.yaml"}
    assert {title for _, title in found if not title.startswith("in the clone")} == titles


def test_what_a_person_runs_in_the_clone_is_there() -> None:
    lines = [
        line
        for section in sections()
        for _, title, body in BLOCK.findall(section)
        if title.startswith("in the clone")
        for line in body.splitlines()
    ]
    targets = (REPOSITORY / "Makefile").read_text()
    assert "make lab" in lines
    assert all(f"\n{line.split()[1]}:" in targets for line in lines if line.startswith("make "))
    # README has the same lines, so that a reader who comes from there has already run them.
    readme = (REPOSITORY / "README.md").read_text()
    assert all(line in readme for line in lines if not line.startswith("make "))


def test_only_times_positions_and_numbers_may_differ() -> None:
    assert moved("2026-01-01 12:00:00.123 READ id=1 at 0/1B") == "TIME READ id=1 at LSN"
    assert shape("  - slot  cdcd_shop (29 kB of WAL)") == shape("- slot cdcd_shop (3.1 MB of WAL)")
    assert shape("done: slot") != shape("done: topic")
