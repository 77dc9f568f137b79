"""Bugs of topics that several tables share."""

from dataclasses import replace

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.routing import TopicNames
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.debezium_json.known_tables import KnownTables
from cdcd.core.records.encoder import EncoderSettings
from tests.sim.planted_stream import PlantedStream


class KeepsTheFirstIdentifier(KnownTables):
    """Keys of a table that was renamed go on with the former name of the table."""

    def _with_identifier(self, relation: Relation, table: TableDescription) -> TableDescription:
        found = super()._with_identifier(relation, table)
        former = self.__dict__.setdefault("_first", {}).setdefault(relation.oid, found.key_constants)
        return replace(found, key_constants=former)


class FirstIdentifierStream(PlantedStream):
    """An encoder with `KeepsTheFirstIdentifier`."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        self.tables.__class__ = KeepsTheFirstIdentifier


class WholeTopics(TopicNames):
    """All records have the name of the topic. So the engine cannot tell which table a record belongs to."""

    def share(self, schema: str, name: str) -> str:
        return self.table(schema, name)


class WholeTopicsStream(PlantedStream):
    """An encoder of the stream with `WholeTopics`."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        names = self.tables.names
        self.tables.names = WholeTopics(**{name: getattr(names, name) for name in names.__dataclass_fields__})
