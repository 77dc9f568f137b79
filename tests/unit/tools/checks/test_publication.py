"""What is said of the rows that the next start reads, over facts made up for it."""

from dataclasses import replace

import pytest

from cdcd.adapters.postgres.barriers import Barrier
from cdcd.adapters.postgres.inspection import ServerFacts
from cdcd.telemetry.findings import Finding
from cdcd.tools.checks.publication import StartReading, check_rows
from tests.unit.tools.checks.test_postgres import FACTS, ORDERS, PLAIN, with_publication

ALL = StartReading(frozenset({"public.orders", "public.plain"}))


def barrier(
    name: str = "orders", *, usage: bool = False, select: bool = False, policy: bool = False
) -> Barrier:
    return Barrier(f"public.{name}", "public", f"public.{name}", usage, select, policy)


def with_barriers(*barriers: Barrier) -> ServerFacts:
    return replace(with_publication(tables=(ORDERS, replace(PLAIN, has_key=False))), barriers=barriers)


def found(facts: ServerFacts, reading: StartReading) -> list[Finding]:
    return [one for one in check_rows(facts, reading) if one.level != "ok"]


@pytest.mark.parametrize(
    ("one", "code", "fix"),
    [
        (barrier(select=True), "table.select", 'GRANT SELECT ON public.orders TO "cdcd";'),
        (
            barrier(usage=True, select=True),
            "table.select",
            'GRANT USAGE ON SCHEMA public TO "cdcd"; GRANT SELECT ON public.orders TO "cdcd";',
        ),
        (barrier(policy=True), "table.policy", 'ALTER ROLE "cdcd" BYPASSRLS;'),
    ],
)
def test_a_missing_right_is_an_error_with_its_command_only_where_rows_are_read(
    one: Barrier, code: str, fix: str
) -> None:
    (finding,) = found(with_barriers(one), ALL)
    assert (finding.level, finding.code, finding.fix) == ("error", code, fix)
    assert "public.orders" in finding.found
    assert found(with_barriers(one), StartReading()) == []


def test_of_a_schema_with_many_such_tables_the_command_is_for_all_of_them() -> None:
    names = [f"t{number}" for number in range(300)]
    facts = with_barriers(*(barrier(name, select=True) for name in names))
    (finding,) = found(facts, StartReading(frozenset(f"public.{name}" for name in names)))
    assert finding.fix == 'GRANT SELECT ON ALL TABLES IN SCHEMA public TO "cdcd";'
    assert finding.found.endswith("and 292 more")


def test_without_truncate_records_a_table_without_a_key_can_only_be_read_at_the_slots_snapshot() -> None:
    assert found(with_barriers(), ALL) == []
    (finding,) = found(with_barriers(), replace(ALL, beside=True))
    assert finding.code == "table.key"
    assert "snapshot.exclude: [public.plain]" in finding.fix
    assert found(with_barriers(), StartReading(frozenset({"public.orders"}), beside=True)) == []
    # With truncate records, it is read behind such a record.
    assert found(with_barriers(), replace(ALL, beside=True, ends_rows=True)) == []


def test_streaming_needs_no_select() -> None:
    (_, told) = check_rows(with_barriers(barrier(select=True)), StartReading())
    assert (told.level, "streaming works without it" in told.found) == ("ok", True)
    assert [one.level for one in check_rows(FACTS, StartReading())] == ["ok"]


def test_messages_that_may_not_be_written_stop_what_is_read_beside_the_stream() -> None:
    function = "pg_logical_emit_message(boolean,text,text,boolean)"
    facts = replace(FACTS, session=replace(FACTS.session, emit=function))
    (finding,) = found(facts, replace(ALL, beside=True))
    assert (finding.level, finding.code) == ("error", "snapshot.watermark")
    assert finding.fix == f'GRANT EXECUTE ON FUNCTION {function} TO "cdcd";'
    for reading in (ALL, StartReading()):
        (finding,) = found(facts, reading)
        assert (finding.level, "an interrupted snapshot" in finding.found) == ("warning", True)


@pytest.mark.parametrize(
    ("readable", "fix"),
    [
        (("ctid", "id", "note"), ""),
        (("ctid", "id", "note", "more"), ""),
        (("id", "note"), 'GRANT SELECT (ctid, "id", "note") ON public.orders TO "cdcd";'),
        ((), 'GRANT SELECT (ctid, "id", "note") ON public.orders TO "cdcd";'),
    ],
)
def test_of_a_table_with_a_list_of_columns_no_other_column_is_asked_for(readable: tuple[str, ...], fix: str):
    one = replace(barrier(select=True), readable=readable).with_list(("id", "note"))
    assert (one is None) == (not fix)
    if one is not None:
        (finding,) = found(with_barriers(one), ALL)
        assert finding.fix == fix
    # Without a list, all columns are published.
    whole = replace(barrier(select=True), readable=readable)
    assert whole.with_list(None) is whole


def test_a_reader_of_a_table_is_asked_for_its_own_rights():
    facts = with_barriers(replace(barrier(select=True), role="r"), barrier("plain", select=True))
    fixes = [one.fix for one in found(facts, ALL)]
    assert fixes == ['GRANT SELECT ON public.orders TO "r";', 'GRANT SELECT ON public.plain TO "cdcd";']
