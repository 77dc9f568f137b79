"""One fate for each table: what is set aside, what goes on, and how a table comes back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdcd.core.catalog.field_names import FieldRule
from cdcd.core.engine.actions import Describe, EnsureTopics, Ship
from cdcd.core.engine.checkpoint import AsideTable, Checkpoint
from cdcd.core.engine.ending import TablesRefusedError
from cdcd.core.engine.fates import (
    BROKER,
    NAME,
    REQUEST,
    RETRY_S,
    RETRY_S_MAX,
    RETURNING_MAX,
    RULE,
    SIZE,
    TOPIC,
    VALUE,
    Fates,
)
from cdcd.core.engine.questions import PUBLISHED_S
from cdcd.core.errors import CdcdError, ConfigError, SinkError
from cdcd.core.facts.snapshot import SnapshotSignalled, SnapshotSignalRefused
from cdcd.core.facts.tables import TableLeft, TableResumed, TableSetAside
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import UNCHANGED, Truncate, Update
from cdcd.core.records.shaping.settings import Outbox, OutboxTable
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.signals import RESUME_TABLES, STOP_TABLES, Signal
from cdcd.core.transactions.position import Position
from tests.unit.core.engine.tables import Facts, table
from tests.unit.core.engine.test_engine import (
    ENVELOPE,
    START,
    Daemon,
    described,
    requested,
    row,
    transaction,
)
from tests.unit.core.transactions import wire

OTHER = 8
PUBLISHED = {7: "public.t", OTHER: "public.other"}


def daemon_of(folder: Path, start: Checkpoint = START, **options: Any) -> Daemon:
    """A session that sets tables aside, of two tables."""
    found = Daemon(folder, start, published=dict(PUBLISHED), **{"sets_aside": True, **options})
    found.tables[7] = table(7, pages=1)
    found.idle()
    return found


def resume(daemon: Daemon, lsn: int) -> None:
    signal = Signal(RESUME_TABLES, ("public.t",))
    daemon.take(transaction(99, lsn, requested(signal)))


def set_aside(daemon: Daemon) -> list[tuple[str, str, str]]:
    return [(fact.table, fact.fault, fact.lsn) for fact in daemon.facts.of(TableSetAside)]


def ids(daemon: Daemon) -> list[tuple[str, int]]:
    return [
        (topic.rpartition(".")[2], value["after"]["id"])
        for topic, _, value in daemon.records
        if value and value.get("after")
    ]


BOTH = (described(), described("other", OTHER))
FAULTY = replace(ENVELOPE, field_rules=(FieldRule("public.t", (("note", "id"),), ()),))


def test_a_table_whose_rule_cannot_be_followed_is_set_aside_with_its_first_event_and_others_go_on(
    tmp_path: Path,
):
    daemon = daemon_of(tmp_path, encoding=FAULTY)
    daemon.take(transaction(5, 100, *BOTH))
    assert set_aside(daemon) == []
    daemon.take(transaction(6, 200, row(1, oid=OTHER), row(2), row(3, oid=OTHER)))
    assert set_aside(daemon) == [("public.t", RULE, "0/C8")]
    # The events of the table count, so the numbers of the others are as ever.
    numbers = [(value["after"]["id"], value["source"]["event_serial_no"]) for _, _, value in daemon.records]
    assert numbers == [(1, 1), (3, 3)]
    assert daemon.engine.checkpoint.position == Position(200, 210)
    assert daemon.engine.checkpoint.tables == (AsideTable(7, 200, RULE),)


def test_the_same_fault_ends_the_session_if_the_configuration_says_so(tmp_path: Path):
    daemon = daemon_of(tmp_path, encoding=FAULTY, sets_aside=False)
    with pytest.raises(ConfigError, match="two fields id"):
        daemon.take(transaction(5, 100, described(), row(2)))


def test_a_row_at_fault_leaves_nothing_and_the_rows_before_it_stay(tmp_path: Path):
    daemon = daemon_of(tmp_path)
    lost = wire.frame(Update(None, 7, "", None, (UNCHANGED, b"x")))
    daemon.take(transaction(5, 100, *BOTH, row(1), row(2, oid=OTHER), lost, row(3, oid=OTHER), row(4)))
    assert set_aside(daemon) == [("public.t", VALUE, "0/64")]
    assert ids(daemon) == [("t", 1), ("other", 2), ("other", 3)]
    numbers = [value["source"]["event_serial_no"] for _, _, value in daemon.records]
    assert numbers == [1, 2, 4]


def test_a_truncate_of_several_tables_is_left_to_the_others(tmp_path: Path):
    daemon = daemon_of(tmp_path, encoding=FAULTY)
    daemon.take(transaction(5, 100, *BOTH, row(1), wire.frame(Truncate(None, False, False, (7, OTHER)))))
    assert [(topic, value["op"]) for topic, _, value in daemon.records] == [("p.public.other", "t")]


def test_a_record_that_is_too_large_takes_its_table_out_from_there_on(tmp_path: Path):
    daemon = daemon_of(tmp_path, fails_over_bytes=2000)
    daemon.take(
        transaction(5, 100, *BOTH, row(1), row(2, oid=OTHER), row(3, "x" * 3000), row(4), row(5, oid=OTHER))
    )
    assert set_aside(daemon) == [("public.t", SIZE, "0/64")]
    assert ids(daemon) == [("t", 1), ("other", 2), ("other", 5)]


def test_topics_that_are_refused_set_their_tables_aside_in_one_step(tmp_path: Path):
    daemon = daemon_of(tmp_path)
    daemon.feed(transaction(5, 100, *BOTH, row(1), row(2, oid=OTHER)))
    wanted = daemon.until(EnsureTopics)
    assert wanted.topics == ("p.public.t", "p.public.other")
    daemon.engine.topics_refused({"p.public.t": SinkError("no right")}, daemon.now)
    daemon.engine.topics_ready(["p.public.other"], daemon.now)
    daemon.idle()
    assert set_aside(daemon) == [("public.t", TOPIC, "0/64")]
    assert ids(daemon) == [("other", 2)]


def test_a_topic_that_no_table_has_belongs_to_all(tmp_path: Path):
    with pytest.raises(SinkError, match="no right"):
        daemon_of(tmp_path).engine.topics_refused({"p.schemas": SinkError("no right")}, 0.0)


def test_two_tables_with_one_topic_are_one_fault(tmp_path: Path):
    names = {("public", "t"): "p.a.b", ("public", "other"): "p.a_b"}
    daemon = daemon_of(tmp_path, encoding=replace(ENVELOPE, names=names))
    daemon.take(transaction(5, 100, *BOTH, row(1, oid=OTHER), row(2)))
    assert set_aside(daemon) == [("public.t", NAME, "0/64")]
    assert [value["after"]["id"] for _, _, value in daemon.records] == [1]


def test_a_batch_of_which_the_broker_refuses_a_topic_goes_out_without_it(tmp_path: Path):
    # GIVEN a batch on its way, and more of the table behind it
    daemon = daemon_of(tmp_path)
    daemon.feed(transaction(5, 100, *BOTH, row(1), row(2, oid=OTHER)))
    out = daemon.until(Ship)
    daemon.feed(transaction(6, 200, row(3), row(4, oid=OTHER)))
    daemon.idle()

    # WHEN the broker refuses records of the table
    daemon.engine.refused(out.batch, {"p.public.t": SinkError("no right")}, daemon.now)
    daemon.idle()

    # THEN nothing of the table is delivered, and the checkpoint says so from the batch on
    assert set_aside(daemon) == [("public.t", BROKER, "0/3C")]
    assert ids(daemon) == [("other", 2), ("other", 4)]
    assert daemon.shipped[-1].checkpoint.tables == (AsideTable(7, 60, BROKER),)
    assert daemon.shipped[-2].checkpoint.position == Position(100, 110)
    assert daemon.engine.queue.size == daemon.engine.queue.waiting == 0


def test_a_table_that_came_back_behind_a_refused_batch_stays_set_aside_in_that_batch(tmp_path: Path):
    # GIVEN a table that is stopped, a batch of the other table on its way, and behind it the return of the first
    daemon = daemon_of(tmp_path)
    daemon.take(transaction(4, 80, *BOTH, row(1), row(2, oid=OTHER)))
    daemon.take(transaction(5, 100, requested(Signal(STOP_TABLES, ("public.t",)))))
    daemon.feed(transaction(6, 200, row(3, oid=OTHER)))
    out = daemon.until(Ship)
    resume(daemon, 300)
    assert [each.table for each in daemon.facts.of(TableResumed)] == ["public.t"]

    # WHEN the broker refuses the batch
    daemon.engine.refused(out.batch, {"p.public.other": SinkError("no right")}, daemon.now)

    # THEN its checkpoint says that both are set aside, because only a later one says how the first is read
    again = daemon.until(Ship)
    assert again.batch is out.batch
    assert again.checkpoint.tables == (AsideTable(7, 100, REQUEST), AsideTable(OTHER, 110, BROKER))
    assert (again.checkpoint.snapshot or Progress()).tasks == ()


def test_after_a_part_was_lost_the_session_starts_over_without_the_table(tmp_path: Path):
    daemon = daemon_of(tmp_path)
    daemon.feed(transaction(5, 100, *BOTH, row(1)))
    out = daemon.until(Ship)
    with pytest.raises(TablesRefusedError) as caught:
        daemon.engine.refused(out.batch, {"p.public.t": SinkError("no")}, 0.0, is_lost=True)
    assert caught.value.tables == (AsideTable(7, 60, BROKER),)


def test_a_table_that_comes_back_ends_its_former_rows_and_is_read_at_one_place(tmp_path: Path):
    # GIVEN a table with a row in its topic, that is set aside
    daemon = daemon_of(tmp_path, fails_over_bytes=2000)
    daemon.take(transaction(5, 100, *BOTH, row(7), row(8, "x" * 3000)))
    assert len(daemon.engine.fates) == 1
    daemon.take(transaction(6, 200, row(9), row(1, oid=OTHER)))

    # WHEN somebody asks for it
    resume(daemon, 300)
    daemon.take(transaction(7, 400, row(10)))
    daemon.now += 1.0
    daemon.take([wire.keepalive(500)])

    # THEN its former rows end, its rows of now are read, and its changes go on
    assert daemon.facts.of(TableResumed)[0].attempt == 1
    assert [(value["op"], (value["after"] or {}).get("id")) for _, _, value in daemon.records][:3] == [
        ("c", 7),
        ("c", 1),
        ("t", None),
    ]
    rest = {(value["op"], value["after"]["id"]) for _, _, value in daemon.records[3:]}
    assert rest == {("c", 10), ("r", 1)}
    assert daemon.engine.checkpoint.tables == ()
    assert daemon.engine.checkpoint.snapshot is not None
    assert not daemon.engine.checkpoint.snapshot.outdated.oids


def test_a_restart_goes_on_without_the_table(tmp_path: Path):
    start = replace(START, tables=(AsideTable(7, 55, SIZE),))
    daemon = daemon_of(tmp_path, start)
    daemon.take(transaction(5, 100, *BOTH, row(1), row(2, oid=OTHER)))
    assert ids(daemon) == [("other", 2)]
    assert daemon.engine.checkpoint.tables == start.tables
    # It is described by the stream before it comes back, so its next change has a description.
    resume(daemon, 200)
    daemon.take(transaction(6, 300, row(3)))
    assert ("t", 3) in ids(daemon)


def test_a_table_is_stopped_on_request_and_does_not_come_back_by_itself(tmp_path: Path):
    daemon = daemon_of(tmp_path)
    daemon.take(transaction(4, 80, *BOTH, row(1)))
    daemon.take(transaction(5, 100, requested(Signal(STOP_TABLES, ("public.t",)))))
    daemon.take(transaction(6, 200, row(2), row(3, oid=OTHER)))
    assert [fault for _, fault, _ in set_aside(daemon)] == [REQUEST]
    assert ids(daemon) == [("t", 1), ("other", 3)]
    daemon.now += 10 * RETRY_S_MAX
    daemon.idle()
    assert daemon.facts.of(TableResumed) == []


def test_a_server_without_requests_lets_each_table_of_the_checkpoint_come_back_once(tmp_path: Path):
    start = replace(START, tables=(AsideTable(7, 55, RULE),))
    daemon = daemon_of(tmp_path, start, encoding=FAULTY, has_requests=False)
    assert daemon.facts.of(TableResumed) == []
    daemon.now += RETRY_S + 1
    daemon.take(transaction(5, 100, *BOTH, row(2, oid=OTHER)))
    assert [each.fault for each in daemon.facts.of(TableResumed)] == [RULE]
    daemon.take(transaction(6, 200, row(1), row(3, oid=OTHER)))
    assert [fault for _, fault, _ in set_aside(daemon)] == [RULE]
    assert ids(daemon) == [("other", 2), ("other", 3)]
    daemon.now += 10 * RETRY_S_MAX
    daemon.idle()
    assert len(daemon.facts.of(TableResumed)) == 1


def test_what_can_pass_is_tried_again_by_itself_and_less_often_each_time(tmp_path: Path):
    daemon = daemon_of(tmp_path)
    daemon.feed(transaction(5, 100, *BOTH, row(1)))
    daemon.until(EnsureTopics)
    refused: dict[str, CdcdError] = {"p.public.t": SinkError("no right")}
    daemon.engine.topics_refused(refused, daemon.now)
    daemon.idle()
    for attempt in (1, 2):
        daemon.now += RETRY_S * 2 ** (attempt - 1)
        wanted = daemon.until(EnsureTopics)
        assert wanted.again == ("p.public.t",)
        assert [fact.attempt for fact in daemon.facts.of(TableResumed)] == list(range(1, attempt + 1))
        daemon.engine.topics_refused(refused, daemon.now)
        daemon.idle()
    assert len(set_aside(daemon)) == 3


def test_a_table_that_fails_again_before_its_next_change_keeps_its_description(tmp_path: Path):
    # GIVEN a table that came back, and whose topic is refused before the stream goes on
    daemon = daemon_of(tmp_path)
    daemon.feed(transaction(5, 100, *BOTH, row(1)))
    daemon.until(EnsureTopics)
    refused: dict[str, CdcdError] = {"p.public.t": SinkError("no right")}
    daemon.engine.topics_refused(refused, daemon.now)
    daemon.idle()
    daemon.now += RETRY_S
    daemon.until(EnsureTopics)
    daemon.engine.topics_refused(refused, daemon.now)
    # WHEN changes come while it is set aside, and it comes back
    daemon.take(transaction(6, 200, row(2), row(3, oid=OTHER)))
    daemon.now += 2 * RETRY_S
    daemon.idle()
    # THEN its next change has a record, although the server did not describe the table again
    daemon.take(transaction(7, 300, row(4)))
    assert [fact.attempt for fact in daemon.facts.of(TableResumed)] == [1, 2]
    assert [each for each in ids(daemon) if each[1] in (2, 3, 4)] == [("other", 3), ("t", 4)]


def test_tables_that_come_back_together_do_so_in_turn():
    start = [AsideTable(oid, 100, TOPIC) for oid in range(1, 2001)]
    fates = Fates(start, {oid: f"public.t{oid}" for oid in range(1, 2001)}, observe=Facts())
    fates.ask(range(1, 2001))
    assert len(fates.due(0.0)) == RETURNING_MAX
    fates.ask(range(1, 2001))
    assert len(fates.due(0.0, coming=RETURNING_MAX - 1)) == 1


def test_tables_that_come_back_by_themselves_are_due_until_the_last_of_them_is_back():
    start = [AsideTable(oid, 100, TOPIC) for oid in range(1, RETURNING_MAX + 2)]
    fates = Fates(start, {each.oid: f"public.t{each.oid}" for each in start}, observe=Facts())
    fates.plan(0.0)
    assert fates.next_at() == RETRY_S
    assert not fates.is_due(RETRY_S - 1)
    for _ in range(2):
        assert fates.is_due(RETRY_S)
        for oid in fates.due(RETRY_S):
            fates.bring_back(oid, read=False, lsn=1)
        fates.plan(RETRY_S)
    assert not fates.aside
    assert not fates.is_due(RETRY_S)


def test_a_table_whose_name_is_not_known_waits_until_the_publication_is_listed():
    fates = Fates([AsideTable(7, 100, TOPIC)], {}, observe=Facts())
    fates.plan(0.0)
    assert fates.next_at() is None
    fates.listed({8: "public.other"}, 200)
    fates.plan(1.0)
    assert fates.next_at() is None
    fates.listed({7: "public.t"}, 200)
    fates.plan(2.0)
    assert fates.next_at() == 2.0 + RETRY_S


def test_a_table_that_was_renamed_comes_back_by_its_present_name(tmp_path: Path):
    # GIVEN a table that is stopped, and gets another name
    daemon = daemon_of(tmp_path)
    daemon.take(transaction(4, 80, *BOTH, row(1)))
    daemon.take(transaction(5, 100, requested(Signal(STOP_TABLES, ("public.t",)))))
    daemon.published = {7: "public.renamed", OTHER: "public.other"}
    daemon.tables[7] = table(7, "renamed", pages=1)
    daemon.now += PUBLISHED_S
    daemon.idle()
    assert daemon.engine.fates.aside[7].name == "public.renamed"

    # WHEN somebody asks for it by its former name, THEN the answer is its present name
    resume(daemon, 200)
    assert daemon.facts.of(TableResumed) == []
    refused = daemon.facts.of(SnapshotSignalRefused)
    assert [each.reason for each in refused] == [
        "public.t is not set aside, it was renamed to public.renamed"
    ]

    # WHEN somebody asks for it by its present name, THEN it comes back
    daemon.take(transaction(98, 300, requested(Signal(RESUME_TABLES, ("public.renamed",)))))
    assert [each.table for each in daemon.facts.of(TableResumed)] == ["public.renamed"]


def test_a_request_for_several_tables_is_followed_for_those_that_can_follow_it(tmp_path: Path):
    # GIVEN a table that is set aside, and another one that is not
    daemon = daemon_of(tmp_path)
    daemon.take(transaction(4, 80, *BOTH, row(1)))
    names = ("public.t", "public.gone", "public.missing")
    daemon.take(transaction(5, 100, requested(Signal(STOP_TABLES, names))))
    assert set_aside(daemon) == [("public.t", REQUEST, "0/64")]

    # WHEN a request names both, and a table that does not exist
    both = ("public.other", "public.t", "public.gone")
    daemon.take(transaction(6, 200, requested(Signal(RESUME_TABLES, both))))

    # THEN the first one comes back, and the others are named with their reasons
    assert [each.table for each in daemon.facts.of(TableResumed)] == ["public.t"]
    assert [each.tables for each in daemon.facts.of(SnapshotSignalled)] == [["public.t"], ["public.t"]]
    assert [each.reason for each in daemon.facts.of(SnapshotSignalRefused)] == [
        "public.gone is no published table; public.missing is no published table",
        "public.other is not set aside; public.gone is not set aside",
    ]


def test_a_description_that_is_being_looked_up_is_not_lost_with_the_table(tmp_path: Path):
    # GIVEN a table that the stream has just described, while the catalog has not answered yet
    daemon = daemon_of(tmp_path)
    daemon.take(transaction(4, 80, described("other", OTHER), row(1, oid=OTHER)))
    daemon.feed(transaction(5, 100, described(), row(2)))
    asked = daemon.until(Describe)
    assert asked.relation.oid == 7

    # WHEN it is set aside, because a topic for its rows is refused, and comes back
    daemon.engine.fates.fault(7, TOPIC, SinkError("no right"))
    daemon.idle()
    resume(daemon, 200)

    # THEN its next change needs no further description
    daemon.take(transaction(6, 300, row(3)))
    assert ("t", 3) in ids(daemon)


def test_a_table_does_not_come_back_inside_of_the_transaction_at_which_a_session_begins(tmp_path: Path):
    # GIVEN a checkpoint behind the first event of a transaction, of a table that may come back
    start = replace(START, position=Position(70, 60, 1), tables=(AsideTable(7, 50, TOPIC),))
    daemon = daemon_of(tmp_path, start)
    daemon.now += RETRY_S
    daemon.idle()
    assert daemon.facts.of(TableResumed) == []

    # WHEN the rest of the transaction is delivered, THEN the table comes back behind it
    daemon.take(transaction(5, 70, *BOTH, row(1), row(2, oid=OTHER)))
    assert ids(daemon) == [("other", 2)]
    assert [each.lsn for each in daemon.facts.of(TableResumed)] == [str(Lsn(80))]


def give_its_name_away(daemon: Daemon) -> None:
    """The table `public.t`, which is set aside, gets another name, and another table gets its name."""
    daemon.published = {7: "public.former", OTHER: "public.t"}
    daemon.tables.update({7: table(7, "former", pages=1), OTHER: table(OTHER, "t", pages=1)})
    daemon.now += PUBLISHED_S


def test_a_refused_record_belongs_to_the_table_that_has_the_name_now(tmp_path: Path):
    # GIVEN a table that is set aside, whose name and topic another table has taken
    daemon = daemon_of(tmp_path)
    daemon.take(transaction(4, 80, *BOTH, row(1), row(2, oid=OTHER)))
    daemon.take(transaction(5, 100, requested(Signal(STOP_TABLES, ("public.t",)))))
    give_its_name_away(daemon)
    out = daemon.until(Ship)
    assert [(topic, key) for topic, key, _, _ in out.batch.records] == [("p.public.t", None)]

    # WHEN the broker refuses the end of the former table's rows
    daemon.engine.refused(out.batch, {"p.public.t": SinkError("no right")}, daemon.now)

    # THEN the other table is set aside, because it lacks this record
    assert [(oid, fate.fault) for oid, fate in daemon.engine.fates.aside.items()] == [
        (7, REQUEST),
        (OTHER, BROKER),
    ]


def test_a_refused_topic_belongs_to_the_table_that_has_the_name_now(tmp_path: Path):
    daemon = daemon_of(tmp_path)
    daemon.feed(transaction(4, 80, *BOTH, row(1)))
    daemon.until(EnsureTopics)
    daemon.engine.topics_refused({"p.public.t": SinkError("no right")}, daemon.now)
    give_its_name_away(daemon)
    assert daemon.until(EnsureTopics).topics == ("p.public.t",)
    daemon.engine.topics_refused({"p.public.t": SinkError("no right")}, daemon.now)
    assert [(oid, fate.fault) for oid, fate in daemon.engine.fates.aside.items()] == [
        (7, TOPIC),
        (OTHER, TOPIC),
    ]


OUTBOX = Outbox(
    ("a.events", "b.events"), tables={("public", "other"): OutboxTable("{value}", "note", "", "id", "note")}
)
"""Events of the table `public.other`: `note` is the topic and the payload, and `id` is the key."""


def outbox_daemon(folder: Path, **options: Any) -> Daemon:
    return daemon_of(folder, **{"outbox": OUTBOX, **options})


def event(number: int, topic: str = "a.events") -> bytes:
    return row(number, topic, oid=OTHER)


def events(daemon: Daemon) -> list[tuple[str, bytes | None]]:
    return [(topic, key) for ship in daemon.shipped for topic, key, _, _ in ship.batch.records]


def test_an_event_that_is_too_large_sets_the_outbox_table_aside(tmp_path: Path):
    daemon = outbox_daemon(tmp_path, fails_over_bytes=10)
    daemon.take(transaction(5, 100, *BOTH, event(1), event(222), event(3)))
    assert set_aside(daemon) == [("public.other", SIZE, "0/64")]
    assert events(daemon) == [("a.events", b"1")]
    assert "An event of 11 bytes for topic a.events" in daemon.facts.of(TableSetAside)[0].reason


@pytest.mark.parametrize("fault", [TOPIC, BROKER])
def test_an_outbox_table_whose_topic_is_refused_is_set_aside_and_comes_back_with_its_next_event(
    tmp_path: Path, fault: str
):
    # GIVEN an outbox table with an event, one of whose topics is refused
    daemon = outbox_daemon(tmp_path)
    daemon.feed(transaction(5, 100, *BOTH, row(1), event(2), event(3, "b.events")))
    refused = {"b.events": SinkError("no right")}
    if fault == TOPIC:
        wanted = daemon.until(EnsureTopics)
        assert wanted.topics == ("p.public.t", "p.public.other", "a.events", "b.events")
        daemon.engine.topics_refused(refused, daemon.now)
        daemon.engine.topics_ready(["p.public.t", "p.public.other", "a.events"], daemon.now)
    else:
        daemon.engine.refused(daemon.until(Ship).batch, refused, daemon.now)
    daemon.idle()

    # THEN the table is set aside with all its topics, and the other table goes on
    assert [(name, kind) for name, kind, _ in set_aside(daemon)] == [("public.other", fault)]
    assert events(daemon) == [("p.public.t", b'{"id":1}')]

    # WHEN it comes back, THEN its rows are not read, and its next event is published
    daemon.take(transaction(6, 200, requested(Signal(RESUME_TABLES, ("public.other",)))))
    assert [each.read for each in daemon.facts.of(TableResumed)] == [False]
    daemon.take(transaction(7, 300, event(4, "b.events")))
    assert events(daemon)[1:] == [("b.events", b"4")]


def test_a_topic_that_events_of_logical_messages_share_belongs_to_all(tmp_path: Path):
    daemon = outbox_daemon(tmp_path, outbox=replace(OUTBOX, messages=True))
    daemon.feed(transaction(5, 100, *BOTH, event(2)))
    with pytest.raises(SinkError, match="no right"):
        daemon.engine.refused(daemon.until(Ship).batch, {"a.events": SinkError("no right")}, daemon.now)


def test_a_table_that_was_dropped_while_it_is_set_aside_leaves_the_checkpoint(tmp_path: Path):
    # GIVEN a table that is stopped, and dropped
    daemon = daemon_of(tmp_path)
    daemon.take(transaction(4, 80, *BOTH, row(1)))
    daemon.take(transaction(5, 100, requested(Signal(STOP_TABLES, ("public.t",)))))
    daemon.published = {OTHER: "public.other"}
    daemon.after = 250
    daemon.now += PUBLISHED_S
    daemon.idle()
    # THEN it is set aside until the stream has passed the place where it was dropped
    assert daemon.facts.of(TableLeft) == []
    daemon.take(transaction(6, 200, row(2)))
    assert daemon.engine.checkpoint.tables != ()
    daemon.take(transaction(7, 300, row(3, oid=OTHER)))
    assert daemon.facts.of(TableLeft) == [TableLeft("public.t", 7, REQUEST, "0/136")]
    assert daemon.engine.checkpoint.tables == ()

    # WHEN another table gets its name, THEN the rows in the topic end first
    daemon.published = {9: "public.t", OTHER: "public.other"}
    daemon.take(transaction(8, 400, described("t", 9), row(4, oid=9)))
    assert [(value["op"], (value["after"] or {}).get("id")) for _, _, value in daemon.records][-2:] == [
        ("t", None),
        ("c", 4),
    ]


def notes(daemon: Daemon) -> list[tuple[dict[str, Any], int]]:
    """The records of tables that are set aside, each with the number of the batch that has it."""
    return [
        (json.loads(value)["aside"], number)
        for number, ship in enumerate(daemon.shipped)
        for topic, _, value, _ in ship.batch.records
        if topic == "p.schemas" and value is not None and b'"aside"' in value
    ]


def test_the_schemas_topic_says_which_tables_are_set_aside_together_with_the_checkpoint(tmp_path: Path):
    # GIVEN a pipeline with a schemas topic
    noting = replace(ENVELOPE, schemas_topic="p.schemas", pipeline="shop")
    daemon = daemon_of(tmp_path, encoding=noting, fails_over_bytes=2000)

    # WHEN a table is set aside, THEN the batch with the checkpoint that says so has a record
    daemon.take(transaction(5, 100, *BOTH, row(1), row(2, "x" * 3000), row(3, oid=OTHER)))
    told: dict[str, Any] = {"oid": 7, "table": "public.t", "since": "0/64", "fault": "size", "until": None}
    ((found, number),) = notes(daemon)
    assert found == told
    assert daemon.shipped[number].checkpoint.tables == (AsideTable(7, 100, SIZE),)
    assert daemon.shipped[number - 1].checkpoint.tables == ()
    headers = [each for _, key, _, each in daemon.shipped[number].batch.records if key == b'{"aside":7}']
    assert headers == [[("cdcd.pipeline", b"shop")]]

    # WHEN it comes back, THEN so has the one that says this
    resume(daemon, 200)
    found, number = notes(daemon)[-1]
    assert found == {**told, "until": str(Lsn(daemon.shipped[number].batch.position.end_lsn))}
    assert daemon.shipped[number].checkpoint.tables == ()
    assert len(notes(daemon)) == 2
    assert daemon.engine.queue.size == daemon.engine.queue.waiting == 0


def test_each_session_says_again_which_tables_are_set_aside(tmp_path: Path):
    noting = replace(ENVELOPE, schemas_topic="p.schemas")
    daemon = daemon_of(tmp_path, replace(START, tables=(AsideTable(7, 20, VALUE),)), encoding=noting)
    for lsn in (100, 200):
        daemon.take(transaction(5, lsn, described("other", OTHER), row(3, oid=OTHER)))
    assert [found["oid"] for found, _ in notes(daemon)] == [7]


def test_a_batch_that_is_repeated_says_which_tables_are_set_aside(tmp_path: Path):
    noting = replace(ENVELOPE, schemas_topic="p.schemas")
    daemon = daemon_of(tmp_path, encoding=noting)
    daemon.feed(transaction(5, 100, *BOTH, row(1), row(2, oid=OTHER)))
    out = daemon.until(Ship)
    daemon.engine.refused(out.batch, {"p.public.t": SinkError("no right")}, daemon.now)
    daemon.idle()
    assert [(found["oid"], found["fault"]) for found, _ in notes(daemon)] == [(7, BROKER)]


def test_a_restart_forgets_a_table_that_was_dropped_meanwhile(tmp_path: Path):
    start = replace(START, tables=(AsideTable(7, 20, VALUE), AsideTable(99, 20, VALUE)))
    daemon = daemon_of(tmp_path, start)
    daemon.now += PUBLISHED_S
    daemon.idle()
    assert [(fact.table, fact.oid) for fact in daemon.facts.of(TableLeft)] == [("oid 99", 99)]
    assert list(daemon.engine.fates.aside) == [7]


def test_a_table_is_set_aside_from_the_first_record_on_that_was_refused():
    # GIVEN a table that is set aside because of a row
    facts = Facts()
    fates = Fates((), {}, observe=facts)
    assert fates.set_aside(7, "public.t", "p.t", fault=VALUE, reason="", hint="", lsn=300)
    assert fates.table() == (AsideTable(7, 300, VALUE),)
    # WHEN the broker refuses records from before that row, or from after it
    for lsn, since in ((200, 200), (400, 200)):
        assert not fates.set_aside(7, "public.t", "p.t", fault=BROKER, reason="", hint="", lsn=lsn)
        # THEN the checkpoint says from where on changes are missing, and the event comes once
        assert fates.table() == (AsideTable(7, since, VALUE),)
    assert len(facts.of(TableSetAside)) == 1


def test_the_checkpoint_stays_small_with_ten_thousand_tables_that_are_set_aside():
    tables = tuple(AsideTable(oid, 100 + oid % 3, TOPIC) for oid in range(16384, 46384, 3))
    checkpoint = replace(START, tables=tables, snapshot=Progress())
    data = checkpoint.encode()
    assert len(data) < 60_000
    assert Checkpoint.decode(data, "here").tables == tables
