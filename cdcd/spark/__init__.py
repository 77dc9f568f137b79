"""Public names of the mirror's library, whose code is `cdcd.mirror`. PySpark is loaded when a name is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdcd.mirror.base.load_snapshot import load_snapshot as load_snapshot
    from cdcd.mirror.snapshot.reading import SnapshotSource as SnapshotSource
    from cdcd.mirror.snapshot.reading import open_snapshot as open_snapshot
    from cdcd.mirror.snapshot.reading import read_snapshot as read_snapshot

_READING = "cdcd.mirror.snapshot.reading"
_MODULES = {
    "SnapshotSource": _READING,
    "load_snapshot": "cdcd.mirror.base.load_snapshot",
    "open_snapshot": _READING,
    "read_snapshot": _READING,
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
