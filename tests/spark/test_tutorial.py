"""docs/tutorial.md as a whole, with the step that needs Spark."""

from pathlib import Path

import pytest

from deploy.demo.mirrored import environment
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.tutorial import Reader, sections
from tests.scratch import scratch_folder

pytestmark = pytest.mark.spark


def test_the_tutorial_with_its_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    with (
        scratch_folder("tutorial") as scratch,
        PostgresServer(18, scratch / "postgres") as server,
        KafkaBroker(scratch / "kafka") as broker,
    ):
        server.execute("CREATE DATABASE shop")
        reader = Reader(tmp_path, server, broker)
        try:
            reader.follow(sections())
        finally:
            reader.close()
        assert (tmp_path / "lake").is_dir()
        assert server.execute("SELECT slot_name FROM pg_replication_slots") == []
