"""Records of the schemas topic that say which changes topics lack."""

import pytest

from cdcd.core.records.gaps import Aside, Gap, is_gap

ASIDE = Aside(16402, "public.orders", 0x1A2B, "size")


@pytest.mark.parametrize("aside", [ASIDE, Aside(7, "", 1, "topic", 0x3C4D)])
def test_what_is_written_of_a_table_that_is_set_aside_is_read_again(aside: Aside):
    topic, key, value, _ = aside.record("p.schemas", None)
    assert (topic, key) == ("p.schemas", b'{"aside":%d}' % aside.oid)
    assert value is not None
    assert Aside.read(value) == aside
    assert not is_gap(value)


def test_other_records_are_no_tables_that_are_set_aside():
    _, _, gap, _ = Gap("p.schemas", 1).record(2, 0, [])
    assert gap is not None
    for value in (gap, b"", b"{}", b'{"topic":"p.t"}'):
        assert Aside.read(value) is None


@pytest.mark.parametrize(
    "fields",
    [
        "1",
        "[]",
        "{}",
        '{"oid":1,"table":"a.b","since":"0/1","fault":"size"}',
        '{"oid":-1,"table":"a.b","since":"0/1","fault":"size","until":null}',
        '{"oid":1,"table":"a.b","since":"x","fault":"size","until":null}',
        '{"oid":1,"table":"a.b","since":"0/1","fault":"see https://example.org","until":null}',
        '{"oid":1,"table":"a.b","since":"0/1","fault":"' + "a" * 40 + '","until":null}',
        '{"oid":1,"table":7,"since":"0/1","fault":"size","until":null}',
        '{"oid":1,"table":"a.b","since":"0/1","fault":"size","until":null,"more":1}',
        '{"oid":1,"table":"' + "a" * 5000 + '","since":"0/1","fault":"size","until":null}',
    ],
)
def test_a_malformed_record_of_a_table_that_is_set_aside_is_refused(fields: str):
    with pytest.raises(ValueError):  # noqa: PT011  # texts differ
        Aside.read(b'{"aside":%s}' % fields.encode())
