"""Conversion of texts in a server's encoding to UTF-8, by PostgreSQL's own conversion, character by character.

The rule: a text becomes the result of `convert_from`, or it is undecodable. PostgreSQL converts a text character by
character (conv.c, LocalToUtf), with other tables than Python's codecs, which differ by version. So the server is
asked for each character once (`postgres/conversion.py`), and the answers are kept here. A database in SQL_ASCII has
no conversion: its texts are either valid UTF-8, or undecodable.
"""

from collections.abc import Iterable, Mapping
from typing import Final

UNDECODABLE: Final = b"\xff"
"""Replacement for a value that cannot be decoded. No text in UTF-8 has this byte, so every reader detects it."""

KNOWN_MAX: Final = 200_000
"""Maximum number of characters that are kept. No encoding of a server has as many, but writers may invent some."""

UNCONVERTED: Final = ("SQL_ASCII", "UTF8")
"""Encodings whose texts are sent unchanged."""

_HIGH: Final = 0x80
_SS2: Final = 0x8E
_SS3: Final = 0x8F

_TWO_BYTES: Final = ("EUC_CN",)
_EUC: Final = ("EUC_JP", "EUC_JIS_2004", "EUC_KR")
_FOUR_BYTES: Final = ("EUC_TW",)


def characters(text: bytes, encoding: str) -> list[bytes]:
    """Return the characters of a text (wchar.c, pg_encoding_mblen). The last character may be incomplete."""
    found: list[bytes] = []
    at = 0
    while at < len(text):
        size = _size(text[at], encoding)
        found.append(text[at : at + size])
        at += size
    return found


def _size(first: int, encoding: str) -> int:
    if first < _HIGH:
        return 1
    if encoding in _TWO_BYTES:
        return 2
    if encoding in _EUC:
        return 3 if first == _SS3 else 2
    if encoding in _FOUR_BYTES:
        return 4 if first == _SS2 else 3 if first == _SS3 else 2
    return 1


class ServerTexts:
    """Known characters of one encoding.

    Args:
        encoding: encoding of the server, as in `server_encoding`.
    """

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self._known: dict[bytes, bytes] = {}

    def unknown(self, texts: Iterable[bytes]) -> list[bytes]:
        """Return the characters of these texts for which the server must be asked, each once."""
        if self.encoding in UNCONVERTED:
            return []
        known, found = self._known, dict[bytes, None]()
        for text in texts:
            if not text.isascii():
                found |= {
                    each: None
                    for each in characters(text, self.encoding)
                    if each not in known and not each.isascii()
                }
        return list(found)

    def learn(self, answers: Mapping[bytes, bytes]) -> None:
        """Add the server's UTF-8 forms of characters. Characters without such a form are not among them."""
        if len(self._known) + len(answers) > KNOWN_MAX:
            self._known.clear()
        self._known.update(answers)

    def decoded(self, text: bytes) -> bytes | None:
        """Return the text in UTF-8; None if it cannot be decoded.

        The caller must have added its `unknown` characters before.
        """
        if text.isascii():
            return text
        if self.encoding in UNCONVERTED:
            try:
                text.decode("utf-8")
            except UnicodeDecodeError:
                return None
            return text
        known = self._known
        parts = [each if each.isascii() else known.get(each) for each in characters(text, self.encoding)]
        found = [part for part in parts if part is not None]
        return b"".join(found) if len(found) == len(parts) else None
