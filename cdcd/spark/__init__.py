"""Public names of the mirror's library, whose code is `cdcd.mirror`. PySpark is loaded when a name is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdcd.mirror.snapshot.reading import SnapshotSource as SnapshotSource
    from cdcd.mirror.snapshot.reading import load_snapshot as load_snapshot
    from cdcd.mirror.snapshot.reading import open_snapshot as open_snapshot
    from cdcd.mirror.snapshot.reading import read_snapshot as read_snapshot

_SNAPSHOT = ("SnapshotSource", "load_snapshot", "open_snapshot", "read_snapshot")


def __getattr__(name: str) -> Any:
    if name not in _SNAPSHOT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("cdcd.mirror.snapshot.reading"), name)
