"""Records in Protobuf, read by the deserializer of Confluent's client."""

from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory

from cdcd.core.protocol.messages import Insert, LogicalMessage
from tests.unit.core.records.debezium_json.test_encoder import LSN, OID, WITH_NOTE, relation, row
from tests.unit.core.records.protobuf.reading import as_json
from tests.unit.core.records.protobuf.test_encoder import Harness


def test_confluents_deserializer_reads_keys_values_and_logical_messages():
    harness = Harness(relation(*WITH_NOTE))
    records = harness.records(Insert(None, OID, row("0", "", None)))
    records += harness.records(LogicalMessage(None, True, LSN, "app", b"hi"))
    assert len(records) == 2
    for topic, key, value, _ in records:
        for part, data in ((MessageField.KEY, key), (MessageField.VALUE, value)):
            assert data is not None
            kind = message_factory.GetMessageClass(
                harness.schemas.descriptor(int.from_bytes(data[1:5], "big"))
            )
            reads = ProtobufDeserializer(kind, {"use.deprecated.format": False})
            message = reads(data, SerializationContext(topic, part))
            assert as_json(message) == harness.schemas.read(data)[1]
