"""Number of decimal digits of the type money, under the database's default of lc_monetary.

The default comes from `ALTER DATABASE … SET`, or else from the server's configuration. A session without pinned
lc_monetary uses the default, unless the role or the DSN sets another value (guc.h: PGC_S_USER and PGC_S_CLIENT rank
above PGC_S_DATABASE). In that case cdcd reads the database's value from `pg_db_role_setting`, and the server's
value by a walsender without a database, which applies neither setting.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
from psycopg import sql

from cdcd.adapters.postgres.answers import translated
from cdcd.adapters.postgres.connection import Connection, Dsn, connect, open_session
from cdcd.core.catalog.money import DIGITS_OF_C
from cdcd.core.errors import CdcdError, ConfigError

HIDING: Final = ("user", "database user", "client")
"""Values of pg_settings.source that rank above the database's default."""

_IN_OPTIONS: Final = re.compile(r"(?i)(-c\s*|--)lc[_-]monetary=(\\.|\S)*")

_SHOWN: Final = "SELECT setting, source FROM pg_catalog.pg_settings WHERE name = 'lc_monetary'"
_DIGITS: Final = "SELECT scale(1::money::numeric)"

# A setting for all roles in this database ranks above a setting for all roles in all databases, whose
# setdatabase is 0.
_DEFAULT: Final = """
SELECT substr(entry, strpos(entry, '=') + 1)
  FROM pg_catalog.pg_db_role_setting, unnest(setconfig) AS entry
 WHERE setrole = 0 AND entry LIKE 'lc\\_monetary=%'
   AND setdatabase IN (0, (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()))
 ORDER BY setdatabase DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class MoneyLocale:
    """The server's settings for the type money.

    Attributes:
        name, digits: the database's default of lc_monetary, and its number of decimal digits. "" and None: the
            default is hidden from cdcd by the role's or the DSN's own setting.
        own, own_digits: lc_monetary of the role or the DSN, and its digits; "": neither sets lc_monetary.
        role: the role of the connection.
        is_usable: True if sessions with the default can read and write money. They cannot if the database's
            encoding lacks the character of the currency symbol (the euro in LATIN1). Then all money was written
            under another lc_monetary, and `digits` are the digits of C.
    """

    name: str
    digits: int | None
    own: str = ""
    own_digits: int = DIGITS_OF_C
    role: str = ""
    is_usable: bool = True


async def find_money_digits(
    dsn: Dsn, chosen: int | None, *, application_name: str, connect_timeout_s: float
) -> int:
    """Return the decimal digits of money: the configured number (`money.digits`), or else the database's.

    Raises:
        ConfigError: the server does not show the database's default.
        TransientError, SourceError: as `connect`.
    """
    if chosen is not None:
        return chosen
    found = await look_at_money(dsn, application_name=application_name, connect_timeout_s=connect_timeout_s)
    if found.digits is None:
        raise hidden(found)
    return found.digits


def hidden(found: MoneyLocale) -> ConfigError:
    """Return the error for a number of money digits that cdcd cannot find out."""
    return ConfigError(
        f"cdcd cannot see the database's default of lc_monetary, because the role {found.role} or postgres.dsn sets "
        f"lc_monetary to {found.own}. So the number of decimal digits of money is not known.",
        hint=f"{reset(found)} Or set money.digits to the number of digits that the currency has (Japan: 0, most: 2, "
        "Kuwait: 3).",
    )


def reset(found: MoneyLocale) -> str:
    """Return the command that removes the role's lc_monetary, so that cdcd sees the default.

    cdcd itself needs no such setting.
    """
    role = sql.Identifier(found.role).as_string(None)
    return f"Remove the setting: ALTER ROLE {role} RESET lc_monetary; (with IN DATABASE if it is set there)."


async def look_at_money(dsn: Dsn, *, application_name: str, connect_timeout_s: float) -> MoneyLocale:
    """Read the money settings from the server, without changing anything. Raises as `connect`."""
    options = _IN_OPTIONS.sub("", dsn.get("options")).strip()
    others = tuple((name, value) for name, value in dsn.parameters if name != "options")
    without = replace(dsn, parameters=(*others, ("options", options)) if options else others)
    connection = await connect(
        without,
        application_name=application_name,
        connect_timeout_s=connect_timeout_s,
        unpinned=("lc_monetary",),
    )
    try:
        with translated("asking for lc_monetary", dsn.names):
            name, source = await _one(connection, _SHOWN)
            digits = await _digits(connection)
            if source not in HIDING:
                return MoneyLocale(
                    name, DIGITS_OF_C if digits is None else digits, is_usable=digits is not None
                )
            found = MoneyLocale("", None, name, digits or 0, connection.info.user)
            row = await (await connection.execute(_DEFAULT.encode())).fetchone()
            if row is not None:
                of_database = str(row[0])
                default = await _digits_of(connection, of_database)
                # If the name in a session's startup options is invalid, the session uses the next lower
                # setting.
                if default is not None:
                    return replace(found, name=of_database, digits=default)
            of_server = await _of_server(without, application_name, connect_timeout_s)
            if of_server is None:
                return found
            return replace(found, name=of_server, digits=await _digits_of(connection, of_server))
    finally:
        await connection.close()


async def _one(connection: Connection, query: str) -> Any:
    return await (await connection.execute(query.encode())).fetchone()


async def _digits_of(connection: Connection, locale: str) -> int | None:
    """Return the digits under a locale; None if the server lacks the locale or cannot use it in this database."""
    try:
        await connection.execute(b"SELECT set_config('lc_monetary', %s, false)", (locale,))
    except (psycopg.errors.InvalidParameterValue, psycopg.errors.DataException):
        return None
    return await _digits(connection)


async def _digits(connection: Connection) -> int | None:
    """Return the digits in this session; None if the database's encoding lacks the currency symbol."""
    try:
        digits: int = (await _one(connection, _DIGITS))[0]
    except (psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire):
        return None
    return digits


async def _of_server(dsn: Dsn, application_name: str, connect_timeout_s: float) -> str | None:
    """Return the server's lc_monetary without the settings of databases and roles.

    None: the server refuses the connection for this query.
    """
    try:
        session = await open_session(
            dsn,
            application_name=application_name,
            connect_timeout_s=connect_timeout_s,
            replication="physical",
            unpinned=("lc_monetary",),
        )
    except CdcdError:
        return None
    try:
        *_, ((name,),) = await session.query("SHOW lc_monetary", "asking for lc_monetary")
    except CdcdError:
        return None
    finally:
        session.close()
    return name
