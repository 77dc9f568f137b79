"""The section `outbox`: what is refused, and what the engine is given."""

import pytest

from cdcd.core.records.shaping.settings import Outbox, OutboxTable
from tests.unit.config.test_loading import MINIMAL, parse, problem


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("messages: true", "topics is empty"),
        ("tables: {public.outbox: {}}", "topics is empty"),
        ("topics: [a.b, a_b]", "names a topic twice"),
        ("topics: [shop.message]", "is already another topic of the pipeline"),
        ("topics: [shop_checkpoint]", "is already another topic of the pipeline"),
        ("topics: [shop.public.orders]", "could be the topic of a table"),
        ("topics: [shop_public_orders]", "could be the topic of a table"),
        ("topics: [a], tables: {outbox: {}}", "must be <schema>.<table>"),
        ("topics: [a], tables: {public.*: {}}", "must be <schema>.<table>"),
        ("topics: [a], tables: {public.outbox: {topic: 'a b'}}", "may hold only ASCII letters"),
        ("topics: [a], tables: {public.outbox: {headers: {id: x}}}", "headers must not have id"),
        (
            "topics: [a], tables: {public.outbox: {headers: {cdcd.partition: x}}}",
            "headers must not have cdcd.partition",
        ),
        ("topics: [a], tables: {public.outbox: {}}", "no topic of the form outbox.event.{value}"),
        ("topics: [a, b], tables: {public.outbox: {topic: c}}", "no topic of the form c"),
        ("topics: [a], messages: true, message_bytes_max: 1", "at least 1024"),
        (
            "topics: [a], tables: {public.outbox: {topic: a, payload_form: avro_record, envelope: {x: y}}}",
            "envelope needs payload_form: text",
        ),
        ("tables: {public.outbox: {topics_max: 0}}", "topics is empty"),
        ("tables: {public.outbox: {topics_max: 5, topic: '{value}'}}", "choose any topic of the cluster"),
        ("tables: {public.outbox: {topics_max: 5, topic: '..{value}'}}", "choose any topic of the cluster"),
        ("tables: {public.outbox: {topics_max: 5, topic: 'a{value}'}}", "choose any topic of the cluster"),
        ("tables: {public.outbox: {topics_max: 5, topic: a.b}}", "choose any topic of the cluster"),
        ("tables: {public.outbox: {topics_max: 501}}", "500"),
        (
            "topics: [a], tables: {public.outbox: {topic: a, key_form: avro}}",
            "public.outbox: key_form and payload_form other than text need format.value: avro",
        ),
    ],
)
def test_what_is_wrong_is_named(section: str, says: str):
    assert says in problem(f"{MINIMAL}outbox: {{{section}}}\n")


def test_messages_that_the_server_is_not_asked_for_cannot_be_published():
    given = f"{MINIMAL}outbox: {{topics: [a], messages: true}}\n".replace(
        "postgres:\n", "postgres:\n  messages: false\n"
    )
    assert "outbox.messages needs another postgres.messages than false" in problem(given)


def test_payloads_in_binary_form_are_refused():
    given = f"{MINIMAL}outbox: {{topics: [outbox.event.a], tables: {{public.outbox: {{}}}}}}\n".replace(
        "postgres:\n", "postgres:\n  binary: true\n"
    )
    assert "outbox.tables needs postgres.binary: false" in problem(given)


def test_nothing_is_published_by_default():
    config = parse()
    assert not config.outbox.settings.is_on
    assert config.on_demand() == ()


def test_an_outbox_table_has_debeziums_columns_and_is_in_no_snapshot():
    config = parse(
        "outbox: {topics: [outbox.event.a, orders.b], messages: true, tables: {public.outbox: "
        "{headers: {eventType: type}}, b.c: {event_id: null, topic: orders.b}}}\nsnapshot: {exclude: [x.y]}\n"
    )
    assert config.outbox.settings == Outbox(
        ("outbox.event.a", "orders.b"),
        messages=True,
        tables={
            ("public", "outbox"): OutboxTable(
                "outbox.event.{value}", "aggregatetype", "id", "aggregateid", "payload", {"eventType": "type"}
            ),
            ("b", "c"): OutboxTable("orders.b", "aggregatetype", "", "aggregateid", "payload"),
        },
    )
    assert config.on_demand() == ("x.y", "public.outbox", "b.c")
