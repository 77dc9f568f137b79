"""What `cdcd check` says of filters.

What `cdcd check` says of routes.
"""

from cdcd.core.errors import ConfigError
from cdcd.daemon.rules.expressions import ExpressionFacts, check_all_routes, check_filters


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
