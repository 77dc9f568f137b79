"""Public names of `import cdcd`, whose modules are loaded at the first use of a name (docs/python.md)."""

from cdcd.core.errors import (
    CdcdError,
    ConfigError,
    FatalError,
    LimitError,
    PositionError,
    ProtocolError,
    SourceError,
    TransientError,
)
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import UNCHANGED, Unchanged
from cdcd.stream.changes import Change, Column, Delete, Insert, Message, Row, Table, Truncate, Update, Value
from cdcd.stream.stream import Stream, Transaction, connect

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
