"""Whether the running code is compiled, and what uncompiled code costs."""

import importlib.util
from typing import Final

PURE: Final = "runs as pure Python, which delivers about half as many rows a second as compiled code"


def is_compiled() -> bool:
    """Whether the pure packages were compiled (mypyc); the same source runs either way."""
    spec = importlib.util.find_spec("cdcd.core.protocol.cursor")
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")


def note() -> str:
    """Return the note of the log about uncompiled code; empty if the code is compiled."""
    return "" if is_compiled() else f"cdcd {PURE}"
