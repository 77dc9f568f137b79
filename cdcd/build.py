"""What runs here: compiled or not, and what it costs if not."""

import importlib.util
from typing import Final

PURE: Final = "runs as pure Python, which delivers about half as many rows a second as compiled code"


def is_compiled() -> bool:
    """Whether the pure packages were compiled (mypyc); the same source runs either way."""
    spec = importlib.util.find_spec("cdcd.core.protocol.cursor")
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")


def note() -> str:
    """What the log says of code that is not compiled; empty if it is compiled."""
    return "" if is_compiled() else f"cdcd {PURE}"
