import pickle
from dataclasses import FrozenInstanceError, fields
from typing import get_args

import pytest

from cdcd.core.protocol import messages
from cdcd.core.protocol.messages import (
    UNCHANGED,
    Begin,
    BeginPrepare,
    Binary,
    Column,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    Update,
)

MANUAL: dict[type[Message], tuple[str, int]] = {
    Begin: ("B", 1),
    LogicalMessage: ("M", 1),
    Commit: ("C", 1),
    Origin: ("O", 1),
    Relation: ("R", 1),
    Type: ("Y", 1),
    Insert: ("I", 1),
    Update: ("U", 1),
    Delete: ("D", 1),
    Truncate: ("T", 1),
    StreamStart: ("S", 2),
    StreamStop: ("E", 2),
    StreamCommit: ("c", 2),
    StreamAbort: ("A", 2),
    BeginPrepare: ("b", 3),
    Prepare: ("P", 3),
    CommitPrepared: ("K", 3),
    RollbackPrepared: ("r", 3),
    StreamPrepare: ("p", 3),
}


def test_every_message_of_the_manual_is_there_with_its_tag_and_version():
    assert set(get_args(Message)) == set(MANUAL)
    for message, (tag, since) in MANUAL.items():
        assert (chr(message.tag), message.since) == (tag, since)


@pytest.mark.parametrize("message", MANUAL)
def test_a_message_is_frozen_and_has_no_room_for_other_attributes(message):
    one = message(*[None] * len(fields(message)))
    assert not hasattr(one, "__dict__")
    for field in fields(message):
        with pytest.raises(FrozenInstanceError):
            setattr(one, field.name, 1)


def test_the_key_flag_of_a_column():
    assert Column(1, "id", 23, -1).is_key
    assert not Column(0, "name", 25, -1).is_key


@pytest.mark.parametrize(("sent", "schema"), [("", "pg_catalog"), ("public", "public")])
def test_an_empty_namespace_is_pg_catalog(sent, schema):
    relation = Relation(None, 1, sent, "t", "d", ())
    assert (relation.namespace, relation.schema) == (sent, schema)
    type_ = Type(None, 1, sent, "t")
    assert (type_.namespace, type_.schema) == (sent, schema)


def test_unchanged_null_empty_text_and_empty_binary_are_four_different_values():
    values = [UNCHANGED, None, b"", Binary(b"")]
    assert all((one == other) == (one is other) for one in values for other in values)


def test_unchanged_is_the_same_object_in_another_process():
    assert pickle.loads(pickle.dumps(UNCHANGED)) is UNCHANGED


def test_the_epoch_is_2000_01_01():
    assert messages.POSTGRES_EPOCH_US == 946_684_800 * 1_000_000
