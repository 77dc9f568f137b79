"""The last words of the process: JSON in a log of JSON, and words for people elsewhere."""

import errno
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cdcd.config.loading import parse_config
from cdcd.core.errors import LimitError, PositionError, SourceError, TransientError
from cdcd.daemon import running, supervisor
from cdcd.daemon.kafka_watch import KafkaWatch

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
        monkeypatch.setattr("cdcd.daemon.process.settle", lambda: None)

    return arrange


@pytest.fixture
def without_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that ends a process whose stop takes too long would end the process of the tests later."""
    monkeypatch.setattr(supervisor.Supervisor, "_force", lambda _self: None)


def last_line(text: str) -> dict[str, Any]:
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines
    found: dict[str, Any] = lines[-1]
    return found


def test_a_fatal_failure_is_the_last_line_of_a_log_of_json(
    ends_with: Any, capsys: pytest.CaptureFixture[str]
):
    ends_with(PositionError("a gap", hint="look"))
    assert running.run(parse_config(FILE, {})) == 6
    said = last_line(capsys.readouterr().err)
    assert (said["event"], said["message"], said["hint"], said["exit_code"]) == ("fatal", "a gap", "look", 6)


def test_the_worst_of_several_failures_is_the_one_that_is_told(
    ends_with: Any, capsys: pytest.CaptureFixture[str]
):
    ends_with(ExceptionGroup("both", [TransientError("away"), SourceError("refused", hint="grant")]))
    assert running.run(parse_config(FILE, {})) == 3
    assert last_line(capsys.readouterr().err)["message"] == "refused"


def test_a_bug_is_one_line_of_json_with_its_traceback(ends_with: Any, capsys: pytest.CaptureFixture[str]):
    ends_with(RuntimeError("impossible"))
    assert running.run(parse_config(FILE, {})) == 1
    said = last_line(capsys.readouterr().err)
    assert (said["event"], said["error"], said["message"]) == ("crash", "RuntimeError", "impossible")
    assert "Traceback (most recent call last)" in said["traceback"]


@pytest.mark.parametrize("error", [PositionError("a gap", hint="look"), RuntimeError("impossible")])
def test_for_people_the_command_says_it(ends_with: Any, error: Exception):
    ends_with(error)
    with pytest.raises(type(error)):
        running.run(parse_config(FILE + "log: {format: console}\n", {}))


@pytest.mark.usefixtures("without_force")
def test_a_process_without_a_free_descriptor_ends_though_nothing_fails_by_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """librdkafka and the HTTP server only try again."""
    full = LimitError("Too many open files", hint="Raise the limit")
    monkeypatch.setattr("cdcd.daemon.process.settle", lambda: None)
    monkeypatch.setattr(supervisor, "exhausted", lambda: full)
    monkeypatch.setattr(supervisor, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(supervisor, "OUT_OF_FILES_S", 0.1)
    monkeypatch.setattr(KafkaWatch, "start", lambda _self: None)
    monkeypatch.setattr(KafkaWatch, "stop", lambda _self: None)

    async def session(self: supervisor.Supervisor) -> None:
        await self._stop.wait()

    monkeypatch.setattr(supervisor.Supervisor, "_session", session)
    assert running.run(parse_config(FILE + "shutdown_timeout_s: 60\n", {})) == 8
    said = last_line(capsys.readouterr().err)
    assert (said["event"], said["hint"], said["exit_code"]) == ("fatal", "Raise the limit", 8)


@pytest.mark.usefixtures("without_force")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_thread_that_ends_for_lack_of_descriptors_ends_the_process_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
):
    monkeypatch.setattr("cdcd.daemon.process.settle", lambda: None)
    monkeypatch.setattr(supervisor, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(KafkaWatch, "start", lambda _self: None)
    monkeypatch.setattr(KafkaWatch, "stop", lambda _self: None)

    async def session(self: supervisor.Supervisor) -> None:
        def fail() -> None:
            raise OSError(number, "Too many open files")

        threading.Thread(target=fail).start()
        await self._stop.wait()

    monkeypatch.setattr(supervisor.Supervisor, "_session", session)
    assert running.run(parse_config(FILE, {})) == 8
    said = capsys.readouterr().err
    assert last_line(said)["exit_code"] == 8
    assert "Traceback" not in said
    assert threading.excepthook is threading.__excepthook__
