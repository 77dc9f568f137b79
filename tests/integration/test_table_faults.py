"""One fate for each table: a fault of one table sets that table aside, others go on, and it comes back equal."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from cdcd.core.records.gaps import Aside
from deploy.local import KafkaBroker
from tests.integration import created_topics
from tests.integration.conftest import Database
from tests.integration.daemon import until
from tests.integration.faults.tables import (
    LARGE,
    OTHERS_S,
    RESULTS,
    create_busy,
    envelopes,
    folded,
    under_load,
)
from tests.integration.faults.trial import Trial

ON_18 = pytest.mark.postgres(only=18)


def nothing(_one: Trial) -> None:
    """Nothing is to be done."""


def insert(one: Trial) -> None:
    one.insert(2)


def insert_large(one: Trial) -> None:
    one.insert(2, note=LARGE)


def shorten(one: Trial) -> None:
    one.execute("UPDATE t SET note = 'short' WHERE id = 2")


def delete_large(one: Trial) -> None:
    one.execute("DELETE FROM t WHERE id = 2")


def insert_large_before(one: Trial) -> None:
    """The row is read by the first snapshot."""
    one.create_table()
    insert_large(one)


def send_large_row_elsewhere(one: Trial) -> None:
    """The first snapshot reads a row that the topic of a route does not take."""
    created_topics.create_topics(
        one.reader_servers, f"{one.topic}-large", config={"max.message.bytes": "20000"}
    )
    insert_large_before(one)


def add_key_column(one: Trial) -> None:
    one.create_table()
    one.execute("ALTER TABLE t ADD k serial UNIQUE")
    one.execute("ALTER TABLE t REPLICA IDENTITY FULL")


def drop_key_column(one: Trial) -> None:
    one.execute("ALTER TABLE t DROP k")
    one.insert(2)


def add_renamed_column(one: Trial) -> None:
    one.create_table()
    one.execute("ALTER TABLE t ADD more text")


def add_second_field(one: Trial) -> None:
    one.execute("ALTER TABLE t ADD extra text")
    one.insert(2)


@dataclass(frozen=True)
class Kind:
    """A kind of fault, and how it comes and goes.

    Attributes:
        sections: of the configuration.
        before: what is done before the daemon starts.
        breaks: what makes the fault, while the daemon runs.
        mends: what takes the cause away.
        mended: of the configuration, with which the daemon starts again before the table comes back.
        detected_s: how long Kafka's client may take until it reports the fault.
        at_start: the fault if a start finds it, instead of Kafka's client; "": the same.
    """

    name: str
    fault: str
    sections: dict[str, Any] = field(default_factory=dict)
    before: Callable[[Trial], None] = nothing
    breaks: Callable[[Trial], None] = insert
    mends: Callable[[Trial], None] = nothing
    mended: dict[str, Any] = field(default_factory=dict)
    detected_s: float = 0.0
    at_start: str = ""


def create(one: Trial, name: str, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    created_topics.create_topics(one.reader_servers, name, config=settings)


def create_all_but_its_topic(one: Trial) -> None:
    for each in ("checkpoint", "schemas"):
        create(one, f"{one.name}.{each}", cleanup_policy="compact")
    for each in ("message", "public.other"):
        create(one, f"{one.name}.{each}")


def create_all_topics(one: Trial) -> None:
    create_all_but_its_topic(one)
    create(one, one.topic)


def like(topic: str) -> str:
    """A name that Kafka takes for the same."""
    first, _, last = topic.rpartition(".")
    return f"{first}_{last}"


def create_it_last(one: Trial) -> None:
    """The table that is found first gets the topic."""
    one.execute("DROP TABLE t")
    one.create_table()


def delete_topic_and_insert(one: Trial) -> None:
    created_topics.delete_topic(one.reader_servers, one.topic)
    one.insert(2)


KINDS = [
    Kind(
        "its topic is missing and may not be created",
        "topic",
        {"topics": {"create": {"enabled": False}}},
        before=create_all_but_its_topic,
        mends=lambda one: create(one, one.topic),
    ),
    Kind(
        "a record is too large for the client",
        "size",
        {"kafka": {"properties": {"message.max.bytes": 20_000}}},
        breaks=insert_large,
        mends=shorten,
    ),
    Kind(
        "a record is too large for the topic",
        "broker",
        before=lambda one: create(one, one.topic, max_message_bytes="20000"),
        breaks=insert_large,
        mends=lambda one: created_topics.set_topic(
            one.reader_servers, one.topic, {"max.message.bytes": "200000"}
        ),
    ),
    Kind(
        "two fields have one name",
        "rule",
        {"fields": {"tables": {"public.t": {"rename": {"note": "id"}}}}},
        mended={"fields": None},
    ),
    Kind(
        "the key that is chosen is not there",
        "rule",
        {"key": {"columns": {"public.t": ["nobody"]}}},
        mended={"key": None},
    ),
    Kind(
        "its topic is the one of another table",
        "name",
        {"topics": {"names": {"public.t": "<name>.public.other"}}},
        before=create_it_last,
        mended={"topics": None},
    ),
    Kind(
        "its topic is deleted while the daemon runs, and may not be created",
        "broker",
        {"topics": {"create": {"enabled": False}}},
        before=create_all_topics,
        breaks=delete_topic_and_insert,
        mends=lambda one: create(one, one.topic),
        detected_s=100.0,
        at_start="topic",
    ),
    Kind(
        "a row of the first snapshot is too large for the client",
        "size",
        {"kafka": {"properties": {"message.max.bytes": 20_000}}},
        before=insert_large_before,
        breaks=nothing,
        mends=shorten,
    ),
    Kind(
        "a row of the first snapshot is too large for the topic of its route",
        "broker",
        {
            "routes": {
                "tables": {"public.t": {"rules": [{"when": "row.id == 2", "topic": "<name>.public.t-large"}]}}
            }
        },
        before=send_large_row_elsewhere,
        breaks=nothing,
        mends=delete_large,
    ),
    Kind(
        "its topic differs from an existing one in . and _ alone",
        "topic",
        before=lambda one: create(one, like(one.topic)),
        mends=lambda one: created_topics.delete_topic(one.reader_servers, like(one.topic)),
    ),
    Kind(
        "the column of its key is dropped while the daemon runs",
        "rule",
        {"key": {"columns": {"public.t": ["k"]}}},
        before=add_key_column,
        breaks=drop_key_column,
        mended={"key": None},
    ),
    Kind(
        "a new column has the name of a renamed field",
        "rule",
        {"fields": {"tables": {"public.t": {"rename": {"more": "extra"}}}}},
        before=add_renamed_column,
        breaks=add_second_field,
        mended={"fields": None},
    ),
    Kind(
        "a protected column is not there",
        "protection",
        {"columns": {"exclude": ["public.t.secret"]}},
        mended={"columns": None},
    ),
]


def filled(value: Any, name: str) -> Any:
    """The sections of a configuration with the pipeline's name in them."""
    if isinstance(value, dict):
        return {key: filled(each, name) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, name) for each in value]
    return value.replace("<name>", name) if isinstance(value, str) else value


def rows_of(one: Trial, topic: str) -> dict[int, str]:
    """What the topic says of the table."""
    return folded(envelopes(one, topic))


def source(one: Trial) -> dict[int, str]:
    return {int(number): note for number, note in one.execute("SELECT id, note FROM t")}


def others(one: Trial) -> str:
    names = one.daemon.config.get("topics", {}).get("names", {})
    return str(names.get("public.other", f"{one.name}.public.other"))


def other(one: Trial, number: int) -> float:
    """Insert a row into the other table, and return the seconds until its topic has it and all former ones, once.

    With `at_least_once`, a batch that is repeated because of a refusal has its records twice.
    """
    one.execute("INSERT INTO other VALUES (%s)", number)
    began = time.monotonic()
    repeats = one.daemon.config["kafka"].get("delivery") == "at_least_once"
    count, wanted = number, list(range(1, number + 1))
    while True:
        found = [json.loads(key)["id"] for key, _, _ in one.records(others(one), count)]
        if not repeats or number in found:
            break
        count += 1
    assert (list(dict.fromkeys(found)) if repeats else found) == wanted, one.daemon.last_words()
    return time.monotonic() - began


def noted(one: Trial) -> dict[str, tuple[str, bool]]:
    """What the schemas topic says: the fault of each table that is or was set aside, and whether it came back."""
    found = [Aside.read(bytes(value)) for _, value, _ in one.records(f"{one.name}.schemas") if value]
    return {each.table: (each.fault, each.until is not None) for each in found if each is not None}


def resume(one: Trial) -> None:
    asked = json.dumps({"action": "resume_tables", "tables": ["public.t"]})
    one.execute("SELECT pg_logical_emit_message(true, 'cdcd.snapshot', %s)", asked)


def configure(one: Trial, kind: Kind, delivery: str) -> None:
    """Configure a pipeline with two tables. One of the tables will have a fault."""
    one.configure(**filled(kind.sections, one.name))
    one.configure(
        kafka={"delivery": delivery}, snapshot={"mode": "initial"}, tables={"on_error": "set_aside"}
    )
    one.execute("CREATE TABLE other (id int PRIMARY KEY)")
    kind.before(one)


def restart(one: Trial) -> None:
    one.daemon.kill()
    one.daemon.start()
    one.daemon.await_streaming()


def break_and_mend(one: Trial, kind: Kind, *, kill: bool = False) -> float:
    """Break one table of a running pipeline and mend it. Returns the seconds until another table's row was delivered.

    Args:
        kill: the daemon is killed in the fault, too, so that the seconds have its start.
    """
    other(one, 1)
    one.execute("INSERT INTO t VALUES (1, 'before')")
    assert other(one, 2) < OTHERS_S

    # WHEN the fault comes
    kind.breaks(one)
    if kill:
        restart(one)

    # THEN the table is set aside, by name, with its fault and the command, and the other table goes on
    delay_s = other(one, 3)
    assert delay_s < kind.detected_s + OTHERS_S
    # A daemon that is killed in the fault may have told it before.
    told = one.daemon.await_event("table.aside", after=0)
    fault = told["fault"]
    assert fault in ({kind.fault, kind.at_start or kind.fault} if kill else {kind.fault})
    assert (told["table"], told["level"]) == ("public.t", "error")
    assert told["command"] == "cdcd tables resume public.t"
    assert one.daemon.is_running()
    assert noted(one) == {"public.t": (fault, False)}

    # AND a kill changes nothing of that
    restart(one)
    one.execute("INSERT INTO t VALUES (5, 'meanwhile')")
    one.execute("DELETE FROM t WHERE id = 1")
    other(one, 4)

    # WHEN the cause is gone, and somebody asks for the table
    kind.mends(one)
    if kind.mended:
        one.configure(**filled(kind.mended, one.name))
        restart(one)
    resume(one)

    # THEN its rows are those of the source
    own = f"{one.name}.public.t"
    wanted = source(one)
    until(lambda: rows_of(one, own) == wanted or None, f"{wanted}, but {rows_of(one, own)}", 60.0)
    one.execute("INSERT INTO t VALUES (6, 'after')")
    until(lambda: rows_of(one, own) == source(one) or None, "the last row", 60.0)
    other(one, 5)
    assert noted(one) == {"public.t": (fault, True)}
    return delay_s


EACH_KIND = pytest.mark.parametrize(
    "kind",
    [
        # The client waits for a topic that was deleted for a minute, and then for the broker's answer.
        pytest.param(kind, id=kind.name, marks=[pytest.mark.long] if kind.detected_s > 60 else [])
        for kind in KINDS
    ],
)
EACH_DELIVERY = pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])


@ON_18
@EACH_DELIVERY
@EACH_KIND
def test_a_fault_of_a_table_stops_that_table_alone_and_its_way_back_is_a_command(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker, kind: Kind, delivery: str
):
    one = trial(database.dsn(), broker.bootstrap_servers)
    configure(one, kind, delivery)
    one.start()
    break_and_mend(one, kind)
    assert one.daemon.stop() == 0


@ON_18
@pytest.mark.chaos
@pytest.mark.parametrize("kill", [False, True], ids=["killed after the fault", "killed in the fault"])
@EACH_DELIVERY
@EACH_KIND
def test_a_fault_under_load_costs_other_tables_neither_rows_nor_much_time(
    trial: Callable[..., Trial],
    database: Database,
    broker: KafkaBroker,
    kind: Kind,
    delivery: str,
    kill: bool,
):
    # GIVEN the same with a table that is written to all the time
    one = trial(database.dsn(), broker.bootstrap_servers)
    busy = f"{one.name}.public.busy"
    create_busy(one, busy)
    configure(one, kind, delivery)
    one.start()

    # WHEN a table fails, the daemon is killed, and the table comes back
    with under_load(one, busy, delivery, loaded=True):
        delay_s = break_and_mend(one, kind, kill=kill)

    # THEN the table that is written to has each row, and with exactly_once each row once
    assert one.daemon.stop() == 0
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a") as results:
        how = "with a kill and a start" if kill else ""
        results.write(f"| {kind.name} | {delivery} | {delay_s:.2f} | {how} |\n")


@ON_18
def test_without_requests_a_restart_lets_a_table_come_back(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker
):
    # GIVEN a pipeline that follows no requests, with a table that is set aside
    one = trial(database.dsn(), broker.bootstrap_servers)
    one.configure(
        kafka={"properties": {"message.max.bytes": 20_000}},
        snapshot={"mode": "initial", "signals": "off"},
        tables={"on_error": "set_aside"},
    )
    one.execute("CREATE TABLE other (id int PRIMARY KEY)")
    one.start()
    one.insert(1)
    insert_large(one)
    one.daemon.await_event("table.aside")
    other(one, 1)

    # WHEN the cause is gone, and the daemon starts again
    shorten(one)
    one.daemon.kill()
    one.daemon.start()

    # THEN the table comes back by itself
    one.daemon.await_event("table.returned")
    until(lambda: rows_of(one, one.topic) == source(one) or None, "its rows", 60.0)
    assert one.daemon.stop() == 0


@ON_18
def test_a_table_without_a_key_that_was_stopped_on_request_comes_back_equal(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker
):
    # GIVEN a table without a key, with rows in its topic
    one = trial(database.dsn(), broker.bootstrap_servers)
    one.configure(snapshot={"mode": "initial"}, tables={"on_error": "set_aside"})
    one.execute("CREATE TABLE loose (n int)")
    one.execute("ALTER TABLE loose REPLICA IDENTITY FULL")
    one.start()
    one.execute("INSERT INTO loose SELECT generate_series(1, 5)")
    topic = f"{one.name}.public.loose"

    def numbers() -> list[int]:
        found: list[int] = []
        for _, value, _ in one.records(topic):
            change = json.loads(value or b"")
            if change["op"] == "t":
                found.clear()
            elif change["op"] == "d":
                found.remove(change["before"]["n"])
            else:
                found.append(change["after"]["n"])
        return sorted(found)

    until(lambda: numbers() == [1, 2, 3, 4, 5] or None, "the rows", 60.0)

    # WHEN it is stopped, changes, is killed with the daemon, and comes back
    stop = json.dumps({"action": "stop_tables", "tables": ["public.loose"]})
    one.execute("SELECT pg_logical_emit_message(true, 'cdcd.snapshot', %s)", stop)
    assert one.daemon.await_event("table.aside")["fault"] == "request"
    one.execute("DELETE FROM loose WHERE n < 3")
    one.execute("INSERT INTO loose VALUES (7), (7)")
    one.daemon.kill()
    one.daemon.start()
    one.daemon.await_streaming()
    asked = json.dumps({"action": "resume_tables", "tables": ["public.loose"]})
    one.execute("SELECT pg_logical_emit_message(true, 'cdcd.snapshot', %s)", asked)

    # THEN the topic has the rows of the source
    until(lambda: numbers() == [3, 4, 5, 7, 7] or None, "the rows of now", 60.0)
    one.execute("INSERT INTO loose VALUES (8)")
    until(lambda: numbers() == [3, 4, 5, 7, 7, 8] or None, "the last row", 60.0)
    assert one.daemon.stop() == 0


@pytest.mark.postgres(only=18, also=[13])
def test_a_table_that_is_dropped_while_it_is_set_aside_is_not_set_aside_any_more(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker
):
    # GIVEN a pipeline with a table that is set aside, and another one
    one = trial(database.dsn(), broker.bootstrap_servers)
    one.configure(
        kafka={"properties": {"message.max.bytes": 20_000}},
        snapshot={"mode": "initial"},
        tables={"on_error": "set_aside"},
    )
    one.execute("CREATE TABLE other (id int PRIMARY KEY)")
    one.start()
    one.insert(1)
    insert_large(one)
    one.daemon.await_event("table.aside")

    # WHEN it is dropped, THEN it is not set aside any more, and the other table goes on
    one.execute("DROP TABLE t")
    left = one.daemon.await_event("table.left")
    assert (left["table"], left["fault"]) == ("public.t", "size")
    other(one, 1)

    # WHEN a table of this name is created, THEN the topic has the rows of that table only
    one.create_table()
    one.insert(7)
    until(lambda: rows_of(one, one.topic) == {7: ""} or None, "the row of the new table", 60.0)

    # AND a restart sets no table aside
    one.daemon.kill()
    one.daemon.start()
    one.daemon.await_streaming()
    other(one, 2)
    assert one.daemon.stop() == 0
