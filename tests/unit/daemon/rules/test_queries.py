"""What `cdcd check` says about `snapshot.queries`. test_snapshot_queries.py asks a server."""

import pytest
from pydantic import ValidationError

from cdcd.config.sections.snapshot import SnapshotConfig
from cdcd.core.errors import ConfigError
from cdcd.daemon.rules.queries import QueryFacts, check_queries


def test_each_query_that_is_refused_or_not_used_is_a_finding():
    facts = QueryFacts((ConfigError("public.t cannot be read: why", hint="Correct it."),), ("public.gone",))
    refused, unused = check_queries(facts, 3)
    assert (refused.level, refused.code, refused.fix) == ("error", "snapshot.query", "Correct it.")
    assert (unused.level, unused.code) == ("warning", "snapshot.query_unmatched")
    assert "snapshot.queries.public.gone" in unused.found


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
