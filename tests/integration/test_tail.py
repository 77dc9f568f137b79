"""`cdcd tail` as the process that it is: from the topics, from a temporary slot, and how it ends."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import WAIT_S, configuration, until
from tests.integration.forked import Forked, start_cdcd

Tail = Callable[..., Forked]
FROM_NOW = "note: Shows what is committed from now on. Ctrl-C ends it.\n"


@pytest.fixture
def tail() -> Iterator[Tail]:
    """`tail(file, …)`: a started `cdcd tail`, killed after the test."""
    with ExitStack() as stack:

        def start(file: Path, *options: str) -> Forked:
            process = start_cdcd("tail", "--config", str(file), *options)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def write(tmp_path: Path, config: dict[str, Any]) -> Path:
    file = tmp_path / "cdcd.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def tail_slots(database: Database) -> list[tuple[Any, ...]]:
    return database.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() AND temporary"
    )


def finished(process: Forked, code: int = 0) -> tuple[list[str], str]:
    out, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == code, errors
    return out.splitlines(), errors


@pytest.mark.postgres(only=18, also=[14])
def test_the_topics_are_shown_as_far_as_they_are_wanted(
    database: Database, broker: KafkaBroker, daemon, tail: Tail, unique: str
):
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, total numeric, note text)")
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    process = daemon(configuration(unique, database.dsn(), broker.bootstrap_servers))
    process.await_streaming()
    database.execute("INSERT INTO orders VALUES (1, 5, 'a'), (2, 500, 'b'), (3, 1000, NULL)")
    database.execute("INSERT INTO items VALUES (9)")
    database.execute("UPDATE orders SET total = 501 WHERE id = 2")
    database.execute("DELETE FROM orders WHERE id = 1")
    process.await_metric("cdcd_events_total", lambda count: count == 1, "d", "public.orders")
    # From the beginning, whole records of one table
    lines, errors = finished(
        tail(process.config_path, "--beginning", "--json", "--table", "public.orders", "--limit", "5")
    )
    records = [json.loads(line) for line in lines]
    assert [(each["value"]["op"], each["key"]["id"]) for each in records] == [
        ("c", 1),
        ("c", 2),
        ("c", 3),
        ("u", 2),
        ("d", 1),
    ]
    assert {each["topic"] for each in records} == {f"{unique}.public.orders"}
    assert errors == ""
    # With a condition, for people
    lines, errors = finished(
        tail(process.config_path, "--beginning", "--where", "row.total > 100.5 && row.id < 3", "--limit", "2")
    )
    assert [line.split(maxsplit=2)[2] for line in lines] == [
        'INSERT   public.orders id=2 total=500 note="b"',
        'UPDATE   public.orders id=2 total=501 note="b"',
    ]
    # What comes, and a topic that is new
    reading = tail(process.config_path, "--table", "public.*", "--limit", "2")
    assert reading.stdout is not None
    database.execute("CREATE TABLE late (id int PRIMARY KEY)")
    number = iter(range(100, 10_000))

    def shown() -> str | None:
        # It says nothing when it begins to read, so changes go on until one is shown.
        database.execute(f"INSERT INTO items VALUES ({next(number)})")
        return "ended" if reading.poll() is not None else None

    until(shown, "nothing was shown")
    lines, _ = finished(reading)
    assert [line.split()[2:4] for line in lines] == [["INSERT", "public.items"]] * 2


@pytest.mark.postgres(only=18, also=[13])
@pytest.mark.parametrize(
    "modes",
    [
        {},
        {
            "decimal_handling_mode": "precise",
            "binary_handling_mode": "hex",
            "time_precision_mode": "adaptive_time_microseconds",
        },
        {"binary_handling_mode": "base64-url-safe", "time_precision_mode": "connect"},
    ],
)
def test_values_are_shown_as_people_write_them(
    database: Database, broker: KafkaBroker, daemon, tail: Tail, unique: str, modes: dict[str, str]
):
    # GIVEN values that JSON has as base64, as numbers since 1970, or in quotes
    database.execute(
        "CREATE TABLE wide (id int PRIMARY KEY, b bytea, big bytea, n numeric(12,2), free numeric, d date, t time, "
        "ts timestamp, tz timestamptz, bs bytea[], js jsonb, note text)"
    )
    config = configuration(unique, database.dsn(), broker.bootstrap_servers)
    config["format"] = {**config.get("format", {}), **modes}
    process = daemon(config)
    process.await_streaming()
    insert = (
        "INSERT INTO wide VALUES (%s, '\\xdeadbeef', decode(repeat('fb', 5000), 'hex'), 1234567.50, -0.125, "
        "'2026-11-29', '12:34:56.789', '2026-11-29 01:02:03.5', '2026-11-29 01:02:03.25Z', "
        "ARRAY['\\x00ff'::bytea, NULL], '{\"a\": [1, 2]}', repeat('wide ', 100))"
    )
    # WHEN they are shown from the topics and from a slot
    slot = tail(process.config_path, "--from", "slot", "--limit", "1")
    assert slot.stderr is not None
    assert slot.stderr.readline() == FROM_NOW
    database.execute(insert % 1)
    from_slot, _ = finished(slot)
    from_topics, errors = finished(tail(process.config_path, "--beginning", "--limit", "1"))
    assert errors == ""
    # THEN both lines have bytes in hexadecimal, numbers without quotes, times as text, and the size of what is cut
    shown = from_topics[0].split(maxsplit=2)[2]
    assert shown == from_slot[0].split(maxsplit=2)[2]
    assert shown.startswith("INSERT   public.wide id=1 b=\\xdeadbeef big=\\xfbfb")
    for part in (
        "fb (5,000 bytes) n=1234567.50 free=-0.125 d=2026-11-29 t=12:34:56.789 ts=2026-11-29 01:02:03.5 tz=2026-11-29",
        "bs=[\\x00ff, null]",
        'js={"a": [1, 2]}',
        '"wide wide ',
        "(500 characters)",
    ):
        assert part in shown, shown
    # AND --json has the record as it is
    lines, _ = finished(tail(process.config_path, "--beginning", "--json", "--limit", "1"))
    assert json.loads(lines[0])["value"]["after"]["b"] in {"3q2+7w==", "3q2-7w==", "deadbeef"}


@pytest.mark.postgres(only=18, also=[13, 15])
def test_a_temporary_slot_shows_what_is_committed_and_is_gone_with_the_process(
    database: Database, tail: Tail, unique: str, tmp_path: Path
):
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, mood text, at timestamptz)")
    database.execute(f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE orders')
    # GIVEN no Kafka at all
    file = write(tmp_path, configuration(unique, database.dsn(), "127.0.0.1:1"))
    reading = tail(file, "--from", "slot", "--json", "--limit", "3")
    assert reading.stderr is not None
    assert reading.stderr.readline() == FROM_NOW
    assert len(tail_slots(database)) == 1
    database.execute("INSERT INTO orders VALUES (1, 'well', '2026-01-01 00:00:00Z')")
    with database.connect(autocommit=False) as undone:
        undone.execute("INSERT INTO orders VALUES (2)")
        undone.rollback()
    database.execute("ALTER TABLE orders ADD COLUMN n int")
    database.execute("UPDATE orders SET n = 7")
    database.execute("DELETE FROM orders")
    lines, _ = finished(reading)
    records = [json.loads(line)["value"] for line in lines]
    assert [(each["op"], each["after"]) for each in records] == [
        ("c", {"id": 1, "mood": "well", "at": "2026-01-01T00:00:00.000000Z"}),
        ("u", {"id": 1, "mood": "well", "at": "2026-01-01T00:00:00.000000Z", "n": 7}),
        ("d", None),
    ]
    until(lambda: True if not tail_slots(database) else None, "the slot stayed")
    # AND WHEN it is killed
    reading = tail(file, "--from", "slot")
    assert reading.stderr is not None
    assert reading.stderr.readline() == FROM_NOW
    assert len(tail_slots(database)) == 1
    reading.kill()
    until(lambda: True if not tail_slots(database) else None, "the slot stayed")


@pytest.mark.postgres(only=18)
@pytest.mark.parametrize("source", ["topics", "slot"])
def test_it_ends_in_good_order(
    database: Database, broker: KafkaBroker, daemon, tail: Tail, unique: str, source: str
):
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    process = daemon(configuration(unique, database.dsn(), broker.bootstrap_servers))
    process.await_streaming()
    options = ("--from", "slot") if source == "slot" else ("--beginning",)
    number = iter(range(10_000))

    def begun() -> Forked:
        reading = tail(process.config_path, *options)
        assert reading.stderr is not None
        assert reading.stdout is not None
        if source == "slot":
            assert reading.stderr.readline() == FROM_NOW
        database.execute(f"INSERT INTO orders VALUES ({next(number)})")
        assert "INSERT   public.orders" in reading.stdout.readline()
        return reading

    # Ctrl-C
    reading = begun()
    reading.send_signal(signal.SIGINT)
    _, errors = finished(reading)
    assert "Traceback" not in errors
    assert "error" not in errors
    # The reader of its output goes, and no change comes any more
    reading = begun()
    assert reading.stdout is not None
    reading.stdout.close()
    assert reading.wait(WAIT_S) == 0
    assert reading.stderr is not None
    assert "error" not in reading.stderr.read()


@pytest.mark.postgres(only=18)
def test_what_cannot_be_is_an_error_by_kind(
    database: Database, broker: KafkaBroker, tail: Tail, unique: str, tmp_path: Path
):
    file = write(tmp_path, configuration(unique, database.dsn(), broker.bootstrap_servers))
    _, errors = finished(tail(file, "--from", "slot"), 3)
    assert f"There is no publication cdcd_{unique}." in errors
    _, errors = finished(tail(file, "--where", "row.id =="), 2)
    assert "--where cannot be read: the expression ends too early" in errors
    _, errors = finished(tail(file, "--where", "status = 'paid' AND total > 5"), 2)
    assert """--where 'row.status == "paid" && row.total > 5'""" in errors
    _, errors = finished(tail(file, "--from", "slot", "--beginning"), 2)
    assert "a new slot has no past" in errors
    away = write(tmp_path, configuration(unique, database.dsn(), "127.0.0.1:1"))
    _, errors = finished(tail(away), 4)
    assert errors.startswith("error: Kafka at 127.0.0.1:1")
