"""LightDB's manual describes version 1 as PostgreSQL's does, without Message and without binary values.

Each message is put together here by hand, field by field, as that manual lists them.
"""

from struct import pack

import pytest

from cdcd.core.protocol.messages import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    Origin,
    Relation,
    Truncate,
    Type,
    Update,
)
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message

LSN, END, TIME, XID, OID = 0x16B3748, 0x16B3778, 757_382_400_000_000, 741, 16385

ROW = pack("!H", 3) + b"n" + b"u" + b"t" + pack("!i", 2) + b"ab"
VALUES = (None, UNCHANGED, b"ab")
KEY = pack("!H", 3) + b"t" + pack("!i", 1) + b"1" + b"n" + b"n"
KEY_VALUES = (b"1", None, None)

MESSAGES = [
    (b"B" + pack("!QqI", LSN, TIME, XID), Begin(LSN, TIME, XID)),
    (b"C" + pack("!BQQq", 0, LSN, END, TIME), Commit(LSN, END, TIME)),
    (b"O" + pack("!Q", LSN) + b"upstream\0", Origin(LSN, "upstream")),
    (
        b"R" + pack("!I", OID) + b"\0" + b"t\0" + b"d" + pack("!H", 2)
        + b"\1" + b"id\0" + pack("!Ii", 23, -1)
        + b"\0" + b"name\0" + pack("!Ii", 1043, 36),
        Relation(None, OID, "", "t", "d", (Column(1, "id", 23, -1), Column(0, "name", 1043, 36))),
    ),
    (b"Y" + pack("!I", OID) + b"public\0" + b"mood\0", Type(None, OID, "public", "mood")),
    (b"I" + pack("!I", OID) + b"N" + ROW, Insert(None, OID, VALUES)),
    (b"U" + pack("!I", OID) + b"N" + ROW, Update(None, OID, "", None, VALUES)),
    (b"U" + pack("!I", OID) + b"K" + KEY + b"N" + ROW, Update(None, OID, "K", KEY_VALUES, VALUES)),
    (b"U" + pack("!I", OID) + b"O" + ROW + b"N" + ROW, Update(None, OID, "O", VALUES, VALUES)),
    (b"D" + pack("!I", OID) + b"K" + KEY, Delete(None, OID, "K", KEY_VALUES)),
    (b"D" + pack("!I", OID) + b"O" + ROW, Delete(None, OID, "O", VALUES)),
    (
        b"T" + pack("!iB", 2, 1) + pack("!II", OID, 16390),
        Truncate(None, cascade=True, restart_identity=False, relation_oids=(OID, 16390)),
    ),
    (
        b"T" + pack("!iB", 1, 2) + pack("!I", OID),
        Truncate(None, cascade=False, restart_identity=True, relation_oids=(OID,)),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("data", "message"), MESSAGES, ids=[repr(data[:1]) for data, _ in MESSAGES])
def test_the_reader_takes_lightdbs_version_1(data, message):
    assert read_message(data) == message
    assert write_message(message) == data
