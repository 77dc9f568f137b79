"""docs/protobuf.md shows the schema that cdcd registers for its example."""

import re
from pathlib import Path

from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings
from tests.unit.core.records.protobuf.test_encoder import described

DOCUMENT = Path(__file__).parents[5] / "docs" / "protobuf.md"
ORDERS = Relation(
    None,
    16_384,
    "public",
    "orders",
    "d",
    (
        Column(1, "id", 20, -1),
        Column(0, "note", 25, -1),
        Column(0, "placed", 1114, -1),
        Column(0, "tags", 1009, -1),
    ),
)


def test_the_schema_in_the_document_is_the_one_that_is_registered():
    encoder = record_stream(
        EncoderSettings("1", "shop", "db", key_format="protobuf", value_format="protobuf")
    )
    encoder.define(ORDERS, described(ORDERS, [1, 3, 4, 5]), {})
    _, value = encoder.unregistered(ORDERS.oid)
    shown = re.search(r"```proto\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert shown is not None
    assert shown[1] == value.text
