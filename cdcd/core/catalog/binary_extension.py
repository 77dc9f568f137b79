"""Types of extensions in binary form to the text that the server would have sent (contrib/hstore, contrib/cube)."""

import re
from typing import Final

from cdcd.core.catalog import binary
from cdcd.core.catalog.fields import Fields

_ESCAPED: Final = re.compile(r'(["\\])')


def hstore_text(data: bytes) -> str:
    """hstore_out: `"a"=>"1", "b"=>NULL`."""
    fields = Fields(data)
    pairs: list[str] = []
    for _ in range(fields.integer(4)):
        key, value = fields.value(), fields.value()
        if key is None:
            raise ValueError("a key of an hstore is NULL")
        pairs.append(f"{_hstore_quoted(key)}=>{'NULL' if value is None else _hstore_quoted(value)}")
    fields.end()
    return ", ".join(pairs)


def _hstore_quoted(data: bytes) -> str:
    escaped = _ESCAPED.sub(r"\\\1", data.decode("latin-1"))
    return f'"{escaped}"'


def cube_text(data: bytes) -> str:
    """cube_out: `(1, 2),(3, 4)`; a cube that is a point has its coordinates once (contrib/cube)."""
    fields = Fields(data)
    header = fields.unsigned(4)
    is_point, dimensions = bool(header >> 31), header & 0x7FFFFFFF
    count = dimensions if is_point else 2 * dimensions
    if 8 * count > len(data):
        raise ValueError("a cube's dimensions do not fit its coordinates")
    numbers = [binary.float8_text(fields.take(8)) for _ in range(count)]
    fields.end()
    lower, upper = numbers[:dimensions], numbers[dimensions:]
    text = f"({', '.join(lower)})"
    if is_point or all(float(one) == float(other) for one, other in zip(lower, upper, strict=True)):
        return text
    return f"{text},({', '.join(upper)})"
