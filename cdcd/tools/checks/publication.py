"""Findings of `cdcd check` about the publication, its tables, and the rows that the next start reads."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from cdcd.adapters.postgres.barriers import Barrier
from cdcd.adapters.postgres.following import pasted, sql_name
from cdcd.adapters.postgres.inspection import ServerFacts, ServerWanted
from cdcd.adapters.postgres.publication import (
    OPERATIONS,
    PARTITION_ROOT,
    creation,
    creation_hint,
)
from cdcd.adapters.postgres.publication_history import TOO_YOUNG_HINT
from cdcd.core.catalog.routing import TopicNames, collisions
from cdcd.core.errors import CdcdError
from cdcd.core.pasted import quoted as identifier
from cdcd.core.table_names import split_table
from cdcd.telemetry.findings import NAMED_MAX, Finding, named, of_error


def listed(names: Sequence[str]) -> str:
    """Return names for a command: all of them, or the first ones and an ellipsis for the operator to fill in."""
    return ", ".join([*names[:NAMED_MAX], *["..."] * (len(names) > NAMED_MAX)])


def check_publication(facts: ServerFacts, wanted: ServerWanted) -> Iterator[Finding]:
    """Check the contents of the publication, or that it can be created."""
    publication = facts.publication
    if publication is None:
        yield from _missing_publication(facts, wanted)
        return
    name = f"publication {publication.name}"
    quoted = identifier(publication.name)
    scope = "all tables, those to come too" if publication.all_tables else f"{len(publication.tables)} tables"
    if publication.schemas:
        scope += f", schemas {', '.join(publication.schemas)} with all that is to come"
    if not publication.tables:
        yield Finding(
            "warning",
            "publication.state",
            name,
            "publishes no table, so no change arrives",
            f"ALTER PUBLICATION {quoted} ADD TABLE ...;",
        )
    else:
        found = f"{scope}: {named([table.qualified for table in publication.tables])}"
        yield Finding("ok", "publication.state", name, found)
    if facts.too_young is not None:
        yield of_error("publication.age", name, facts.too_young)
    missing = [operation for operation in OPERATIONS if operation not in publication.operations]
    if missing:
        yield Finding(
            "warning",
            "publication.operations",
            name,
            f"does not publish {', '.join(missing)}: consumers do not get these operations",
            f"ALTER PUBLICATION {quoted} SET (publish = '{', '.join(OPERATIONS)}');",
        )
    for what, tables in (
        ("a row filter", [table for table in publication.tables if table.row_filter]),
        ("a column list", [table for table in publication.tables if table.columns]),
    ):
        if tables:
            found = f"{what} leaves a part out: {named([table.qualified for table in tables])}"
            yield Finding("ok", "publication.part", name, found)


def _missing_publication(facts: ServerFacts, wanted: ServerWanted) -> Iterator[Finding]:
    name = f"publication {wanted.publication}"
    session = facts.session
    by_hand = creation_hint(wanted.publication, facts.target, via_root=bool(facts.partitioned))
    why = ""
    if isinstance(facts.matched, CdcdError):
        yield of_error("publication.state", name, facts.matched)
        return
    if not session.superuser:
        if wanted.tables is None:
            why = "only a superuser may create it for all tables"
        elif facts.foreign:
            why = f"role {session.role} does not own {named(sorted(facts.foreign))}"
        elif not session.may_create:
            why = f"role {session.role} may not create it"
        if why and not session.may_create and "may not create it" not in why:
            why += f"; role {session.role} may not create it"
    if facts.slot is not None and facts.slot.confirmed_flush_lsn is not None:
        yield Finding(
            "warning",
            "publication.age",
            name,
            f"is missing, and slot {facts.slot.name} is there. PostgreSQL cannot decode changes that were written "
            "while there was no publication",
            f"If its tables were written to meanwhile: {TOO_YOUNG_HINT}",
        )
    if why:
        yield Finding("error", "publication.state", name, f"is missing, and {why}", by_hand)
        return
    tables = [table.qualified for table in facts.sent]
    scope = "all tables" if wanted.tables is None else named(tables)
    yield Finding("ok", "publication.state", name, f"will be created for {scope}")


def check_patterns(facts: ServerFacts, wanted: ServerWanted) -> Iterator[Finding]:
    """Report how the publication differs from the configured tables, and who must change that."""
    publication = facts.publication
    if publication is None or not wanted.desired.is_stated:
        return
    name = f"publication {publication.name}"
    key = "postgres.tables" if wanted.tables is not None else "tables.include"
    found = facts.differences
    lacking = [*[table.qualified for table in found.lacking], *found.absent]
    problem = _check_changes(facts, wanted, name)
    may = wanted.changes != "never" and problem is None
    if problem is not None:
        yield problem
    if lacking:
        changes_rows = bool({"update", "delete"} & set(publication.operations))
        statement = pasted(publication.name, found.lacking, (), changes_rows=changes_rows)
        unnamed = [table for table in found.lacking if changes_rows and not table.has_identity]
        keyless = (
            f" Do not publish {named([table.qualified for table in unnamed])} without the ALTER TABLE: there is no "
            "primary key, so PostgreSQL would reject UPDATE and DELETE."
            if unnamed
            else ""
        )
        yield Finding(
            "warning",
            "publication.tables",
            name,
            f"lacks tables that {key} names, so their changes are not sent: {named(lacking)}",
            f"{statement or 'Create the tables,'} or take them out of {key}.{keyless}"
            if not may or unnamed or found.absent
            else "cdcd run adds them (postgres.publication_changes).",
        )
    if found.extra:
        listed = facts.listed.members if facts.listed else frozenset()
        members = [table for table in found.extra if table.oid in listed]
        remove = pasted(publication.name, (), members)
        if publication.all_tables:
            remove = f"Take {key} out of the configuration: the publication is for all tables,"
        elif not members:
            remove = (
                "Take their schemas out of the publication (ALTER PUBLICATION ... DROP TABLES IN SCHEMA),"
            )
        yield Finding(
            "warning",
            "publication.tables",
            name,
            f"has tables that {key} does not name; their changes are still sent: "
            f"{named([table.qualified for table in found.extra])}",
            "cdcd run drops them (postgres.publication_changes)."
            if may and len(members) == len(found.extra)
            else f"{remove} or add them to {key}.",
        )


def _check_changes(facts: ServerFacts, wanted: ServerWanted, name: str) -> Finding | None:
    """Return why cdcd cannot change the publication although `postgres.publication_changes` allows
    it; None if it can.
    """
    listed, role = facts.listed, facts.session.role
    if wanted.changes == "never" or listed is None:
        return None
    if listed.all_tables:
        found = f"is for all tables, so postgres.publication_changes: {wanted.changes} changes nothing"
        fix = "Set postgres.publication_changes: never. tables.exclude leaves tables out of the pipeline."
    elif wanted.changes == "owner" and not listed.is_owned:
        found = f"role {role} does not own it, so cdcd cannot change it"
        fix = f"ALTER PUBLICATION {identifier(wanted.publication)} OWNER TO {identifier(role)};"
    elif wanted.changes == "function" and facts.function_problem:
        found = f"cannot be changed: {facts.function_problem}"
        fix = "Let a DBA run deploy/sql/follow.sql; its first lines say how."
    else:
        return None
    return Finding("warning", "publication.changes", name, found, fix)


def check_selection(facts: ServerFacts, wanted: ServerWanted) -> Iterator[Finding]:
    """Report which published tables `tables.include` and `tables.exclude` leave to the pipeline."""
    selection = wanted.selection
    if selection.is_all or not facts.sent:
        return
    count, left = len(facts.left_out), len(facts.tables)
    names = [table.qualified for table in facts.sent]
    if not left:
        yield Finding(
            "warning",
            "tables.left_out",
            "tables",
            "tables.include and tables.exclude leave out every published table, so no change arrives",
            "Correct the patterns.",
        )
    else:
        which = f": {named(sorted(facts.left_out))}" if count else ""
        yield Finding(
            "ok",
            "tables.left_out",
            "tables",
            f"the pipeline has {left} of {len(names)} published tables, and leaves out {count}{which}",
        )
    for pattern in selection.unmatched(names):
        yield Finding(
            "warning",
            "tables.unmatched",
            "tables",
            f"{pattern} matches no published table",
            "Correct the pattern, or take it out: <schema>.<table> as PostgreSQL spells them, case included.",
        )


def check_partitions(facts: ServerFacts, wanted: ServerWanted) -> Iterator[Finding]:
    """Report before the first start how partitioned tables are published, because this decides the topics' names."""
    publication = facts.publication
    if publication is not None and publication.via_root:
        return
    roots = sorted({*(table.root for table in facts.tables if table.root), *facts.partitioned})
    if not roots or (publication is None and facts.slot is not None):
        # A publication that is created again follows the checkpoint.
        return
    subject = f"publication {wanted.publication}"
    found = (
        f"without {PARTITION_ROOT.split(' ', 1)[0]}, each partition has a topic of its own: {named(roots)}"
    )
    if facts.slot is not None:
        # The start compares this with the checkpoint. Older checkpoints lack the data: `check_root_topics`.
        yield Finding("ok", "publication.partitions", subject, found)
        return
    command = (
        creation(wanted.publication, facts.target, via_root=True)
        if publication is None
        else f"ALTER PUBLICATION {identifier(publication.name)} SET ({PARTITION_ROOT})"
    )
    yield Finding(
        "warning",
        "publication.partitions",
        subject,
        f"{found}. A row that moves to another partition is a delete in one topic and an insert in another.",
        f"For one topic for each partitioned table, before the first start: {command};",
    )


def check_root_topics(facts: ServerFacts, wanted: TopicNames, topics: Collection[str]) -> Iterator[Finding]:
    """Find topics of partitioned tables that receive nothing, because the publication publishes partitions.

    Args:
        topics: all topics that exist in Kafka.
    """
    publication = facts.publication
    if publication is None or publication.via_root or facts.slot is None:
        return
    for root in sorted({table.root for table in facts.tables if table.root}):
        there = sorted({*wanted.all_of(*split_table(root))}.intersection(topics))
        if there:
            yield Finding(
                "warning",
                "publication.partitions",
                f"topic {there[0]}",
                f"it is the topic of the partitioned table {root}, and receives nothing: publication "
                f"{publication.name} publishes each partition into a topic of its own",
                f"If the pipeline delivered {root} as a whole: ALTER PUBLICATION {identifier(publication.name)} SET "
                f"({PARTITION_ROOT});",
            )


def check_identities(facts: ServerFacts, _: ServerWanted) -> Iterator[Finding]:
    """Check the REPLICA IDENTITY of published tables."""
    operations = facts.publication.operations if facts.publication else OPERATIONS
    changing = [operation.upper() for operation in ("update", "delete") if operation in operations]
    unnamed = [table for table in facts.sent if not table.has_identity]
    if unnamed and changing:
        fixes = [f"ALTER TABLE {sql_name(table)} REPLICA IDENTITY FULL;" for table in unnamed[:2]]
        yield Finding(
            "warning",
            "table.identity",
            "replica identity",
            f"no primary key, so PostgreSQL rejects {' and '.join(changing)} on these tables while they are published: "
            f"{named([table.qualified for table in unnamed])}",
            f"Add a primary key, or: {' '.join(fixes)}{' ...' if len(unnamed) > len(fixes) else ''}",
        )
    full = [table for table in facts.sent if table.replica_identity == "f"]
    if full:
        found = f"FULL, whole old rows are written to the WAL: {named([table.qualified for table in full])}"
        yield Finding("ok", "table.identity", "replica identity", found)
    if facts.sent and not unnamed and not full:
        yield Finding("ok", "table.identity", "replica identity", "every published table has one")


def check_topic_names(facts: ServerFacts, wanted: ServerWanted) -> Iterator[Finding]:
    """Check that each table has a topic that Kafka allows and that no other table uses."""
    for error in collisions([(table.schema, table.name) for table in facts.tables], wanted.topics):
        yield of_error("topic.name", "topic names", error)


@dataclass(frozen=True, slots=True)
class StartReading:
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


def check_rows(facts: ServerFacts, reading: StartReading) -> Iterator[Finding]:
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
            "these tables have no primary key, or rows that share a key (key.columns). Beside the stream, cdcd can "
            "read such tables only with a truncate record, which topics.truncate or topics.skipped_operations turns "
            "off: "
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


def _check_watermark(facts: ServerFacts, reading: StartReading) -> Iterator[Finding]:
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
