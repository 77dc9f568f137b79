r"""Cuts a record of Debezium's JSON into what is compared: its place, its operation, and the bytes of each value.

The rule: a value is compared as the bytes that stand in the record, and is never decoded. Two values are equal if and
only if their bytes are, so that `1.0` and `1.00`, or `"A"` and `"\u0041"`, are not equal: the encoder writes each value
in one way only. What is not the JSON that an encoder writes (white space between tokens, a value that is cut off, bytes
after the end) raises NotARecordError.

The records of a table look alike, and are cut by what the ones before them looked like:

- Their rows have the same columns in the same order. So one expression with those names finds all values
  (`RowForm`). It matches nothing that the rule above would not cut into the same values.
- What follows the rows is longer than most rows, and nearly always the same but for digits. So it is cut once for each
  form that it has, with 0 for each digit, and of the other records of that form only the numbers are read. No rule here
  tells one digit from another, so this gives the same parts as cutting each record whole.

A record that does not look like that is cut whole.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

_STRING: Final = rb'"[^"\\\x00-\x1f]*+(?>\\.[^"\\\x00-\x1f]*+)*+"'
_SCALAR: Final = rb"(?>-?[0-9][0-9.eE+-]*+|true|false|null|" + _STRING + rb")"
NESTING_MAX: Final = 12
"""Arrays and objects in each other. The deepest that an encoder writes are PostgreSQL's arrays of six dimensions."""


def _nested(depth: int) -> bytes:
    inner = rb"(?!)"
    for _ in range(depth):
        inner = rb"[\[{](?>[^\[\]{}\x00-\x20\"]++|" + _STRING + rb"|" + inner + rb")*+[\]}]"
    return inner


_VALUE: Final = rb"(?>" + _SCALAR + rb"|" + _nested(NESTING_MAX) + rb")"
# A name with its quotes and colon stands in no string, because quotes are escaped there.
_SNAPSHOT: Final = re.compile(rb'"snapshot":"([a-z_]*+)"')
_XID: Final = re.compile(rb'"txId":([0-9]++)')
_PLACE: Final = re.compile(
    rb'"commit_lsn":([0-9]++),"event_serial_no":([0-9]++)(?:,"schema_id":"([0-9a-f]*+)")?\}\Z'
)
_PAIRS: Final = re.compile(rb"[{,](" + _STRING + rb"):(" + _VALUE + rb")", re.DOTALL)

SCHEMA: Final = b'{"schema":{"type":"struct",'
"""How a key or value begins with `format: json_schema`."""
_PAYLOAD: Final = b',"payload":'

NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"
UNCHANGED: Final = "cdcd.unchanged"

OPS: Final = frozenset({b'"r"', b'"c"', b'"u"', b'"d"', b'"t"', b'"m"'})

NULL: Final = b"null"

Headers = Sequence[tuple[str, bytes | None]]


class NotARecordError(ValueError):
    """The bytes are not a record that cdcd or Debezium writes; the text says what is wrong."""


class Row(NamedTuple):
    """Names of columns as JSON strings, and the JSON of their values, in the record's order."""

    names: tuple[bytes, ...]
    values: tuple[bytes, ...]


class Cut(NamedTuple):
    """A record with a value.

    Attributes:
        op: one of `rcudtm`.
        commit_lsn, serial: the record's place; commit_lsn is 0 in a record of another connector, which has no place.
        xid: of the transaction; None for a row that was read, and for what stands between transactions.
        half: 1 for the create of a changed key, which shares its place with the delete.
        of_snapshot: the row was read, not changed.
        unchanged: names of columns, as JSON strings, that hold a placeholder.
        old_key, new_key: the key before or after a change of the key.
        schema_id: of the description of the table, "" if the record names none.
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
    """The members of a JSON object: names as JSON strings, and the bytes of the values.

    Raises:
        NotARecordError: it is not one; `what` says of which part that is told.
    """
    found: list[tuple[bytes, bytes]] = _PAIRS.findall(data)
    # Members that lie side by side, each with a bracket or comma before it and a colon in it, are all of the object.
    size = sum([len(name) + len(value) + 2 for name, value in found]) + 1 if found else 2
    if size != len(data) or data[:1] != b"{" or data[-1:] != b"}":
        raise NotARecordError(f"{what} is not an object in the form that an encoder writes")
    return found


def row(data: bytes, what: str) -> Row | None:
    """A row; None for null. Raises NotARecordError."""
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
    """What a key or value says, without the schema that stands before it with `format: json_schema`.

    In the schema's strings quotes are escaped, so the first `_PAYLOAD` is where the payload begins.
    """
    if not data.startswith(SCHEMA):
        return data
    at = data.find(_PAYLOAD)
    return data if at < 0 else data[at + len(_PAYLOAD) : -1]


Span = tuple[int, int]
"""Where something begins, and where it ends."""


class _Frame(NamedTuple):
    """What follows the rows in records of one form, and where the numbers stand in it; None: the form lacks them."""

    op: str
    of_snapshot: bool
    xid: Span | None
    commit_lsn: Span | None
    serial: Span | None
    schema_id: Span | None


class RowForm:
    """What the rows of a table looked like in the records that were cut last."""

    def __init__(self) -> None:
        self.names: tuple[bytes, ...] = ()
        self._nested: tuple[bool, ...] = ()
        self.match: Callable[[bytes], re.Match[bytes] | None] = _NOTHING.match

    def learn(self, found: Row) -> None:
        """Expect rows like this one."""
        if len(found.names) not in range(1, COLUMNS_MAX + 1):
            return
        nested = [value[:1] in _BRACKETS for value in found.values]
        if found.names == self.names:
            # A value that is null in one row may be an object in another one.
            nested = [one or other for one, other in zip(nested, self._nested, strict=True)]
        self.names, self._nested = found.names, tuple(nested)
        self.match = _beginning(self.names, self._nested).match


_NOTHING: Final = re.compile(rb"(?!)")
_BRACKETS: Final = (b"{", b"[")
COLUMNS_MAX: Final = 100
"""Columns of a table whose rows are found by one expression. Making it takes longer the more there are."""


@lru_cache(1000)
def _beginning(names: tuple[bytes, ...], nested: tuple[bool, ...]) -> re.Pattern[bytes]:
    """What finds the values of both rows, up to the source.

    Args:
        nested: whether a value may be an array or an object.
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
    """Cut the value of a record.

    Args:
        form: of the rows of the table's records. It learns of this one.

    Raises:
        NotARecordError: it is not one.
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
    """The row of a record that an encoder has just written. It has one."""
    found = form.match(value)
    if found is not None:
        groups = found.groups()
        if groups[-1] is not None:
            return Row(form.names, groups[len(form.names) :])
    after = cut(value, (), form).after
    assert after is not None, "the record has a row"
    return after


def _with_headers(found: Cut, headers: Headers) -> Cut:
    """The record with what its headers say. Raises NotARecordError."""
    for name, content in headers:
        if name == UNCHANGED:
            found = found._replace(unchanged=_names(content))
        elif name == OLD_KEY and content is not None:
            found = found._replace(old_key=payload(content), half=1)
        elif name == NEW_KEY and content is not None:
            found = found._replace(new_key=payload(content))
    return found


def _cut_whole(value: bytes) -> Cut:
    """Any record without its headers. Raises NotARecordError."""
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
"""Forms of what follows the rows that are remembered, each some hundred bytes. A table has a form for each number of
digits that its positions have."""


def _cut_known(value: bytes, form: RowForm) -> Cut | None:
    """A record that looks like others, without its headers; None: it does not, or is no record."""
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
    """What follows the rows, from the source on; None if other rows are in it. Raises NotARecordError."""
    members = pairs(b"{" + rest, "the record")
    names = [name for name, _ in members]
    if len(set(names)) < len(names) or b'"before"' in names or b'"after"' in names:
        return None
    parts = _cut_whole(b"{" + rest)
    # The source comes first, and each of its members is where it would be in the rest.
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
"""Nearly all records: whether before and after are null, and the operation."""

_ROWS: Final[dict[str, tuple[bool | None, bool | None]]] = {
    "c": (False, True),
    "r": (False, True),
    "u": (None, True),
    "d": (True, False),
    "t": (False, False),
    "m": (None, None),
}
"""Whether a record has a row before and after; None: both are possible."""


def _check_rows(op: str, before: Row | None, after: Row | None) -> None:
    if (before is None, after is None, op) in _MAY:
        return
    for name, must, found in zip(("before", "after"), _ROWS[op], (before, after), strict=True):
        if must is not None and must is not (found is not None):
            raise NotARecordError(f"{name} of a record with op {op} is {'' if found is None else 'not '}null")


def _names(content: bytes | None) -> tuple[bytes, ...]:
    try:
        found = json.loads(content or b"")
        if not isinstance(found, list):
            raise TypeError
        return tuple(json.dumps(str(name), ensure_ascii=False).encode() for name in found)
    except (ValueError, TypeError):
        raise NotARecordError(f"the header {UNCHANGED} is not a list of names") from None
