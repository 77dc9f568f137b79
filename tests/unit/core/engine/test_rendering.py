"""What the reading of tables is told of their keys."""

from dataclasses import replace

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.routing import RoutedTopics
from cdcd.core.catalog.table_rules import KeyRule
from cdcd.core.engine.rendering import SnapshotRows
from cdcd.core.engine.topics import Topics
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings
from tests.unit.core.engine.tables import relation
from tests.unit.core.engine.test_queue import make

FULL = replace(relation(1, "t"), replica_identity="f")
KEYED = TableDescription(primary_key=("id",))


def rows(*columns: str) -> SnapshotRows:
    settings = EncoderSettings("1", "p", "d", key_rules=(KeyRule("public.t", columns),) if columns else ())
    return SnapshotRows(record_stream(settings), make(), Topics(), settings.chosen_keys)


def test_rows_are_found_by_a_key_that_tells_them_apart_only():
    for columns, key in (((), ("id",)), (("id",), ("id",)), (("note",), ()), (("id", "note"), ())):
        found = rows(*columns)
        found.define(FULL, KEYED, {})
        assert found.key_columns(1) == key


def test_a_table_whose_key_comes_to_tell_rows_apart_is_read_by_it():
    found = rows("note")
    found.define(FULL, KEYED, {})
    assert found.key_columns(1) == ()
    found.define(FULL, replace(KEYED, unique_key=("note",)), {})
    assert found.key_columns(1) == ("note",)


def test_a_table_is_ready_when_all_topics_of_its_rows_are():
    routes = (RoutedTopics("public.t", ("{prefix}.{schema}.{table}-eu",)),)
    settings = EncoderSettings("1", "p", "d", routes=routes)
    topics = Topics()
    found = SnapshotRows(record_stream(settings), make(), topics)
    assert found.define(replace(FULL, columns=()), TableDescription(), {}) == "p.public.t"
    assert not found.topic_is_ready("p.public.t")
    wanted = topics.wanted()
    assert wanted is not None
    assert wanted.topics == ("p.public.t", "p.public.t-eu")
    assert wanted.keyless == frozenset(wanted.topics), "rows without a key must not be compacted away"
    topics.ready(["p.public.t"])
    assert not found.topic_is_ready("p.public.t")
    topics.ready(["p.public.t-eu"])
    assert found.topic_is_ready("p.public.t")
