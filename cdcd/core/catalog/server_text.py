"""Conversion of texts in a server's encoding to UTF-8, by PostgreSQL's own conversion, character by character.

The rule: a text becomes the result of `convert_from`, or it is undecodable. PostgreSQL converts a text character by
character (conv.c, LocalToUtf), with other tables than Python's codecs, which differ by version. So the server is
asked for each character once (`postgres/conversion.py`), and the answers are kept here. A database in SQL_ASCII has
no conversion: its texts are either valid UTF-8, or undecodable.

A value that cannot be decoded becomes null. A name cannot be left out, so `named` writes its undecodable bytes as
hexadecimal digits behind `MARK`, and `require_decoded` refuses a table that has such a name.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from cdcd.core.catalog.relations import TableDescription, TypeDescription, types_of
from cdcd.core.errors import UndecodableNameError
from cdcd.core.protocol.messages import Relation
from cdcd.core.visible import visible

UNDECODABLE: Final = b"\xff"
"""Replacement for a value that cannot be decoded. No text in UTF-8 has this byte, so every reader detects it."""

KNOWN_MAX: Final = 200_000
"""Maximum number of characters that are kept. No encoding of a server has as many, but writers may invent some."""

MARK: Final = "\ufdd0"
"""Stands before the hexadecimal digits of undecodable bytes in a name. Unicode reserves this noncharacter for the
internal use of programs, so it is not expected in names."""

UNCONVERTED: Final = ("SQL_ASCII", "UTF8")
"""Encodings whose texts are sent unchanged."""

_ESCAPED: Final = 0xDC00
"""Code point of the surrogate by which Python represents the undecodable byte 0 (PEP 383)."""

_HIGH: Final = 0x80
_SS2: Final = 0x8E
_SS3: Final = 0x8F

_TWO_BYTES: Final = ("EUC_CN",)
_EUC: Final = ("EUC_JP", "EUC_JIS_2004", "EUC_KR")
_FOUR_BYTES: Final = ("EUC_TW",)


def characters(text: bytes, encoding: str) -> list[bytes]:
    """Return the characters of a text (wchar.c, pg_encoding_mblen). The last character may be incomplete."""
    found: list[bytes] = []
    at = 0
    while at < len(text):
        size = _size(text[at], encoding)
        found.append(text[at : at + size])
        at += size
    return found


def _size(first: int, encoding: str) -> int:
    if first < _HIGH:
        return 1
    if encoding in _TWO_BYTES:
        return 2
    if encoding in _EUC:
        return 3 if first == _SS3 else 2
    if encoding in _FOUR_BYTES:
        return 4 if first == _SS2 else 3 if first == _SS3 else 2
    return 1


class ServerTexts:
    """Known characters of one encoding.

    Args:
        encoding: encoding of the server, as in `server_encoding`.
    """

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self._known: dict[bytes, bytes] = {}

    def unknown(self, texts: Iterable[bytes]) -> list[bytes]:
        """Return the characters of these texts for which the server must be asked, each once."""
        if self.encoding in UNCONVERTED:
            return []
        known, found = self._known, dict[bytes, None]()
        for text in texts:
            if not text.isascii():
                found |= {
                    each: None
                    for each in characters(text, self.encoding)
                    if each not in known and not each.isascii()
                }
        return list(found)

    def learn(self, answers: Mapping[bytes, bytes]) -> None:
        """Add the server's UTF-8 forms of characters. Characters without such a form are not among them."""
        if len(self._known) + len(answers) > KNOWN_MAX:
            self._known.clear()
        self._known.update(answers)

    def decoded(self, text: bytes) -> bytes | None:
        """Return the text in UTF-8; None if it cannot be decoded.

        The caller must have added its `unknown` characters before.
        """
        if text.isascii():
            return text
        if self.encoding in UNCONVERTED:
            try:
                text.decode("utf-8")
            except UnicodeDecodeError:
                return None
            return text
        known = self._known
        parts = [each if each.isascii() else known.get(each) for each in characters(text, self.encoding)]
        found = [part for part in parts if part is not None]
        return b"".join(found) if len(found) == len(parts) else None

    def named(self, text: bytes) -> str:
        """Return the name. If it cannot be decoded, `MARK` and hexadecimal digits stand for undecodable bytes.

        The caller must have added its `unknown` characters before.
        """
        if self.encoding in UNCONVERTED:
            # Python represents an undecodable byte by a surrogate, which no valid UTF-8 has.
            return "".join([_marked(each) for each in text.decode("utf-8", "surrogateescape")])
        decoded = self.decoded(text)
        if decoded is not None:
            return decoded.decode()
        # All characters above ASCII, because the result must not depend on what the server was asked before.
        return "".join(
            [
                each.decode() if each.isascii() else MARK + each.hex()
                for each in characters(text, self.encoding)
            ]
        )


def _marked(letter: str) -> str:
    point = ord(letter)
    return f"{MARK}{point - _ESCAPED:02x}" if _ESCAPED <= point <= _ESCAPED + 0xFF else letter


_RENAMED_TABLE: Final = "format('ALTER TABLE %s RENAME TO new_name', {oid}::regclass)"
_RENAMED_SCHEMA: Final = (
    "format('ALTER SCHEMA %I RENAME TO new_name', "
    "(SELECT nspname FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid WHERE c.oid = {oid}))"
)
_RENAMED_COLUMN: Final = (
    "format('ALTER TABLE %s RENAME %I TO new_name', {oid}::regclass, "
    "(SELECT attname FROM pg_attribute WHERE attrelid = {oid} AND attnum = {number}))"
)
_FORGOTTEN_DEFAULT: Final = "format('VACUUM FULL %s', {oid}::regclass)"
"""PostgreSQL forgets the default of older rows when it writes the table again (RelationClearMissing)."""
_RENAMED_TYPE: Final = "format('ALTER TYPE %s RENAME TO new_name', {oid}::regtype)"
_RENAMED_TYPE_SCHEMA: Final = (
    "format('ALTER SCHEMA %I RENAME TO new_name', "
    "(SELECT nspname FROM pg_namespace n JOIN pg_type t ON t.typnamespace = n.oid WHERE t.oid = {oid}))"
)
_RENAMED_LABEL: Final = (
    "format('ALTER TYPE %s RENAME VALUE %L TO %L', {oid}::regtype, "
    "(SELECT enumlabel FROM pg_enum WHERE oid = {number}), 'new_label')"
)


def require_decoded(
    relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
) -> None:
    """Check that every name of a table can be decoded: its schema, columns, types, and labels of enums.

    Raises:
        UndecodableNameError: the table has a name, or a default of a column, that cannot be decoded.
    """
    for what, text, mend, oid, number in _texts(relation, table, types):
        if MARK in text:
            raise UndecodableNameError(
                f"{what} of {relation.schema}.{relation.name} cannot be decoded to UTF-8: {text}. The digits behind "
                f"{visible(MARK)} are undecodable bytes.",
                hint="Change it, and run `cdcd tables resume` with the name of the table (on PostgreSQL 13, start cdcd "
                "again); or leave the table out of the publication. The server can write the name, so nobody needs to "
                "type it. As the owner, run in psql: "
                f"SELECT {mend.format(oid=oid, number=number)} \\gexec",
            )


def _texts(
    relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
) -> Iterator[tuple[str, str, str, int, int]]:
    """Yield for each text of the table what it is, the text, the expression of the command that replaces it, and the
    two numbers in this expression.
    """
    oid = relation.oid
    yield "The name", relation.name, _RENAMED_TABLE, oid, 0
    yield "The schema", relation.schema, _RENAMED_SCHEMA, oid, 0
    numbers = {column.name: column.id for column in table.columns}
    for column in relation.columns:
        yield "A column", column.name, _RENAMED_COLUMN, oid, numbers.get(column.name, 0)
    for described in table.columns:
        if described.missing is not None:
            yield "The default of a column", described.missing, _FORGOTTEN_DEFAULT, oid, 0
    for each in types_of(relation, types):
        if each.is_array:
            # PostgreSQL names it after its element.
            continue
        yield "A type", each.name, _RENAMED_TYPE, each.oid, 0
        yield "The schema of a type", each.namespace, _RENAMED_TYPE_SCHEMA, each.oid, 0
        for label_oid, label in each.labels:
            yield "A label of an enum", label, _RENAMED_LABEL, each.oid, label_oid
