"""What happens to a record that is too large for the broker: a policy of the configuration (`kafka.oversized`).

`fail` stops the daemon with an error that names table, key and size. `dead_letter` sends the record, whole, to
a topic that is made for large ones. `claim_check` writes the value to a file and sends a small record in its place
that says where it is (Hohpe and Woolf, "Claim Check"). Under each of them the record's place in the order stays.
"""

import hashlib
import json
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from cdcd.engine.queue import Batch, Record
from cdcd.errors import LimitError

Policy = Literal["fail", "dead_letter", "claim_check"]

CLAIM_CHECK: Final = "cdcd.claim_check"
"""The header of a record that stands in for a file: the file's path."""

PROBE: Final = "cdcd-probe"
"""The beginning of the name of a file that is written, and removed, to see whether the directory can be written."""


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A record that was refused for its size, without its value: topic, key, the value's size and its SHA-256."""

    topic: str
    key: bytes | None
    value_bytes: int
    digest: bytes

    @classmethod
    def of(cls, topic: str, key: bytes | None, value: bytes) -> "TooLarge":
        return cls(topic, key, len(value), hashlib.sha256(value).digest())


@dataclass(frozen=True, slots=True)
class Oversized:
    """The policy, and where the records go that it takes out.

    `on_replaced` hears each record's topic, its value's size and where it went instead.
    """

    policy: Policy = "fail"
    dead_letter_topic: str = ""
    directory: str = ""
    on_replaced: Callable[[str, int, str], None] | None = None

    def prove(self) -> None:
        """See that the policy can be followed, before it is needed.

        Raises:
            LimitError: the directory for claim checks can not be written.
        """
        if self.policy != "claim_check":
            return
        probe = Path(self.directory) / f"{PROBE}-{os.getpid()}"
        try:
            probe.write_bytes(b"")
        except OSError as error:
            raise LimitError(
                f"Cannot write a claim-check file in {self.directory}: {error.strerror}.",
                hint=f"Create the directory {self.directory} and let this process's user write to it, or point "
                "kafka.claim_check_directory elsewhere.",
            ) from error
        finally:
            with suppress(OSError):
                probe.unlink()

    def takes(self, topic: str, value: bytes | None) -> bool:
        """Whether a refused record of this topic can be replaced by something smaller, or go elsewhere."""
        return self.policy != "fail" and value is not None and topic != self.dead_letter_topic

    def replace(self, batch: Batch, refused: Collection[TooLarge]) -> bool:
        """Put something smaller, or elsewhere, in the place of each of the `refused` records; False if there is none.

        Raises:
            LimitError: the claim-check file can not be written.
        """
        sizes = {one.value_bytes for one in refused}
        replaced = False
        for index, record in enumerate(batch.records):
            topic, key, value, headers = record
            if value is None or len(value) not in sizes or not self.takes(topic, value):
                continue
            # What stands in for another already has no smaller form: its key may be what is too large.
            stands_in = any(name == CLAIM_CHECK for name, _ in headers or ())
            if not stands_in and TooLarge.of(topic, key, value) in refused:
                batch.records[index] = self._instead(record, value)
                replaced = True
        return replaced

    def _instead(self, record: Record, value: bytes) -> Record:
        topic, key, _, headers = record
        headers = list(headers or ())
        if self.policy == "dead_letter":
            self._tell(topic, value, self.dead_letter_topic)
            size = str(len(value)).encode()
            return (
                self.dead_letter_topic,
                key,
                value,
                [*headers, ("cdcd.topic", topic.encode()), ("cdcd.size", size)],
            )
        path, digest = self._store(value)
        self._tell(topic, value, str(path))
        claim = {"claim_check": {"file": str(path), "size": len(value), "sha256": digest}}
        return (topic, key, json.dumps(claim).encode(), [*headers, (CLAIM_CHECK, str(path).encode())])

    def _tell(self, topic: str, value: bytes, to: str) -> None:
        if self.on_replaced is not None:
            self.on_replaced(topic, len(value), to)

    def _store(self, value: bytes) -> tuple[Path, str]:
        digest = hashlib.sha256(value).hexdigest()
        path = Path(self.directory) / f"{digest}.json"
        part = path.with_suffix(".part")
        try:
            with part.open("wb") as file:
                file.write(value)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            directory = os.open(self.directory, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise LimitError(
                f"Cannot write a claim-check file of {len(value)} bytes in {self.directory}: {error.strerror}.",
                hint="Free that file system, or point kafka.claim_check_directory elsewhere.",
            ) from error
        return path, digest
