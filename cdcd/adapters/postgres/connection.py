"""Connections to PostgreSQL whose text output does not depend on settings of the role, database or server.

pgoutput sends values as text, formatted by the session's settings, and `ALTER ROLE ... SET` or `ALTER DATABASE ...
SET` may change these settings at any time. A setting in the startup packet (`options=-c name=value`) has GucSource
PGC_S_CLIENT, which ranks above PGC_S_DATABASE_USER (src/include/utils/guc.h), so the settings that are pinned here
win. An older server refuses a connection with settings that it does not know, so newer settings are set right after
the connection is open. If the session ends before they are set, which a short `idle_session_timeout` of the role can
cause, cdcd connects again and sends the settings that this version of the server knows in the startup packet.

libpq keeps no SQLSTATE for a failed connection attempt, and the server's message is in the server's language
(lc_messages). libpq 18 does write the ErrorResponse into its protocol trace. So cdcd repeats an attempt that failed
with an unknown message once, traces it into anonymous memory, and reads the SQLSTATE from the trace. No message
contains a password.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final, Literal

import psycopg
from psycopg import conninfo, pq

from cdcd.adapters.credentials.command import Command, await_output
from cdcd.adapters.postgres.answers import Answer, find_refusal, refused, translated
from cdcd.adapters.postgres.refusals import UNKNOWN_TRANSIENT
from cdcd.adapters.postgres.server_names import NamesCursor
from cdcd.adapters.postgres.session import Session, await_socket
from cdcd.core.errors import CdcdError, ConfigError, FatalError, TransientError
from cdcd.core.protocol.lsn import Lsn

Connection = psycopg.AsyncConnection[tuple[object, ...]]

PINNED: Final[tuple[tuple[str, str], ...]] = (
    ("datestyle", "ISO,YMD"),
    ("intervalstyle", "postgres"),
    ("timezone", "UTC"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "3"),
    ("lc_monetary", "C"),
    # regclass, regtype and similar types are printed with a schema unless search_path contains the schema;
    # with an empty path always.
    ("search_path", ""),
    ("quote_all_identifiers", "off"),
    ("xmlbinary", "base64"),
    ("standard_conforming_strings", "on"),
    # 18 reports a missing publication only as a WARNING (pgoutput.c, LoadPublications).
    ("client_min_messages", "warning"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
)
"""Settings of every session of cdcd, sent as startup options."""

PINNED_SINCE: Final[tuple[tuple[int, str, str], ...]] = (
    (140000, "idle_session_timeout", "0"),
    (170000, "transaction_timeout", "0"),
)
"""(server_version_num, name, value): settings that servers below this version do not know."""

_KEEPALIVE: Final[tuple[tuple[str, str], ...]] = (
    ("keepalives", "1"),
    ("keepalives_idle", "30"),
    ("keepalives_interval", "10"),
    ("keepalives_count", "3"),
    ("tcp_user_timeout", "60000"),
)
"""libpq's keepalive parameters, which detect a peer that vanished without closing the connection, after 60 s as
`wal_receiver_timeout` does. Values in the DSN win."""

SECRET_PARAMETERS: Final = frozenset(
    {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
)
"""libpq parameters whose values no message may contain; `cdcd.config.masking` has the same list."""

_REPLICATION: Final[Mapping[bool | str, str | None]] = {False: None, True: "database", "physical": "true"}
"""Values of libpq's parameter `replication` for the argument `replication` of `open_session`."""

_NO_UTF8: Final = "conversion between UTF8 and MULE_INTERNAL is not supported"
"""PostgreSQL's message for the one encoding that it cannot convert to UTF-8 (elog's text is never translated)."""

_TRACED_ERROR: Final = re.compile(rb'\tErrorResponse\t.*? C "([0-9A-Z]{5})"')


@dataclass(frozen=True, slots=True)
class Dsn:
    """A parsed libpq connection string. Its str and repr are safe to log.

    Attributes:
        password_command: command that prints the password, run before each connection. Empty: the DSN has no such
            command.
    """

    parameters: tuple[tuple[str, str], ...] = field(repr=False)
    password_command: tuple[str, ...] = field(default=(), repr=False)

    def get(self, name: str, default: str = "") -> str:
        """Return the value of one libpq parameter in the DSN, without the environment and service files."""
        return dict(self.parameters).get(name, default)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that no message may contain."""
        secrets = [value for name, value in self.parameters if name in SECRET_PARAMETERS and value]
        # To libpq, `user:password` with an encoded colon is one user name, too.
        _, _, behind = self.get("user").partition(":")
        return (*secrets, behind) if behind else tuple(secrets)

    @property
    def names(self) -> Mapping[str, str]:
        """Return `role` and `database` for hints, as far as the DSN names them."""
        known = {"role": self._user, "database": self.get("dbname") or self._user}
        return {name: value for name, value in known.items() if value}

    def __str__(self) -> str:
        host = self.get("host") or self.get("hostaddr") or self.get("service") or "the default host"
        port = self.get("port")
        text = f"{self.get('dbname') or 'the default database'} at {host}{':' + port if port else ''}"
        return f"{text} as {self._user}" if self._user else text

    @property
    def _user(self) -> str:
        return self.get("user").partition(":")[0]


_MALFORMED: Final[tuple[tuple[str, str], ...]] = (
    ('missing "="', "it is neither a postgresql:// URI nor key=value pairs"),
    ("unterminated quoted string", "a quoted value does not end"),
    (
        "invalid percent-encoded token",
        "a % in it is not followed by two hexadecimal digits (a literal % is %25)",
    ),
    ("forbidden value %00", "it contains %00"),
    ("end of string reached when looking for matching", "an IPv6 address lacks its closing bracket"),
    ("IPv6 host address may not be empty", "its IPv6 address is empty"),
    ("unexpected character", "something other than a port, a path or a query follows the host"),
    ("missing key/value separator", "a query parameter has no value"),
    ("extra key/value separator", "a query parameter has two = signs"),
)
"""(part of libpq's message, cdcd's message): libpq's own text repeats the DSN, which may contain a password."""


def parse_dsn(text: str, password_command: tuple[str, ...] = ()) -> Dsn:
    """Read a libpq URI or key=value string. Raises ConfigError, which never repeats any part of the DSN."""
    hint = (
        "Write postgresql://user@host:5432/database or host=... port=... dbname=... user=...; in a URI, "
        "reserved characters "
        "in user and password are percent-encoded (@ is %40, / is %2F, ? is %3F, # is %23, % is %25)."
    )
    try:
        parsed = pq.Conninfo.parse(text.encode())
        values = {option.keyword.decode(): option.val.decode() for option in parsed if option.val is not None}
    except UnicodeError:
        raise ConfigError("postgres.dsn cannot be read: it is not UTF-8 text.", hint=hint) from None
    except psycopg.Error as error:
        raise ConfigError(f"postgres.dsn cannot be read: {_malformed(str(error))}.", hint=hint) from None
    is_uri = text.startswith(("postgresql://", "postgres://"))
    if is_uri and _stray_at(text):
        raise ConfigError(
            "postgres.dsn cannot be read: it has a bare @ besides the one before the host.", hint=hint
        )
    for port in filter(None, values.get("port", "").split(",")):
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(
                "postgres.dsn cannot be read: its port is not a number between 1 and 65535.", hint=hint
            )
    return Dsn(tuple(values.items()), password_command)


def _malformed(libpq_says: str) -> str:
    for fragment, ours in _MALFORMED:
        if fragment in libpq_says:
            return ours
    if match := re.search(
        r'invalid (?:connection option|URI query parameter):? "(.*)"', libpq_says, re.DOTALL
    ):
        known = [option.keyword.decode() for option in pq.Conninfo.get_defaults()]
        near = get_close_matches(match.group(1), known, n=1, cutoff=0.75)
        return (
            f"libpq does not know one of its parameters; did you mean {near[0]}"
            if near
            else ("libpq does not know one of its parameters")
        )
    return "libpq rejects it"


def _stray_at(uri: str) -> bool:
    """Return True if libpq would read a part of the password as host, port or database because of an unencoded @."""
    rest = uri.split("://", 1)[1]
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    return rest.count("@") > 1 or ("@" in rest and "@" not in authority)


async def open_session(
    dsn: Dsn,
    *,
    application_name: str,
    connect_timeout_s: float = 10.0,
    replication: bool | Literal["physical"] = False,
    unpinned: Collection[str] = (),
) -> Session:
    """Open a session with pinned settings.

    Args:
        replication: True opens a walsender for the DSN's database, "physical" a walsender without a database.
        unpinned: names of settings in PINNED that stay as the server sets them.

    If the DSN has a password command, it runs first. Then each host and address is tried in turn, for
    `connect_timeout_s` seconds each. The caller owes `close()`. Raises TransientError, SourceError or ConfigError:
    the last fatal error of the failed attempts, or else the last error.
    """
    if dsn.password_command:
        dsn = await _with_password(dsn, connect_timeout_s)
    what = f"connecting to {dsn}"
    parameters: dict[str, str | int | None] = {**dict(_KEEPALIVE), **dict(dsn.parameters)}
    pinned = " ".join(f"-c {name}={value}" for name, value in PINNED if name not in unpinned)
    parameters |= {
        "options": f"{dsn.get('options')} {pinned}".strip(),
        "client_encoding": "UTF8",
        "application_name": application_name,
        "replication": _REPLICATION[replication],
    }
    try:
        async with asyncio.timeout(connect_timeout_s):
            attempts = await conninfo.conninfo_attempts_async(parameters)
    except psycopg.Error as error:
        raise refused(what, Answer("", str(error)), dsn.names, dsn.secrets) from None
    except TimeoutError:
        raise TransientError(f"{what}: the name service gave no answer in {connect_timeout_s:g} s") from None
    failures: list[Answer] = []
    for attempt in attempts:
        outcome = await _in_time(_attempts(attempt), connect_timeout_s)
        if not isinstance(outcome, Answer):
            session = _session(outcome)
            version = session.server_version
            # A walsender without a database accepts no SQL.
            if replication == "physical" or await _pin_newer(session, what):
                return session
            newer = [f"-c {name}={value}" for name, value in _newer(version)]
            attempt["options"] = " ".join([str(attempt["options"]), *newer])
            outcome = await _in_time(
                _attempt(conninfo.make_conninfo("", **attempt).encode(), traced=True), connect_timeout_s
            )
            if not isinstance(outcome, Answer):
                return _session(outcome)
        failures.append(outcome)
    errors = [_refused(what, answer, dsn) for answer in failures]
    raise ([error for error in errors if isinstance(error, FatalError)] or errors)[-1]


async def _with_password(dsn: Dsn, timeout_s: float) -> Dsn:
    """Return the DSN with the password that its command prints. Raises as `await_output`."""
    command = Command("postgres.password_command", dsn.password_command, timeout_s)
    password = await await_output(command)
    others = tuple((name, value) for name, value in dsn.parameters if name != "password")
    return replace(dsn, parameters=(*others, ("password", password)))


def _refused(what: str, answer: Answer, dsn: Dsn) -> CdcdError:
    """Return the error for a failed attempt.

    A refused password of a command gives a transient error, because the command's next password may be accepted.
    """
    error = refused(what, answer, dsn.names, dsn.secrets)
    wrong = answer.sqlstate == "28P01" or "authentication failed" in answer.message
    if dsn.password_command and wrong:
        return TransientError(
            error.message,
            hint="The server refuses the password that postgres.password_command printed. Check that the command makes "
            "it for this host, port and role, and that the role may log in so (RDS and Aurora: GRANT rds_iam, and "
            "rds.iam_auth_for_replication = 1 for replication). cdcd runs the command again.",
        )
    return error


async def _attempt(info: bytes, *, traced: bool = False) -> pq.abc.PGconn | Answer:
    """Try one host and address: return the connection, or the server's answer if the attempt fails.

    With `traced`, the answer has the SQLSTATE. Tracing is not always on, because psycopg leaks the trace's FILE (a
    few kB) at each use.
    """
    pgconn: pq.abc.PGconn = pq.PGconn.connect_start(info)
    trace = os.memfd_create("cdcd-startup") if traced and hasattr(os, "memfd_create") else -1
    try:
        if trace >= 0:
            pgconn.trace(trace)
        status = pq.PollingStatus.FAILED
        while pgconn.status != pq.ConnStatus.BAD:
            status = pq.PollingStatus(pgconn.connect_poll())
            if status == pq.PollingStatus.READING:
                await await_socket(pgconn.socket, to_write=False)
            elif status == pq.PollingStatus.WRITING:
                await await_socket(pgconn.socket, to_write=True)
            else:
                break
        if trace >= 0:
            pgconn.untrace()
        if status == pq.PollingStatus.OK:
            pgconn.nonblocking = 1
            return pgconn
        codes = _TRACED_ERROR.findall(os.pread(trace, 1 << 20, 0)) if trace >= 0 else []
        answer = Answer(codes[-1].decode() if codes else "", pgconn.get_error_message())
    except BaseException:
        pgconn.finish()
        raise
    finally:
        if trace >= 0:
            os.close(trace)
    pgconn.finish()
    return answer


async def _attempts(parameters: dict[str, Any]) -> pq.abc.PGconn | Answer:
    """Connect to one address. Changes `client_encoding` of the parameters for a database that has no UTF8."""
    info = conninfo.make_conninfo("", **parameters).encode()
    outcome = await _attempt(info)
    if isinstance(outcome, Answer) and _NO_UTF8 in outcome.message:
        # The names of a catalog are usually ASCII. Readers of values receive them without conversion.
        parameters["client_encoding"] = "LATIN1"
        outcome = await _attempt(conninfo.make_conninfo("", **parameters).encode())
    if isinstance(outcome, Answer) and find_refusal(outcome) is UNKNOWN_TRANSIENT:
        outcome = await _attempt(info, traced=True)
    return outcome


async def _in_time(attempt: Awaitable[pq.abc.PGconn | Answer], timeout_s: float) -> pq.abc.PGconn | Answer:
    """Return the outcome of the attempt, or an answer that says that there was none in `timeout_s` seconds."""
    try:
        async with asyncio.timeout(timeout_s):
            return await attempt
    except TimeoutError:
        return Answer("", f"timeout expired: no answer in {timeout_s:g} s")


def _session(pgconn: pq.abc.PGconn) -> Session:
    return Session(pgconn, {"role": pgconn.user.decode(), "database": pgconn.db.decode()})


def _newer(server_version: int) -> list[tuple[str, str]]:
    return [(name, value) for since, name, value in PINNED_SINCE if server_version >= since]


async def _pin_newer(session: Session, what: str) -> bool:
    """Set what older servers do not know; return False, and close the session, if the session has ended already."""
    wanted = [f"SET {name} = {value}" for name, value in _newer(session.server_version)]
    if wanted:
        try:
            await session.query("; ".join(wanted), what)
        except (CdcdError, psycopg.Error):
            session.close()
            return False
        except BaseException:
            session.close()
            raise
    return True


async def connect(
    dsn: Dsn, *, application_name: str, connect_timeout_s: float = 10.0, unpinned: Collection[str] = ()
) -> Connection:
    """Open an autocommit SQL connection with pinned settings, except the settings in `unpinned`.

    Errors as `open_session`; the caller owes `close()`.
    """
    session = await open_session(
        dsn, application_name=application_name, connect_timeout_s=connect_timeout_s, unpinned=unpinned
    )
    connection: Connection = psycopg.AsyncConnection(session.hand_over())
    connection.cursor_factory = NamesCursor
    await connection.set_autocommit(True)
    # No server-side prepared statements, because each query here runs once or a few times and a pooler may
    # be in between.
    connection.prepare_threshold = None
    return connection


async def emit_message(connection: Connection, prefix: str, content: str) -> Lsn:
    """Write a transactional logical message, and return its position in the WAL.

    Raises TransientError and SourceError.
    """
    with translated("writing a logical message", {}):
        row: Any = await (
            await connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", (prefix, content))
        ).fetchone()
    return Lsn.parse(row[0])
