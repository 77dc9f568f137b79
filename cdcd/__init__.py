"""Committed PostgreSQL changes to Kafka, exactly once, in commit order; and to a program, by `cdcd.connect`.

The names in `__all__` are the public API (docs/python.md). They are loaded when the first of them is used, so that
`import cdcd` costs nothing where only the version is asked for.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cdcd.stream import (
        UNCHANGED,
        CdcdError,
        Change,
        Column,
        ConfigError,
        Delete,
        FatalError,
        Insert,
        LimitError,
        Lsn,
        Message,
        PositionError,
        ProtocolError,
        Row,
        SourceError,
        Stream,
        Table,
        Transaction,
        TransientError,
        Truncate,
        Unchanged,
        Update,
        Value,
        connect,
    )

__version__: Final = "1.0.0rc1"

__all__ = [
    "UNCHANGED",
    "CdcdError",
    "Change",
    "Column",
    "ConfigError",
    "Delete",
    "FatalError",
    "Insert",
    "LimitError",
    "Lsn",
    "Message",
    "PositionError",
    "ProtocolError",
    "Row",
    "SourceError",
    "Stream",
    "Table",
    "Transaction",
    "TransientError",
    "Truncate",
    "Unchanged",
    "Update",
    "Value",
    "connect",
]

if not TYPE_CHECKING:  # to a type checker, a name that is not listed is an error

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'cdcd' has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415  only where it is needed

        found = globals()[name] = getattr(import_module("cdcd.stream"), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
