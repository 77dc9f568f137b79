from cdcd.core.catalog.modes import Modes
from cdcd.core.records.cloudevents.tables import data_schema, message_schema
from cdcd.core.records.debezium_json.connect_schema import envelope_schema
from cdcd.core.records.debezium_json.messages import message_schema as whole_message_schema
from tests.unit.core.records.debezium_json.test_debezium_schemas import ORDERS


def test_data_have_the_rows_of_the_envelope():
    envelope = envelope_schema(ORDERS, [0, 1], {}, "shop.public.orders")
    schema = data_schema(envelope)
    assert schema["fields"] == envelope["fields"][:2]
    assert [field["field"] for field in schema["fields"]] == ["before", "after"]
    assert schema["name"] == "io.debezium.connector.postgresql.Data"


def test_data_of_a_logical_message_have_the_message():
    (field,) = message_schema(Modes())["fields"]
    assert field in whole_message_schema(Modes())["fields"]
    assert field["field"] == "message"
