from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.errors import SinkError, SourceError
from cdcd.core.records.gaps import Aside
from cdcd.core.records.schema_registrations import SchemaIds, SchemaUse
from cdcd.core.records.schemas import TableForm
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.records.values import ValueForm
from cdcd.mirror.targets.evolution import IncompatibleSchemaError


def form(name: str, *columns: str) -> TableForm:
    described = tuple(
        [ColumnForm(column, place, "text", 25, -1, "text") for place, column in enumerate(columns, 1)]
    )
    return TableForm("public", name, f"shop.public.{name}", (), described)


def descriptions(*forms: TableForm, by_header: bool = False) -> Descriptions:
    admin = SimpleNamespace(ends=lambda _: {"shop.schemas": {}})
    made = Descriptions(
        cast("Any", None), KafkaSource("b:1"), cast("Any", admin), "shop.schemas", by_header=by_header
    )
    for number, one in enumerate(forms):
        made._take(one.record()[1], f"shop.schemas[0]@{number}")
    return made


def test_every_form_is_known_by_its_id_and_the_last_as_the_newest():
    old, new = form("t", "a"), form("t", "a", "b")
    known = descriptions(old, new)
    assert known.newest("shop.public.t").schema.schema_id == new.fingerprint
    found = known.get("shop.public.t", old.fingerprint)
    assert found is not None
    assert [column.name for column in found.schema.columns] == ["a"]
    assert known.table("shop.public.t") == "public.t"
    assert list(known.topics()) == ["shop.public.t"]


def test_a_form_of_another_table_is_not_this_tables():
    one, other = form("t", "a"), form("u", "b")
    assert descriptions(one, other).get("shop.public.t", other.fingerprint) is None


def test_what_is_not_known_is_none():
    known = descriptions()
    assert known.table("shop.public.t") is None
    assert known.get("shop.public.t", "x") is None


def test_a_default_is_lost_unless_a_description_from_before_the_column_has_the_same_file():
    old = replace(form("t", "a"), oid=1, last_id=1, rewritten=7)
    later = replace(form("t", "a", "b"), oid=1, last_id=2, rewritten=7)
    again = replace(later, rewritten=8)

    def lost(*forms: TableForm) -> bool:
        return descriptions(*forms).newest("shop.public.t").schema.columns[1].default_lost

    assert not lost(old, later)
    assert lost(old, again)
    assert lost(replace(old, oid=2), later)
    # AND a description that comes again with what the catalog has by now takes nothing back
    assert not lost(old, replace(old, last_id=2), later)
    assert not lost(old, replace(old, rewritten=8, last_id=2), later)


def test_a_column_that_returns_under_its_number_is_not_the_one_that_was_there():
    """The daemon was behind: for it, a column had the number already that it got when it was added again."""

    def of(*columns: tuple[str, int | None]) -> TableForm:
        described = [ColumnForm(name, number, "text", 25, -1, "text") for name, number in columns]
        return replace(form("t"), oid=1, columns=tuple(described))

    def lost(*forms: TableForm) -> list[str]:
        schema = descriptions(*forms).newest("shop.public.t").schema
        return [column.name for column in schema.columns if column.default_lost]

    first, without = of(("a", 1), ("b", 3), ("c", 4)), of(("a", 1), ("c", 4))
    assert lost(first, without, first) == ["b"]
    assert lost(first, without, of(("a", 1), ("renamed", 3), ("c", 4))) == ["renamed"]
    # AND another number is another column, and the same form again is no return
    assert lost(first, without, of(("a", 1), ("c", 4), ("b", 5))) == []
    assert lost(first, first, without) == []
    # AND a column without a number may be the one that is looked for
    assert lost(first, of(("a", 1), ("x", None), ("c", 4)), first) == []
    # AND columns of another relation are others
    assert lost(first, replace(without, oid=2), first) == []


def test_a_relation_had_the_names_under_which_it_was_described_before():
    def named(name: str, oid: int | None) -> TableForm:
        return replace(form(name, "a"), oid=oid)

    def former(known: Descriptions, name: str) -> str | None:
        return known.former_name(known.newest(f"shop.public.{name}").schema)

    # GIVEN names of two tables that are exchanged, and a table of a former daemon, which did not tell oids
    known = descriptions(
        named("a", 1), named("a_next", 2), named("other", None), named("a_prev", 1), named("a", 2)
    )
    assert former(known, "a_prev") == "public.a"
    assert former(known, "a") == "public.a_next"
    assert [former(known, name) for name in ("a_next", "other")] == [None, None]
    # WHEN a table has its former name again, THEN its first rows are in the topic of that name
    known = descriptions(named("a", 1), named("b", 1), replace(named("a", 1), key=("a",)))
    assert (former(known, "a"), former(known, "b")) == (None, "public.a")


def test_a_record_that_is_no_description_is_kept_as_a_problem():
    known = descriptions()
    known._take(b"{}", "shop.schemas[0]@5")
    assert "not the description" in known.problems["shop.schemas[0]@5"]


def test_a_table_whose_topic_leaves_operations_out_is_stopped_by_name():
    less = replace(form("t", "a"), skipped=("d",))
    with pytest.raises(SourceError, match=r"public\.t: its topic leaves out the operations d"):
        descriptions(less).newest("shop.public.t")


def test_a_table_with_flattened_records_is_stopped_by_name():
    with pytest.raises(SourceError, match=r"public\.t: its records are flattened"):
        descriptions(replace(form("t", "a"), flattened=True)).newest("shop.public.t")


FLAT = replace(form("t", "a"), key=("a",), flattened=True, change_header="json")


def test_a_table_with_flattened_records_and_headers_is_read_from_a_log_only():
    known = descriptions(FLAT, by_header=True)
    assert known.newest("shop.public.t").values == ValueForm("json", flattened=True)
    with pytest.raises(SourceError, match=r"are flattened .* order of the changes"):
        descriptions(FLAT).newest("shop.public.t")
    with pytest.raises(SourceError, match=r"public\.t: .* has no key"):
        descriptions(replace(FLAT, key=()), by_header=True).newest("shop.public.t")


def test_a_topic_with_flattened_records_from_before_the_headers_is_stopped_by_name():
    both = descriptions(replace(FLAT, change_header=""), FLAT, by_header=True)
    with pytest.raises(SourceError, match=r"from before format\.change_header"):
        both.newest("shop.public.t")
    # AND records of another table that had the name do not count
    other = descriptions(replace(FLAT, change_header="", oid=7), FLAT, by_header=True)
    assert other.newest("shop.public.t").values.flattened


def test_a_table_in_a_format_that_is_not_read_is_stopped_by_name():
    protobuf = replace(form("t", "a"), change_header="protobuf")
    with pytest.raises(SourceError, match=r"public\.t: its records are in the format protobuf"):
        descriptions(protobuf, by_header=True).newest("shop.public.t")


def test_a_pipeline_with_a_registry_is_read_if_the_topic_has_the_schemas():
    use = SchemaUse("s", '"string"')
    ids = SchemaIds("http://registry", [(use.known_as, 7)])
    whole, bare = [ids.record(use, whole=each)[1] for each in (True, False)]
    known = descriptions(by_header=True)
    known._take(whole, "shop.schemas[0]@5")
    assert known.problems == {}
    for refuses, record in ((known, bare), (descriptions(), whole)):
        with pytest.raises(SinkError, match=r"shop.schemas\[0\]@6 says.*no header cdcd.change"):
            refuses._take(record, "shop.schemas[0]@6")


def test_a_table_whose_rows_are_routed_is_stopped_by_name():
    routed = replace(form("t", "a"), routes=("shop.public.t-eu",))
    with pytest.raises(SourceError, match=r"public\.t: its rows are routed to several topics"):
        descriptions(routed).newest("shop.public.t")


def test_a_table_whose_records_are_cloudevents_is_stopped_by_name():
    with pytest.raises(SourceError, match=r"public\.t: its records are CloudEvents"):
        descriptions(replace(form("t", "a"), cloudevents=True)).newest("shop.public.t")


def test_a_table_whose_records_of_one_key_may_lie_in_several_partitions_is_stopped_by_name():
    with pytest.raises(
        SourceError, match=r"public\.t: columns that are not of its key choose the partitions"
    ):
        descriptions(replace(form("t", "a"), moves=True)).newest("shop.public.t")


def test_a_table_of_numbers_without_a_declared_precision_as_bytes_is_stopped_by_name():
    column = ColumnForm("a", 1, "numeric", 1700, -1, "decimal_variable")
    precise = TableForm("public", "t", "shop.public.t", (), (column,))
    with pytest.raises(SourceError, match=r"public\.t: numeric is written as bytes") as refusal:
        descriptions(precise).newest("shop.public.t")
    assert "string or double" in refusal.value.hint


def test_a_form_of_a_newer_daemon_stops_its_table_with_what_to_do():
    newer = TableForm("public", "t", "shop.public.t", (), (ColumnForm("a", 1, "x", 1, -1, "uuid7"),))
    with pytest.raises(SourceError, match=r"public\.t: .*uuid7"):
        descriptions(newer).newest("shop.public.t")


def test_unknown_forms_are_waited_for_once(monkeypatch: Any):
    one = form("t", "a")
    known = descriptions(one)
    monkeypatch.setattr("cdcd.mirror.records.descriptions.PATIENCE_S", 0.0)
    found = known.find("shop.public.t", {one.fingerprint, "unknown"})
    assert found.keys() == {one.fingerprint}
    assert known._unknown == {"unknown"}


def test_a_number_that_a_description_lacks_is_that_of_the_others():
    known = form("t", "a", "b")
    lacking = replace(known, columns=(known.columns[0], replace(known.columns[1], id=None)))
    later = replace(known, columns=(known.columns[0], replace(known.columns[1], name="c")))
    for order in ((known, lacking, later), (known, later, lacking), (known, lacking, later, lacking)):
        found = descriptions(*order).get("shop.public.t", lacking.fingerprint)
        assert found is not None
        assert [column.id for column in found.schema.columns] == [1, 2]


def test_numbers_are_not_taken_if_columns_would_not_be_in_the_order_of_them():
    # a was dropped and added again, or both took each other's names.
    later = form("t", "b", "a")
    a, b = [replace(column, id=None) for column in form("t", "a", "b").columns]
    lacking = replace(later, columns=(a, b))
    found = descriptions(later, lacking).get("shop.public.t", lacking.fingerprint)
    assert found is not None
    assert [column.id for column in found.schema.columns] == [None, None]


def test_a_number_of_another_table_of_that_name_is_not_taken():
    known = replace(form("t", "a", "b"), oid=1)
    lacking = replace(known, oid=2, columns=(known.columns[0], replace(known.columns[1], id=None)))
    found = descriptions(known, lacking).get("shop.public.t", lacking.fingerprint)
    assert found is not None
    assert [column.id for column in found.schema.columns] == [1, None]


def enum(*labels: tuple[int, str], more: str = "") -> TableForm:
    """A table with a column of an enum; `more` makes another form of it."""
    columns = (
        ColumnForm("id", 1, "bigint", 20, -1, "int64"),
        ColumnForm("mood", 2, "mood", 90_000, -1, "text", None, labels),
        *([ColumnForm(more, 3, "text", 25, -1, "text")] if more else []),
    )
    return TableForm("public", "t", "shop.public.t", ("id",), columns, 16384)


def test_every_form_has_the_labels_of_the_last_description():
    old, new = enum((1, "sad"), (2, "ok")), enum((1, "blue"), (2, "ok"), (3, "fine"), more="x")
    known = descriptions(old, new)
    for form_ in (old, new):
        found = known.get("shop.public.t", form_.fingerprint)
        assert found is not None
        assert found.schema.columns[1].labels == ((1, "blue"), (2, "ok"), (3, "fine"))
        # What was written before is converted.
        assert found.rules["mood"].convert is not None


def test_a_word_that_is_another_labels_by_now_stops_what_was_written_with_it():
    old, new = enum((1, "a"), (2, "b")), enum((1, "b"), (2, "a"))
    known = descriptions(old, new)
    assert known.newest("shop.public.t").schema.columns[1].labels == ((1, "b"), (2, "a"))
    with pytest.raises(IncompatibleSchemaError, match=r"'b', 'a' is now the name of another label") as caught:
        known.get("shop.public.t", old.fingerprint)
    assert "--snapshot public.t" in caught.value.hint


def test_the_newest_readable_record_says_whether_a_table_is_set_aside():
    known = descriptions(form("t", "a"))
    stopped = Aside(7, "public.t", 16, "size")
    for number, (aside, found) in enumerate(
        [(stopped, {7: stopped}), (replace(stopped, until=32), {}), (stopped, {7: stopped})]
    ):
        value = aside.record("shop.schemas", None)[2]
        assert value is not None
        known._take(value, f"shop.schemas[0]@{number}")
        assert known.aside == found
        assert (7 in known.returned) == (number > 0)

    # A record that is malformed is reported, and changes nothing.
    known._take(b'{"aside":{"oid":7,"until":"0/1"}}', "shop.schemas[0]@9")
    assert known.aside == {7: stopped}
    assert "malformed" in known.problems["shop.schemas[0]@9"]
    # It may be the newest one that is left when the topic is compacted, so the other tables go on.
    assert known.newest("shop.public.t").schema.table == "public.t"
