"""Built-in types in binary form, converted to the server's text, for types whose JSON is their text.

The same text is used inside of arrays, composites and ranges, so types with a separate JSON form (numbers, dates)
are here too. Both forms are those of PostgreSQL's send and output functions (src/backend/utils/adt, in the files
that each function names), with the settings of cdcd's sessions. The functions return wire text, and raise
ValueError for bytes of another form.

`types.py` has the reader of each type.
"""

from collections.abc import Callable, Mapping
from typing import Final

from cdcd.core.catalog import binary, temporal
from cdcd.core.catalog.binary import BinaryFields

Reader = Callable[[bytes], str]
"""Converts binary form to wire text."""


class WithoutReaderError(ValueError):
    """A value has, or contains, a type whose binary form cannot be read."""


_INET_FAMILIES: Final[Mapping[int, int]] = {2: 4, 3: 16}
"""Bytes of an address by family: PGSQL_AF_INET and PGSQL_AF_INET6 (utils/inet.h)."""

_GROUPS: Final = 8
"""Number of 16-bit groups in an IPv6 address."""

_WEIGHTS: Final = ("", "C", "B", "A")
"""Weights of a position in a tsvector, by the two highest bits (ts_type.h)."""

_OPERAND: Final = 1
_NOT: Final = 1
_PHRASE: Final = 4
_OPERATORS: Final[Mapping[int, tuple[int, str]]] = {
    _NOT: (4, "!"),
    2: (2, "&"),
    3: (1, "|"),
    _PHRASE: (3, "<->"),
}
"""Operators of a tsquery: (priority, symbol) by the operator's number (ts_type.h)."""


def plain(data: bytes) -> str:
    """Return the text of types whose binary form is their text: textsend, enum_send, json_send, xml_send for UTF-8."""
    return data.decode("latin-1")


def versioned(data: bytes) -> str:
    """Return the text after a version, which is 1: jsonb_send, jsonpath_send, ltree_send."""
    if data[:1] != b"\x01":
        raise ValueError("a version other than 1")
    return data[1:].decode("latin-1")


def boolean_text(data: bytes) -> str:
    return "t" if binary.integer(data, 1) else "f"


def char_text(data: bytes) -> str:
    """Return the text of the one-byte type "char": "" for zero, an octal escape above ASCII (char.c, since 16)."""
    byte = binary.integer(data, 1, signed=False)
    if byte == 0:
        return ""
    return chr(byte) if byte < 0x80 else f"\\{byte:03o}"


def bytea_text(data: bytes) -> str:
    return f"\\x{data.hex()}"


def int2_text(data: bytes) -> str:
    return str(binary.integer(data, 2))


def int4_text(data: bytes) -> str:
    return str(binary.integer(data, 4))


def int8_text(data: bytes) -> str:
    return str(binary.integer(data, 8))


def uint4_text(data: bytes) -> str:
    return str(binary.integer(data, 4, signed=False))


def uint8_text(data: bytes) -> str:
    return str(binary.integer(data, 8, signed=False))


def money_text(data: bytes) -> str:
    """Return the text of cash.c in lc_monetary C: `-$1,234.50`."""
    cents = binary.integer(data, 8)
    return f"{'-' if cents < 0 else ''}${abs(cents) // 100:,}.{abs(cents) % 100:02}"


def lsn_text(data: bytes) -> str:
    """Return the text of pg_lsn.c: two halves in hexadecimal."""
    lsn = binary.integer(data, 8, signed=False)
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def tid_text(data: bytes) -> str:
    """Return the text of tid.c: the page, and the item on it."""
    fields = BinaryFields(data)
    text = f"({fields.unsigned(4)},{fields.unsigned(2)})"
    fields.end()
    return text


def snapshot_text(data: bytes) -> str:
    """Return the text of xid8funcs.c: `xmin:xmax:xip,xip`."""
    fields = BinaryFields(data)
    count = fields.integer(4)
    head = f"{fields.unsigned(8)}:{fields.unsigned(8)}:"
    running = [str(fields.unsigned(8)) for _ in range(count)]
    fields.end()
    return head + ",".join(running)


def date_text(data: bytes) -> str:
    return temporal.date_text_of(binary.integer(data, 4))


def time_text(data: bytes) -> str:
    return temporal.clock_text_of(binary.integer(data, 8))


def timetz_text(data: bytes) -> str:
    fields = BinaryFields(data)
    micros, west_s = fields.integer(8), fields.integer(4)
    fields.end()
    return temporal.clock_text_of(micros) + temporal.zone_text_of(-west_s)


def timestamp_text(data: bytes) -> str:
    return temporal.timestamp_text_of(binary.integer(data, 8), "")


def timestamptz_text(data: bytes) -> str:
    return temporal.timestamp_text_of(binary.integer(data, 8), "+00")


def interval_text(data: bytes) -> str:
    fields = BinaryFields(data)
    micros, days, months = fields.integer(8), fields.integer(4), fields.integer(4)
    fields.end()
    return temporal.interval_text_of(months, days, micros)


def inet_text(data: bytes) -> str:
    """Return the text of network.c from family, bits of the network, cidr flag, length of the address, and address."""
    fields = BinaryFields(data)
    family, bits, is_cidr = fields.unsigned(1), fields.unsigned(1), fields.unsigned(1)
    size = fields.unsigned(1)
    address = fields.take(size)
    fields.end()
    if _INET_FAMILIES.get(family) != size or bits > 8 * size:
        raise ValueError("not a network address")
    text = ".".join([str(byte) for byte in address]) if size == 4 else _ipv6_text(address)
    return f"{text}/{bits}" if is_cidr or bits != 8 * size else text


def _ipv6_text(address: bytes) -> str:
    """Return the text of inet_net_ntop.c: the longest run of zero groups is `::`; IPv4 inside of it has dots."""
    groups = [address[at] << 8 | address[at + 1] for at in range(0, 2 * _GROUPS, 2)]
    longest, begin = 0, 0
    at = 0
    while at < _GROUPS:
        end = at
        while end < _GROUPS and groups[end] == 0:
            end += 1
        if end - at > longest:
            longest, begin = end - at, at
        at = end + 1
    if begin == 0 and (longest == 6 or (longest == 5 and groups[5] == 0xFFFF)):
        dotted = ".".join([str(byte) for byte in address[12:]])
        return f"::{dotted}" if longest == 6 else f"::ffff:{dotted}"
    shown = [f"{group:x}" for group in groups]
    if longest < 2:
        return ":".join(shown)
    return f"{':'.join(shown[:begin])}::{':'.join(shown[begin + longest :])}"


def macaddr_text(data: bytes) -> str:
    return _exactly(data, 6).hex(":")


def macaddr8_text(data: bytes) -> str:
    return _exactly(data, 8).hex(":")


def _exactly(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ValueError(f"{size} bytes expected, not {len(data)}")
    return data


def _floats(data: bytes, count: int) -> list[str]:
    """Return `count` float8 as text; the data must contain nothing else."""
    _exactly(data, 8 * count)
    return [binary.float8_text(data[at : at + 8]) for at in range(0, len(data), 8)]


def _points(data: bytes, count: int) -> str:
    """Return `count` points with commas between them (geo_ops.c)."""
    numbers = _floats(data, 2 * count)
    return ",".join([f"({x},{y})" for x, y in zip(numbers[::2], numbers[1::2], strict=True)])


def box_text(data: bytes) -> str:
    return _points(data, 2)


def lseg_text(data: bytes) -> str:
    return f"[{_points(data, 2)}]"


def line_text(data: bytes) -> str:
    return f"{{{','.join(_floats(data, 3))}}}"


def circle_text(data: bytes) -> str:
    x, y, radius = _floats(data, 3)
    return f"<({x},{y}),{radius}>"


def path_text(data: bytes) -> str:
    fields = BinaryFields(data)
    closed, count = fields.unsigned(1), fields.integer(4)
    points = _points(fields.rest(), count)
    return f"({points})" if closed else f"[{points}]"


def polygon_text(data: bytes) -> str:
    fields = BinaryFields(data)
    count = fields.integer(4)
    return f"({_points(fields.rest(), count)})"


def tsvector_text(data: bytes) -> str:
    """Return the text of tsvector.c: each lexeme with its positions and weights, if it has any."""
    fields = BinaryFields(data)
    count = fields.integer(4)
    shown: list[str] = []
    for _ in range(count):
        lexeme = _lexeme(fields.string())
        positions = [fields.unsigned(2) for _ in range(fields.unsigned(2))]
        places = ",".join([f"{each & 0x3FFF}{_WEIGHTS[each >> 14]}" for each in positions])
        shown.append(f"{lexeme}:{places}" if places else lexeme)
    fields.end()
    return " ".join(shown)


def _lexeme(text: str) -> str:
    doubled = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{doubled}'"


def tsquery_text(data: bytes) -> str:
    """Return the text of tsquery.c; in the binary form, operators precede their operands, the right one first."""
    fields = BinaryFields(data)
    size = fields.integer(4)
    text = _query(fields, 0, False) if size else ""
    fields.end()
    return text


def _query(fields: BinaryFields, parent: int, in_phrase: bool) -> str:
    """Return the text of the next operand, or of an operator with its operands.

    Args:
        parent: priority of the enclosing operator.
        in_phrase: True for the right operand of a phrase operator, where the order matters.
    """
    if fields.unsigned(1) == _OPERAND:
        weights, prefix = fields.unsigned(1), fields.unsigned(1)
        operand = _lexeme(fields.string())
        marks = "*" if prefix else ""
        marks += "".join(
            [letter for bit, letter in ((8, "A"), (4, "B"), (2, "C"), (1, "D")) if weights & bit]
        )
        return f"{operand}:{marks}" if marks else operand
    operator = fields.unsigned(1)
    known = _OPERATORS.get(operator)
    if known is None:
        raise ValueError("an unknown operator of a text search query")
    priority, symbol = known
    if operator == _NOT:
        text = f"!{_query(fields, priority, False)}"
    else:
        distance = fields.integer(2) if operator == _PHRASE else 1
        if distance != 1:
            symbol = f"<{distance}>"
        right = _query(fields, priority, operator == _PHRASE)
        left = _query(fields, priority, False)
        text = f"{left} {symbol} {right}"
    if priority < parent or (operator == _PHRASE and in_phrase):
        return f"( {text} )"
    return text


def int2vector_text(data: bytes) -> str:
    """Return the text of a vector, such as `1 2 3` (int.c); its binary form is an array's."""
    return _vector_text(data, int2_text)


def oidvector_text(data: bytes) -> str:
    return _vector_text(data, uint4_text)


def _vector_text(data: bytes, element: Reader) -> str:
    _, _, elements = binary.read_array(data)
    return " ".join([element(each) for each in elements if each is not None])
