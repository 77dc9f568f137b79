"""What happens to a record that is too large for the broker: a policy of the configuration (`kafka.oversized`).

`fail` stops the daemon with an error that names table, key and size. `dead_letter` sends the record, whole, to
a topic that is made for large ones. `claim_check` writes the value to a file and sends a small record in its place
that says where it is (Hohpe and Woolf, "Claim Check"). Under each of them the record's place in the order stays.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from cdcd.errors import LimitError
from cdcd.transactions.batches import Batch, Record

Policy = Literal["fail", "dead_letter", "claim_check"]

CLAIM_CHECK: Final = "cdcd.claim_check"
"""The header of a record that stands in for a file: the file's path."""


@dataclass(frozen=True, slots=True)
class Oversized:
    """The policy, and where the records go that it takes out.

    `on_replaced` hears each record's topic, its value's size and where it went instead.
    """

    policy: Policy = "fail"
    dead_letter_topic: str = ""
    directory: str = ""
    on_replaced: Callable[[str, int, str], None] | None = None

    def replace(self, batch: Batch, topic: str, key: bytes | None, value: bytes | None) -> bool:
        """Put something smaller, or elsewhere, in the refused record's place; False where nothing can be done.

        Raises:
            LimitError: the claim-check file can not be written.
        """
        if self.policy == "fail" or value is None or topic == self.dead_letter_topic:
            return False
        replaced = False
        for index, record in enumerate(batch.records):
            # What stands in for another already has no smaller form: its key may be what is too large.
            stands_in = any(name == CLAIM_CHECK for name, _ in record[3] or ())
            if record[0] == topic and record[1] == key and record[2] == value and not stands_in:
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
