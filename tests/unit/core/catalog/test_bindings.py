from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import pytest

from cdcd.build import is_compiled
from cdcd.core.catalog.bindings import Bindings
from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import ENCRYPT, EXCLUDE, HASH, INCLUDE, MASK, ColumnRule, Protections
from cdcd.core.catalog.relations import TENTATIVE, CatalogColumn, Kin, TableDescription
from cdcd.core.errors import ConfigError, WithheldError
from cdcd.core.protocol.messages import Column, Relation

OID = 7
TEXT = 25


def rule(pattern: str, action: str = HASH) -> ColumnRule:
    return ColumnRule(parse_column_pattern(pattern, "columns"), action)


def relation(*names: str, name: str = "t", oid: int = OID) -> Relation:
    return Relation(None, oid, "public", name, "d", tuple([Column(0, each, TEXT, -1) for each in names]))


def table(
    columns: dict[int, str],
    *,
    seen: int,
    at: int = 0,
    changed: Sequence[int] = (),
    last_id: int = 0,
    name: str = "t",
    kin: Sequence[Kin] = (),
) -> TableDescription:
    """The catalog's answer. The row of pg_attribute of each column in `changed` was written by transaction `seen`."""
    return TableDescription(
        columns=tuple(
            [
                CatalogColumn(each, number, "text", TEXT, 0, None, stamp=seen if number in changed else 5)
                for number, each in columns.items()
            ]
        ),
        last_id=last_id or max(columns, default=0),
        kin=(Kin(OID, "public", name), *kin) if columns else (),
        seen=seen,
        at=at,
    )


def actions(protections: Protections, message: Relation, now: TableDescription) -> list[str]:
    """The action for each column, "" where there is none."""
    return ["" if found is None else found.action for found in protections.in_force(message, now)]


FIRST_COLUMNS = ((1, "id"), (2, "ssn"), (3, "note"))
FIRST = table({1: "id", 2: "ssn", 3: "note"}, seen=100, at=50)


def known(*rules: ColumnRule) -> Protections:
    """A table that was seen before anything happened to it."""
    protections = Protections(rules or (rule("public.t.ssn"),))
    protections.in_force(relation("id", "ssn", "note"), FIRST)
    return protections


@pytest.mark.parametrize(
    ("message", "now"),
    [
        (("id", "x", "note"), table({1: "id", 2: "x", 3: "note"}, seen=300, at=200, changed=[2])),
        # Renamed, and renamed back, before anybody looked.
        (("id", "x", "note"), table({1: "id", 2: "ssn", 3: "note"}, seen=300, at=200, changed=[2])),
        # Dropped since.
        (("id", "x", "note"), table({1: "id", 3: "note"}, seen=300, at=200)),
        # Dropped since, and another column has the name.
        (("id", "x", "note"), table({1: "id", 3: "note", 4: "x"}, seen=300, at=200, changed=[4])),
        (("id", "x", "note"), table({1: "id", 3: "note", 4: "ssn"}, seen=300, at=200, changed=[4])),
        # A column was added later.
        (("id", "x", "note"), table({1: "id", 2: "x", 3: "note", 4: "y"}, seen=300, at=200, changed=[2, 4])),
    ],
)
def test_a_rule_follows_its_column(message: tuple[str, ...], now: TableDescription):
    assert actions(known(), relation(*message), now) == ["", HASH, ""]


def test_swapped_columns_are_both_protected_from_then_on():
    protections = known()
    swapped = table({1: "id", 2: "note", 3: "ssn"}, seen=300, at=200, changed=[2, 3])
    assert actions(protections, relation("id", "note", "ssn"), swapped) == ["", HASH, HASH]
    back = table({1: "id", 2: "ssn", 3: "note"}, seen=500, at=400, changed=[2, 3])
    assert actions(protections, relation("id", "ssn", "note"), back) == ["", HASH, HASH]


def test_names_that_all_moved_by_one_withhold_the_table():
    # Either nothing moved and c was added, or ssn is called a now and everything behind it was dropped and added.
    protections = Protections([rule("public.t.ssn")])
    first = table({1: "a", 2: "ssn", 3: "note"}, seen=100, at=50)
    protections.in_force(relation("a", "ssn", "note"), first)
    now = table({2: "a", 3: "ssn", 4: "note"}, seen=300, at=200, changed=[2, 3, 4])
    with pytest.raises(WithheldError, match=r"Column public\.t\.a may be the column that columns\.hash"):
        protections.in_force(relation("a", "ssn", "note"), now)


def test_a_column_that_was_added_for_a_dropped_one_is_no_reason_to_withhold():
    now = table({1: "id", 2: "ssn", 4: "more"}, seen=300, at=200, changed=[4])
    assert actions(known(), relation("id", "ssn", "more"), now) == ["", HASH, ""]


def test_a_look_up_behind_the_message_proves_nothing_of_what_was_before():
    # The look-up at 100 came after the commit at 90, so it may have seen columns that the message lacks.
    protections = known()
    seen = table({1: "id", 3: "note", 4: "y"}, seen=150, changed=[4])
    protections.bindings.note(relation("id", "note", "y"), seen)
    now = table({1: "id", 3: "note", 4: "y"}, seen=300, at=120, changed=[4])
    assert actions(protections, relation("id", "x", "note"), now) == ["", HASH, ""]


def test_a_dropped_table_keeps_its_columns_in_their_order():
    gone = replace(TableDescription(), seen=300, at=200)
    assert actions(known(), relation("id", "ssn", "note"), gone) == ["", HASH, ""]
    with pytest.raises(WithheldError):
        known().in_force(relation("id", "x", "note"), gone)
    with pytest.raises(WithheldError):
        known().in_force(relation("id", "x", "note", "more"), gone)


def test_a_table_that_was_made_and_dropped_unseen_keeps_its_columns_in_their_order():
    """The catalog has never had the table for anybody who looked."""
    gone = replace(TableDescription(), at=200)
    later = replace(gone, at=300)
    first = Protections([rule("*.*.ssn")])
    assert actions(first, relation("id", "ssn", "note"), gone) == ["", HASH, ""]
    for protections in (first, restarted(first, 250)):
        assert actions(protections, relation("id", "ssn", "other"), later) == ["", HASH, ""]
        for names in (("id", "x", "note"), ("id", "note", "ssn"), ("id", "x", "ssn", "note"), ("x", "note")):
            with pytest.raises(WithheldError):
                protections.in_force(relation(*names), later)


def test_a_named_column_without_a_certain_number_withholds_a_table_that_was_never_seen():
    # ssn is column 2 or 3: if it is 2, x was it before.
    now = table({1: "id", 2: "x", 4: "y", 5: "z"}, seen=300, at=200)
    with pytest.raises(WithheldError, match=r"Column public\.t\.ssn may be the column that columns\.hash"):
        Protections([rule("*.*.ssn")]).in_force(relation("id", "ssn", "more"), now)


def test_a_rule_that_names_a_column_which_is_not_there_withholds_the_table():
    with pytest.raises(WithheldError, match=r"names a column that public\.t does not have"):
        Protections([rule("public.t.ssn")]).in_force(
            relation("id", "x"), table({1: "id", 2: "x"}, seen=100, at=50)
        )
    # A pattern may match nothing, and so may a rule whose column was dropped.
    Protections([rule("public.*.ssn")]).in_force(
        relation("id", "x"), table({1: "id", 2: "x"}, seen=100, at=50)
    )
    now = table({1: "id", 3: "note"}, seen=300, at=200)
    assert actions(known(), relation("id", "note"), now) == ["", ""]


def test_a_rule_follows_its_table():
    now = replace(FIRST, seen=300, at=200, kin=(Kin(OID, "public", "u"),))
    assert actions(known(), relation("id", "ssn", "note", name="u"), now) == ["", HASH, ""]


def test_columns_of_tables_that_a_table_inherits_from_protect_its_own():
    protections = known()
    root = Kin(OID, "public", "t", ((1, "id"), (2, "renamed")))
    leaf = replace(table({1: "renamed", 2: "id"}, seen=300, at=200), kin=(Kin(8, "public", "t_1"), root))
    assert actions(protections, relation("renamed", "id", name="t_1", oid=8), leaf) == [HASH, ""]
    # And after it has left the table.
    alone = replace(table({1: "x", 2: "id"}, seen=500, at=400, changed=[1]), kin=(Kin(8, "public", "t_1"),))
    assert actions(protections, relation("x", "id", name="t_1", oid=8), alone) == [HASH, ""]


def test_a_partition_stays_protected_after_it_was_detached():
    protections = Protections([rule("public.t.ssn")])
    part = Kin(8, "public", "t_1", ((1, "note"), (3, "ssn"), (4, "id")), is_part=True)
    protections.in_force(relation("id", "ssn", "note"), replace(FIRST, kin=(*FIRST.kin, part)))
    alone = replace(table({1: "note", 3: "x", 4: "id"}, seen=300, at=200), kin=(Kin(8, "public", "t_1"),))
    assert actions(protections, relation("note", "x", "id", name="t_1", oid=8), alone) == ["", HASH, ""]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([rule("public.t.ssn")], ["", HASH, ""]),
        ([rule("public.t.id", INCLUDE), rule("public.t.note", INCLUDE)], ["", EXCLUDE, ""]),
    ],
    ids=["hash", "include"],
)
def test_a_table_that_gets_a_protected_table_as_its_partition_is_protected_too(rules, expected):
    protections = known(*rules)
    whole = Kin(9, "public", "whole")
    columns = {1: "id", 2: "x", 3: "note"}
    before = replace(table(columns, seen=110, at=105), kin=(whole,))
    message = relation(*columns.values(), name="whole", oid=9)
    assert actions(protections, message, before) == ["", "", ""]
    # Table and column have other names by now.
    part = Kin(OID, "public", "u", ((1, "id"), (2, "x"), (3, "note")), is_part=True)
    after = replace(table(columns, seen=300, at=200), kin=(whole, part))
    assert actions(protections, message, after) == expected


@pytest.mark.skipif(is_compiled(), reason="a method of a compiled object cannot be watched")
def test_many_descriptions_of_one_partitioned_table_bind_its_partitions_once():
    """PostgreSQL describes the table before the first change of each partition."""
    parts = [Kin(100 + at, "public", f"t_{at}", FIRST_COLUMNS, is_part=True) for at in range(50)]
    protections = Protections([rule("public.t.ssn"), rule("public.t.note", MASK)])
    protections.in_force(relation("id", "ssn", "note"), replace(FIRST, kin=(*FIRST.kin, *parts)))
    bound = protections.bindings.changes
    with mock.patch.object(protections.bindings, "of_table", wraps=protections.bindings.of_table) as asked:
        for _ in parts:
            again = replace(FIRST, kin=(*FIRST.kin, *map(replace, parts)))
            assert actions(protections, relation("id", "ssn", "note"), again) == ["", HASH, MASK]
    assert protections.bindings.changes == bound
    assert asked.call_count < 50 * len(parts)


def test_a_partition_that_is_new_among_many_is_bound_with_the_next_description():
    parts = [Kin(100 + at, "public", f"t_{at}", FIRST_COLUMNS, is_part=True) for at in range(3)]
    protections = Protections([rule("public.t.ssn")])
    for count in (2, 2, 3):
        protections.in_force(relation("id", "ssn", "note"), replace(FIRST, kin=(*FIRST.kin, *parts[:count])))
    assert [list(protections.bindings.of_table(protections.rules[0].digest, part.oid)) for part in parts] == [
        [2]
    ] * 3


def test_a_rule_that_was_bound_by_another_table_holds_for_a_family_that_was_seen_before():
    # GIVEN a child whose parent's column has no rule yet
    root = Kin(OID, "public", "t", ((1, "id"), (2, "x")))
    leaf = replace(table({1: "x", 2: "id"}, seen=100, at=50), kin=(Kin(8, "public", "t_1"), root))
    protections = Protections([rule("public.t.ssn")])
    child = relation("x", "id", name="t_1", oid=8)
    assert actions(protections, child, leaf) == ["", ""]
    # WHEN the rule is bound to the parent's column by a description from before it was renamed
    protections.in_force(relation("id", "ssn"), table({1: "id", 2: "ssn"}, seen=90, at=80))
    # THEN the same description of the child's family protects the child's column
    assert actions(protections, child, leaf) == [HASH, ""]


def test_a_transaction_that_may_never_commit_is_only_taken_for_the_table_of_now():
    now = replace(FIRST, seen=300, at=TENTATIVE)
    assert actions(known(), relation("id", "ssn", "note"), now) == ["", HASH, ""]
    with pytest.raises(WithheldError):
        known().in_force(relation("id", "note", "ssn"), now)


def test_of_two_rules_that_a_rename_brings_together_the_stricter_one_holds():
    protections = known(rule("public.t.ssn"), rule("public.t.note", MASK))
    now = table({1: "id", 2: "x", 3: "ssn", 4: "note"}, seen=300, at=200, changed=[2, 3, 4])
    assert actions(protections, relation("id", "x", "ssn", "note"), now) == ["", HASH, MASK, MASK]
    # Names alone are a mistake of the configuration.
    with pytest.raises(ConfigError, match="both match column"):
        known(rule("public.t.ssn"), rule("public.*.ssn", EXCLUDE))


def test_of_two_rules_that_are_as_strict_the_first_one_holds():
    protections = known(rule("public.t.ssn"), rule("public.t.note", ENCRYPT))
    now = table({1: "id", 2: "note", 3: "ssn"}, seen=300, at=200, changed=[2, 3])
    assert actions(protections, relation("id", "note", "ssn"), now) == ["", HASH, ENCRYPT]


def restarted(protections: Protections, delivered: int, *rules: ColumnRule) -> Protections:
    """The protections of the next session, which has the checkpoint of this one."""
    text = protections.bindings.text(delivered)
    found = Bindings()
    found.load(text, Protections(rules or protections.rules).digests)
    return Protections(rules or protections.rules, bindings=found)


def test_a_restart_keeps_what_rules_are_bound_to():
    after = restarted(known(), 150)
    now = table({1: "id", 2: "x", 3: "note"}, seen=300, at=200, changed=[2])
    assert actions(after, relation("id", "x", "note"), now) == ["", HASH, ""]


def test_a_restart_goes_by_the_state_of_the_table_before_what_comes_again():
    protections = known()
    # The daemon saw the new columns, and was stopped before Kafka had what was committed before.
    seen = table({1: "id", 3: "note", 4: "y"}, seen=300, changed=[4])
    protections.bindings.note(relation("id", "note", "y"), seen)
    after = restarted(protections, 150)
    now = table({1: "id", 3: "note", 4: "y"}, seen=400, at=200, changed=[4])
    assert actions(after, relation("id", "x", "note"), now) == ["", HASH, ""]


def test_a_rule_that_was_changed_begins_with_what_its_pattern_matches():
    after = restarted(known(), 150, rule("public.t.x"))
    now = table({1: "id", 2: "ssn", 3: "x"}, seen=300, at=200, changed=[3])
    assert actions(after, relation("id", "ssn", "x"), now) == ["", "", HASH]


def test_the_checkpoint_is_the_same_text_until_something_changes():
    protections = known()
    text = protections.bindings.text(150)
    assert protections.bindings.text(160) is text
    told: list[bool] = []
    protections.bindings.touched = lambda: told.append(True)
    protections.in_force(
        relation("id", "ssn", "note", "ssn2"),
        table({1: "id", 2: "ssn", 3: "note", 4: "ssn2"}, seen=300, at=200, changed=[4]),
    )
    assert not told
    assert protections.bindings.text(160) != text


@pytest.mark.parametrize(("delivered", "is_forgotten"), [(399, False), (400, True)])
def test_a_dropped_table_keeps_its_bindings_until_everything_before_is_delivered(
    delivered: int, is_forgotten: bool
):
    protections = known()
    bindings = protections.bindings
    assert bindings.oids() == {OID}
    bindings.dropped([OID], 400)
    bindings.dropped([OID], 500)
    # The catalog has answered for this table, so that the next list does not look for it.
    assert bindings.oids() == set()
    assert isinstance(bindings.oids(), frozenset), "compiled code refuses a set"
    text = bindings.text(delivered)
    assert (text == "") is is_forgotten
    assert bindings.of_table(protections.rules[0].digest, OID) == (() if is_forgotten else {2})
    if not is_forgotten:
        # What was committed before the drop is still withheld.
        with pytest.raises(WithheldError):
            actions(protections, relation("id", "x", "note"), table({}, seen=0, at=200))


def test_the_bindings_of_other_tables_stay_when_a_table_is_dropped():
    protections = known()
    other = replace(table({1: "id", 2: "ssn"}, seen=100, at=50), kin=(Kin(9, "public", "t"),))
    protections.in_force(relation("id", "ssn", oid=9), other)
    both = protections.bindings.text(150)
    protections.bindings.dropped([9], 200)
    assert protections.bindings.text(199) is both
    assert len(protections.bindings.text(200)) < len(both)
    assert protections.bindings.oids() == {OID}
    assert actions(restarted(protections, 200), relation("id", "x", "note"), FIRST) == ["", HASH, ""]


LISTED = (rule("public.t.id", INCLUDE), rule("public.t.note", INCLUDE))


def test_only_the_listed_columns_of_a_table_are_published():
    protections = known(*LISTED)
    assert actions(protections, relation("id", "ssn", "note"), FIRST) == ["", EXCLUDE, ""]
    assert str(protections.in_force(relation("id", "ssn", "note"), FIRST)[1]) == "columns.include"
    other = replace(table({1: "a"}, seen=300, at=200), kin=(Kin(9, "public", "other"),))
    assert actions(protections, relation("a", name="other", oid=9), other) == [""]


@pytest.mark.parametrize(
    ("message", "now", "expected"),
    [
        # A new column, and a column that takes the name of a listed one.
        (
            ("id", "ssn", "note", "x"),
            table({1: "id", 2: "ssn", 3: "note", 4: "x"}, seen=300, at=200),
            "..x.x",
        ),
        (("id", "note", "x"), table({1: "id", 2: "note", 3: "x"}, seen=300, at=200, changed=[2, 3]), "..x."),
        (("id", "ssn", "note"), table({1: "id", 2: "ssn", 4: "note"}, seen=300, at=200, changed=[4]), "..xx"),
    ],
)
def test_a_list_of_columns_is_of_the_columns_that_were_there_first(
    message: tuple[str, ...], now: TableDescription, expected: str
):
    for protections in (known(*LISTED), restarted(known(*LISTED), 150)):
        found = actions(protections, relation(*message), now)
        assert "." + "".join(["x" if action == EXCLUDE else "." for action in found]) == expected


def test_a_list_of_columns_follows_its_table():
    now = replace(FIRST, seen=300, at=200, kin=(Kin(OID, "public", "u"),))
    assert actions(known(*LISTED), relation("id", "ssn", "note", name="u"), now) == ["", EXCLUDE, ""]


@pytest.mark.parametrize(
    "text", ["{}", '{"version":3,"columns":""}', '{"version":1,"columns":"x"}', "[]", "x", '{"version":1}']
)
def test_bindings_that_cannot_be_read_are_refused(text: str):
    with pytest.raises(ValueError, match="not the bindings of columns"):
        Bindings().load(text, ())


def with_generated(*reads: int) -> TableDescription:
    now = table({1: "id", 2: "ssn", 3: "shown"}, seen=100, at=50)
    return replace(now, columns=(*now.columns[:2], replace(now.columns[2], generated=True, reads=reads)))


def test_a_column_that_is_generated_from_a_protected_one_withholds_the_table() -> None:
    message = relation("id", "ssn", "shown")
    with pytest.raises(WithheldError, match=r"public\.t\.shown is generated from column ssn") as caught:
        Protections([rule("public.t.ssn")]).in_force(message, with_generated(1, 2))
    assert "columns.include" in caught.value.hint
    # The protected column itself is perhaps not published.
    with pytest.raises(WithheldError):
        Protections([rule("public.t.ssn")]).in_force(relation("id", "shown"), with_generated(2))


@pytest.mark.parametrize(
    ("rules", "reads", "found"),
    [
        ([rule("public.t.ssn")], (1,), ["", HASH, ""]),
        ([rule("public.t.ssn"), rule("public.t.shown", MASK)], (2,), ["", HASH, MASK]),
        ([rule("public.t.ssn"), rule("public.t.*", INCLUDE)], (2,), ["", HASH, ""]),
        ([rule("public.t.ssn"), rule("public.t.id", INCLUDE)], (2,), ["", EXCLUDE, EXCLUDE]),
    ],
    ids=["of an open column", "with a rule of its own", "allowed by columns.include", "left out"],
)
def test_a_generated_column_is_delivered_if_the_operator_decided_about_it(
    rules: list[ColumnRule], reads: tuple[int, ...], found: list[str]
) -> None:
    assert actions(Protections(rules), relation("id", "ssn", "shown"), with_generated(*reads)) == found


def former(*names: str, oid: int = 70) -> Kin:
    return Kin(oid, "public", "parent", tuple(enumerate(names, 1)), is_former=True)


@pytest.mark.parametrize(
    ("theirs", "found"),
    [
        (("id", "ssn", "note"), ["", HASH, ""]),
        (("id", "ssn", "note", "added"), ["", HASH, ""]),
        (("id", "ssn"), ["", HASH, ""]),
        (("id", "ssn", "other"), ["", "", ""]),
    ],
)
def test_a_table_that_left_its_parent_has_the_rules_of_each_parent_with_such_columns(
    theirs: tuple[str, ...], found: list[str]
) -> None:
    now = replace(FIRST, kin=(*FIRST.kin, former(*theirs)))
    protections = Protections([rule("public.parent.ssn")])
    assert actions(protections, relation("id", "ssn", "note"), now) == found
    # The rule is bound to the column, so it holds when the column has another name.
    renamed = table({1: "id", 2: "x", 3: "note"}, seen=300, at=250, changed=(2,))
    assert actions(protections, relation("id", "x", "note"), renamed) == found


def test_a_table_that_was_dropped_has_the_rules_of_each_parent_with_such_columns() -> None:
    gone = TableDescription(kin=(former("id", "ssn"), former("id", "note", oid=71)), at=50)
    protections = Protections([rule("public.parent.ssn")])
    assert actions(protections, relation("id", "ssn"), gone) == ["", HASH]
    assert actions(protections, relation("id", "ssn", "note", oid=8), gone) == ["", HASH, ""]
    assert actions(protections, relation("id", "other", oid=9), gone) == ["", ""]


def test_a_table_that_left_its_parent_has_only_the_columns_that_columns_include_has() -> None:
    now = replace(FIRST, kin=(*FIRST.kin, former("id", "ssn", "note")))
    protections = Protections([rule("public.parent.id", INCLUDE)])
    assert actions(protections, relation("id", "ssn", "note"), now) == ["", EXCLUDE, EXCLUDE]
