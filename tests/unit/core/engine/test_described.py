"""What the stream says of relations: what the catalog is asked, and what is new."""

from dataclasses import replace

import pytest

from cdcd.core.catalog.field_names import FieldRule
from cdcd.core.catalog.relations import CatalogColumn, TableDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.engine.actions import Look, Read
from cdcd.core.engine.described import DESCRIBE_S, DescribedRelations
from cdcd.core.engine.fates import Fates
from cdcd.core.engine.tables import PublishedTables
from cdcd.core.engine.topics import Topics
from cdcd.core.errors import ConfigError
from cdcd.core.facts.tables import RelationChanged
from cdcd.core.protocol.messages import Column, Insert, Relation
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.transactions.steps import Changes
from tests.unit.core.engine.beside import reading
from tests.unit.core.engine.tables import PAGE, Facts, no_fates, relation, rows
from tests.unit.core.transactions import wire

OID = 1
DESCRIBED = TableDescription(primary_key=("id",))


class Session:
    def __init__(self, field_rules: tuple[FieldRule, ...] = (), *, fates: Fates | None = None) -> None:
        self.facts = Facts()
        self.topics = Topics()
        self.encoder = record_stream(
            EncoderSettings(
                version="1", prefix="p", database="d", schemas_topic=None, field_rules=field_rules
            )
        )
        self.encoder.begin(5, 100, 0, None)
        self.daemon = reading(parallelism=1, chunk_bytes=PAGE)
        incremental = self.daemon.incremental
        tables = PublishedTables(
            incremental,
            {OID: "public.t"},
            reads=True,
            reads_added=False,
            ends_rows=True,
            excluded=lambda _: False,
            observe=self.facts,
        )
        self.relations = DescribedRelations(
            encoder=self.encoder,
            incremental=incremental,
            tables=tables,
            topics=self.topics,
            observe=self.facts,
            fates=no_fates() if fates is None else fates,
        )

    def describe(self, message: Relation) -> None:
        self.relations.describe(message)
        assert self.relations.next(0.0) is not None
        self.relations.described(message, DESCRIBED, BUILTIN_TYPES)


@pytest.fixture
def session() -> Session:
    return Session()


def changes(oid: int = OID) -> Changes:
    return Changes([wire.frame(Insert(None, oid, (b"1", b"x")))], False)


def test_the_catalog_is_asked_once_for_a_description_and_later_if_it_is_behind(session: Session):
    asked = relation(OID, "t")
    session.relations.describe(asked)
    first = session.relations.next(7.0)
    assert first is not None
    assert first.relation is asked
    assert session.relations.next(7.0) is None
    session.relations.ask_again(7.0)
    assert session.relations.next(7.0) is None
    assert session.relations.next(7.0 + DESCRIBE_S) is first
    session.relations.described(asked, DESCRIBED, BUILTIN_TYPES)
    assert session.relations.asking is None


def test_no_row_passes_a_description_that_is_refused():
    session = Session(field_rules=(FieldRule("public.t", (), (("id", "x"),)),))
    asked = relation(OID, "t")
    session.relations.describe(asked)
    assert session.relations.next(0.0) is not None
    with pytest.raises(ConfigError, match="two fields id"):
        session.relations.described(asked, DESCRIBED, BUILTIN_TYPES)
    # The session ends a moment later. Until then, the rows behind the description wait.
    assert session.relations.asking is not None


def test_a_relation_that_is_refused_at_its_first_description_has_a_name():
    rules = (FieldRule("public.t", (), (("id", "x"),)),)
    fates = Fates((), {}, observe=lambda _fact: None, fault=lambda _oid, _fault, _error: None)
    session = Session(field_rules=rules, fates=fates)
    session.describe(relation(OID, "t"))
    assert session.relations.refused_name(OID) == "public.t"
    assert session.relations.refused_name(OID + 1) == ""
    assert not session.encoder.tables.knows(OID)


def test_a_known_relation_is_not_looked_up_for_an_open_transaction(session: Session):
    session.relations.preview(relation(OID, "t"))
    asked = session.relations.next(0.0)
    assert asked is not None
    columns = tuple(
        CatalogColumn(each.name, number, "", each.type_oid, 0, None)
        for number, each in enumerate(asked.relation.columns, 1)
    )
    session.relations.described(asked.relation, replace(DESCRIBED, columns=columns), BUILTIN_TYPES)
    assert session.encoder.tables.knows(OID)
    session.relations.preview(relation(OID, "t"))
    assert session.relations.asking is None


def test_a_relation_that_the_catalog_shows_otherwise_waits_for_the_commit(session: Session):
    session.relations.preview(relation(OID, "t"))
    asked = session.relations.next(0.0)
    assert asked is not None
    session.relations.described(asked.relation, DESCRIBED, BUILTIN_TYPES)
    assert session.relations.asking is None
    assert not session.encoder.tables.knows(OID)


def test_a_plan_is_looked_at_again_if_the_relation_changed_and_not_for_another_transactions_number(
    session: Session,
):
    session.describe(relation(OID, "t"))
    session.describe(replace(relation(OID, "t"), xid=8))
    session.describe(replace(relation(OID, "t"), xid=9))
    assert isinstance(session.daemon.answer(rows(1)), Read)
    session.describe(Relation(9, OID, "public", "t", "d", (Column(1, "id", 23, -1),)))
    session.daemon.between()
    _, question = session.daemon.ask()
    assert isinstance(question, Look)
    assert len(session.facts.of(RelationChanged)) == 1


def test_changes_lack_a_topic_that_they_may_be_routed_to(session: Session):
    session.describe(relation(OID, "t"))
    session.relations.new_topics[OID] = ("p.public.t", "elsewhere")
    session.topics.ready(["p.public.t"])
    session.relations.topics_ready()
    assert session.relations.lacks_topics(changes())
    session.topics.ready(["elsewhere"])
    session.relations.topics_ready()
    assert session.relations.new_topics == {}


def test_changes_lack_their_topic_until_it_is_ready(session: Session):
    session.describe(relation(OID, "t"))
    assert session.relations.new_topics == {OID: ("p.public.t",)}
    assert session.relations.lacks_topics(changes())
    session.topics.ready(["p.public.t"])
    session.relations.topics_ready()
    assert session.relations.new_topics == {}
    assert not session.relations.lacks_topics(changes())


def test_a_name_is_new_until_the_relation_has_its_former_name_back(session: Session):
    session.describe(relation(OID, "t"))
    assert session.relations.new_names == {}
    session.describe(relation(OID, "renamed"))
    assert session.relations.new_names == {OID: "public.renamed"}
    session.describe(relation(OID, "t"))
    assert session.relations.new_names == {}
