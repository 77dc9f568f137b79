"""Each check of `cdcd check` on PostgreSQL's side, over facts made up for it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import pytest

from cdcd.adapters.postgres.following import Listed, PublicationDifferences
from cdcd.adapters.postgres.inspection import InspectedSession, ServerFacts, ServerWanted, Setting
from cdcd.adapters.postgres.publication import OPERATIONS, Publication, PublishedTable
from cdcd.adapters.postgres.publication_history import too_young
from cdcd.adapters.postgres.slot import SlotState
from cdcd.core.catalog.patterns import TableSelection
from cdcd.core.catalog.routing import TopicNames
from cdcd.core.errors import CdcdError, SourceError
from cdcd.telemetry.findings import Finding
from cdcd.tools.checks import postgres as preflight
from cdcd.tools.checks import publication, slot

Check = Callable[[ServerFacts, ServerWanted], Iterator[Finding]]

ORDERS = PublishedTable(1, "public", "orders", "d", has_identity=True, has_primary_key=True)
PLAIN = PublishedTable(2, "public", "plain", "d", has_identity=False, has_primary_key=False)

PUBLICATION = Publication("p", False, (), OPERATIONS, False, (ORDERS,))

SLOT = SlotState(
    "s", "pgoutput", "shop", False, False, None, 16, 16, "reserved", None, False, False, "", 5 << 20, 32
)

SETTINGS = {
    "wal_level": Setting("logical", 0, ""),
    "max_replication_slots": Setting("10", 10, ""),
    "max_wal_senders": Setting("10", 10, ""),
    "max_slot_wal_keep_size": Setting("100GB", 102400, "MB"),
    "wal_sender_timeout": Setting("1min", 60000, "ms"),
    "max_prepared_transactions": Setting("0", 0, ""),
    "logical_decoding_work_mem": Setting("64MB", 65536, "kB"),
    "synchronous_standby_names": Setting("", 0, ""),
}

FACTS = ServerFacts(
    server_version=180000,
    session=InspectedSession("cdcd", "shop", "18.0", False, True, False, "UTF8", 3, 3, ()),
    settings=SETTINGS,
    walsender_refusal=None,
    slot=SLOT,
    slot_reader="",
    publication=PUBLICATION,
    matched=(),
    foreign=frozenset(),
    barriers=(),
)

WANTED = ServerWanted("s", "p", ("public.*",), TopicNames("shop"), pipeline="shop")


def with_setting(**settings: Setting) -> ServerFacts:
    return replace(FACTS, settings={**SETTINGS, **settings})


def with_session(**fields: Any) -> ServerFacts:
    return replace(FACTS, session=replace(FACTS.session, **fields))


def with_publication(**fields: Any) -> ServerFacts:
    return replace(FACTS, publication=replace(PUBLICATION, **fields))


def without_publication(
    matched: "tuple[PublishedTable, ...] | CdcdError" = (ORDERS,), **fields: Any
) -> ServerFacts:
    return replace(with_session(**fields), publication=None, matched=matched, slot=None)


def with_slot(**fields: Any) -> ServerFacts:
    return replace(FACTS, slot=replace(SLOT, **fields))


def test_a_server_in_order_has_no_warning_and_no_error() -> None:
    findings = [finding for check in preflight.CHECKS for finding in check(FACTS, WANTED)]
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert findings[0].found == "PostgreSQL 18.0: protocol version 4, streaming parallel"


@pytest.mark.parametrize(
    ("check", "facts", "wanted", "level", "says"),
    [
        (preflight.check_server, replace(FACTS, server_version=120000), WANTED, "error", "too old"),
        (
            preflight.check_server,
            replace(FACTS, server_version=150000),
            replace(WANTED, protocol=4),
            "error",
            "protocol: 4",
        ),
        (preflight.check_server, with_session(in_recovery=True), WANTED, "error", "standby"),
        (preflight.check_server, with_session(encoding="SQL_ASCII"), WANTED, "warning", "SQL_ASCII"),
        (
            preflight.check_privileges,
            replace(FACTS, walsender_refusal=SourceError("permission denied", hint="ALTER ROLE")),
            WANTED,
            "error",
            "permission denied",
        ),
        (
            preflight.check_wal_level,
            with_setting(wal_level=Setting("replica", 0, "")),
            WANTED,
            "error",
            "replica",
        ),
        (preflight.check_capacity, replace(with_session(slots=10), slot=None), WANTED, "error", "10 of 10"),
        (preflight.check_capacity, with_session(senders=10), WANTED, "error", "10 of 10"),
        (
            preflight.check_wal_level,
            with_setting(wal_level=Setting("replica", 0, "", restart_pending=True)),
            WANTED,
            "error",
            "takes effect after a restart of PostgreSQL",
        ),
        (
            preflight.check_capacity,
            replace(
                with_setting(max_wal_senders=Setting("10", 10, "", restart_pending=True)),
                session=replace(FACTS.session, senders=10),
            ),
            WANTED,
            "error",
            "takes effect after a restart of PostgreSQL",
        ),
        (
            preflight.check_connections,
            with_session(role_limit=4, role_connections=2),
            WANTED,
            "error",
            "CONNECTION LIMIT 4, of which 2 are in use; cdcd opens up to 3",
        ),
        (
            preflight.check_connections,
            # Before 18, a walsender is counted too.
            replace(with_session(database_limit=4, database_connections=1), server_version=170000),
            WANTED,
            "error",
            "CONNECTION LIMIT 4, of which 1 are in use; cdcd opens up to 4",
        ),
        (publication.check_publication, with_publication(tables=()), WANTED, "warning", "no table"),
        (
            publication.check_publication,
            with_publication(operations=("insert",)),
            WANTED,
            "warning",
            "update, delete, truncate",
        ),
        (
            publication.check_publication,
            without_publication(may_create=False),
            WANTED,
            "error",
            "role cdcd may not create it",
        ),
        (
            publication.check_publication,
            without_publication(),
            replace(WANTED, tables=None),
            "error",
            "superuser",
        ),
        (
            publication.check_publication,
            without_publication(SourceError("no table matches", hint="Create it.")),
            WANTED,
            "error",
            "no table",
        ),
        (
            publication.check_publication,
            replace(without_publication(), foreign=frozenset({"public.orders"})),
            WANTED,
            "error",
            "does not own public.orders",
        ),
        (
            publication.check_identities,
            with_publication(tables=(ORDERS, PLAIN)),
            WANTED,
            "warning",
            "public.plain",
        ),
        (publication.check_identities, without_publication((PLAIN,)), WANTED, "warning", "UPDATE and DELETE"),
        (
            publication.check_selection,
            replace(with_publication(tables=(ORDERS,)), left_out=(ORDERS.qualified,)),
            replace(WANTED, selection=TableSelection(None, ("*.*",))),
            "warning",
            "leave out every published table",
        ),
        (
            publication.check_selection,
            with_publication(tables=(ORDERS,)),
            replace(WANTED, selection=TableSelection(None, ("public.lgo",))),
            "warning",
            "public.lgo matches no published table",
        ),
        (
            publication.check_topic_names,
            with_publication(
                tables=(replace(ORDERS, schema="a_b", name="c"), replace(PLAIN, schema="a", name="b_c"))
            ),
            WANTED,
            "error",
            "collides",
        ),
        (
            publication.check_topic_names,
            with_publication(tables=(replace(ORDERS, schema="a", name="dead.letter"),)),
            replace(WANTED, topics=TopicNames("shop", dead_letter="shop.a.dead_letter")),
            "error",
            "too large",
        ),
        (slot.check_slot_state, with_slot(plugin="wal2json"), WANTED, "error", "wal2json"),
        (
            slot.check_slot_state,
            with_slot(invalidation_reason="wal_removed"),
            WANTED,
            "error",
            "invalidated",
        ),
        (
            slot.check_slot_state,
            with_slot(invalidation_reason="wal_removed"),
            replace(WANTED, when_needed=True),
            "warning",
            "reads the tables again",
        ),
        (
            slot.check_slot_state,
            with_slot(wal_status="lost"),
            replace(WANTED, when_needed=True),
            "warning",
            "has removed WAL",
        ),
        (
            slot.check_slot_state,
            with_slot(wal_status="unreserved"),
            replace(WANTED, when_needed=True),
            "error",
            "unreserved",
        ),
        (slot.check_slot_state, with_slot(wal_status="unreserved"), WANTED, "error", "unreserved"),
        (
            slot.check_slot_state,
            replace(with_slot(two_phase=True), server_version=170000),
            WANTED,
            "warning",
            "PREPARE, whatever",
        ),
        (
            slot.check_slot_state,
            replace(with_session(open_transactions=("session 7", "prepared transaction x")), slot=None),
            WANTED,
            "warning",
            "session 7, prepared transaction x",
        ),
        (
            slot.check_retention,
            replace(with_setting(max_slot_wal_keep_size=Setting("-1", -1, "MB")), slot=None),
            WANTED,
            "warning",
            "unlimited",
        ),
        (
            slot.check_retention,
            with_setting(max_slot_wal_keep_size=Setting("64MB", 64, "MB")),
            WANTED,
            "warning",
            "64MB",
        ),
        (
            slot.check_retention,
            with_setting(idle_replication_slot_timeout=Setting("1d", 86400, "s")),
            WANTED,
            "warning",
            "1d",
        ),
        (
            preflight.check_timeouts,
            with_setting(wal_sender_timeout=Setting("0", 0, "ms")),
            WANTED,
            "warning",
            "off",
        ),
        (
            preflight.check_transactions,
            FACTS,
            replace(WANTED, two_phase=True),
            "warning",
            "no prepared transactions",
        ),
        (
            preflight.check_signals,
            with_session(superuser=True),
            replace(WANTED, signals="all"),
            "warning",
            "evaluate an expression as superuser",
        ),
        (
            preflight.check_synchronous,
            with_setting(synchronous_standby_names=Setting("ANY 1 (*)", 0, "")),
            WANTED,
            "warning",
            "wait until Kafka",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_fix(
    check: Check, facts: ServerFacts, wanted: ServerWanted, level: str, says: str
) -> None:
    found = [finding for finding in check(facts, wanted) if finding.level != "ok"]
    assert [finding.level for finding in found] == [level]
    assert says in found[0].found
    assert found[0].fix


def test_a_missing_publication_that_can_be_made_is_announced() -> None:
    (finding,) = publication.check_publication(without_publication(), WANTED)
    assert (finding.level, finding.found) == ("ok", "will be created for public.orders")
    (finding,) = publication.check_publication(
        without_publication((), superuser=True), replace(WANTED, tables=None)
    )
    assert (finding.level, finding.found) == ("ok", "will be created for all tables")


def test_inserts_alone_need_no_replica_identity() -> None:
    facts = with_publication(tables=(PLAIN,), operations=("insert", "truncate"))
    assert [finding.level for finding in publication.check_identities(facts, WANTED)] == []


def test_the_slots_reader_and_its_wal_are_told() -> None:
    facts = replace(with_slot(active=True, active_pid=42, retained_bytes=3 << 30), slot_reader="shop")
    (finding,) = slot.check_slot_state(facts, WANTED)
    assert (finding.level, finding.found) == ("ok", "read by shop (PID 42); keeps 3 GB of WAL (reserved)")
    (finding,) = slot.check_slot_state(replace(facts, slot_reader="psql"), WANTED)
    assert finding.level == "error"
    assert "pg_terminate_backend(42)" in finding.fix


def test_a_short_server_timeout_shortens_our_interval() -> None:
    (finding,) = preflight.check_timeouts(with_setting(wal_sender_timeout=Setting("9s", 9000, "ms")), WANTED)
    assert (finding.level, "every 3 s" in finding.found) == ("ok", True)


def test_long_lists_are_cut() -> None:
    tables = tuple(replace(ORDERS, oid=number, name=f"t{number}") for number in range(100))
    (finding,) = publication.check_publication(with_publication(tables=tables), WANTED)
    assert finding.found.startswith("100 tables: ")
    assert finding.found.endswith("and 92 more")


@pytest.mark.parametrize(
    ("streaming", "is_set", "found"),
    [
        ("auto", False, "8MB for the stream; a transaction beyond that is streamed while it is open"),
        ("auto", True, "64MB; a transaction beyond that is streamed while it is open"),
        ("off", False, "64MB; a transaction beyond that is spilled to the server's disk until its commit"),
    ],
)
def test_the_memory_of_the_decoding_is_shown_as_the_stream_will_have_it(
    streaming: Any, is_set: bool, found: str
) -> None:
    facts = with_setting(logical_decoding_work_mem=Setting("64MB", 65536, "kB", is_set))
    _, memory = preflight.check_transactions(facts, replace(WANTED, streaming=streaming, two_phase=True))
    assert memory.found == found


def test_the_one_cure_of_a_publication_that_this_role_may_not_create_is_the_command() -> None:
    facts = replace(
        without_publication(may_create=False),
        foreign=frozenset({"public.orders"}),
        target='TABLE "public"."orders"',
    )
    (finding,) = publication.check_publication(facts, WANTED)
    assert "does not own public.orders; role cdcd may not create it" in finding.found
    assert 'CREATE PUBLICATION "p" FOR TABLE "public"."orders";' in finding.fix
    # A partitioned table keeps its topic.
    (finding,) = publication.check_publication(replace(facts, partitioned=("public.orders",)), WANTED)
    assert (
        'CREATE PUBLICATION "p" FOR TABLE "public"."orders" WITH (publish_via_partition_root = true);'
        in finding.fix
    )
    assert "GRANT" not in finding.fix


LEAF = replace(ORDERS, oid=7, name="orders_2025", root="public.orders")


@pytest.mark.parametrize(
    ("facts", "level", "command"),
    [
        (
            replace(with_publication(tables=(LEAF,)), slot=None),
            "warning",
            'ALTER PUBLICATION "p" SET (publish_via_partition_root = true);',
        ),
        (
            replace(without_publication(), slot=None, partitioned=("public.orders",)),
            "warning",
            'CREATE PUBLICATION "p" FOR ALL TABLES WITH (publish_via_partition_root = true);',
        ),
        # Whoever has a slot has decided.
        (with_publication(tables=(LEAF,)), "ok", ""),
    ],
)
def test_partitions_with_topics_of_their_own_are_told_before_the_first_start(
    facts: ServerFacts, level: str, command: str
) -> None:
    (finding,) = publication.check_partitions(facts, WANTED)
    assert (finding.level, finding.code) == (level, "publication.partitions")
    assert "public.orders" in finding.found
    assert command in finding.fix


def test_partitions_under_one_topic_are_nothing_to_tell() -> None:
    assert not list(publication.check_partitions(with_publication(via_root=True), WANTED))
    assert not list(publication.check_partitions(FACTS, WANTED))
    # A publication that cdcd makes for a pipeline that has delivered before follows the checkpoint.
    without = replace(without_publication(), slot=SLOT, partitioned=("public.orders",))
    assert not list(publication.check_partitions(without, WANTED))


def test_a_topic_of_a_partitioned_table_that_receives_nothing_is_a_warning() -> None:
    """A slot means that consumers depend on the names of the topics."""
    leaves = with_publication(tables=(LEAF,))
    root, leaf = (next(iter(WANTED.topics.all_of("public", name))) for name in ("orders", "orders_2025"))
    (finding,) = publication.check_root_topics(leaves, WANTED.topics, {root, leaf})
    assert (finding.level, finding.code) == ("warning", "publication.partitions")
    assert root in finding.subject
    assert 'ALTER PUBLICATION "p" SET (publish_via_partition_root = true);' in finding.fix
    for facts, topics in (
        (leaves, {leaf}),
        (replace(leaves, slot=None), {root}),
        (with_publication(tables=(LEAF,), via_root=True), {root}),
    ):
        assert not list(publication.check_root_topics(facts, WANTED.topics, topics))


def test_a_publication_that_the_slot_cannot_be_read_by_is_an_error() -> None:
    found = list(publication.check_publication(replace(FACTS, too_young=too_young("p", "cdcd")), WANTED))
    (finding,) = [one for one in found if one.level == "error"]
    assert finding.code == "publication.age"
    assert "cdcd reset --yes" in finding.fix


def test_a_publication_that_is_missing_beside_a_slot_says_what_creating_it_cannot_mend() -> None:
    found = list(publication.check_publication(replace(without_publication(), slot=SLOT), WANTED))
    assert (found[0].level, found[0].code) == ("warning", "publication.age")
    assert "cdcd reset --yes" in found[0].fix


def test_a_publication_that_differs_from_the_configured_tables_is_told_with_the_command() -> None:
    facts = differing(all_tables=False, is_owned=True)
    lacking, extra = publication.check_patterns(facts, WANTED)
    assert (lacking.level, extra.level) == ("warning", "warning")
    assert 'ALTER PUBLICATION "p" ADD TABLE ONLY "public"."plain";' in lacking.fix
    assert 'ALTER PUBLICATION "p" DROP TABLE ONLY "public"."orders";' in extra.fix
    assert not list(publication.check_patterns(facts, replace(WANTED, tables=None)))
    assert not list(publication.check_patterns(FACTS, WANTED))


def test_replica_is_enough_where_the_server_has_an_effective_wal_level() -> None:
    """PostgreSQL 19 writes what logical decoding needs as soon as a logical slot is created."""
    facts = with_setting(
        wal_level=Setting("replica", 0, ""), effective_wal_level=Setting("replica", 0, "", is_set=False)
    )
    (finding,) = preflight.check_wal_level(facts, WANTED)
    assert finding.level == "ok"
    minimal = with_setting(wal_level=Setting("minimal", 0, ""), effective_wal_level=Setting("minimal", 0, ""))
    (finding,) = preflight.check_wal_level(minimal, WANTED)
    assert finding.level == "error"


def differing(*, all_tables: bool, is_owned: bool) -> ServerFacts:
    """A publication that has orders, and should have a table with a key in its place."""
    lacking = replace(PLAIN, has_identity=True)
    listed = Listed(
        all_tables, is_owned, changes_rows=True, members=frozenset({ORDERS.oid}), of_schemas=frozenset()
    )
    return replace(FACTS, differences=PublicationDifferences((lacking,), (ORDERS,)), listed=listed)


def test_differences_that_cdcd_will_settle_itself_need_no_statement() -> None:
    wanted = replace(WANTED, changes="owner")
    for finding in publication.check_patterns(differing(all_tables=False, is_owned=True), wanted):
        assert finding.code == "publication.tables"
        assert finding.fix.startswith("cdcd run ")


def test_the_fix_for_a_missing_table_without_a_key_does_not_break_its_updates() -> None:
    facts = replace(
        differing(all_tables=False, is_owned=True), differences=PublicationDifferences((PLAIN,), ())
    )
    (finding,) = publication.check_patterns(facts, WANTED)
    assert finding.fix.startswith(
        'ALTER TABLE "public"."plain" REPLICA IDENTITY FULL; ALTER PUBLICATION "p" ADD TABLE ONLY '
    )
    assert "Do not publish public.plain without the ALTER TABLE" in finding.fix


@pytest.mark.parametrize(
    ("changes", "all_tables", "is_owned", "function_problem", "found", "fix"),
    [
        ("owner", True, True, "", "is for all tables", "publication_changes: never"),
        ("owner", False, False, "", "does not own it", "OWNER TO"),
        ("function", False, False, "there is no function", "there is no function", "follow.sql"),
    ],
)
def test_check_says_why_cdcd_cannot_change_the_publication(
    *,
    changes: Literal["owner", "function"],
    all_tables: bool,
    is_owned: bool,
    function_problem: str,
    found: str,
    fix: str,
) -> None:
    facts = replace(differing(all_tables=all_tables, is_owned=is_owned), function_problem=function_problem)
    why, *others = publication.check_patterns(facts, replace(WANTED, changes=changes))
    assert (why.level, why.code) == ("warning", "publication.changes")
    assert found in why.found
    assert fix in why.fix
    # The statements are still there, for a person.
    assert any("ALTER PUBLICATION" in other.fix for other in others)


def test_unlimited_wal_is_a_warning_until_the_slot_is_there_and_where_it_keeps_much() -> None:
    facts = with_setting(max_slot_wal_keep_size=Setting("-1", -1, "MB"))
    levels = {
        retained: [
            one.level
            for one in slot.check_retention(
                replace(facts, slot=replace(SLOT, retained_bytes=retained)), WANTED
            )
        ]
        for retained in (1 << 20, 1 << 31)
    }
    assert levels == {1 << 20: ["ok"], 1 << 31: ["warning"]}


def test_connections_of_an_instance_that_is_active_are_not_asked_for_again() -> None:
    crowded = replace(with_session(role_limit=3, role_connections=3), active="shop")
    assert list(preflight.check_connections(crowded, WANTED)) == []
    (finding,) = preflight.check_connections(with_session(role_limit=5, role_connections=2), WANTED)
    assert finding.level == "ok"


def test_what_the_pipeline_leaves_out_is_counted_and_named() -> None:
    facts = replace(with_publication(tables=(ORDERS, PLAIN)), left_out=(PLAIN.qualified,))
    wanted = replace(WANTED, selection=TableSelection(None, (PLAIN.qualified,)))
    (finding,) = publication.check_selection(facts, wanted)
    assert (finding.level, finding.code) == ("ok", "tables.left_out")
    assert finding.found == f"the pipeline has 1 of 2 published tables, and leaves out 1: {PLAIN.qualified}"
    assert facts.tables == (ORDERS,)
    assert list(publication.check_selection(facts, WANTED)) == []


@pytest.mark.parametrize(
    ("version", "wanted"),
    [
        (130015, "13.16"),
        (130016, ""),
        (140012, "14.13"),
        (150007, "15.8"),
        (160003, "16.4"),
        (160004, ""),
        (170000, ""),
        (180004, ""),
    ],
)
def test_a_minor_version_that_would_read_a_view_in_place_of_a_table_is_told(version: int, wanted: str):
    found = list(preflight.check_minor(replace(FACTS, server_version=version), WANTED))
    assert [(one.level, one.code) for one in found] == ([("warning", "server.minor")] if wanted else [])
    assert all(f"Update PostgreSQL to {wanted} " in one.fix for one in found)
