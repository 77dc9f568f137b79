r"""Cutting of a record in Debezium's JSON into the compared parts: its position, its operation, and the bytes of each
value.

The rule: values are compared as bytes of the record, and never decoded. Two values are equal if and only if their
bytes are equal, so `1.0` and `1.00`, or `"A"` and `"\u0041"`, differ: the encoder writes each value in one way
only. Text that an encoder does not write (white space between tokens, a truncated value, bytes after the end)
raises NotARecordError.

The records of a table are alike, so they are cut by the form of earlier records:

- The rows of a table have the same columns in the same order. So one expression with these names finds all values
  (`RowForm`). The expression only matches text that the rule above cuts into the same values.
- The part after the rows is longer than most rows, and nearly always the same except for digits. So this part is
  cut once for each form, with 0 in place of each digit, and other records of the same form need only their numbers
  read. No rule here distinguishes one digit from another, so the result is the same as cutting each record whole.

A record of another form is cut whole.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from cdcd.core import bounded_json

_STRING: Final = rb'"[^"\\\x00-\x1f]*+(?>\\.[^"\\\x00-\x1f]*+)*+"'
_SCALAR: Final = rb"(?>-?[0-9][0-9.eE+-]*+|true|false|null|" + _STRING + rb")"
NESTING_MAX: Final = 12
"""Maximum nesting of arrays and objects. The deepest values of an encoder are PostgreSQL's arrays of six dimensions."""


def _nested(depth: int) -> bytes:
    inner = rb"(?!)"
    for _ in range(depth):
        inner = rb"[\[{](?>[^\[\]{}\x00-\x20\"]++|" + _STRING + rb"|" + inner + rb")*+[\]}]"
    return inner


_VALUE: Final = rb"(?>" + _SCALAR + rb"|" + _nested(NESTING_MAX) + rb")"
# A name with its quotes and colon cannot be part of a string, because quotes are escaped there.
_SNAPSHOT: Final = re.compile(rb'"snapshot":"([a-z_]*+)"')
_XID: Final = re.compile(rb'"txId":([0-9]++)')
_PLACE: Final = re.compile(
    rb'"commit_lsn":([0-9]++),"event_serial_no":([0-9]++)(?:,"schema_id":"([0-9a-f]*+)")?\}\Z'
)
_PAIRS: Final = re.compile(rb"[{,](" + _STRING + rb"):(" + _VALUE + rb")", re.DOTALL)

SCHEMA: Final = b'{"schema":{"type":"struct",'
"""Beginning of a key or value with `format: json_schema`."""
_PAYLOAD: Final = b',"payload":'

NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"
UNCHANGED: Final = "cdcd.unchanged"

OPS: Final = frozenset({b'"r"', b'"c"', b'"u"', b'"d"', b'"t"', b'"m"'})

NULL: Final = b"null"

Headers = Sequence[tuple[str, bytes | None]]


class NotARecordError(ValueError):
    """The bytes are not a record of cdcd or Debezium; the text names the problem."""


class Row(NamedTuple):
    """Names of columns as JSON strings, and their values in JSON, in the record's order."""

    names: tuple[bytes, ...]
    values: tuple[bytes, ...]


class Cut(NamedTuple):
    """A record with a value.

    Attributes:
        op: operation, one of `rcudtm`.
        commit_lsn, serial: position of the record; commit_lsn is 0 in a record of another connector, which has no
            position.
        xid: id of the transaction; None for a row that was read, and for records outside of transactions.
        half: 1 for the create of a changed key, which has the same position as the delete.
        of_snapshot: True if the row was read, not changed.
        unchanged: names of columns, as JSON strings, whose value is a placeholder.
        old_key, new_key: key before or after a change of the key.
        schema_id: fingerprint of the table's description; "" if the record names none.
    """

    op: str
    commit_lsn: int
    serial: int
    half: int
    xid: int | None
    of_snapshot: bool
    before: Row | None
    after: Row | None
    unchanged: tuple[bytes, ...]
    old_key: bytes | None
    new_key: bytes | None
    schema_id: str


def pairs(data: bytes, what: str) -> list[tuple[bytes, bytes]]:
    """Return the members of a JSON object: names as JSON strings, and the bytes of the values.

    Raises:
        NotARecordError: `data` is not an object; the message names the part of the record (`what`).
    """
    found: list[tuple[bytes, bytes]] = _PAIRS.findall(data)
    # Adjacent members, each with a bracket or comma before it and a colon in it, make up the whole object.
    size = sum([len(name) + len(value) + 2 for name, value in found]) + 1 if found else 2
    if size != len(data) or data[:1] != b"{" or data[-1:] != b"}":
        raise NotARecordError(f"{what} is not an object in the form that an encoder writes")
    return found


def row(data: bytes, what: str) -> Row | None:
    """Return a row; None for null. Raises NotARecordError."""
    if data == NULL:
        return None
    found = pairs(data, what)
    if not found:
        return Row((), ())
    names, values = zip(*found, strict=True)
    if len(set(names)) < len(names):
        raise NotARecordError(f"{what} has a column twice")
    return Row(names, values)


def payload(data: bytes) -> bytes:
    """Return a key or value without the schema before it that `format: json_schema` has.

    Quotes in the schema's strings are escaped, so the payload begins at the first `_PAYLOAD`.
    """
    if not data.startswith(SCHEMA):
        return data
    at = data.find(_PAYLOAD)
    return data if at < 0 else data[at + len(_PAYLOAD) : -1]


Span = tuple[int, int]
"""(begin, end) of a part, as offsets."""


class _Frame(NamedTuple):
    """The part after the rows in records of one form, with the offsets of its numbers; None: the
    form lacks the number.
    """

    op: str
    of_snapshot: bool
    xid: Span | None
    commit_lsn: Span | None
    serial: Span | None
    schema_id: Span | None


class RowForm:
    """The form of a table's rows in the records that were cut last."""

    def __init__(self) -> None:
        self.names: tuple[bytes, ...] = ()
        self._nested: tuple[bool, ...] = ()
        self.match: Callable[[bytes], re.Match[bytes] | None] = _NOTHING.match

    def learn(self, found: Row) -> None:
        """Expect rows of the same form as `found`."""
        if len(found.names) not in range(1, COLUMNS_MAX + 1):
            return
        nested = [value[:1] in _BRACKETS for value in found.values]
        if found.names == self.names:
            # A value that is null in one row may be an object in another.
            nested = [one or other for one, other in zip(nested, self._nested, strict=True)]
        self.names, self._nested = found.names, tuple(nested)
        self.match = _beginning(self.names, self._nested).match


_NOTHING: Final = re.compile(rb"(?!)")
_BRACKETS: Final = (b"{", b"[")
COLUMNS_MAX: Final = 100
"""Maximum number of a table's columns for which one expression finds the rows. Compiling the expression takes longer
with more columns."""


@lru_cache(1000)
def _beginning(names: tuple[bytes, ...], nested: tuple[bool, ...]) -> re.Pattern[bytes]:
    """Return the expression for the values of both rows, up to the source.

    Args:
        nested: for each column, True if its value may be an array or an object.
    """
    members = b",".join(
        [
            re.escape(name) + b":(" + (_VALUE if may else _SCALAR) + b")"
            for name, may in zip(names, nested, strict=True)
        ]
    )
    row = rb"(?:null|\{" + members + rb"\})"
    return re.compile(rb'\{"before":' + row + rb',"after":' + row + rb',(?="source":\{)', re.DOTALL)


def cut(value: bytes, headers: Headers, form: RowForm | None = None) -> Cut:
    """Return the parts of a record's value.

    Args:
        form: form of the rows in the table's records. This call updates the form.

    Raises:
        NotARecordError: `value` is not a record.
    """
    try:
        value.decode()
    except UnicodeDecodeError as error:
        raise NotARecordError(f"the record is not UTF-8: {error.reason} at byte {error.start}") from None
    value = payload(value)
    found = None if form is None else _cut_known(value, form)
    if found is None:
        found = _cut_whole(value)
        row = found.after or found.before
        if form is not None and row is not None:
            form.learn(row)
    _check_rows(found.op, found.before, found.after)
    return _with_headers(found, headers) if headers else found


def after_of(value: bytes, form: RowForm) -> Row:
    """Return the row of a record that an encoder has just written. The record has a row."""
    found = form.match(value)
    if found is not None:
        groups = found.groups()
        if groups[-1] is not None:
            return Row(form.names, groups[len(form.names) :])
    after = cut(value, (), form).after
    assert after is not None, "the record has a row"
    return after


def _with_headers(found: Cut, headers: Headers) -> Cut:
    """Return the record with the data of its headers. Raises NotARecordError."""
    for name, content in headers:
        if name == UNCHANGED:
            found = found._replace(unchanged=_names(content))
        elif name == OLD_KEY and content is not None:
            found = found._replace(old_key=payload(content), half=1)
        elif name == NEW_KEY and content is not None:
            found = found._replace(new_key=payload(content))
    return found


def _cut_whole(value: bytes) -> Cut:
    """Cut any record, without its headers. Raises NotARecordError."""
    fields = dict(pairs(value, "the record"))
    op = fields.get(b'"op"', b"")
    if op not in OPS:
        raise NotARecordError(f"op is {op.decode()!r}")
    source = fields.get(b'"source"', b"")
    place = _PLACE.search(source)
    snapshot = _SNAPSHOT.search(source)
    xid = _XID.search(source)
    if source[:1] != b"{" or snapshot is None:
        raise NotARecordError("source is not an object with the member snapshot")
    if place is not None and max(len(place[1]), len(place[2])) > DIGITS_MAX:
        raise NotARecordError("commit_lsn or event_serial_no has more than 64 bits")
    return Cut(
        op.decode()[1],
        0 if place is None else int(place[1]),
        0 if place is None else int(place[2]),
        0,
        None if xid is None else int(xid[1]),
        snapshot[1] != b"false",
        row(fields.get(b'"before"', NULL), "before"),
        row(fields.get(b'"after"', NULL), "after"),
        (),
        None,
        None,
        "" if place is None else (place[3] or b"").decode(),
    )


_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)
DIGITS_MAX: Final = 19
FRAMES_MAX: Final = 4096
"""Maximum number of remembered forms of the part after the rows, each some hundred bytes. A table has one form for
each number of digits in its positions."""


def _cut_known(value: bytes, form: RowForm) -> Cut | None:
    """Cut a record whose form is known, without its headers; None: the form is unknown, or it is no record."""
    match = form.match(value)
    if match is None:
        return None
    rest = value[match.end() :]
    try:
        frame = _frame(rest.translate(_ZEROS))
    except NotARecordError:
        return None
    if frame is None:
        return None
    groups, names = match.groups(), form.names
    count = len(names)
    return Cut(
        frame.op,
        _number(rest, frame.commit_lsn) or 0,
        _number(rest, frame.serial) or 0,
        0,
        _number(rest, frame.xid),
        frame.of_snapshot,
        None if groups[0] is None else Row(names, groups[:count]),
        None if groups[-1] is None else Row(names, groups[count:]),
        (),
        None,
        None,
        "" if frame.schema_id is None else rest[frame.schema_id[0] : frame.schema_id[1]].decode(),
    )


def _number(rest: bytes, at: Span | None) -> int | None:
    return None if at is None else int(rest[at[0] : at[1]])


@lru_cache(FRAMES_MAX)
def _frame(rest: bytes) -> _Frame | None:
    """Return the frame of the part after the rows; None if it contains other rows. Raises NotARecordError."""
    members = pairs(b"{" + rest, "the record")
    names = [name for name, _ in members]
    if len(set(names)) < len(names) or b'"before"' in names or b'"after"' in names:
        return None
    parts = _cut_whole(b"{" + rest)
    # The source is the first member, and each of its members is at the same offset as in `rest`.
    begin, source = len(names[0]) + 1, members[0][1]
    place, xid = _PLACE.search(source), _XID.search(source)

    def there(found: re.Match[bytes] | None, group: int) -> Span | None:
        if found is None or found[group] is None:
            return None
        return begin + found.start(group), begin + found.end(group)

    return _Frame(
        parts.op, parts.of_snapshot, there(xid, 1), there(place, 1), there(place, 2), there(place, 3)
    )


_MAY: Final = frozenset(
    {
        (True, False, "c"),
        (True, False, "r"),
        (True, False, "u"),
        (False, False, "u"),
        (False, True, "d"),
    }
)
"""Combinations in nearly all records: before is null, after is null, the operation."""

_ROWS: Final[dict[str, tuple[bool | None, bool | None]]] = {
    "c": (False, True),
    "r": (False, True),
    "u": (None, True),
    "d": (True, False),
    "t": (False, False),
    "m": (None, None),
}
"""By operation: True if a record has a row before and after; None: both are possible."""


def _check_rows(op: str, before: Row | None, after: Row | None) -> None:
    if (before is None, after is None, op) in _MAY:
        return
    for name, must, found in zip(("before", "after"), _ROWS[op], (before, after), strict=True):
        if must is not None and must is not (found is not None):
            raise NotARecordError(f"{name} of a record with op {op} is {'' if found is None else 'not '}null")


def _names(content: bytes | None) -> tuple[bytes, ...]:
    try:
        found = bounded_json.parse(content or b"")
        if not isinstance(found, list):
            raise TypeError
        return tuple(json.dumps(str(name), ensure_ascii=False).encode() for name in found)
    except (ValueError, TypeError):
        raise NotARecordError(f"the header {UNCHANGED} is not a list of names") from None
