"""The daemon as a child process: its configuration, its log file, and what it says of itself over HTTP."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy.local.cache import REPOSITORY
from deploy.local.process import Child, free_port

HTTP_TIMEOUT_S: Final = 2.0
LOG_LINES: Final = 12

Samples = dict[str, dict[tuple[str, ...], float]]
"""Values of each metric by its labels' values; () where it has none."""


class Daemon:
    """`cdcd run` with a configuration in `folder`. It ends with this process, whatever becomes of it."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.port = free_port()
        self.config_path = folder / "cdcd.yaml"
        self.log_path = folder / "cdcd.log"
        self.config_path.write_text(yaml.safe_dump({**config, "http": {"port": self.port}}, sort_keys=False))
        self._child: Child | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(2.0 if error else 20.0)

    def start(self) -> None:
        self._child = Child(
            [sys.executable, "-m", "cdcd.cli", "run", "--config", self.config_path],
            log=self.log_path,
            last_signal=signal.SIGKILL,
            cwd=REPOSITORY,
        )

    @property
    def pid(self) -> int:
        assert self._child is not None, "the daemon was never started"
        return self._child.pid

    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running()

    def exit_code(self) -> int | None:
        """None while it runs."""
        if self._child is None or self._child.is_running():
            return None
        return self._child.wait(0)

    def kill(self) -> None:
        """SIGKILL."""
        if self._child is not None:
            self._child.kill()

    def stop(self, timeout_s: float = 20.0) -> int | None:
        """SIGTERM, and SIGKILL when it takes longer than `timeout_s`; the exit code, None after SIGKILL."""
        if self._child is None:
            return None
        if self._child.is_running():
            self._child.signal(signal.SIGTERM)
            try:
                return self._child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._child.kill()
                return None
        return self._child.wait(0)

    def is_ready(self) -> bool:
        """Whether it streams and keeps up, by its own account."""
        return self._get("/readyz") is not None

    def metrics(self) -> Samples:
        """What it measures; nothing when it does not answer."""
        return parse_metrics(self._get("/metrics") or "")

    def last_words(self) -> str:
        """The end of its log, as a person would read it."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(_readable(line) for line in text.splitlines()[-LOG_LINES:])

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=HTTP_TIMEOUT_S
            ) as answer:
                text: str = answer.read().decode()
                return text
        except (urllib.error.URLError, OSError):
            return None


def parse_metrics(text: str) -> Samples:
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return samples


def _readable(line: str) -> str:
    """A line of the log without JSON's noise; a traceback's lines as they are."""
    try:
        fields = json.loads(line)
    except ValueError:
        return line
    if not isinstance(fields, dict):
        return line
    head = " ".join(str(fields.pop(name, "")) for name in ("timestamp", "level", "event"))
    return head + "".join(f" {name}={value}" for name, value in fields.items())
