"""The mirror joins a running demo as soon as the packages of Spark are downloaded.

`JoiningMirror.look` moves from one state to the next and never waits, so that the demo's screen stays live. A mirror
that has not joined at the end is reported and is not a failure, because a first run may end before the download does.
"""

import importlib
import importlib.metadata
import json
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from deploy.demo.mirrored import MirrorProcess, Say
from deploy.first import size_of
from deploy.local.cache import REPOSITORY
from deploy.local.process import Child

PACKAGES: Final = REPOSITORY / "requirements-spark.lock"
MEGABYTES: Final = 500
"""Approximate size of pyspark and pyarrow. The mirror downloads 70 MB of jars when it starts."""


def spark_is_installed() -> bool:
    """Return True if pyspark and pyarrow are installed. A killed installation leaves files without metadata."""
    try:
        return all(importlib.metadata.version(name) for name in ("pyspark", "pyarrow"))
    except importlib.metadata.PackageNotFoundError:
        return False


class JoiningMirror:
    """Runs `cdcd mirror` in `folder`, after it has downloaded Spark if Spark is not installed.

    Args:
        table_format: iceberg or delta.
    """

    def __init__(self, folder: Path, name: str, bootstrap_servers: str, table_format: str) -> None:
        self.process = MirrorProcess(
            folder / "mirror", name, bootstrap_servers, table_format, log={"format": "json"}
        )
        self._packages = folder / "spark-packages"
        self._log = folder / "spark-packages.log"
        self._fetching: Child | None = None
        self._reading: threading.Thread | None = None
        self._said = "starting Spark"
        self._failure = ""

    def look(self) -> str:
        """Start the download or the mirror if it is due. Return the state in words."""
        if self._failure:
            return self._failure
        if self._reading is not None:
            return self._said if self._reading.is_alive() else "ended; the demo will say why"
        if self._fetching is None and not spark_is_installed():
            self._fetch()
        if self._fetching is not None:
            if self._fetching.is_running():
                megabytes = size_of(self._packages) // 1_000_000
                if megabytes < MEGABYTES:
                    return (
                        f"downloading Spark meanwhile, {megabytes} of {MEGABYTES} MB; then the mirror joins"
                    )
                return "installing Spark; then the mirror joins"
            if self._fetching.wait(1) != 0:
                self._failure = f"cannot join: Spark's packages could not be installed ({self._last_line()})"
                return self._failure
            importlib.invalidate_caches()
        self._start()
        return self._said

    def finish(self, say: Say) -> bool:
        """End the mirror after it has read all topics to their ends. Return False if the mirror has not joined.

        Raises:
            ValueError: the mirror failed; the message has the end of its log.
        """
        if self._reading is None:
            state = self.look().partition(";")[0]
            self.kill()
            say(f"The mirror is not compared. Its state: {state}.")
            return False
        say("The mirror reads the rest of the topics …")
        self.process.ask_to_stop()
        self._reading.join()
        if self.process.wait() != 0 or self.process.once() != 0:
            raise ValueError(f"cdcd mirror failed:\n{self.process.errors()[-2000:]}")
        return True

    def kill(self) -> None:
        """Send SIGKILL to the download and to the mirror."""
        if self._fetching is not None:
            self._fetching.kill()
        self.process.kill()

    def _fetch(self) -> None:
        # pip downloads into TMPDIR, and `look` returns the size of that folder.
        self._packages.mkdir()
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        self._fetching = Child(
            ["nice", *pip, "--no-build-isolation", "--require-hashes", "-r", PACKAGES],
            log=self._log,
            last_signal=signal.SIGKILL,
            cwd=REPOSITORY,
            environment={"TMPDIR": str(self._packages)},
        )

    def _start(self) -> None:
        self.process.start()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        """Follow the mirror's log until the mirror ends."""
        for line in self.process.lines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event.get("event") == "mirror.batch":
                self._said = (
                    f"{event['changes']} changes in the last batch, which took {event['seconds']:.1f} s"
                )
            elif event.get("event") == "mirror.started":
                self._said = "reading the topics"

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return lines[-1] if lines else f"see {PACKAGES}"
