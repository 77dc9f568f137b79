"""Bugs with large messages: their limit, what takes their place, and when the connection is renewed."""

import hashlib
from collections.abc import Mapping

from cdcd.core.engine.message_records import MessageRecords
from cdcd.core.engine.renewal import Renewal
from cdcd.core.protocol.shortened import MessageLimits


class RenewsUnconfirmed(Renewal):
    """Renews the connection when a large message has come, so that it comes again and again."""

    def is_due(self, told: int, now: float) -> bool:
        return self.is_pending

    def closed(self, end_lsn: int, undecided: int) -> None:
        pass


class ShortensTheLargest(MessageLimits):
    """The limit is the first size that is too large."""

    def __init__(self, by_prefix: Mapping[bytes, int], others: int | None) -> None:
        super().__init__(by_prefix, None if others is None else others - 1)


class DigestsTheMessage(MessageLimits):
    """The digest is that of the whole frame."""

    def shorten(self, data: memoryview) -> bytes | None:
        found = super().shorten(data)
        return None if found is None else found[:-32] + hashlib.sha256(data).digest()


class DeliversTheDigest(MessageRecords):
    """Size and digest are delivered as if they were the content of the message."""

    def _without_value(self, frame: bytes, in_stream: bool, known: int) -> int:
        return 0
