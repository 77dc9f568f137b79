"""What `cdcd check` says of filters.

What `cdcd check` says of routes.
"""

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError

from cdcd.config.sections.snapshot import SnapshotConfig
from cdcd.core.catalog.protection import Protections
from cdcd.core.errors import ConfigError
from cdcd.core.records.shaping.settings import Outbox, OutboxTable
from cdcd.daemon.rules.rows import (
    ExpressionFacts,
    OutboxFacts,
    QueryFacts,
    check_all_routes,
    check_filters,
    check_outbox,
    check_queries,
    look_at_outbox,
)


def test_filters_that_fit_are_counted():
    (found,) = check_filters(ExpressionFacts((), (), 3), 1)
    assert (found.level, found.code) == ("ok", "filters.rule")
    assert found.found == "1 filter for 3 tables"


def test_what_does_not_fit_is_an_error_and_what_matches_nothing_a_warning():
    facts = ExpressionFacts((ConfigError("It does not fit.", hint="Correct it."),), ("public.orders",), 1)
    error, warning = check_filters(facts, 2)
    assert (error.level, error.code, error.fix) == ("error", "filters.rule", "Correct it.")
    assert (warning.level, warning.code) == ("warning", "filters.unmatched")
    assert "filters.tables.public.orders matches no published table" in warning.found


def test_routes_that_fit_are_counted():
    (found,) = check_all_routes(ExpressionFacts((), (), 3), 1)
    assert (found.level, found.code) == ("ok", "routes.rule")
    assert found.found == "1 pattern with rules for 3 tables"


def test_a_route_that_does_not_fit_is_an_error_and_one_that_matches_nothing_a_warning():
    facts = ExpressionFacts((ConfigError("It does not fit.", hint="Correct it."),), ("public.orders",), 1)
    error, warning = check_all_routes(facts, 2)
    assert (error.level, error.code, error.fix) == ("error", "routes.rule", "Correct it.")
    assert (warning.level, warning.code) == ("warning", "routes.unmatched")
    assert "routes.tables.public.orders matches no published table" in warning.found


TABLE = OutboxTable("events", "to", "", "key", "payload")
OUTBOX = Outbox(("events",), messages=True, tables={("public", "outbox"): TABLE})


def test_an_outbox_that_works_is_named():
    (found,) = check_outbox(OutboxFacts((), ()), OUTBOX)
    assert (found.level, found.code) == ("ok", "outbox.source")
    assert "1 table and messages" in found.found


def test_what_cannot_work_is_an_error_and_what_is_not_published_a_warning():
    facts = OutboxFacts((ConfigError("No column payload.", hint="Add it."),), ("public.outbox",))
    error, warning = check_outbox(facts, OUTBOX)
    assert (error.level, error.code, error.fix) == ("error", "outbox.source", "Add it.")
    assert (warning.level, warning.code) == ("warning", "outbox.unpublished")
    assert "public.outbox" in warning.found


@pytest.mark.parametrize("hears", [True, False])
def test_a_server_that_sends_no_messages_is_refused_if_they_are_to_be_published(hears: bool):
    connection: Any = None
    found = asyncio.run(look_at_outbox(connection, {}, OUTBOX, Protections(), hears_messages=hears))
    assert found.unpublished == ("public.outbox",)
    assert len(found.refused) == (not hears)
    for error in found.refused:
        assert "sends no logical messages" in error.message
        assert "outbox.tables" in error.hint


def test_each_query_that_is_refused_or_not_used_is_a_finding():
    facts = QueryFacts((ConfigError("public.t cannot be read: why", hint="Correct it."),), ("public.gone",))
    refused, unused = check_queries(facts, 3)
    assert (refused.level, refused.code, refused.fix) == ("error", "snapshot.query", "Correct it.")
    assert (unused.level, unused.code) == ("warning", "snapshot.query_unmatched")
    assert "snapshot.queries.public.gone" in unused.found


def test_a_query_that_could_not_be_checked_is_a_warning():
    (found,) = check_queries(QueryFacts((), (), ("public.t",)), 1)
    assert (found.level, found.code) == ("warning", "snapshot.query")
    assert found.found.startswith("the query of public.t was not checked")


def test_queries_that_fit_are_counted():
    (found,) = check_queries(QueryFacts((), ()), 2)
    assert (found.level, found.found) == ("ok", "2 tables read by a query")


@pytest.mark.parametrize("query", ["SELECT * FROM public.t", "", "SELECT '\0' FROM {rows} AS r"])
def test_a_query_without_the_rows_of_its_table_is_refused(query):
    with pytest.raises(ValidationError):
        SnapshotConfig.model_validate({"queries": {"public.t": query}})


def test_a_query_names_its_table_with_the_schema():
    with pytest.raises(ValidationError):
        SnapshotConfig.model_validate({"queries": {"t": "SELECT * FROM {rows} AS r"}})


def test_a_query_is_found_by_the_text_of_its_table_however_its_name_is_quoted():
    query = "SELECT * FROM {rows} AS r"
    config = SnapshotConfig.model_validate({"queries": {'public."Odd Name"': query, '"crm.x".t': query}})
    assert config.query_texts == {"public.Odd Name": query, '"crm.x".t': query}
    with pytest.raises(ValidationError, match="each table once"):
        SnapshotConfig.model_validate({"queries": {"public.t": query, '"public".t': query}})
