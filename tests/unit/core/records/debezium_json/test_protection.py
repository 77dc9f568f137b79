"""Protected values appear in no record, whichever way a row goes through the encoder."""

import json
from base64 import b64encode
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from cdcd.adapters.credentials.columns import hashing
from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import ENCRYPT, EXCLUDE, HASH, MASK, TRUNCATE, ColumnRule
from cdcd.core.catalog.relations import CatalogColumn, TableDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ConfigError, WithoutBinaryError
from cdcd.core.protocol.frames import XLOG_HEADER, XLogData, write_frame
from cdcd.core.protocol.messages import UNCHANGED, Begin, Column, Delete, Insert, Message, Relation, Update
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition
from tests.golden.streams import Golden, value_streams
from tests.unit.core.records.formats import json_of

INT, TEXT, NUMERIC = 23, 25, 1700
OID = 7
SECRET = "s3cret-of-ann"
REVERSED = b64encode(SECRET.encode()[::-1]).decode()

RELATION = Relation(
    None,
    OID,
    "public",
    "users",
    "d",
    (Column(1, "id", INT, -1), Column(0, "email", TEXT, -1), Column(0, "pay", NUMERIC, -1)),
)
WHOLE = Relation(None, OID, "public", "users", "f", RELATION.columns)
BY_EMAIL = Relation(
    None, OID, "public", "users", "d", (Column(0, "id", INT, -1), Column(1, "email", TEXT, -1))
)

STREAMS = value_streams()


def rule(action: str, pattern: str = "public.users.email", **settings: Any) -> ColumnRule:
    if action == HASH:
        settings["seal"] = hashing(b"a key of a test")
    if action == ENCRYPT:
        settings["seal"] = lambda value: b64encode(value[::-1])
    return ColumnRule(parse_column_pattern(pattern, "columns"), action, **settings)


class Encoding:
    """Records of messages in one transaction, by either way of the encoder."""

    def __init__(self, relation: Relation, *rules: ColumnRule, writes: bool = False, **settings: Any) -> None:
        envelope = EncoderSettings("1", "shop", "db", column_rules=tuple(rules), **settings)
        self.encoder = record_stream(envelope)
        json_of(self.encoder).writes = writes
        self.encoder.define(relation, TableDescription(("id",)), BUILTIN_TYPES)
        self.encoder.begin(5, 1000, 0, None)

    def records(self, *messages: Message) -> list[Record]:
        out: list[Record] = []
        for message in messages:
            self.encoder.encode(write_frame(XLogData(500, 500, 0, write_message(message))), False, 7, out)
        return out


def row(*values: Any) -> tuple[Any, ...]:
    return tuple([value.encode() if isinstance(value, str) else value for value in values])


def after(record: Record) -> Any:
    return json.loads(record[2] or b"")["after"]


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize(
    ("protects", "becomes"),
    [
        (rule(MASK, mask="*"), "*"),
        (rule(TRUNCATE, length=2), "s3"),
        (rule(TRUNCATE, length=0), ""),
        (rule(HASH), hashing(b"a key of a test")(SECRET.encode()).decode()),
        (rule(ENCRYPT), REVERSED),
    ],
    ids=lambda each: each.action if isinstance(each, ColumnRule) else "",
)
def test_a_value_is_replaced_before_and_after_the_change(protects, becomes, writes):
    one = row("1", SECRET, "12.50")
    encoding = Encoding(WHOLE, protects, writes=writes)
    records = encoding.records(
        Insert(None, OID, one), Update(None, OID, "O", one, one), Delete(None, OID, "O", one)
    )
    values = [json.loads(record[2]) for record in records if record[2] is not None]
    shown = {"id": 1, "email": becomes, "pay": "12.50"}
    assert [value["after"] for value in values] == [shown, shown, None]
    assert [value["before"] for value in values] == [None, shown, shown]
    assert SECRET not in repr(records)


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize(
    ("patterns", "shown"),
    [
        (["public.users.email"], {"id": 1, "pay": "12.50"}),
        (["public.users.pay"], {"id": 1, "email": SECRET}),
        (["public.users.email", "*.*.pay"], {"id": 1}),
    ],
)
@pytest.mark.parametrize("email", [SECRET, None, UNCHANGED], ids=["sent", "null", "toast"])
def test_an_excluded_column_is_no_field_and_no_header_names_it(patterns, shown, email, writes):
    encoding = Encoding(RELATION, *[rule(EXCLUDE, pattern) for pattern in patterns], writes=writes)
    one = row("1", email, "12.50")
    (record,) = encoding.records(Update(None, OID, "", None, one))
    if "email" in shown:
        shown = {**shown, "email": "__debezium_unavailable_value" if email is UNCHANGED else email}
    assert after(record) == shown
    assert record[3] == (
        [("cdcd.unchanged", b'["email"]')] if email is UNCHANGED and "email" in shown else None
    )


@pytest.mark.parametrize("writes", [True, False])
def test_a_table_whose_first_or_only_columns_are_excluded_still_has_an_object(writes):
    keyless = Relation(None, OID, "public", "users", "n", RELATION.columns[1:])
    for patterns, shown in ((["*.*.email"], {"pay": "1.5"}), (["*.*.*"], {})):
        encoding = Encoding(keyless, *[rule(EXCLUDE, pattern) for pattern in patterns], writes=writes)
        for email in (SECRET, None):
            (record,) = encoding.records(Insert(None, OID, row(email, "1.5")))
            assert after(record) == shown


@pytest.mark.parametrize("writes", [True, False])
def test_a_hashed_key_is_the_same_in_key_and_row_and_a_change_of_it_is_one(writes):
    encoding = Encoding(BY_EMAIL, rule(HASH), writes=writes)
    old, new = row(None, SECRET), row("1", "another")
    records = encoding.records(
        Insert(None, OID, row("1", SECRET)),
        Update(None, OID, "K", old, new),
        Delete(None, OID, "K", row(None, "another")),
    )
    first, second = (hashing(b"a key of a test")(text).decode() for text in (SECRET.encode(), b"another"))
    assert [json.loads(record[1] or b"")["email"] for record in records] == [
        first, first, first, second, second, second,
    ]  # fmt: skip
    assert encoding.encoder.tables.has_protected_key(OID)
    assert SECRET not in repr(records)
    assert "another" not in repr(records)


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("oid", [TEXT, INT, NUMERIC, 16, 701, 3802, 2950, 1114], ids=str)
@pytest.mark.parametrize("action", [HASH, ENCRYPT])
def test_what_is_sealed_is_the_value_that_readers_would_see(action, oid, writes):
    texts = {
        TEXT: ['a "b" \\ \t\x01', "", "Zoë 😀", "\\u0041"],
        INT: ["-7", "2147483647"],
        NUMERIC: ["12.50", "NaN", "1"],
        16: ["t"],
        701: ["3", "2.5", "Infinity"],
        3802: ['{"a": "ü"}', '"text"'],
        2950: ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
        1114: ["2026-02-03 04:05:06.789"],
    }[oid]
    relation = Relation(None, OID, "public", "users", "n", (Column(0, "email", oid, -1),))
    protects = rule(action)
    assert protects.seal is not None
    for text in texts:
        (plain,) = Encoding(relation, writes=writes).records(Insert(None, OID, row(text)))
        (sealed,) = Encoding(relation, protects, writes=writes).records(Insert(None, OID, row(text)))
        shown = after(plain)["email"]
        seen = shown if isinstance(shown, str) else json.dumps(shown)
        assert after(sealed)["email"] == protects.seal(seen.encode()).decode()


@pytest.mark.parametrize("action", [HASH, TRUNCATE])
def test_a_text_that_is_not_utf_8_is_null_as_without_a_rule(action):
    for rules in ((), (rule(action, length=1),)):
        (record,) = Encoding(RELATION, *rules).records(Insert(None, OID, row("1", b"ab\xff", "2")))
        assert after(record)["email"] is None
        assert dict(record[3] or ()) == {"cdcd.unwritable": b'["email"]'}


def test_null_stays_null_and_what_was_not_sent_stays_the_placeholder():
    encoding = Encoding(RELATION, rule(MASK, mask="*"))
    records = encoding.records(
        Insert(None, OID, row("1", None, None)), Update(None, OID, "", None, row("1", UNCHANGED, None))
    )
    assert [after(record)["email"] for record in records] == [None, "__debezium_unavailable_value"]
    assert records[1][3] == [("cdcd.unchanged", b'["email"]')]


@pytest.mark.parametrize("action", [MASK, HASH, ENCRYPT, EXCLUDE])
def test_rows_of_snapshots_have_what_changes_have(action):
    rules = (rule(action, mask="*"),)
    encoder = record_stream(EncoderSettings("1", "shop", "db", column_rules=rules))
    encoder.define(RELATION, TableDescription(("id",)), BUILTIN_TYPES)
    out: list[Record] = []
    position = SnapshotPosition(1000, 999, "first", "last", "true")
    lines = [f"1\t{SECRET}\t2\n".encode(), b"2\t\\N\t3\n", f"3\t{SECRET}\\n\t4\n".encode()]
    encoder.encode_rows(OID, lines, position, 7, out, set())
    changes = Encoding(RELATION, rule(action, mask="*")).records(
        *[
            Insert(None, OID, row(*each))
            for each in (("1", SECRET, "2"), ("2", None, "3"), ("3", f"{SECRET}\n", "4"))
        ]
    )
    assert [after(record) for record in out] == [after(record) for record in changes]
    assert [record[1] for record in out] == [record[1] for record in changes]
    assert SECRET not in repr(out)


def test_the_description_says_text_and_shows_no_default():
    columns = (
        CatalogColumn("id", 1, "integer", INT, 0, None),
        CatalogColumn("email", 2, "text", TEXT, 0, SECRET),
        CatalogColumn("pay", 3, "numeric", NUMERIC, 0, "12.50"),
    )
    rules = (rule(HASH, "*.*.pay"), rule(EXCLUDE))
    encoder = record_stream(
        EncoderSettings("1", "shop", "db", schemas_topic="schemas", column_rules=tuple(rules))
    )
    encoder.define(RELATION, TableDescription(("id",), (), columns), BUILTIN_TYPES)
    out: list[Record] = []
    encoder.tables.announce(OID, out)
    described = json.loads(out[0][2] or b"")["columns"]
    assert [column["name"] for column in described] == ["id", "pay"]
    assert (described[1]["form"], described[1]["protected"]) == ("text", "hash")
    assert described[1]["default"] == hashing(b"a key of a test")(b"12.50").decode()
    assert SECRET not in repr(out)


@pytest.mark.parametrize(
    ("rules", "says", "hint"),
    [
        ((rule(MASK), rule(HASH, "*.*.email")), "both match", "Narrow"),
        ((rule(MASK, "*.users.id"),), "part of the table's key", "columns.hash"),
        ((rule(EXCLUDE, "*.*.id"),), "part of the table's key", "columns.hash"),
        ((rule(TRUNCATE, "*.*.pay", length=2),), "not text", "columns.mask"),
    ],
)
def test_a_rule_that_cannot_be_followed_is_refused_by_name(rules, says, hint):
    with pytest.raises(ConfigError, match=says) as caught:
        Encoding(RELATION, *rules)
    assert hint in caught.value.hint
    assert "public.users." in caught.value.message


@pytest.mark.parametrize("golden", STREAMS, ids=str)
@pytest.mark.parametrize("action", [MASK, HASH, EXCLUDE])
def test_no_value_of_any_type_of_a_real_server_is_in_a_record(golden: Golden, action: str):
    """Each value of a column that is no key, as an unprotected record has it, is in no protected record."""
    plain, protected = (_of_stream(golden, rules) for rules in ((), (rule(action, "*.*.*", mask="?"),)))
    secrets = 0
    for event, row_of in plain.items():
        kept = json.dumps(protected[event]).encode()
        for value in [each for one in row_of if one for each in one.values()]:
            form = json.dumps(value).encode().strip(b'"')
            if len(form) >= 6 and "unavailable" not in str(value):
                assert form not in kept
                secrets += 1
    assert secrets > 20


def _of_stream(golden: Golden, rules: tuple[ColumnRule, ...]) -> dict[tuple[int, int], list[Any]]:
    """`before` and `after` of the rows of a captured stream that have a reader, as if no table had a key, by event."""
    encoder = record_stream(EncoderSettings("1", "shop", "db", column_rules=tuple(rules)))
    out: list[Record] = []
    for frame in golden.frames():
        if frame[:1] != b"w":
            continue
        message = read_message(frame, XLOG_HEADER, in_stream=False)
        if isinstance(message, Begin):
            encoder.begin(message.xid, message.final_lsn, message.commit_time, None)
        elif isinstance(message, Relation):
            columns = tuple([replace(column, flags=0) for column in message.columns])
            relation = replace(message, replica_identity="n", columns=columns)
            encoder.define(relation, TableDescription(), BUILTIN_TYPES)
        elif isinstance(message, Insert | Update | Delete):
            with suppress(WithoutBinaryError):
                encoder.encode(frame, False, 7, out)
    events = [json.loads(value or b"") for _, _, value, _ in out]
    return {
        (event["source"]["commit_lsn"], event["source"]["event_serial_no"]): [event["before"], event["after"]]
        for event in events
    }


def test_a_schema_says_what_stands_for_a_value_and_nothing_of_an_excluded_column():
    encoding = Encoding(RELATION, rule(HASH, "*.*.pay"), rule(EXCLUDE), value_format="json_schema")
    (record,) = encoding.records(Insert(None, OID, row("1", SECRET, "12.50")))
    value = json.loads(record[2] or b"")
    (after_schema,) = [each for each in value["schema"]["fields"] if each["field"] == "after"]
    assert [(field["field"], field["type"]) for field in after_schema["fields"]] == [
        ("id", "int32"),
        ("pay", "string"),
    ]
    assert value["payload"]["after"] == {"id": 1, "pay": hashing(b"a key of a test")(b"12.50").decode()}
