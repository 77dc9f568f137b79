from random import Random

import pytest

from cdcd.core.catalog.relations import TypeDescription
from cdcd.tools.verify.source import RUN_PAGES, equality, left_out


@pytest.mark.parametrize(
    ("pages", "share", "read"), [(1600, 0.1, 160), (1600, 1.0, 1600), (5, 0.01, 5), (0, 0.5, 0)]
)
def test_a_sample_has_its_share_of_the_pages_and_one_run_at_least(pages: int, share: float, read: int):
    skipped = left_out(pages, share, Random(7))
    assert pages - sum(end - begin for begin, end in skipped) == read


def test_another_sample_has_other_pages():
    assert left_out(100 * RUN_PAGES, 0.05, Random(1)) != left_out(100 * RUN_PAGES, 0.05, Random(2))


INT, TEXT, DOMAIN, OTHER, ENUM, OF_ENUM, PAIR = 23, 25, 90001, 90002, 90003, 90004, 90005
TYPES = {
    DOMAIN: TypeDescription(DOMAIN, "own", "d", "d", "N", 0, INT, -1),
    OTHER: TypeDescription(OTHER, "own", "e", "d", "N", 0, DOMAIN, -1),
    ENUM: TypeDescription(ENUM, "own", "k", "e", "E", 0, 0, -1),
    OF_ENUM: TypeDescription(OF_ENUM, "own", "f", "d", "E", 0, ENUM, -1),
    PAIR: TypeDescription(PAIR, "own", "pair", "c", "C", 0, 0, -1),
}


@pytest.mark.parametrize(
    ("oid", "condition"),
    [
        (TEXT, "\"c\" = 'x'"),
        (DOMAIN, '"c"::pg_catalog."int4" = \'x\'::pg_catalog."int4"'),
        (OTHER, '"c"::pg_catalog."int4" = \'x\'::pg_catalog."int4"'),
        (ENUM, "format('%s', \"c\") = 'x'"),
        (OF_ENUM, "format('%s', \"c\") = 'x'"),
        (PAIR, "format('%s', \"c\") = 'x'"),
        (99999, "format('%s', \"c\") = 'x'"),
    ],
)
def test_a_condition_on_a_key_casts_nothing_to_a_type_that_is_not_built_in(oid: int, condition: str):
    how = equality(oid, TYPES)
    assert f"{how.left('c')} = {how.right('x')}" == condition
