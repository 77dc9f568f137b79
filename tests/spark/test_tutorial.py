"""docs/tutorial.md as a whole, with the step that needs Spark."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.demo.mirrored import environment
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.tutorial import Reader, sections

pytestmark = pytest.mark.spark


def test_the_tutorial_with_its_mirror(
    private_postgres: Callable[..., PostgresServer],
    private_broker: Callable[..., KafkaBroker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment().items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    server = private_postgres(18)
    server.execute("CREATE DATABASE shop")
    reader = Reader(tmp_path, server, private_broker())
    try:
        reader.follow(sections())
    finally:
        reader.close()
    assert (tmp_path / "lake").is_dir()
    assert server.execute("SELECT slot_name FROM pg_replication_slots") == []
