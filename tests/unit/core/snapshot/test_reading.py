import pytest

from cdcd.core.errors import ConfigError
from cdcd.core.snapshot.reading import ReaderChoice, Visibility


def test_it_reads_what_the_server_prints():
    assert Visibility.parse("10:20:10,14,15") == Visibility(10, 20, frozenset({10, 14, 15}))
    assert Visibility.parse("10:10:") == Visibility(10, 10)
    assert str(Visibility.parse("10:20:15,14")) == "10:20:14,15"


@pytest.mark.parametrize("text", ["", "10", "10:20", "a:b:c", "10:20:x"])
def test_what_is_no_snapshot_is_refused(text: str):
    with pytest.raises(ValueError, match=r"."):
        Visibility.parse(text)


@pytest.mark.parametrize(
    ("xid", "seen"), [(9, True), (10, False), (11, True), (14, False), (19, True), (20, False), (21, False)]
)
def test_it_sees_what_had_ended(xid: int, seen: bool):
    assert Visibility.parse("10:20:10,14").sees(xid) is seen


def test_ids_on_the_stream_come_round_again():
    snapshot = Visibility.parse(f"{2**32 - 5}:{2**32 + 5}:{2**32 - 2},{2**32 + 3}")
    assert [snapshot.sees(xid) for xid in (2**32 - 6, 2**32 - 2, 2**32 - 1)] == [True, False, True]
    assert [snapshot.sees(xid) for xid in (2, 3, 4, 5)] == [True, False, True, False]
    later = Visibility.parse(f"{2**33 - 5}:{2**33 - 5}:")
    assert later.sees(2**32 - 6)
    assert not later.sees(2**32 - 5)
    assert not later.sees(1)


@pytest.mark.parametrize(
    ("schema", "table", "place"),
    [
        ("shop", "orders", 0),
        ("shop", "items", 1),
        ("crm", "people", 1),
        ("a.b", "c", 2),
        ("public", "t", None),
        ("Shop", "orders", None),
        ("shop", "orders2", 1),
        ("crm", "x.t", 1),
        ("crm.x", "t", None),
        ("a", "b.c", None),
    ],
)
def test_the_first_pattern_that_matches_wins(schema: str, table: str, place: int | None):
    choice = ReaderChoice([["shop.orders"], ["crm.*", "shop.*"], ['"a.b".c', "shop.orders"]])
    assert choice.of(schema, table) == place


def test_without_readers_the_role_of_the_dsn_reads_every_table():
    assert ReaderChoice([]).of("public", "t") is None


def test_a_malformed_pattern_is_refused_by_the_name_of_its_entry():
    with pytest.raises(ConfigError, match=r"postgres\.readers\[1\]\.tables: 'orders'"):
        ReaderChoice([["a.b"], ["orders"]])
