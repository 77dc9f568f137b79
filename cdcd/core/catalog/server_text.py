"""Texts in a server's encoding to UTF-8, by PostgreSQL's own conversion, one character after the other.

The rule: a text becomes what `convert_from` makes of it, or nothing. PostgreSQL converts a text character by character
(conv.c, LocalToUtf), and has other tables than the codecs of Python, version by version. So the server is asked for
each character once (`postgres/conversion.py`), and the answers are kept here. A database in SQL_ASCII has no
conversion: there a text is UTF-8, or cannot be decoded.
"""

from collections.abc import Iterable, Mapping
from typing import Final

UNDECODABLE: Final = b"\xff"
"""Stands for a value that cannot be decoded. No text in UTF-8 has this byte, so every reader finds it."""

KNOWN_MAX: Final = 200_000
"""Characters that are kept. No encoding of a server has so many; writers may invent some."""

UNCONVERTED: Final = ("SQL_ASCII", "UTF8")
"""Encodings whose texts are sent as they are."""

_HIGH: Final = 0x80
_SS2: Final = 0x8E
_SS3: Final = 0x8F

_TWO_BYTES: Final = ("EUC_CN",)
_EUC: Final = ("EUC_JP", "EUC_JIS_2004", "EUC_KR")
_FOUR_BYTES: Final = ("EUC_TW",)


def characters(text: bytes, encoding: str) -> list[bytes]:
    """The characters of a text (wchar.c, pg_encoding_mblen). A last one may be cut off."""
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
    """What is known of the characters of one encoding.

    Args:
        encoding: the server's, as `server_encoding` shows it.
    """

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self._known: dict[bytes, bytes] = {}

    def unknown(self, texts: Iterable[bytes]) -> list[bytes]:
        """The characters of these texts for which the server must be asked, each once."""
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
        """Take what the server makes of characters, in UTF-8. One that has no form is not among them."""
        if len(self._known) + len(answers) > KNOWN_MAX:
            self._known.clear()
        self._known.update(answers)

    def decoded(self, text: bytes) -> bytes | None:
        """The text in UTF-8; None: it cannot be decoded. The caller has learned what is `unknown` of it."""
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
