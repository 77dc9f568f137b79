"""Maps each value of a PostgreSQL type to another value of the same type and length, one to one, by a secret key.

The rule: texts of the same shape (the same kinds of characters at the same positions) are mapped among themselves
one to one, so two values never become equal. So keys stay distinct, and updates stay with their rows. Without the
key, which is not kept, no value can be computed from its image.

A text is a number whose digits are its characters, each with the base of its alphabet. A Feistel network is applied
to the number until the result is in range ("cycle walking": Black and Rogaway, Ciphers with Arbitrary Finite
Domains).

Digits are replaced by digits and letters by letters; other characters stay. A number stays within the range of its
type, a date or time stays valid, JSON stays JSON. Values within arrays, composites and ranges are mapped one by
one. NULL, NaN, infinity and the empty value reveal nothing and stay.

`cdcd replay --redact --column PATTERN=MODE` chooses the modes of single columns.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Final

from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES

_ROUNDS: Final = 8

_AT_ONCE: Final = 40
"""Characters that form one number. A longer text is mapped in pieces, and the pieces before each piece are a part of
its key."""

_LOWER: Final = "abcdefghijklmnopqrstuvwxyz"
_UPPER: Final = _LOWER.upper()
_DIGITS: Final = "0123456789"
_LEADING: Final = "123456789"
_HEX_DIGITS: Final = "0123456789abcdef"
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
        return _HEX_DIGITS if character in _HEX_DIGITS else character
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


_KEPT: Final = frozenset(
    {"NULL", "null", "NaN", "Infinity", "-Infinity", "infinity", "-infinity", "empty", ""}
)

_INTEGERS: Final = {21: (1 << 15) - 1, 23: (1 << 31) - 1, 20: (1 << 63) - 1, 26: (1 << 32) - 1}
_BOOLEAN: Final = 16
_HEXADECIMAL: Final = frozenset({2950, 17, 829, 774})
_BITS: Final = frozenset({1560, 1562})
_ADDRESSES: Final = frozenset({869, 650})
_JSON: Final = frozenset({114, 3802})
_TIMES: Final = frozenset({1082, 1083, 1114, 1184, 1266})
_INTERVAL: Final = 1186
_LSN: Final = 3220

_DATE: Final = re.compile(r"(\d{4,})-(\d\d)-(\d\d)")
_TIME: Final = re.compile(r"(?<!\d)(\d\d):(\d\d):(\d\d)(?:\.(\d+))?")
_NUMBER: Final = re.compile(r"\d+")
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.|"")*"|[^\[\](){},;"]+', re.DOTALL)
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*')
_JSON_PLAIN: Final = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|[^\\]+", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)|\"\"", re.DOTALL)

_YEARS: Final = (1000, 3000)
"""Years of four digits, which every date type has before and after Christ."""

_DEPTH_MAX: Final = 8


class RedactedValues:
    """Mapping of values by their types. `types` may grow."""

    def __init__(self, permutation: Permutation) -> None:
        self.types: dict[int, TypeDescription] = dict(BUILTIN_TYPES)
        self._permutation = permutation

    def value(self, oid: int, data: bytes, depth: int = 0) -> bytes:
        """Return another value of the type, in PostgreSQL's text form."""
        text = data.decode("utf-8", "surrogateescape")
        return self.text(oid, text, depth).encode("utf-8", "surrogateescape")

    def text(self, oid: int, text: str, depth: int = 0) -> str:
        """Return another value of the type, with `str` in place of bytes."""
        if text in _KEPT:
            return text
        description = self.types.get(oid)
        while description is not None and description.base_oid:
            oid = description.base_oid
            description = self.types.get(oid)
        if description is not None and depth < _DEPTH_MAX:
            if description.is_array:
                return self._within(text, lambda _: description.element_oid, depth)
            if description.kind in {"r", "m"} and description.parts:
                part = description.parts[0]
                return self._within(text, lambda _: part, depth)
            if description.kind == "c":
                return self._composite(text, description.parts, depth)
            if description.name == "hstore":
                return self._within(text, lambda _: 25, depth)
        return self._simple(oid, text)

    def words(self, text: str) -> str:
        """Return the image of other text: of conditions, messages, labels."""
        return self._permutation.text(text)

    def _simple(self, oid: int, text: str) -> str:
        permutation = self._permutation
        if oid == _BOOLEAN:
            return "ft"[permutation.number("ft".find(text), 2)] if text in {"t", "f"} else text
        if oid in _INTEGERS:
            return self._integer(text, _INTEGERS[oid])
        if oid in _HEXADECIMAL:
            return permutation.text(text, hexadecimal=True)
        if oid in _BITS:
            bits = [int(bit) for bit in text]
            return "".join(map(str, permutation.numbers(bits, [2] * len(bits))))
        if oid in _ADDRESSES:
            return self._address(text)
        if oid in _JSON:
            return _JSON_TOKEN.sub(self._json_token, text)
        if oid in _TIMES or oid == _INTERVAL:
            return self._time(text)
        if oid == _LSN:
            return permutation.text(text.lower(), hexadecimal=True).upper()
        if oid in {700, 701, 1700} and "e" in text:
            digits, exponent = text.split("e", 1)
            return f"{permutation.text(digits)}e{exponent}"
        return permutation.text(text)

    def _integer(self, text: str, most: int) -> str:
        sign = "-" if text.startswith("-") else ""
        digits = text.removeprefix("-")
        if not digits.isdecimal():
            return self._permutation.text(text)
        least = 10 ** (len(digits) - 1) if len(digits) > 1 or sign else 0
        highest = min(10 ** len(digits) - 1, most)
        value = int(digits)
        if not least <= value <= highest:
            return text if sign else self._permutation.text(text)
        return f"{sign}{least + self._permutation.number(value - least, highest - least + 1)}"

    def _address(self, text: str) -> str:
        address, slash, bits = text.partition("/")
        if ":" in address:
            return self._permutation.text(address, hexadecimal=True) + slash + bits
        return _NUMBER.sub(lambda found: self._integer(found[0], 255), address) + slash + bits

    def _time(self, text: str) -> str:
        """Map date and time together as one number; time zone and era stay."""
        date, time = _DATE.search(text), _TIME.search(text)
        if date is None and time is None:
            return self._digits(text)
        values: list[int] = []
        counts: list[int] = []
        if date is not None:
            # Years of more than four digits end below 300,000.
            years = _YEARS[1] if len(date[1]) == 4 else 10 ** (len(date[1]) - 1)
            values += [(int(date[1]) - _YEARS[0]) % years, int(date[2]) - 1, min(int(date[3]), 28) - 1]
            counts += [years, 12, 28]
        if time is not None:
            fraction = time[4] or ""
            values += [min(int(time[1]), 23), int(time[2]), min(int(time[3]), 59), int(fraction or 0)]
            counts += [24, 60, 60, 10 ** len(fraction)]
        images = self._permutation.numbers(values, counts)
        found = text
        if time is not None:
            hour, minute, second, part = images[-4:]
            fraction = f".{part:0{len(time[4])}d}" if time[4] else ""
            found = f"{found[: time.start()]}{hour:02}:{minute:02}:{second:02}{fraction}{found[time.end() :]}"
        if date is None:
            return found if time is None else self._digits(found[: time.start()]) + found[time.start() :]
        first = _YEARS[0] if len(date[1]) == 4 else 10 ** (len(date[1]) - 1)
        year, month, day = first + images[0], images[1] + 1, images[2] + 1
        return f"{found[: date.start()]}{year}-{month:02}-{day:02}{found[date.end() :]}"

    def _digits(self, text: str) -> str:
        """Map the numbers of an interval; its words stay."""
        return _NUMBER.sub(lambda found: self._permutation.text(found[0]), text)

    # Values that contain other values.

    def _within(self, text: str, type_of: Callable[[int], int], depth: int) -> str:
        """Map the values within brackets, quoted or not. `type_of` returns the type of the n-th value."""
        head, equals, rest = text.partition("={") if text.startswith("[") and "={" in text else ("", "", text)
        count = -1

        def token(found: re.Match[str]) -> str:
            nonlocal count
            count += 1
            oid = type_of(count)
            whole = found[0]
            if not whole.startswith('"'):
                return self.text(oid, whole, depth + 1)
            # An escaped character is neither a letter nor a digit, so the image is escaped at the same positions.
            plain = _ESCAPE.sub(lambda escape: escape[1] or '"', whole[1:-1])
            doubled = '""' in whole[1:-1]
            image = self.text(oid, plain, depth + 1)
            escaped = image.replace("\\", "\\\\")
            return f'"{escaped.replace(_QUOTE, _QUOTE * 2) if doubled else escaped.replace(_QUOTE, _BACK + _QUOTE)}"'

        return head + equals + _TOKEN.sub(token, rest)

    def _composite(self, text: str, parts: tuple[int, ...], depth: int) -> str:
        """Map a row's fields by their positions. An empty field is NULL."""
        found: list[str] = []
        at, column = 1, 0
        while at < len(text) - 1:
            token = _TOKEN.match(text, at)
            if token is not None and not token[0].startswith('"'):
                end = text.find(",", at)
                stop = len(text) - 1 if end < 0 else end
                oid = parts[column] if column < len(parts) else 25
                found.append(self.text(oid, text[at:stop], depth + 1))
                at = stop
            elif token is not None:
                oid = parts[column] if column < len(parts) else 25
                found.append(self._within(token[0], lambda _, oid=oid: oid, depth))  # type: ignore[misc]
                at = token.end()
            else:
                column += text[at] == ","
                found.append(text[at])
                at += 1
        return f"{text[:1]}{''.join(found)}{text[-1:]}"

    def _json_token(self, found: re.Match[str]) -> str:
        whole = found[0]
        if not whole.startswith('"'):
            digits, e, exponent = (
                re.split("([eE])", whole, maxsplit=1) if re.search("[eE]", whole) else (whole, "", "")
            )
            return self._permutation.text(digits) + e + exponent
        return f'"{_JSON_PLAIN.sub(self._json_piece, whole[1:-1])}"'

    def _json_piece(self, found: re.Match[str]) -> str:
        piece = found[0]
        if piece.startswith(_CODE):
            # A letter that is escaped by its number is a letter of the text.
            return f"\\u{0x4E00 + self._permutation.number(int(piece.removeprefix(_CODE), 16) % 0x1000, 0x1000):04x}"
        return piece if piece.startswith("\\") else self._permutation.text(piece)


_QUOTE: Final = '"'
_CODE: Final = "\\u"
_BACK: Final = "\\"
