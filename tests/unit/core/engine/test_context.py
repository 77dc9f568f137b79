"""What becomes of the context of a transaction, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdcd.core.engine.actions import Ship
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.context import FIELDS_MAX, PREFIX, Contexts, add_headers
from cdcd.core.engine.refusals import REFUSALS_MAX
from cdcd.core.engine.settings import ContextSettings
from cdcd.core.facts.transactions import ContextRefused
from cdcd.core.protocol.messages import LogicalMessage, Truncate
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.flattening import REWRITE, Flattening
from cdcd.core.snapshot.signals import token_digest
from cdcd.core.transactions.position import Position
from tests.unit.core.engine.tables import Facts, relation
from tests.unit.core.engine.test_engine import ENVELOPE, OID, Daemon, described, row, transaction
from tests.unit.core.transactions import wire

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ANY = ContextSettings()
WITH_TOKEN = ContextSettings(tokens=(token_digest("s" * 16),))


def content(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def context(xid: int | None = None, *, prefix: str = PREFIX, **fields: Any) -> bytes:
    return wire.frame(LogicalMessage(xid, True, 1, prefix, content(**fields)))


def headers_of(daemon: Daemon) -> list[list[tuple[str, bytes]]]:
    """The headers of each record that was shipped."""
    return [list(headers or ()) for ship in daemon.shipped for _, _, _, headers in ship.batch.records]


def actors(daemon: Daemon) -> list[str | None]:
    """The actor that each record names."""
    found = [dict(headers).get("cdcd.context.actor") for headers in headers_of(daemon)]
    return [None if actor is None else actor.decode() for actor in found]


def started(directory: Path, settings: ContextSettings | None = ANY, **more: Any) -> Daemon:
    daemon = Daemon(directory, context=settings, **more)
    daemon.idle()
    return daemon


# Where a context holds.


def test_a_context_becomes_headers_of_the_records_behind_it(tmp_path: Path):
    daemon = started(tmp_path)
    daemon.take(
        transaction(
            5,
            100,
            described(),
            row(1),
            context(actor="anna", request=4711, trial=True, traceparent=TRACE),
            row(2),
        )
    )
    assert headers_of(daemon) == [
        [],
        [
            ("cdcd.context.actor", b"anna"),
            ("cdcd.context.request", b"4711"),
            ("cdcd.context.trial", b"true"),
            ("traceparent", TRACE.encode()),
        ],
    ]
    assert daemon.ids == [1, 2]


def test_a_context_ends_with_its_transaction(tmp_path: Path):
    daemon = started(tmp_path)
    daemon.take(
        transaction(5, 100, described(), context(actor="anna"), row(1)),
        transaction(6, 200, row(2)),
        transaction(7, 300, context(actor="bert"), row(3)),
    )
    assert actors(daemon) == ["anna", None, "bert"]


def test_another_context_replaces_the_first_one_as_a_whole(tmp_path: Path):
    daemon = started(tmp_path)
    daemon.take(
        transaction(
            5, 100, described(), context(actor="anna", request="1"), row(1), context(actor="bert"), row(2),
            context(), row(3),
        )
    )  # fmt: skip
    assert [dict(each) for each in headers_of(daemon)] == [
        {"cdcd.context.actor": b"anna", "cdcd.context.request": b"1"},
        {"cdcd.context.actor": b"bert"},
        {},
    ]


def test_every_kind_of_record_has_the_headers(tmp_path: Path):
    encoding = EncoderSettings(
        version="1", prefix="p", database="d", schemas_topic="p.schemas", transaction_topic="p.transaction"
    )
    daemon = started(tmp_path, encoding=encoding)
    daemon.take(
        transaction(
            5,
            100,
            described(),
            context(actor="anna"),
            row(1),
            wire.emitted("hello"),
            wire.frame(Truncate(None, False, False, (OID,))),
        )
    )
    by_topic: dict[str, list[str | None]] = {}
    for ship in daemon.shipped:
        for topic, _, _, headers in ship.batch.records:
            actor = dict(headers or ()).get("cdcd.context.actor")
            by_topic.setdefault(topic, []).append(None if actor is None else actor.decode())
    # A description of a table is no record of the transaction.
    assert by_topic == {
        "p.schemas": [None],
        "p.transaction": ["anna", "anna"],
        "p.public.t": ["anna", "anna"],
        "p.message": ["anna"],
    }


def test_flattened_records_have_the_headers_too(tmp_path: Path):
    encoding = EncoderSettings(
        version="1", prefix="p", database="d", schemas_topic=None, flattening=Flattening(deletes=REWRITE)
    )
    daemon = started(tmp_path, encoding=encoding)
    daemon.take(transaction(5, 100, described(), context(actor="anna"), row(1)))
    assert actors(daemon) == ["anna"]


def test_a_streamed_transaction_has_its_context_and_the_next_one_has_none(tmp_path: Path):
    daemon = started(tmp_path)
    daemon.take(transaction(4, 50, described()))
    rows = [row(number, xid=7) for number in range(3)]
    daemon.take(wire.block(7, context(7, actor="anna"), *rows), wire.stream_commit(7, 100))
    assert actors(daemon) == ["anna"] * 3
    daemon.take(transaction(8, 200, row(9)))
    assert actors(daemon)[-1] is None


def test_a_prepared_transaction_has_its_context(tmp_path: Path):
    daemon = started(tmp_path)
    daemon.take(wire.prepared(7, "g", 100, described(), context(actor="anna"), row(1)))
    daemon.take(transaction(8, 200, row(2)), wire.commit_prepared(7, "g", 300))
    assert daemon.ids == [2, 1]
    assert actors(daemon) == [None, "anna"]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_restart_within_a_transaction_goes_on_with_its_context(tmp_path: Path, streamed: bool):
    # GIVEN a checkpoint that covers the context and the first row
    start = Checkpoint("1", 1, "", Position(100, 100, 2), 100)
    daemon = started(tmp_path, start=start)
    if streamed:
        rows = [row(1, xid=7), row(2, xid=7)]
        frames = [
            *wire.block(7, wire.frame(replace(relation(OID, "t"), xid=7)), context(7, actor="anna"), *rows),
            wire.stream_commit(7, 100),
        ]
    else:
        frames = transaction(5, 100, described(), context(actor="anna"), row(1), row(2))
    daemon.take(frames)
    # THEN the second row has the context, and no event was counted twice
    assert daemon.ids == [2]
    assert actors(daemon) == ["anna"]
    assert daemon.engine.checkpoint.position == Position(100, 110)


def test_a_message_that_is_delivered_already_has_no_second_record(tmp_path: Path):
    daemon = started(tmp_path, start=Checkpoint("1", 1, "", Position(100, 100, 1), 100))
    daemon.take(transaction(5, 100, described(), wire.emitted("hello"), row(1)))
    assert [topic for topic, _, _ in daemon.records] == ["p.public.t"]


def test_the_headers_count_against_the_limit_of_a_record(tmp_path: Path):
    def shipped(name: str, **fields: Any) -> list[int]:
        daemon = started(tmp_path / name, fails_over_bytes=900, sets_aside=True)
        daemon.take(transaction(5, 100, described(), context(**fields), row(1, "x" * 200)))
        return daemon.ids

    assert shipped("short", actor="anna") == [1]
    assert shipped("long", actor="a" * 400) == []


def test_a_part_of_a_batch_counts_its_headers_as_bytes(tmp_path: Path):
    daemon = started(tmp_path)
    daemon.feed(transaction(5, 100, described(), context(actor="a" * 1000), row(1)))
    ship: Ship = daemon.until(Ship)
    assert ship.batch.size > 1000


def test_without_the_section_a_context_has_no_record_because_it_may_have_another_pipelines_token(
    tmp_path: Path,
):
    daemon = started(tmp_path, None)
    daemon.take(transaction(5, 100, described(), context(actor="anna"), row(1)))
    assert [topic for topic, _, _ in daemon.records] == ["p.public.t"]
    assert actors(daemon) == [None]


def test_a_context_that_is_refused_changes_nothing(tmp_path: Path):
    daemon = started(tmp_path)
    daemon.take(
        transaction(5, 100, described(), context(actor="anna"), row(1), context(actor=["b"]), row(2)),
    )
    assert actors(daemon) == ["anna", "anna"]
    (refused,) = daemon.facts.of(ContextRefused)
    assert refused.reason == "field actor is not a text, a number, true or false"
    assert daemon.engine.contexts_refused == 1


def test_a_context_outside_of_a_transaction_is_refused(tmp_path: Path):
    daemon = started(tmp_path)
    daemon.take([wire.frame(LogicalMessage(None, False, 70, PREFIX, content(actor="anna")), 70)])
    daemon.take(transaction(5, 100, described(), row(1)))
    assert actors(daemon) == [None]
    assert "not transactional" in daemon.facts.of(ContextRefused)[0].reason


# What a context may be.


def read(message: bytes, settings: ContextSettings = ANY) -> tuple[Any, list[str]]:
    facts = Facts()
    contexts = Contexts(settings, facts)
    found = contexts.headers(LogicalMessage(None, True, 1, PREFIX, message), 1000)
    reasons = [each.reason for each in facts.of(ContextRefused)]
    assert contexts.refused == len(reasons)
    return found, reasons


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"x" * 5000, "5000 bytes"),
        (b"", "not JSON"),
        (b"nonsense", "not JSON"),
        (b"[" * 4000, "not JSON"),
        (b'{"a": ' * 500 + b"1" + b"}" * 500, "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        (b'{"a": 1, "a": 2}', "not JSON"),
        (b'{"a": "\\ud800"}', "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (content(a=None), "field a is not a text"),
        (content(a={"b": 1}), "field a is not a text"),
        (content(a="x\r\nSet-Cookie: b"), "control characters"),
        (content(a="\x00"), "control characters"),
        (content(a="\x1b[2J"), "control characters"),
        (content(a="\u202e"), "not seen"),
        (content(**{"a\r\nb": "x"}), "the name of a field"),
        (content(**{"": "x"}), "the name of a field"),
        (content(ü="x"), "the name of a field"),
        (content(**{"a" * 65: "x"}), "the name of a field"),
        (content(traceparent="00-" + "0" * 32 + "-" + "1" * 16 + "-01"), "W3C"),
        (content(traceparent=TRACE.upper()), "W3C"),
        (content(traceparent=1), "W3C"),
        (content(**{f"f{number}": 1 for number in range(FIELDS_MAX + 1)}), "33 fields"),
    ],
)
def test_what_is_refused_and_why(message: bytes, reason: str):
    found, (told,) = read(message)
    assert found is None
    assert reason in told


def test_a_refusal_never_repeats_a_value():
    for message in (content(a="secret\n"), content(token="secret"), b"secret", content(traceparent="secret")):
        _, (told,) = read(message, WITH_TOKEN)
        assert "secret" not in told


def test_a_token_is_needed_where_there_is_one_and_becomes_no_header():
    for token in ("", "t" * 16, 5, None, ["s" * 16]):
        found, (told,) = read(content(actor="anna", token=token), WITH_TOKEN)
        assert found is None
        assert "no token" in told
    assert read(content(actor="anna"), WITH_TOKEN)[0] is None
    assert read(content(actor="anna", token="s" * 16), WITH_TOKEN) == ([("cdcd.context.actor", b"anna")], [])
    # Without one, a token that is sent is not delivered either.
    assert read(content(actor="anna", token="s" * 16)) == ([("cdcd.context.actor", b"anna")], [])


def test_many_refusals_are_counted_and_few_are_reported():
    facts = Facts()
    contexts = Contexts(ANY, facts)
    for _ in range(REFUSALS_MAX + 40):
        contexts.headers(LogicalMessage(None, True, 1, PREFIX, b"nonsense"), 1000)
    assert contexts.refused == REFUSALS_MAX + 40
    assert len(facts.of(ContextRefused)) == REFUSALS_MAX
    contexts.headers(LogicalMessage(None, True, 1, PREFIX, b"nonsense"), 1001)
    assert facts.of(ContextRefused)[-1].left_out == 40


def test_a_header_of_the_record_itself_stays():
    added = [("traceparent", b"new"), ("cdcd.context.actor", b"anna")]
    assert add_headers([("traceparent", b"own")], added) == [("traceparent", b"own"), added[1]]
    assert add_headers(None, added) is added


def test_an_engine_without_a_context_makes_the_records_that_it_made_before(tmp_path: Path):
    with_it, without = started(tmp_path / "a"), started(tmp_path / "b", None, encoding=ENVELOPE)
    for daemon in (with_it, without):
        daemon.take(transaction(5, 100, described(), row(1)))
    assert [ship.batch.records for ship in with_it.shipped] == [
        ship.batch.records for ship in without.shipped
    ]
