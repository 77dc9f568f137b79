"""DSNs, and how a refused connection is understood, against a fake server of a few bytes."""

import asyncio
import struct

import pytest

from cdcd.adapters.postgres.connection import Dsn, open_session, parse_dsn
from cdcd.core.errors import ConfigError, SourceError, TransientError

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "neither"),
        (f"postgresql://u:{SECRET}@more@host/db", "bare @"),
        (f"postgresql://u:{SECRET}/x@host/db", "bare @"),
        (f"postgresql://u:{SECRET}?x@host/db", ""),
        (f"postgresql://u@host:{SECRET}/db", "port"),
        (f"host=h password={SECRET} port=70000", "port"),
        (f"host=h password={SECRET} sslmod=require", "did you mean sslmode"),
        (f"postgresql://u:{SECRET}@h/db?sslmod=require", "did you mean sslmode"),
        (f"host=h password={SECRET} frobnicate=1", "does not know"),
        (f"postgresql://u:{SECRET}%zz@h/db", "%"),
        (f"postgresql://u:{SECRET}%00@h/db", "%00"),
        (f"host=h password='{SECRET}", "does not end"),
        (f"postgresql://u:{SECRET}@[::1/db", "bracket"),
        (f"postgresql://u:{SECRET}@[::1]x/db", "follows the host"),
        (f"postgresql://u:{SECRET}@h/db?sslmode", "no value"),
        (f"postgresql://u:{SECRET}@h/db?sslmode=a=b", "two = signs"),
    ],
)
def test_a_malformed_dsn_is_told_without_repeating_any_of_it(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_dsn(text)
    assert SECRET not in str(caught.value)
    assert says in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://cdcd:{SECRET}@db:5433/shop?sslmode=require",
        f"postgres://cdcd:{SECRET}@db:5433/shop",
        f"host=db port=5433 user=cdcd password={SECRET} dbname=shop",
        f"postgresql://cdcd@db:5433/shop?password={SECRET}",
    ],
)
def test_a_dsn_shows_where_it_leads_and_never_its_password(text: str) -> None:
    dsn = parse_dsn(text)
    assert str(dsn) == "shop at db:5433 as cdcd"
    assert SECRET not in repr(dsn)
    assert dsn.secrets == (SECRET,)
    assert dsn.get("password") == SECRET


@pytest.mark.parametrize(
    "text",
    [
        "postgresql:///shop",
        "host=/run/postgresql",
        "postgresql://%2Frun%2Fpg/shop",
        "postgresql://a:p%40ss@h1:1,h2:2/shop",
    ],
)
def test_every_form_of_libpq_is_understood(text: str) -> None:
    assert isinstance(parse_dsn(text), Dsn)


async def _serve(message: bytes) -> tuple[asyncio.Server, Dsn]:
    """A server that refuses encryption and answers each startup packet with `message`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(head := await reader.read(8)) == 8:
            length, code = struct.unpack("!II", head)
            await reader.readexactly(length - 8)
            if code in (80877103, 80877104):
                writer.write(b"N")
            else:
                writer.write(message)
                break
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    return server, parse_dsn(f"host=127.0.0.1 port={port} user=cdcd dbname=shop password={SECRET}")


def _error_response(sqlstate: str, text: str) -> bytes:
    fields = b"".join(
        kind + value.encode() + b"\0"
        for kind, value in ((b"S", "SCHWERWIEGEND"), (b"C", sqlstate), (b"M", text))
    )
    return b"E" + struct.pack("!I", len(fields) + 5) + fields + b"\0"


@pytest.mark.parametrize(
    ("sqlstate", "text", "kind"),
    [
        ("28P01", "Passwort-Authentifizierung für Benutzer »cdcd« fehlgeschlagen", SourceError),
        ("3D000", "Datenbank »shop« existiert nicht", SourceError),
        ("57P03", "das Datenbanksystem startet", TransientError),
        ("53300", "tut mir leid, schon zu viele Verbindungen", TransientError),
        ("42501", "keine Berechtigung, um WAL-Sender zu starten", SourceError),
    ],
)
def test_a_refusal_in_another_language_is_understood_by_its_sqlstate(
    sqlstate: str, text: str, kind: type[Exception]
) -> None:
    async def run() -> None:
        server, dsn = await _serve(_error_response(sqlstate, text))
        async with server:
            with pytest.raises(kind) as caught:
                await open_session(dsn, application_name="test", connect_timeout_s=3)
        assert f"[SQLSTATE {sqlstate}]" in str(caught.value)
        assert text in str(caught.value)
        assert SECRET not in str(caught.value)

    asyncio.run(run())


def test_a_password_that_the_server_repeats_is_blanked() -> None:
    async def run() -> None:
        server, dsn = await _serve(
            _error_response("28P01", f"password authentication failed, {SECRET} is wrong")
        )
        async with server:
            with pytest.raises(SourceError) as caught:
                await open_session(dsn, application_name="test", connect_timeout_s=3)
        assert SECRET not in str(caught.value)
        assert "*** is wrong" in str(caught.value)

    asyncio.run(run())


def test_a_server_that_closes_without_a_word_is_a_passing_failure() -> None:
    async def run() -> None:
        server, dsn = await _serve(b"")
        async with server:
            with pytest.raises(TransientError):
                await open_session(dsn, application_name="test", connect_timeout_s=3)

    asyncio.run(run())
