"""Findings of `cdcd check` about the rows that the next start reads: whether the role may read them, and how."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from cdcd.adapters.postgres.inspection import Barrier, Facts
from cdcd.core.pasted import quoted as identifier
from cdcd.telemetry.findings import NAMED_MAX, Finding, named
from cdcd.tools.checks.publication import listed


@dataclass(frozen=True, slots=True)
class Reading:
    """Tables that the next start reads, as `schema.table`.

    Attributes:
        beside: True if they are read beside the stream. False: they are read at the slot's exported snapshot.
        ends_rows: True if a truncate record can stand before the rows of a table without a key that is read beside the
            stream.
        outdated: tables that get a truncate record before they are read, because the slot was lost.
    """

    tables: frozenset[str] = field(default_factory=frozenset)
    beside: bool = False
    outdated: frozenset[str] = field(default_factory=frozenset)
    ends_rows: bool = False


def check_rows(facts: Facts, reading: Reading) -> Iterator[Finding]:
    """Check rights, policies and keys."""
    barriers = [one for one in facts.barriers if one.table in reading.tables]
    # "" is cdcd's own role.
    for each in dict.fromkeys(one.role for one in barriers):
        yield from _check_role([one for one in barriers if one.role == each], each or facts.session.role)
    keyless = sorted(
        table.qualified
        for table in facts.tables
        if reading.beside
        and not reading.ends_rows
        and (not table.has_key or table.qualified in facts.repeating)
        and table.qualified in reading.tables
    )
    if keyless:
        yield Finding(
            "error",
            "table.key",
            "rows to be read",
            "these tables have no primary key, or rows that share a key (key.columns). Beside the stream, such tables "
            "are read behind a truncate record, which topics.truncate or topics.skipped_operations leaves out: "
            f"{named(keyless)}",
            f"Add a primary key to {keyless[0]}, not a DEFERRABLE one; or write truncate records (topics.truncate: "
            f"true); or go on without the rows: snapshot.exclude: [{listed(keyless)}]",
        )
    if not (barriers or keyless):
        found = f"the next start reads {len(reading.tables)} tables" if reading.tables else "none"
        yield Finding("ok", "table.select", "rows to be read", found)
    yield from _check_watermark(facts, reading)
    others = sorted({one.table for one in facts.barriers if one.lacks_select} - reading.tables)
    if others:
        found = f"not granted on {named(others)}; streaming works without it"
        yield Finding("ok", "table.select", "SELECT", found)


def _check_role(barriers: Collection[Barrier], role: str) -> Iterator[Finding]:
    """Report what one role lacks."""
    unreadable = [one for one in barriers if one.lacks_select or one.lacks_usage]
    if unreadable:
        yield Finding(
            "error",
            "table.select",
            "rows to be read",
            f"role {role} may not SELECT from {named(_tables(unreadable))}",
            _grants(unreadable, identifier(role)),
        )
    hidden = [one for one in barriers if one.has_policy]
    if hidden:
        yield Finding(
            "error",
            "table.policy",
            "rows to be read",
            f"row-level security may hide rows from role {role}: {named(_tables(hidden))}",
            f"ALTER ROLE {identifier(role)} BYPASSRLS;",
        )


def _check_watermark(facts: Facts, reading: Reading) -> Iterator[Finding]:
    """Check the right to write a logical message after the rows that are read beside the stream."""
    function, role = facts.session.emit, facts.session.role
    if not function:
        return
    needed = reading.beside and reading.tables
    later = "; this start does not need it, but an interrupted snapshot and `cdcd snapshot` do"
    yield Finding(
        "error" if needed else "warning",
        "snapshot.watermark",
        "rows to be read",
        f"role {role} may not execute {function}, by which rows get their place in the stream"
        f"{'' if needed else later}",
        f"GRANT EXECUTE ON FUNCTION {function} TO {identifier(role)};",
    )


def _tables(barriers: Collection[Barrier]) -> list[str]:
    return list(dict.fromkeys(one.table for one in barriers))


def _column(name: str) -> str:
    return name if name == "ctid" else identifier(name)


def _grants(barriers: Collection[Barrier], role: str) -> str:
    """Return the commands that let the role read; for many tables of a schema, for all its tables."""
    commands = [
        f"GRANT USAGE ON SCHEMA {schema} TO {role};"
        for schema in dict.fromkeys(one.schema for one in barriers if one.lacks_usage)
    ]
    parts: dict[str, list[str]] = {}
    for one in barriers:
        if one.lacks_select and one.columns:
            columns = ", ".join(map(_column, one.columns))
            commands.append(f"GRANT SELECT ({columns}) ON {one.part} TO {role};")
        elif one.lacks_select:
            parts.setdefault(one.schema, []).append(one.part)
    for schema, names in parts.items():
        many = f"ALL TABLES IN SCHEMA {schema}" if len(names) > NAMED_MAX else ", ".join(names)
        commands.append(f"GRANT SELECT ON {many} TO {role};")
    return " ".join(commands)
