"""Catalog queries in databases whose names may have no form in UTF-8.

PostgreSQL refuses to send a text that it cannot convert (22021, 22P05), so one name would end every query of the
catalog that includes it. The rule: such a query is repeated without conversion, and `ServerTexts.named` writes the
bytes that cannot be decoded as digits. So only the table that has the name is affected (`require_decoded`).
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import psycopg
from psycopg import pq
from psycopg.adapt import Buffer, Dumper, Loader

from cdcd.adapters.postgres.answers import translated
from cdcd.core.catalog.server_text import UNCONVERTED, ServerTexts
from cdcd.core.errors import WithoutConversionError

RAW: Final = "SQL_ASCII"
"""Client encoding for which PostgreSQL converts nothing (mbutils.c, pg_server_to_any)."""

NEVER_CONVERTED: Final = ("MULE_INTERNAL",)
"""Encodings that PostgreSQL cannot convert to UTF-8, so that cdcd can decode only ASCII."""

_TEXTS: Final = ("text", "name", "varchar", "bpchar", '"char"', 0)
"""Types of names in the catalog's queries, also as elements of arrays; 0: types that psycopg does not know."""

_ASK: Final = (
    b"SELECT convert(c, getdatabaseencoding(), 'UTF8') "
    b"FROM unnest(%s::bytea[]) WITH ORDINALITY AS u(c, n) ORDER BY n"
)

_ENCODE: Final = (
    b"SELECT convert_to(t, getdatabaseencoding()) "
    b"FROM unnest(%s::text[]) WITH ORDINALITY AS u(t, n) ORDER BY n"
)

_DOCUMENTS: Final = ("json", "jsonb")

_NOT_ASCII: Final = re.compile(rb"[\x80-\xff]+")
"""In every server encoding, the bytes of a character above ASCII are above ASCII."""

_USABLE: Final = (pq.TransactionStatus.IDLE, pq.TransactionStatus.INTRANS)


async def _run(connection: "psycopg.AsyncConnection[Any]", command: str) -> None:
    await psycopg.AsyncCursor(connection).execute(command.encode())


@asynccontextmanager
async def _restored(connection: "psycopg.AsyncConnection[Any]") -> AsyncIterator[None]:
    """Keep an open transaction usable if a query in the block fails."""
    if connection.info.transaction_status != pq.TransactionStatus.INTRANS:
        yield
        return
    await _run(connection, "SAVEPOINT names")
    try:
        yield
    except psycopg.Error:
        await _run(connection, "ROLLBACK TO SAVEPOINT names")
        raise
    await _run(connection, "RELEASE SAVEPOINT names")


class Characters:
    """The characters of one server's encoding, about which the server is asked once each.

    Args:
        connection: connection for queries of characters; None if the encoding needs no query.
    """

    def __init__(self, encoding: str, connection: "psycopg.AsyncConnection[Any] | None") -> None:
        self.texts = ServerTexts(encoding)
        self._connection = connection

    async def learn(self, texts: Iterable[bytes]) -> None:
        """Ask the server for the UTF-8 form of all characters in these texts. Raises TransientError."""
        if self._connection is None:
            return
        of_texts = [text for text in texts if not text.isascii()]
        unknown = self.texts.unknown(of_texts)
        if not unknown or await self._ask(unknown):
            return
        # At least one character cannot be converted. A text with such a character is not decoded, so its other
        # characters are not needed.
        for text in of_texts:
            unknown = self.texts.unknown([text])
            if unknown:
                await self._ask(unknown)

    async def _ask(self, characters: list[bytes]) -> bool:
        """Ask the server for the UTF-8 form of these characters; return False if it cannot convert one of them."""
        assert self._connection is not None
        try:
            with translated("decoding texts", {}):
                async with _restored(self._connection):
                    cursor = psycopg.AsyncCursor(self._connection)
                    rows: list[Any] = await (await cursor.execute(_ASK, (characters,))).fetchall()
        except WithoutConversionError:
            return False
        self.texts.learn({each: bytes(made) for each, (made,) in zip(characters, rows, strict=True)})
        return True


class NamesCursor(psycopg.AsyncCursor[Any]):
    """A cursor that repeats a query whose result the server cannot convert, without conversion.

    Only a SELECT is repeated, and only if its text is ASCII. Its parameters may have other characters.
    """

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        """Run the query. Raises psycopg.Error."""
        encoding = self._conn.info.parameter_status("server_encoding")
        if encoding == "UTF8" or not _is_repeatable(query):
            return await super().execute(query, params, **options)
        try:
            async with _restored(self._conn):
                return await super().execute(query, params, **options)
        except (psycopg.errors.CharacterNotInRepertoire, psycopg.errors.UntranslatableCharacter):
            await self._without_conversion(encoding or RAW, query, params, options)
        return self

    async def _without_conversion(
        self, encoding: str, query: Any, params: Any, options: dict[str, Any]
    ) -> None:
        usual = self._conn.info.parameter_status("client_encoding") or "UTF8"
        needs_query = encoding not in (*UNCONVERTED, *NEVER_CONVERTED)
        characters = Characters(encoding, self._conn if needs_query else None)

        named = characters.texts.named

        class _Named(Loader):
            def load(self, data: Buffer) -> str:
                return named(bytes(data))

        class _NamedJson(Loader):
            def load(self, data: Buffer) -> Any:
                # Each byte is one letter of Latin-1, so each string of the document can be decoded alone.
                return _each_text(json.loads(bytes(data).decode("latin-1")), named)

        for name in _TEXTS:
            self.adapters.register_loader(name, _Named)
        for name in _DOCUMENTS:
            self.adapters.register_loader(name, _NamedJson)
        self.adapters.register_dumper(_Encoded, _EncodedDumper)
        params = await self._encoded(params)
        await _run(self._conn, f"SET client_encoding = '{RAW}'")
        try:
            await super().execute(query, params, **options)
        finally:
            if self._conn.info.transaction_status in _USABLE:
                await _run(self._conn, f"SET client_encoding = '{usual}'")
        result = self.pgresult
        if result is not None:
            values = [
                result.get_value(row, column)
                for row in range(result.ntuples)
                for column in range(result.nfields)
            ]
            await characters.learn([run for value in values if value for run in _NOT_ASCII.findall(value)])

    async def _encoded(self, params: Any) -> Any:
        """Return parameters in the server's encoding, if one has characters above ASCII. Raises psycopg.Error."""
        texts = sorted(set(_texts_above_ascii(params)))
        if not texts:
            return params
        async with _restored(self._conn):
            cursor = psycopg.AsyncCursor(self._conn)
            rows: list[Any] = await (await cursor.execute(_ENCODE, (texts,))).fetchall()
        encoded = {text: _Encoded(made) for text, (made,) in zip(texts, rows, strict=True)}
        return _replaced(params, encoded)


class _Encoded(bytes):
    """A text in the server's encoding."""


class _EncodedDumper(Dumper):
    """Writes the bytes as a text of no declared type, as psycopg writes a `str`."""

    def dump(self, obj: Any) -> bytes:
        return bytes(obj)


def _texts_above_ascii(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        if not part.isascii():
            yield part
    elif isinstance(part, list | tuple | dict):
        for each in part.values() if isinstance(part, dict) else part:
            yield from _texts_above_ascii(each)


def _replaced(part: Any, encoded: Mapping[str, bytes]) -> Any:
    if isinstance(part, str):
        # The elements of a list must have one type.
        return encoded.get(part) or _Encoded(part.encode())
    if isinstance(part, list | tuple):
        return type(part)(_replaced(each, encoded) for each in part)
    if isinstance(part, dict):
        return {name: _replaced(each, encoded) for name, each in part.items()}
    return part


def _each_text(value: Any, named: Callable[[bytes], str]) -> Any:
    if isinstance(value, str):
        return named(value.encode("latin-1"))
    if isinstance(value, list):
        return [_each_text(each, named) for each in value]
    if isinstance(value, dict):
        return {_each_text(name, named): _each_text(each, named) for name, each in value.items()}
    return value


def _is_repeatable(query: Any) -> bool:
    if not isinstance(query, str | bytes) or not query.isascii():
        return False
    text = query if isinstance(query, str) else query.decode()
    # PostgreSQL exports no snapshot behind a savepoint.
    return text.lstrip().upper().startswith(("SELECT", "WITH")) and "pg_export_snapshot" not in text
