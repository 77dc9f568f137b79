"""One-to-one mapping of texts to texts of the same shape, by a secret key.

The rule: texts of the same shape (the same kinds of characters at the same positions) are mapped among themselves
one to one, so two values never become equal. So keys stay distinct, and updates stay with their rows. Without the
key, which is not kept, no value can be computed from its image.

A text is a number whose digits are its characters, each with the base of its alphabet. A Feistel network is applied
to the number until the result is in range ("cycle walking": Black and Rogaway, Ciphers with Arbitrary Finite
Domains).
"""

import hashlib
from collections.abc import Sequence
from typing import Final

_ROUNDS: Final = 8

_AT_ONCE: Final = 40
"""Characters that form one number. A longer text is mapped in pieces, and the pieces before each piece are a part of
its key."""

_LOWER: Final = "abcdefghijklmnopqrstuvwxyz"
_UPPER: Final = _LOWER.upper()
_DIGITS: Final = "0123456789"
_LEADING: Final = "123456789"
_HEXADECIMAL: Final = "0123456789abcdef"
_BY_BYTES: Final = tuple(
    "".join(map(chr, range(begin, end)))
    for begin, end in ((0xC0, 0x100), (0x4E00, 0x5E00), (0x1F300, 0x1F400))
)
"""Letters with two, three and four bytes in UTF-8, so that a text keeps its size. There are more letters than these,
so two texts with non-ASCII letters may become equal."""


class Permutation:
    """A one-to-one mapping by `key`."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def number(self, value: int, count: int, tweak: bytes = b"") -> int:
        """Return the image of a number below `count`, which is also below `count`."""
        if count < 2:
            return value
        half = ((count - 1).bit_length() + 1) // 2
        mask = (1 << half) - 1
        size = (half + 7) // 8
        seed = tweak + count.to_bytes((count.bit_length() + 7) // 8, "big")
        while True:
            left, right = value >> half, value & mask
            for number in range(_ROUNDS):
                data = bytes((number,)) + right.to_bytes(size, "big") + seed
                digest = hashlib.blake2b(data, key=self._key, digest_size=64).digest()
                left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
            value = left << half | right
            if value < count:
                return value

    def numbers(self, values: Sequence[int], counts: Sequence[int], tweak: bytes = b"") -> list[int]:
        """Return the images of values, each of which is below its count as its value is.

        All values together are mapped as one number.
        """
        found: list[int] = []
        for begin in range(0, len(values), _AT_ONCE):
            whole, count = 0, 1
            for value, each in zip(
                values[begin : begin + _AT_ONCE], counts[begin : begin + _AT_ONCE], strict=True
            ):
                whole = whole * each + value
                count *= each
            image = self.number(whole, count, tweak)
            piece = []
            for each in reversed(counts[begin : begin + _AT_ONCE]):
                image, value = divmod(image, each)
                piece.append(value)
            found += reversed(piece)
            tweak = hashlib.blake2b(tweak + repr(values[begin : begin + _AT_ONCE]).encode()).digest()
        return found

    def text(self, text: str, *, hexadecimal: bool = False) -> str:
        """Return the image of a text: letters for letters, digits for digits, the same size in UTF-8, the rest
        unchanged.
        """
        alphabets = [_alphabet(text, at, hexadecimal) for at in range(len(text))]
        values = []
        for character, alphabet in zip(text, alphabets, strict=True):
            value = alphabet.find(character)
            values.append(ord(character) % len(alphabet) if value < 0 else value)
        images = self.numbers(values, [len(alphabet) for alphabet in alphabets])
        return "".join([alphabet[image] for image, alphabet in zip(images, alphabets, strict=True)])


def _alphabet(text: str, at: int, hexadecimal: bool) -> str:
    """Return the characters that may replace the one at `at`; only itself if it is neither letter nor digit."""
    character = text[at]
    if hexadecimal:
        return _HEXADECIMAL if character in _HEXADECIMAL else character
    if "a" <= character <= "z":
        return _LOWER
    if "A" <= character <= "Z":
        return _UPPER
    if "0" <= character <= "9":
        before = text[at - 1] if at else ""
        if before != "." and not before.isdigit() and text[at + 1 : at + 2].isdigit():
            # A number keeps its length, so its first digit neither becomes nor stays zero.
            return character if character == "0" else _LEADING
        return _DIGITS
    if ord(character) < 0xA0 or 0xD800 <= ord(character) < 0xE000:
        return character
    return _BY_BYTES[len(character.encode()) - 2]
