"""The last words of the process: JSON in a log of JSON, and words for people elsewhere."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from cdcd.config.loading import parse_config
from cdcd.daemon import supervisor
from cdcd.errors import PositionError, SourceError, TransientError

FILE = """
name: shop
postgres: {dsn: 'host=db'}
kafka: {bootstrap_servers: 'broker:9092'}
http: {enabled: false}
"""


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


@pytest.fixture
def ends_with(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the supervisor end with this error."""

    def arrange(error: Exception) -> None:
        async def run(_self: supervisor.Supervisor) -> int:
            raise error

        monkeypatch.setattr(supervisor.Supervisor, "run", run)
        monkeypatch.setattr("cdcd.daemon.memory.settle", lambda: None)

    return arrange


def last_line(text: str) -> dict[str, Any]:
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines
    found: dict[str, Any] = lines[-1]
    return found


def test_a_fatal_failure_is_the_last_line_of_a_log_of_json(
    ends_with: Any, capsys: pytest.CaptureFixture[str]
):
    ends_with(PositionError("a gap", hint="look"))
    assert supervisor.run(parse_config(FILE, {})) == 6
    said = last_line(capsys.readouterr().err)
    assert (said["event"], said["message"], said["hint"], said["exit_code"]) == ("fatal", "a gap", "look", 6)


def test_the_worst_of_several_failures_is_the_one_that_is_told(
    ends_with: Any, capsys: pytest.CaptureFixture[str]
):
    ends_with(ExceptionGroup("both", [TransientError("away"), SourceError("refused", hint="grant")]))
    assert supervisor.run(parse_config(FILE, {})) == 3
    assert last_line(capsys.readouterr().err)["message"] == "refused"


def test_a_bug_is_one_line_of_json_with_its_traceback(ends_with: Any, capsys: pytest.CaptureFixture[str]):
    ends_with(RuntimeError("impossible"))
    assert supervisor.run(parse_config(FILE, {})) == 1
    said = last_line(capsys.readouterr().err)
    assert (said["event"], said["error"], said["message"]) == ("crash", "RuntimeError", "impossible")
    assert "Traceback (most recent call last)" in said["traceback"]


@pytest.mark.parametrize("error", [PositionError("a gap", hint="look"), RuntimeError("impossible")])
def test_for_people_the_command_says_it(ends_with: Any, error: Exception):
    ends_with(error)
    with pytest.raises(type(error)):
        supervisor.run(parse_config(FILE + "log: {format: console}\n", {}))
