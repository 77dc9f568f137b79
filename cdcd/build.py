"""What runs here: compiled or not."""

import importlib.util


def is_compiled() -> bool:
    """Whether the pure packages were compiled (mypyc); the same source runs either way."""
    spec = importlib.util.find_spec("cdcd.protocol.cursor")
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")
