"""Replacement of large logical messages by small frames, while their content stays in libpq's buffer.

Every client that may connect can send a logical message of up to 1 GB. So the length and the prefix of a large
message are read before the message is copied. If such messages are not wanted, or the message exceeds the limit of
its prefix, a frame with the same header, LSN and prefix replaces it, whose content is the size and the SHA-256 of
the content. The frame is a valid message, so the spool, the durable log and recordings keep it like any other
message. Its mark is the second LSN of the header, which no server sends in this form (`peek.shortened_bytes`).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER

PIECE_BYTES: Final = 1 << 20
"""Bytes of a content that are hashed at a time. Other threads can run in between."""

PREFIX_BYTES_MAX: Final = 1_000
"""Maximum bytes of a prefix, which is cut there. The message's sender chooses the prefix, which becomes the key of
the record."""

UNLIMITED: Final = 1 << 62

_LENGTH_BYTES: Final = 4
_SIZE_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Maximum bytes of content of logical messages that are kept whole.

    Attributes:
        by_prefix: limits of messages with these prefixes.
        others: limit of all other messages; None: such messages are not wanted.
    """

    by_prefix: Mapping[bytes, int] = field(default_factory=dict)
    others: int | None = UNLIMITED

    def shorten(self, data: memoryview) -> bytes | None:
        """Return the frame that replaces the frame in `data`; None: keep the frame."""
        if len(data) <= XLOG_HEADER or data[XLOG_HEADER] != peek.MESSAGE:
            return None
        at = peek.message_prefix_at(data)
        end = -1 if at < 0 else _end_of_text(data, at)
        begin = end + 1 + _LENGTH_BYTES
        if end < 0 or begin > len(data) or int.from_bytes(data[end + 1 : begin], "big") != len(data) - begin:
            # The strict reader reports the error.
            return None
        size = len(data) - begin
        is_long = end - at > PREFIX_BYTES_MAX
        prefix = _cut(bytes(data[at : at + PREFIX_BYTES_MAX])) if is_long else bytes(data[at:end])
        limit = self.others if is_long else self.by_prefix.get(prefix, self.others)
        if limit is not None and size <= limit and not is_long:
            return None
        content = b"" if limit is None else size.to_bytes(_SIZE_BYTES, "big") + _digest(data, begin)
        return b"".join(
            (
                peek.shortened_header(data, size),
                bytes(data[XLOG_HEADER:at]),
                prefix,
                b"\0",
                len(content).to_bytes(_LENGTH_BYTES, "big"),
                content,
            )
        )


def read_digest(content: bytes) -> bytes:
    """Return the SHA-256 of the removed content, from the content of the replacing message; empty: unknown."""
    return content[_SIZE_BYTES:]


def _end_of_text(data: memoryview, at: int) -> int:
    """Return the offset of the NUL after the text at `data[at]`; -1 if there is none."""
    for piece in range(at, len(data), PIECE_BYTES):
        found = bytes(data[piece : piece + PIECE_BYTES]).find(0)
        if found >= 0:
            return piece + found
    return -1


def _cut(prefix: bytes) -> bytes:
    """Return the text without a character that was cut in its middle. Bytes that are not UTF-8 stay."""
    for end in range(len(prefix), max(0, len(prefix) - 4), -1):
        if prefix[end - 1] < 0x80:
            return prefix[:end]
        if prefix[end - 1] >= 0xC0:
            return prefix[: end - 1]
    return prefix


def _digest(data: memoryview, begin: int) -> bytes:
    digest = hashlib.sha256()
    for at in range(begin, len(data), PIECE_BYTES):
        digest.update(data[at : at + PIECE_BYTES])
    return digest.digest()
