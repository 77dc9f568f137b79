import json

from librt.strings import BytesWriter

from cdcd.core.records.debezium_json.source_block import (
    CREATED,
    UPDATED,
    SourceBlock,
    TableSource,
    TransactionFacts,
    processed_at,
    unix_us,
)
from cdcd.core.records.encoder import EncoderSettings

SETTINGS = EncoderSettings(version="1.2.3", prefix="shop", database="db")


def block(
    facts: TransactionFacts, settings: EncoderSettings = SETTINGS, lsn: int = 100, serial: int = 7
) -> dict[str, object]:
    """The source block as a record has it, its fields in their order."""
    table = TableSource("public", "orders")
    table.renew(SourceBlock(settings), facts)
    ending = table.ending(CREATED, processed_at(5_000_000))
    text = table.joined([], str(lsn).encode(), str(serial).encode(), ending)
    assert text.startswith(b",")
    envelope = json.loads(b"{" + text[1:])
    source_block: dict[str, object] = envelope["source"]
    return source_block


def test_the_source_has_debeziums_fields_in_its_order_and_ours_at_the_end():
    facts = TransactionFacts()
    facts.begin(77, 200, 1_700_000_000_123_456, 150)
    assert list(block(facts).items()) == [
        ("version", "1.2.3"),
        ("connector", "postgresql"),
        ("name", "shop"),
        ("ts_ms", 1_700_000_000_123),
        ("snapshot", "false"),
        ("db", "db"),
        ("sequence", '["150","100"]'),
        ("ts_us", 1_700_000_000_123_456),
        ("ts_ns", 1_700_000_000_123_456_000),
        ("schema", "public"),
        ("table", "orders"),
        ("txId", 77),
        ("lsn", 100),
        ("xmin", None),
        ("origin", None),
        ("origin_lsn", None),
        ("commit_lsn", 200),
        ("event_serial_no", 7),
    ]


def test_an_unknown_last_commit_is_null_in_the_sequence():
    facts = TransactionFacts()
    facts.begin(77, 200, 0, None)
    assert block(facts)["sequence"] == '[null,"100"]'


def test_an_origin_holds_for_its_transaction_only():
    facts = TransactionFacts()
    facts.begin(77, 200, 0, None)
    facts.set_origin('up"stream', 55)
    assert block(facts)["origin"] == 'up"stream'
    assert block(facts)["origin_lsn"] == 55
    facts.begin(78, 300, 0, None)
    assert block(facts)["origin"] is None
    assert block(facts)["origin_lsn"] is None


def test_names_are_json_whatever_is_in_them():
    settings = EncoderSettings(version='"', prefix="p\\", database="\n")
    facts = TransactionFacts()
    facts.begin(None, 200, 0, None)
    assert [block(facts, settings)[name] for name in ("version", "name", "db", "txId")] == [
        '"',
        "p\\",
        "\n",
        None,
    ]


def test_the_envelope_ends_with_transaction_op_and_three_times():
    text = TableSource("public", "orders").ending(UPDATED, processed_at(1_700_000_000_123_456))
    assert text == (
        b'},"transaction":null,"op":"u",'
        b'"ts_ms":1700000000123,"ts_us":1700000000123456,"ts_ns":1700000000123456000}'
    )


def test_times_on_the_wire_count_from_2000():
    assert unix_us(0) == 946_684_800_000_000


def test_the_ways_to_write_a_block_give_the_same_bytes():
    facts = TransactionFacts()
    facts.begin(77, 200, 1_700_000_000_123_456, 150)
    table = TableSource("public", 'or"ders', "0f3a")
    table.renew(SourceBlock(SETTINGS), facts)
    now = processed_at(5_000_000)
    joined = table.joined([b"{row}"], b"100", b"7", table.ending(UPDATED, now))
    before, after = table.around_number(b"{row}", b"100", UPDATED, now)
    assert before + b"7" + after == joined
    envelope = table.envelope(table.ending(UPDATED, now))
    assert envelope is not None
    assert envelope.value(b"{row}", b"100", 7, BytesWriter()) == joined
    assert len(joined) == envelope.size + len(b"{row}" + b"100" + b"100" + b"7")
    out = BytesWriter()
    out.write(b"{row}")
    table.write(UPDATED, 100, 7, now, out)
    assert out.getvalue() == joined
