"""ReplaceField, InsertField and MaskField: columns behind ExtractNewRecordState, the envelope's fields before it."""

import pytest

from cdcd.tools.adopt.verdicts import VerdictKind
from tests.unit.tools.adopt.transforms_examples import (
    CONNECT,
    CUSTOMERS,
    KNOWN,
    ORDERS,
    UNWRAP,
    config,
    connector,
    topic_predicate,
    verdicts,
)

FLAT = {"type": UNWRAP}
NO_DEFAULTS = {"replace.null.with.default": "false"}


def replaced(part: str = "Value", **given: str) -> dict[str, str]:
    return {"type": f"{CONNECT}ReplaceField${part}", **NO_DEFAULTS, **given}


def test_renames_of_flattened_rows_are_the_same_if_no_key_has_the_column() -> None:
    options = connector(FLAT, replaced(renames="status:state,total:sum"))
    assert verdicts(options, KNOWN)["b"].kind is VerdictKind.SAME
    (rule,) = config(options, KNOWN).fields.rules
    assert (rule.pattern, rule.rename) == ("*.*", (("status", "state"), ("total", "sum")))


def test_without_the_database_nobody_knows_whether_a_renamed_column_is_in_a_key() -> None:
    verdict = verdicts(connector(FLAT, replaced(renames="status:state")))["b"]
    assert verdict.kind is VerdictKind.DIFFERENT
    assert "The database was not asked" in verdict.why


def test_a_column_of_a_key_is_renamed_only_if_the_key_is_renamed_too() -> None:
    alone = connector(FLAT, replaced(renames="id:number"))
    verdict = verdicts(alone, KNOWN)["b"]
    assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.IMPOSSIBLE, {})
    assert "in the key of public.orders" in verdict.why
    both = connector(FLAT, replaced(renames="id:number"), replaced("Key", renames="id:number"))
    assert [each.kind for each in verdicts(both, KNOWN).values()] == [
        VerdictKind.SAME,
        VerdictKind.SAME,
        VerdictKind.DIFFERENT,
    ]
    assert config(both, KNOWN).fields.rules[0].rename == (("id", "number"),)


@pytest.mark.parametrize("value", [None, {"renames": "id:other"}, {"renames": "id:number", "predicate": "p"}])
def test_a_key_that_is_renamed_alone_stands_in_the_way(value: dict[str, str] | None) -> None:
    behind = [] if value is None else [replaced(**value)]
    options = connector(
        FLAT, replaced("Key", renames="id:number"), *behind, **topic_predicate("inventory.public.orders")
    )
    assert verdicts(options, KNOWN)["b"].kind is VerdictKind.IMPOSSIBLE


def test_a_value_that_is_renamed_before_it_is_flattened_renames_no_row() -> None:
    options = connector(replaced(renames="id:number"), FLAT, replaced("Key", renames="id:number"))
    found = verdicts(options, KNOWN)
    assert "The transform has no effect, because records are envelopes here" in found["a"].why
    assert (found["a"].kind, dict(found["a"].keys)) == (VerdictKind.SAME, {})
    assert found["c"].kind is VerdictKind.IMPOSSIBLE


@pytest.mark.parametrize("given", [{"exclude": "source"}, {"renames": "op:__op"}, {"include": "after"}])
def test_fields_of_the_envelope_stay(given: dict[str, str]) -> None:
    for options in (connector(replaced(**given)), connector(replaced(**given), FLAT)):
        verdict = verdicts(options, KNOWN)["a"]
        assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.IMPOSSIBLE, {})
        assert "Records are envelopes here" in verdict.why


def test_columns_are_left_out_unless_they_are_in_a_key() -> None:
    options = connector(FLAT, replaced(exclude="email, nothing"))
    assert verdicts(options, KNOWN)["b"].kind is VerdictKind.SAME
    assert config(options, KNOWN).columns.exclude == ("*.*.email", "*.*.nothing")
    verdict = verdicts(connector(FLAT, replaced(exclude="email,id")), KNOWN)["b"]
    assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.IMPOSSIBLE, {})


def test_a_list_of_the_only_fields_is_one_of_columns_and_fields_that_are_added() -> None:
    flat = {**FLAT, "add.fields": "op"}
    options = connector(flat, replaced(include="id,status,__op"))
    assert verdicts(options, KNOWN)["b"].kind is VerdictKind.DIFFERENT
    assert config(options, KNOWN).columns.include == ("*.*.id", "*.*.status")
    assert verdicts(options)["b"].kind is VerdictKind.UNKNOWN


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"include": "id,status"}, "Another transform adds field __op"),
        ({"include": "status,__op"}, "has no column of public.customers"),
        ({"include": "email,__op"}, "Column id is in the key of public.orders"),
        ({"include": "id,__op", "renames": "id:key"}, "without exclude and renames"),
    ],
)
def test_a_list_of_the_only_fields_that_cdcd_cannot_have_stands_in_the_way(
    given: dict[str, str], said: str
) -> None:
    verdict = verdicts(connector({**FLAT, "add.fields": "op"}, replaced(**given)), KNOWN)["b"]
    assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.IMPOSSIBLE, {})
    assert said in verdict.why


def test_fields_that_are_not_in_the_list_are_gone_for_later_transforms() -> None:
    options = connector(FLAT, replaced(include="id,status"), replaced(renames="email:mail"))
    assert verdicts(options, KNOWN)["c"].keys == {}


def test_the_transform_writes_defaults_for_null_unless_it_is_told_not_to() -> None:
    verdict = verdicts(
        connector(FLAT, {**replaced(renames="status:state"), "replace.null.with.default": "true"}), KNOWN
    )
    assert verdict["b"].kind is VerdictKind.DIFFERENT
    assert "NULL stays null" in verdict["b"].why


def test_a_later_transform_means_the_column_behind_a_new_name() -> None:
    options = connector(
        FLAT, replaced(renames="status:state"), replaced(renames="state:s"), replaced(exclude="status")
    )
    assert config(options, KNOWN).fields.rules[0].rename == (("status", "s"),)
    assert config(options, KNOWN).columns.exclude == ()
    assert verdicts(options, KNOWN)["d"].why == "No field has these names."


def test_what_earlier_transforms_changed_in_other_tables_is_not_guessed() -> None:
    options = connector(
        FLAT,
        {**replaced(renames="status:state"), "predicate": "p"},
        replaced(exclude="status"),
        **topic_predicate("inventory.public.orders"),
    )
    assert verdicts(options, KNOWN)["c"].kind is VerdictKind.IMPOSSIBLE


def test_a_field_that_is_no_column_cannot_be_renamed() -> None:
    unwrap = {**FLAT, "add.fields": "op,table", "delete.tombstone.handling.mode": "rewrite"}
    for name in ("__op", "__table", "__deleted"):
        verdict = verdicts(connector(unwrap, replaced(renames=f"{name}:x")), KNOWN)["b"]
        assert verdict.kind is VerdictKind.IMPOSSIBLE
        assert "add.fields" in verdict.why


def test_a_field_that_heartbeats_have_is_told() -> None:
    verdict = verdicts(connector(FLAT, replaced(renames="ts_ms:at")), KNOWN)["b"]
    assert verdict.kind is VerdictKind.DIFFERENT
    assert "Heartbeats and logical messages keep their field ts_ms." in verdict.why


def test_a_mapping_that_connect_refuses_is_told() -> None:
    verdict = verdicts(connector(FLAT, replaced(renames="a:b:c")))["b"]
    assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.IMPOSSIBLE, {})


@pytest.mark.parametrize("given", [{"exclude": "id"}, {"include": "id"}])
def test_keys_lose_no_column(given: dict[str, str]) -> None:
    assert verdicts(connector(FLAT, replaced("Key", **given)), KNOWN)["b"].kind is VerdictKind.IMPOSSIBLE


INSERT = {"type": f"{CONNECT}InsertField$Value", "static.field": "region", "static.value": "eu"}


def test_a_constant_is_written_with_what_differs() -> None:
    options = connector(FLAT, {**INSERT, **NO_DEFAULTS, "static.field": "region!"})
    verdict = verdicts(options, KNOWN)["b"]
    assert verdict.kind is VerdictKind.DIFFERENT
    assert "before the columns" in verdict.why
    assert config(options, KNOWN).fields.rules[0].constants == (("region", "eu"),)


def test_a_constant_of_a_config_provider_stays_a_reference() -> None:
    options = connector(FLAT, {**INSERT, "static.value": "${env:REGION} ${x"})
    verdict = verdicts(options, KNOWN)["b"]
    assert verdict.keys == {"fields.tables": {"*.*": {"constants": {"region": "${REGION} $${x"}}}}


def test_a_constant_and_new_names_are_one_rule_of_a_table() -> None:
    options = connector(FLAT, INSERT, replaced(renames="status:state"))
    (rule,) = config(options, KNOWN).fields.rules
    assert (rule.rename, rule.constants) == ((("status", "state"),), (("region", "eu"),))
    inserted = connector(FLAT, INSERT, replaced(renames="region:r"))
    assert verdicts(inserted, KNOWN)["c"].kind is VerdictKind.IMPOSSIBLE


def test_two_rules_for_a_table_by_different_predicates_are_refused() -> None:
    options = connector(
        FLAT,
        INSERT,
        {**replaced(renames="status:state"), "predicate": "p"},
        **topic_predicate("inventory.public.orders"),
    )
    for known in (None, KNOWN):
        assert verdicts(options, known)["c"].kind is VerdictKind.IMPOSSIBLE


def test_the_topic_is_a_constant_of_each_table() -> None:
    found = config(connector(FLAT, {**INSERT, "topic.field": "t"}), KNOWN)
    assert found.fields.tables["public.orders"].constants == {"t": "inventory.public.orders", "region": "eu"}
    assert verdicts(connector(FLAT, {**INSERT, "topic.field": "t"}))["b"].kind is VerdictKind.UNKNOWN


@pytest.mark.parametrize("given", [{"offset.field": "t"}, {"static.field": "", "timestamp.field": "at"}])
def test_fields_that_are_no_constants_stand_in_the_way(given: dict[str, str]) -> None:
    assert verdicts(connector(FLAT, {**INSERT, **given}), KNOWN)["b"].kind is VerdictKind.IMPOSSIBLE


def test_a_constant_beside_before_and_after_stands_in_the_way() -> None:
    verdict = verdicts(connector(INSERT), KNOWN)["a"]
    assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.IMPOSSIBLE, {})
    assert "fields.tables (constants)" in verdict.why


MASK = {"type": f"{CONNECT}MaskField$Value", "fields": "email"}


def test_columns_of_text_are_masked() -> None:
    options = connector(FLAT, {**MASK, "replacement": "***"})
    assert verdicts(options, KNOWN)["b"].kind is VerdictKind.DIFFERENT
    assert config(options, KNOWN).columns.mask == {"*.*.email": "***"}


def test_without_a_replacement_a_text_is_empty() -> None:
    assert config(connector(FLAT, MASK), KNOWN).columns.truncate == {"*.*.email": 0}


@pytest.mark.parametrize("column", ["total", "id"])
def test_numbers_and_keys_are_not_masked(column: str) -> None:
    verdict = verdicts(connector(FLAT, {**MASK, "fields": f"email,{column}"}), KNOWN)["b"]
    assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.IMPOSSIBLE, {})
    assert "Do not take over before that" in verdict.why


def test_masks_of_envelopes_mask_no_row() -> None:
    found = verdicts(connector(MASK), KNOWN)["a"]
    assert (found.kind, dict(found.keys)) == (VerdictKind.SAME, {})
    assert verdicts(connector({**MASK, "fields": "before"}), KNOWN)["a"].kind is VerdictKind.IMPOSSIBLE


def test_a_predicate_on_topics_narrows_the_pattern() -> None:
    masked = {**MASK, "replacement": "x", "predicate": "p"}
    options = connector(FLAT, masked, **topic_predicate(r"inventory\.public\.(orders|customers)"))
    assert config(options, KNOWN).columns.mask == {"public.orders.email": "x", "public.customers.email": "x"}
    negated = connector(FLAT, {**masked, "negate": "true"}, **topic_predicate("inventory.public.orders"))
    assert config(negated, KNOWN).columns.mask == {"public.customers.email": "x"}
    assert "the present tables" in verdicts(negated, KNOWN)["b"].why
    assert verdicts(negated)["b"].kind is VerdictKind.UNKNOWN


def test_a_predicate_that_spares_every_table_changes_nothing() -> None:
    options = connector(
        FLAT, {**replaced(renames="id:x"), "predicate": "p"}, **topic_predicate("__debezium-.*")
    )
    for known in (None, KNOWN, (ORDERS,), (CUSTOMERS,)):
        verdict = verdicts(options, known)["b"]
        assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.IRRELEVANT, {})


@pytest.mark.parametrize(
    ("predicate", "negate", "kind"),
    [
        ("RecordIsTombstone", "true", VerdictKind.SAME),
        ("RecordIsTombstone", "false", VerdictKind.IRRELEVANT),
        ("HasHeaderKey", "false", VerdictKind.IMPOSSIBLE),
    ],
)
def test_predicates_that_choose_single_records(predicate: str, negate: str, kind: VerdictKind) -> None:
    options = connector(
        FLAT,
        {**replaced(renames="status:state"), "predicate": "p", "negate": negate},
        predicates__p__type=f"{CONNECT}predicates.{predicate}",
    )
    assert verdicts(options, KNOWN)["b"].kind is kind


def test_a_predicate_that_nobody_describes_stands_in_the_way() -> None:
    options = connector(FLAT, {**replaced(renames="status:state"), "predicate": "p"})
    assert "predicates.p.type" in verdicts(options, KNOWN)["b"].why


REWRITTEN = {"type": UNWRAP, "delete.tombstone.handling.mode": "rewrite", "add.fields": "op"}


@pytest.mark.parametrize("given", [{"exclude": "__deleted"}, {"include": "id,status,email,__op"}])
def test_the_field_that_names_deletes_may_be_left_out_again(given: dict[str, str]) -> None:
    keep = {"type": f"{CONNECT}ReplaceField$Value", **given}
    found = config(connector(REWRITTEN, keep), KNOWN).event_flattening
    assert (found.deleted_field, found.delete_tombstone_handling_mode) == (False, "rewrite")
    some = {**keep, "predicate": "p"}
    there = topic_predicate(r"inventory\.public\.orders")
    assert verdicts(connector(REWRITTEN, some, **there), KNOWN)["b"].kind is VerdictKind.IMPOSSIBLE
    other = {"type": f"{CONNECT}ReplaceField$Value", "exclude": "__op"}
    assert verdicts(connector(REWRITTEN, other), KNOWN)["b"].kind is VerdictKind.IMPOSSIBLE


def test_a_constant_and_the_topic_are_one_rule_for_each_table() -> None:
    inserts = [
        {"type": f"{CONNECT}InsertField$Value", "static.field": "source", "static.value": "cdc"},
        {"type": f"{CONNECT}InsertField$Value", "topic.field": "topic"},
    ]
    for ordered in (inserts, inserts[::-1]):
        found = config(connector({"type": UNWRAP}, *ordered), KNOWN).fields.tables
        assert {pattern: each.constants for pattern, each in found.items()} == {
            each.pattern: {"source": "cdc", "topic": f"inventory.public.{each.name}"} for each in KNOWN
        }
