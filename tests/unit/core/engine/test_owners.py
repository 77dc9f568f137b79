"""Whose rows each topic has, and what the checkpoint says of that."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.oids import Oids, name_sum
from cdcd.core.engine.owners import ANY_NAME, GONE_MAX, VACATED_MAX, Owners


def read_back(owners: Owners, published: Mapping[int, str]) -> Owners:
    known = Oids.parse(owners.known().text())
    return Owners.from_record(known, owners.vacated(), Oids(owners.unlisted), published)


def test_a_table_owns_the_name_that_it_took_until_another_one_takes_it():
    owners = Owners.of({1: "a", 2: "b"})
    assert owners.owns(1, "a")
    assert owners.former("c") is None
    owners.take(2, "a")
    assert (owners.owns(2, "a"), owners.owns(1, "a"), owners.owns_any(1)) == (True, False, False)
    # THEN the name that it has left is vacated, and nobody's
    assert (owners.former("b"), owners.vacated()) == (2, (name_sum("b"),))
    assert not owners.owns(2, "b")


def test_a_vacated_name_is_vacated_until_somebody_takes_it():
    owners = Owners.of({1: "a"})
    owners.take(1, "b")
    owners = read_back(owners, {1: "b"})
    assert owners.former("a") == 0
    owners.take(1, "a")
    assert (owners.owns(1, "a"), owners.vacated()) == (True, (name_sum("b"),))


def test_a_table_with_another_name_by_now_owns_the_one_that_it_had():
    owners = read_back(Owners.of({1: "a", 2: "b"}), {1: "c", 2: "b"})
    assert (owners.owns(1, "a"), owners.owns(1, "c"), owners.former("a")) == (True, False, 1)
    owners.take(1, "c")
    assert (owners.owns(1, "a"), owners.former("a")) == (False, 1)


def colliding() -> tuple[str, str]:
    """Two names with one checksum."""
    seen: dict[int, str] = {}
    for number in range(100_000):
        name = f"public.t{number}"
        other = seen.setdefault(name_sum(name), name)
        if other != name:
            return other, name
    raise AssertionError


def test_names_with_one_checksum_cost_a_truncate_record_and_no_row():
    one, other = colliding()
    # GIVEN two tables that are known by the same checksum, as both have other names now
    owners = read_back(Owners.of({1: one, 2: other}), {1: "c", 2: "d"})
    assert owners.owns(1, one)
    assert owners.owns(2, other)
    # WHEN another table takes one of the names
    owners.take(3, one)
    # THEN none of the two goes on without a truncate record
    assert not owners.owns(1, one)
    assert not owners.owns(2, other)
    assert owners.former(other) is not None


def test_a_table_that_is_gone_keeps_its_topic_and_is_to_be_added():
    owners = Owners.of({1: "a", 2: "b"})
    owners.let_go(1)
    owners.let_go(7)
    assert (owners.owns(1, "a"), owners.unlisted, owners.gone) == (True, {1}, {1})
    for published in ({2: "b"}, {1: "a", 2: "b"}):
        assert read_back(owners, published).unlisted == {1}
    owners.settle(1)
    assert (owners.unlisted, owners.gone) == (set(), set())


def test_what_is_remembered_of_names_and_tables_that_are_gone_has_a_limit():
    owners = Owners.of({1: "a"})
    for number in range(VACATED_MAX + 1):
        owners.take(1, f"b{number}")
    assert owners.vacated() == (ANY_NAME,)
    assert owners.former("c") == 0
    owners = Owners.of({oid: f"t{oid}" for oid in range(1, 2 * GONE_MAX)})
    for oid in range(1, GONE_MAX + 2):
        owners.let_go(oid)
    assert owners.former("c") == 0
    assert (len(owners.unlisted), len(owners.known())) == (0, GONE_MAX - 2)
    assert read_back(owners, {}).former("c") == 0


moves = st.lists(st.tuples(st.integers(1, 4), st.sampled_from("abcdef"), st.booleans()), max_size=20)


@given(moves)
def test_no_topic_has_rows_that_are_forgotten_whenever_the_daemon_begins_anew(
    made: list[tuple[int, str, bool]],
):
    """A topic is played beside it: the tables of which it has rows. A truncate record leaves none."""
    owners = Owners.of({1: "a", 2: "b"})
    rows: dict[str, set[int]] = {"a": {1}, "b": {2}}
    names = {1: "a", 2: "b"}
    for oid, name, restarts in made:
        if not owners.owns(oid, name):
            if owners.former(name) is not None:
                rows[name] = set()
            owners.take(oid, name)
        # THEN with its event the table is the only one that has rows in the topic
        rows.setdefault(name, set()).add(oid)
        assert rows[name] == {oid}
        names = {each: had for each, had in names.items() if each != oid and had != name} | {oid: name}
        if restarts:
            owners = read_back(owners, names)


def test_a_name_of_which_only_the_checksum_was_known_is_known_once_the_table_has_it():
    # GIVEN a table whose name is not in the list of published tables
    before = Owners.of({1: "public.a"})
    owners = Owners.from_record(before.known(), before.vacated(), Oids(()), {})
    assert owners.owns(1, "public.a")
    assert owners.names == {}
    # WHEN it takes its name, THEN it has the name, and nothing else has changed
    owners.take(1, "public.a")
    assert owners.names == {1: "public.a"}
    assert owners.known() == before.known()
    assert owners.former("public.a") == 1
    owners.take(1, "public.b")
    assert owners.former("public.a") == 1
    assert not owners.owns(1, "public.a")


def test_a_table_whose_name_earlier_versions_wrote_without_quotes_still_owns_it():
    known = Oids.with_sums({1: name_sum("crm.x.t")})
    owners = Owners.from_record(known, (), Oids(()), {1: 'crm."x.t"'})
    assert owners.owns(1, 'crm."x.t"')
    assert owners.vacated() == ()
    # Another table with the same text then is not taken for it.
    assert not Owners.from_record(known, (), Oids(()), {2: '"crm.x".t'}).owns(2, '"crm.x".t')
