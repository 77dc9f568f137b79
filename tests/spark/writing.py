"""Somebody who writes to the source all the time."""

import random
import threading
from collections.abc import Callable
from typing import Any, Self

import psycopg

from tests.spark.stage import Source

Write = Callable[["psycopg.Connection[tuple[Any, ...]]", random.Random], None]


class Writing:
    """`write` is called in a thread, until the `with` ends. What it raised is raised there."""

    def __init__(self, source: Source, seed: int, write: Write) -> None:
        self._source = source
        self._dice = random.Random(seed)
        self._write = write
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Return when the last `write` has returned."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._source.connect() as connection:
                while not self._stop.wait(0.03):
                    self._write(connection, self._dice)
                    self.rounds += 1
        except BaseException as failure:  # noqa: BLE001 - it is raised where it is seen
            self._failure = failure
