"""Conversion of texts to UTF-8 where the server does not convert them; the server is asked for each character once.

Two kinds of sessions receive texts in the server's encoding. A stream does after PostgreSQL could not convert a
text (22021, 22P05), because this text in the WAL would end every session at the same position. COPY does in every
database whose encoding is not UTF-8, because a first snapshot that fails at a row cannot continue with the same
snapshot.
"""

from cdcd.adapters.postgres.answers import translated
from cdcd.adapters.postgres.connection import Connection, Dsn, connect
from cdcd.adapters.postgres.server_names import NEVER_CONVERTED, Characters
from cdcd.adapters.postgres.session import Session
from cdcd.core.catalog.server_text import UNCONVERTED, UNDECODABLE
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.texts import STREAM_START, STREAM_STOP, TextKind, TextRange, texts_of, with_texts


class Conversion:
    """Decodes the texts of one server. The caller owes `close`.

    Args:
        connection: connection with client_encoding UTF8 for queries of characters; None if the encoding needs no
            query.
    """

    def __init__(self, encoding: str, connection: Connection | None) -> None:
        self._characters = Characters(encoding, connection)
        self._texts = self._characters.texts
        self._connection = connection
        self._in_stream = False

    @classmethod
    async def open(
        cls, dsn: Dsn, encoding: str, *, application_name: str, connect_timeout_s: float
    ) -> "Conversion":
        """Create the conversion, and connect if the encoding needs queries. Raises as `connect`."""
        if encoding in (*UNCONVERTED, *NEVER_CONVERTED):
            return cls(encoding, None)
        connection = await connect(
            dsn, application_name=application_name, connect_timeout_s=connect_timeout_s
        )
        return cls(encoding, connection)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._connection is not None:
            self._connection.pgconn.finish()

    async def command(self, text: str) -> bytes:
        """Return the command in the encoding that a session without conversion expects."""
        if text.isascii() or self._connection is None:
            return text.encode("utf-8", "surrogateescape")
        with translated("encoding a command", {}):
            row = await (
                await self._connection.execute(
                    b"SELECT convert_to(%s, getdatabaseencoding())", (text,), binary=True
                )
            ).fetchone()
        assert row is not None
        assert isinstance(row[0], bytes)
        return row[0]

    async def lines(self, lines: list[bytes]) -> list[bytes]:
        """Return lines of COPY in text format, converted to UTF-8.

        UNDECODABLE replaces a field that cannot be decoded.
        """
        # In every server encoding, the bytes of a character above ASCII are above ASCII, so splitting at
        # tabs and escapes is safe.
        fields = [field for line in lines if not line.isascii() for field in line.split(b"\t")]
        await self._characters.learn(fields)
        return [line if line.isascii() else self._line(line) for line in lines]

    def _line(self, line: bytes) -> bytes:
        ended = line.endswith(b"\n")
        fields = (line[:-1] if ended else line).split(b"\t")
        written = b"\t".join([self._value(field) for field in fields])
        return written + b"\n" if ended else written

    def _value(self, value: bytes) -> bytes:
        decoded = self._texts.decoded(value)
        return UNDECODABLE if decoded is None else decoded

    async def frames(self, frames: list[bytes]) -> list[bytes]:
        """Return the frames with their texts in UTF-8. `ServerTexts.named` writes a name that cannot be decoded."""
        in_stream = self._in_stream
        found: list[list[TextRange]] = []
        for frame in frames:
            found.append(texts_of(frame, in_stream))
            tag = frame[XLOG_HEADER] if len(frame) > XLOG_HEADER else 0
            in_stream = tag == STREAM_START or (in_stream and tag != STREAM_STOP)
        await self._characters.learn(
            frame[text.begin : text.end] for frame, texts in zip(frames, found, strict=True) for text in texts
        )
        # No await follows from here on, so a call that is cancelled before can be repeated with the same
        # frames.
        written: list[bytes] = []
        for frame, texts in zip(frames, found, strict=True):
            written.append(with_texts(frame, texts, self._convert) if texts else frame)
        self._in_stream = in_stream
        return written

    def _convert(self, text: bytes, kind: TextKind) -> bytes:
        decoded = self._texts.decoded(text)
        if decoded is not None:
            return decoded
        if kind is TextKind.VALUE:
            return UNDECODABLE
        if kind is TextKind.NAME:
            return self._texts.named(text).encode()
        return text.decode("ascii", "backslashreplace").encode()


def server_encoding(session: Session) -> str:
    """The encoding of the session's database."""
    return (session.pgconn.parameter_status(b"server_encoding") or b"").decode()
