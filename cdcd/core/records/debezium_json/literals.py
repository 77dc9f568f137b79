"""The text forms that hold other values: arrays and hstore, to JSON.

A large array is converted element by element, in text and in binary form, so that it needs no copy and no memory for
each element.

Strict where a wrong guess would change a value: what array_out and hstore_out never write is a ValueError.
Everything here is wire text.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, read_i32_be

from cdcd.core.catalog import binary
from cdcd.core.pauses import PAUSE_BYTES, pause
from cdcd.core.protocol.peek import COMPILED
from cdcd.core.records.debezium_json.pieces import PIECE_BYTES, escape_pieces, gathered
from cdcd.core.records.debezium_json.strings import BACKSLASH, QUOTE, quote

if TYPE_CHECKING:
    from mypy_extensions import i64

_MALFORMED: Final = "malformed array literal"

_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)

_PAIR: Final = re.compile(
    r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"=>(?:"([^"\\]*+(?:\\.[^"\\]*+)*+)"|NULL)(?:, (?=")|\Z)',
    re.DOTALL,
)


def array_token(delimiter: str) -> re.Pattern[str]:
    """The pattern that cuts an array literal: a quoted value, a plain one, or a brace or the delimiter."""
    escaped = re.escape(delimiter)
    return re.compile(rf'"([^"\\]*+(?:\\.[^"\\]*+)*+)"|([^{{}}"\\{escaped}]+)|([{{}}{escaped}])', re.DOTALL)


def array_json(text: str, token: re.Pattern[str], json: Callable[[str], str]) -> str:
    """The JSON array of an array literal; each dimension is a nesting, lower bounds (`[0:1]={…}`) are dropped.

    Args:
        token: what `array_token` gave for the element's delimiter.
        json: converts an element that is not NULL.
    """
    at = text.index("=") + 1 if text.startswith("[") else 0
    parts: list[str] = []
    depth = 0
    value_due = True  # at the start, after an opening brace and after a delimiter
    while at < len(text):
        match = token.match(text, at)
        if match is None or (at and not depth and parts):
            raise ValueError(_MALFORMED)
        at = match.end()
        mark = match[3]
        if mark is None:
            if not value_due or not depth:
                raise ValueError(_MALFORMED)
            plain = match[2]
            if plain is None:
                quoted: str = match[1]
                parts.append(json(unescape(quoted)))
            else:
                parts.append("null" if plain == "NULL" else json(plain))
            value_due = False
        elif mark == "{":
            if not value_due:
                raise ValueError(_MALFORMED)
            parts.append("[")
            depth += 1
        elif mark == "}":
            if not depth or (value_due and parts[-1] != "["):
                raise ValueError(_MALFORMED)
            parts.append("]")
            depth -= 1
            value_due = False
        else:
            if value_due:
                raise ValueError(_MALFORMED)
            parts.append(",")
            value_due = True
    if depth or not parts:
        raise ValueError(_MALFORMED)
    return "".join(parts)


def binary_array_json(data: bytes, json: Callable[[bytes], str]) -> str:
    """The JSON array of an array in binary form."""
    lengths, _, elements = binary.read_array(data)
    values = ["null" if element is None else json(element) for element in elements]
    for length in reversed(lengths):
        values = [f"[{','.join(values[at : at + length])}]" for at in range(0, len(values), length)]
    return values[0] if values else "[]"


def flat_array_json(text: str) -> str:
    """The same for elements whose text is their JSON and is never quoted: integers."""
    start = text.index("=") + 1 if text.startswith("[") else 0
    body = text[start:]
    if not (body.startswith("{") and body.endswith("}")) or '"' in body:
        raise ValueError(_MALFORMED)
    return body.replace("{", "[").replace("}", "]").replace("NULL", "null")


def hstore_json(text: str) -> str:
    """The JSON object of an hstore literal, in the order of the text; a NULL value is null."""
    pairs: list[str] = []
    at = 0
    pause_at = PAUSE_BYTES
    while at < len(text):
        if at >= pause_at:
            pause()
            pause_at = at + PAUSE_BYTES
        match = _PAIR.match(text, at)
        if match is None:
            raise ValueError("malformed hstore literal")
        value: str | None = match[2]
        pairs.append(f"{quote(unescape(match[1]))}:{'null' if value is None else quote(unescape(value))}")
        at = match.end()
    return f"{{{','.join(pairs)}}}"


def unescape(text: str) -> str:
    """Backslashes removed from before the characters that they protect."""
    return _ESCAPE.sub(r"\1", text) if "\\" in text else text


ARRAY_BYTES_MAX: Final = 1 << 16
"""Size in bytes above which `write_array` and `write_binary_array` convert an array, element by element.

`array_json` needs some 70 bytes of memory for each element and several copies of a large one.
"""

_ESCAPED_BYTE: Final = re.compile(rb"\\(.)", re.DOTALL)
_NOT_QUOTED: Final = re.compile(rb'[^{}"\\]*')
_QUOTED: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
"""The content of a quoted element and the quote after it. Possessive, because each repetition that can be tried again
needs memory."""

_OPENING_BOUNDS: Final = 0x5B  # [
_OPENING: Final = 0x7B  # {
_CLOSING: Final = 0x7D  # }
_NULL: Final = b"NULL"

_DIMENSIONS_MAX: Final = 6
"""Maximum number of dimensions of an array (MAXDIM in PostgreSQL)."""

_JSON_OF_INTEGERS: Final = bytes.maketrans(b"{}", b"[]")


class ArraySink:
    """Takes the parts of an array in their order. `write_array` and `write_binary_array` call it."""

    def open(self) -> None:
        """Take the beginning of a dimension."""

    def close(self) -> None:
        """Take the end of a dimension."""

    def between(self) -> None:
        """Take the delimiter after an element or a dimension."""

    def null(self) -> None:
        """Take an element that is NULL."""

    def value(self, data: bytes, at: "i64", end: "i64") -> None:
        """Take the element whose text form is `data[at:end]`."""

    def binary_value(self, data: bytes, at: "i64", end: "i64") -> None:
        """Take the element whose binary form is `data[at:end]`."""


def write_array(data: bytes, at: "i64", end: "i64", delimiter: int, out: ArraySink) -> None:
    """Give the parts of the array literal `data[at:end]` to `out`, without a copy of the literal.

    A malformed literal raises ValueError, as in `array_json`.
    """
    if at < end and data[at] == _OPENING_BOUNDS:
        begin: i64 = data.index(b"=", at, end) + 1
        at = begin
    depth: i64 = 0
    value_due = True
    is_open = False
    """Whether the last part was an opening brace."""
    begun = False
    pause_at: i64 = at + PAUSE_BYTES
    while at < end:
        if at >= pause_at:
            pause()
            pause_at = at + PAUSE_BYTES
        if begun and depth == 0:
            raise ValueError(_MALFORMED)
        byte: i64 = data[at]
        if byte == delimiter:
            if value_due:
                raise ValueError(_MALFORMED)
            out.between()
            value_due, is_open = True, False
            at += 1
        elif byte == _OPENING:
            if not value_due:
                raise ValueError(_MALFORMED)
            out.open()
            depth += 1
            begun = is_open = True
            at += 1
        elif byte == _CLOSING:
            if depth == 0 or (value_due and not is_open):
                raise ValueError(_MALFORMED)
            out.close()
            depth -= 1
            value_due = is_open = False
            at += 1
        else:
            if not value_due or depth == 0:
                raise ValueError(_MALFORMED)
            value_due = is_open = False
            at = _write_element(data, at, end, delimiter, out)
    if depth or not begun:
        raise ValueError(_MALFORMED)


def _write_element(data: bytes, at: "i64", end: "i64", delimiter: int, out: ArraySink) -> "i64":
    """Give the element at `data[at]` to `out`; return the place after it."""
    after: i64
    if data[at] != QUOTE:
        after = _plain_end(data, at, end, delimiter)
        if after == at:
            raise ValueError(_MALFORMED)
        if after - at == len(_NULL) and data[at:after] == _NULL:
            out.null()
        else:
            out.value(data, at, after)
        return after
    at += 1
    after = _quoted_end(data, at, end)
    escape: i64 = data.find(b"\\", at, after)
    if escape < 0:
        out.value(data, at, after)
    else:
        content = _unescaped(data, at, after)
        out.value(content, 0, len(content))
    return after + 1


def _plain_end(data: bytes, at: "i64", end: "i64", delimiter: int) -> "i64":
    """Return the place after an element without quotes."""
    after: i64 = at
    if COMPILED:
        while after < end:
            byte: i64 = data[after]
            if byte in (delimiter, _CLOSING, _OPENING, QUOTE, BACKSLASH):
                break
            after += 1
        return after
    found: i64 = data.find(delimiter, at, end)
    matched = _NOT_QUOTED.match(data, at, end if found < 0 else found)
    return at if matched is None else matched.end()


def _quoted_end(data: bytes, at: "i64", end: "i64") -> "i64":
    """Return the place of the quote that ends the element whose content begins at `at`."""
    if COMPILED:
        while at < end:
            byte: i64 = data[at]
            if byte == QUOTE:
                return at
            at += 2 if byte == BACKSLASH else 1
        raise ValueError(_MALFORMED)
    matched = _QUOTED.match(data, at, end)
    if matched is None:
        raise ValueError(_MALFORMED)
    return matched.end() - 1


def _unescaped(data: bytes, at: "i64", end: "i64") -> bytes:
    """Return `data[at:end]` without the backslashes of its escapes."""
    if end - at <= PIECE_BYTES:
        return _piece_unescaped(data[at:end])
    return gathered(map(_piece_unescaped, escape_pieces(data, int(at), int(end))))


def _piece_unescaped(piece: bytes) -> bytes:
    if b"\\" in piece.replace(b"\\\\", b"").replace(b'\\"', b""):
        return _ESCAPED_BYTE.sub(rb"\1", piece)
    # array_out escapes backslashes and quotes only. This takes a tenth of the time of a substitution.
    return b"\\".join([part.replace(b'\\"', b'"') for part in piece.split(b"\\\\")])


def write_binary_array(data: bytes, at: "i64", end: "i64", out: ArraySink) -> None:
    """Give the parts of the array whose binary form (array_send) is `data[at:end]` to `out`.

    A malformed array raises ValueError.
    """
    head: i64 = at + 12
    if head > end:
        raise ValueError(_MALFORMED)
    dimensions: i64 = int(read_i32_be(data, at))
    if dimensions < 0 or dimensions > _DIMENSIONS_MAX or head + 8 * dimensions > end:
        raise ValueError(_MALFORMED)
    lengths = [int(read_i32_be(data, head + 8 * number)) for number in range(dimensions)]
    at = head + 8 * dimensions
    total = 1 if lengths else 0
    for length in lengths:
        total *= length
    if min(lengths, default=0) < 0 or 4 * total > end - at:
        raise ValueError("an array's dimensions do not fit its elements")
    if not total:
        out.open()
        out.close()
    counts = [0] * len(lengths)
    """How many items of each dimension have been given."""
    number: i64 = 0
    pause_at: i64 = at + PAUSE_BYTES
    while number < total:
        if at >= pause_at:
            pause()
            pause_at = at + PAUSE_BYTES
        for place in range(len(counts)):
            if not any(counts[place:]):
                out.open()
        size: i64 = int(read_i32_be(data, at)) if at + 4 <= end else -2
        at += 4
        if size == -1:
            out.null()
        elif size < 0 or size > end - at:
            raise ValueError(_MALFORMED)
        else:
            out.binary_value(data, at, at + size)
            at += size
        number += 1
        place = len(counts) - 1
        while place >= 0:
            counts[place] += 1
            if counts[place] < lengths[place]:
                out.between()
                break
            counts[place] = 0
            out.close()
            place -= 1
    if at != end:
        raise ValueError(_MALFORMED)


def write_flat_array(data: bytes, at: "i64", end: "i64", out: BytesWriter) -> None:
    """Append the JSON array of an array of integers, piece by piece; see `flat_array_json`."""
    begin = int(at)
    stop = int(end)
    if data[begin : begin + 1] == b"[":
        begin = data.index(b"=", begin, stop) + 1
    if data[begin : begin + 1] != b"{" or data[stop - 1 : stop] != b"}" or data.find(b'"', begin, stop) >= 0:
        raise ValueError(_MALFORMED)
    while begin < stop:
        after = data.find(b",", begin + PIECE_BYTES, stop)
        piece = data[begin : stop if after < 0 else after]
        begin += len(piece)
        out.write(piece.translate(_JSON_OF_INTEGERS).replace(_NULL, b"null"))
        pause()
