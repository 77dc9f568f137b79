"""Handling of a record that is too large for the broker, by a policy of the configuration (`kafka.oversized`).

`fail` stops the daemon with an error that names topic, size and LSN. `dead_letter` sends the whole record to a
topic for large records. `claim_check` writes the value to a file and sends a small record in its place that names
the file (Hohpe and Woolf, "Claim Check"). All policies keep the record's position in the order.

Every client that may connect to the database may send a logical message of any size, and must not stop the daemon
with it. So if the policy is `fail`, or the topic for large records refuses the message too, a record without a
value replaces the message.
"""

import hashlib
import json
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from cdcd.core.engine.queue import Batch
from cdcd.core.errors import LimitError
from cdcd.core.records.encoder import HEADER_DIGEST, HEADER_SIZE, LOST_KEY_BYTES_MAX, Record

Policy = Literal["fail", "dead_letter", "claim_check"]

CLAIM_CHECK: Final = "cdcd.claim_check"
"""Header of a record in place of a file's contents: the path of the file."""

ORIGIN: Final = "cdcd.topic"
"""Header of a dead letter: the topic for which the record was encoded."""

_OWN_HEADERS: Final = frozenset({CLAIM_CHECK, HEADER_SIZE, ORIGIN})

PROBE: Final = "cdcd-probe"
"""Prefix of the name of a file that is written and removed, to check that the directory is writable."""


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A record that was refused for its size, without its value: topic, key, size and SHA-256 of the value."""

    topic: str
    key: bytes | None
    value_bytes: int
    digest: bytes

    @classmethod
    def of(cls, topic: str, key: bytes | None, value: bytes) -> "TooLarge":
        return cls(topic, key, len(value), hashlib.sha256(value).digest())


@dataclass(frozen=True, slots=True)
class Oversized:
    """The policy for large records, and the destinations of these records.

    `messages_topic`: topic of logical messages. `on_replaced` is called with each record's topic, the size of its
    value, and its new destination ("" if the value was dropped).
    """

    policy: Policy = "fail"
    dead_letter_topic: str = ""
    directory: str = ""
    on_replaced: Callable[[str, int, str], None] | None = None
    messages_topic: str = ""

    def prove(self) -> None:
        """Check that the policy can be followed, before it is needed.

        Raises:
            LimitError: the directory for claim checks cannot be written.
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
        """Return True if a refused record of this topic may be replaced by a smaller one, or sent elsewhere."""
        if value is None:
            return False
        if topic == self.dead_letter_topic:
            return bool(self.messages_topic)
        return self.policy != "fail" or topic == self.messages_topic

    def replace(self, batch: Batch, refused: Collection[TooLarge]) -> bool:
        """Replace each of the `refused` records by a smaller one or send it elsewhere; return False if nothing was
        replaced.

        Raises:
            LimitError: the claim-check file cannot be written.
        """
        sizes = {one.value_bytes for one in refused}
        replaced = False
        for index, record in enumerate(batch.records):
            topic, key, value, _ = record
            if value is None or len(value) not in sizes or not self.takes(topic, value):
                continue
            if TooLarge.of(topic, key, value) in refused:
                instead = self._instead(record, value)
                if instead is not None:
                    batch.records[index] = instead
                    replaced = True
        return replaced

    def _instead(self, record: Record, value: bytes) -> Record | None:
        """Return the replacement of the record; None if it may not be replaced."""
        topic, _, _, headers = record
        named = dict(headers or ())
        if topic == self.dead_letter_topic:
            origin = named.get(ORIGIN)
            return self._without_value(record, value) if origin == self.messages_topic.encode() else None
        if CLAIM_CHECK in named:
            # The record is already a replacement and has no smaller form: its key may be too large.
            return self._without_value(record, value) if topic == self.messages_topic else None
        if self.policy == "fail":
            return self._without_value(record, value)
        return self._by_policy(record, value)

    def _without_value(self, record: Record, value: bytes) -> Record:
        _, key, _, headers = record
        self._tell(self.messages_topic, value, "")
        digest = hashlib.sha256(value).hexdigest().encode()
        named = [(HEADER_SIZE, str(len(value)).encode()), (HEADER_DIGEST, digest)]
        kept = key if key is not None and len(key) <= LOST_KEY_BYTES_MAX else None
        return (
            self.messages_topic,
            kept,
            None,
            [*(one for one in headers or () if one[0] not in _OWN_HEADERS), *named],
        )

    def _by_policy(self, record: Record, value: bytes) -> Record:
        topic, key, _, headers = record
        headers = list(headers or ())
        if self.policy == "dead_letter":
            self._tell(topic, value, self.dead_letter_topic)
            size = str(len(value)).encode()
            return (
                self.dead_letter_topic,
                key,
                value,
                [*headers, (ORIGIN, topic.encode()), (HEADER_SIZE, size)],
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
