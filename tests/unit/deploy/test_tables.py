from typing import Any

from deploy.demo.history import examine
from deploy.demo.tables import UNKNOWN, Folded, fold
from tests.unit.deploy.synthetic import Topics

ONE, TWO, THREE = {"id": 1}, {"id": 2}, {"id": 3}


def folded(topics: Topics) -> tuple[dict[tuple[str, str], Folded], set[str]]:
    history = examine(topics.records)
    tables = fold(history.events, history.violations)
    return tables, set(history.violations.counts)


def rows(topics: Topics, table: str = "t") -> list[dict[str, Any]]:
    tables, violations = folded(topics)
    assert not violations
    return tables["public", table].rows()


def test_rows_are_kept_by_key() -> None:
    topics = Topics()
    topics.begin(1).insert("t", ONE, id=1, name="a").insert("t", TWO, id=2, name="b")
    topics.begin(2).update("t", ONE, id=1, name="c").delete("t", TWO, id=2)
    assert rows(topics) == [{"id": 1, "name": "c"}]


def test_a_changed_key_moves_the_row() -> None:
    topics = Topics()
    topics.begin(1).insert("t", ONE, id=1, name="a").rekey("t", ONE, TWO, id=2, name="b")
    assert rows(topics) == [{"id": 2, "name": "b"}]


def test_an_unchanged_value_stays_what_it_was() -> None:
    topics = Topics()
    topics.begin(1).insert("t", ONE, id=1, note="long")
    topics.begin(2).update("t", ONE, unchanged=["note"], id=1, note="__unavailable")
    assert rows(topics) == [{"id": 1, "note": "long"}]


def test_an_unchanged_value_moves_with_its_row_to_another_key() -> None:
    topics = Topics()
    topics.begin(1).insert("t", ONE, id=1, note="long")
    topics.begin(2).rekey("t", ONE, TWO, unchanged=["note"], id=2, note="__unavailable")
    assert rows(topics) == [{"id": 2, "note": "long"}]


def test_an_unchanged_value_that_was_never_sent_is_no_value() -> None:
    topics = Topics()
    topics.begin(1).insert("t", ONE, id=1)
    topics.begin(2).update("t", ONE, unchanged=["note"], id=1, note="__unavailable")
    assert rows(topics) == [{"id": 1, "note": UNKNOWN}]


def test_truncate_empties_the_tables_it_names() -> None:
    topics = Topics()
    topics.begin(1).insert("t", ONE, id=1).insert("bag", None, a=1).insert("other", ONE, id=1)
    topics.begin(2).truncate("t", "bag")
    assert rows(topics) == rows(topics, "bag") == []
    assert rows(topics, "other") == [{"id": 1}]


def test_rows_without_a_key_are_counted() -> None:
    topics = Topics()
    topics.begin(1).insert("t", None, a=1).insert("t", None, a=1).insert("t", None, a=2)
    topics.begin(2).delete("t", None, a=1).update("t", None, before={"a": 2}, a=3)
    assert sorted(row["a"] for row in rows(topics)) == [1, 3]


def test_rows_of_no_columns_are_counted() -> None:
    assert rows(Topics().begin(1).insert("t", None).insert("t", None)) == [{}, {}]


def test_a_change_of_a_row_that_is_not_there_is_a_violation() -> None:
    assert folded(Topics().begin(1).update("t", ONE, id=1))[1] == {"change of a row that is not there"}
    assert folded(Topics().begin(1).delete("t", ONE, id=1))[1] == {"change of a row that is not there"}
    assert folded(Topics().begin(1).delete("t", None, id=1))[1] == {"change of a row that is not there"}


def test_an_insert_of_a_row_that_is_there_is_a_violation() -> None:
    topics = Topics().begin(1).insert("t", ONE, id=1).insert("t", ONE, id=1)
    assert folded(topics)[1] == {"insert of a row that is there"}


def test_an_old_row_must_be_the_one_we_have() -> None:
    topics = Topics().begin(1).insert("t", ONE, id=1, name="a", note=None)
    topics.update("t", ONE, before={"id": 1, "name": "b", "note": None}, id=1, name="c", note=None)
    assert folded(topics)[1] == {"old row is another than before"}


def test_an_old_row_may_lack_what_was_not_sent() -> None:
    topics = Topics().begin(1).insert("t", ONE, id=1, name="a")
    assert rows(topics.update("t", ONE, before={"id": 1, "name": None}, id=1, name="c")) == [
        {"id": 1, "name": "c"}
    ]


def test_a_change_without_key_and_old_row_is_a_violation() -> None:
    topics = Topics().begin(1).insert("t", None, a=1).update("t", None, a=2)
    assert folded(topics)[1] == {"change without key and old row"}
