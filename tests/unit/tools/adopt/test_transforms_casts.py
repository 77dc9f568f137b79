"""Cast: computed fields in place of columns."""

import pytest

from cdcd.tools.adopt.verdicts import VerdictKind
from tests.unit.tools.adopt.transforms_examples import (
    CONNECT,
    KNOWN,
    UNWRAP,
    config,
    connector,
    topic_predicate,
    verdicts,
)

FLAT = {"type": UNWRAP}
TEXT_KEYS = {"key__converter": "org.apache.kafka.connect.storage.StringConverter"}


def cast(spec: str, **more: str) -> dict[str, str]:
    return {"type": f"{CONNECT}Cast$Value", "spec": spec, **more}


@pytest.mark.parametrize(
    ("kind", "expression"),
    [
        ("float64", "row.total == null ? null : double(row.total)"),
        ("int32", "row.total == null ? null : int(row.total)"),
        ("string", "row.total == null ? null : string(row.total)"),
    ],
)
def test_columns_are_cast_in_the_tables_that_have_them(kind: str, expression: str) -> None:
    options = connector(FLAT, cast(f"total:{kind},email:string,gone:int8"))
    found = config(options, KNOWN).fields.tables
    assert {pattern: dict(each.computed) for pattern, each in found.items()} == {
        "public.orders": {"total": expression}
    }
    assert verdicts(options, KNOWN)["b"].kind is VerdictKind.DIFFERENT


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("id:string", "Column id is in the key"),
        (
            "status:int32",
            "Column status of public.orders is a text of which no expression of cdcd makes int32",
        ),
        (
            "total:boolean",
            "Column total of public.orders has a value of which no expression of cdcd makes boolean",
        ),
        ("float64", "casts whole values"),
    ],
)
def test_a_cast_that_no_expression_makes_stands_in_the_way(spec: str, says: str) -> None:
    verdict = verdicts(connector(FLAT, cast(spec)), KNOWN)["b"]
    assert verdict.kind is VerdictKind.IMPOSSIBLE
    assert says in verdict.why


def test_a_cast_of_the_envelope_changes_nothing_unless_it_names_one_of_its_fields() -> None:
    assert verdicts(connector(cast("total:float64")), KNOWN)["a"].kind is VerdictKind.SAME
    assert verdicts(connector(cast("ts_ms:string")), KNOWN)["a"].kind is VerdictKind.IMPOSSIBLE
    assert verdicts(connector(FLAT, cast("gone:string")), KNOWN)["b"].kind is VerdictKind.SAME
    assert verdicts(connector(FLAT, cast("total:float64")))["b"].kind is VerdictKind.UNKNOWN


def test_a_number_in_the_key_may_be_a_text_where_keys_are_texts() -> None:
    extract = {"type": f"{CONNECT}ExtractField$Key", "field": "id"}
    found = config(connector(FLAT, extract, cast("id:string"), **TEXT_KEYS), KNOWN)
    assert found.format.key == "text"
    assert {dict(each.computed)["id"] for each in found.fields.tables.values()} == {"string(row.id)"}


def test_casts_beside_renamed_columns_of_the_same_table_are_one_rule() -> None:
    there = {**topic_predicate(r"inventory\.public\.orders")}
    rename = {"type": f"{CONNECT}ReplaceField$Value", "renames": "total:sum", "predicate": "p"}
    options = connector(FLAT, rename, cast("sum:float64", predicate="p"), **there)
    (rule,) = config(options, KNOWN).fields.tables.values()
    assert (rule.rename, list(rule.computed)) == ({"total": "sum"}, ["total"])
