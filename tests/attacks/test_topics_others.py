"""Who can write into the schemas topic and the topics of tables: what the daemon and the commands make of that."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from deploy.local import KafkaBroker
from tests.attacks.checkpoints import bomb, cases, records_of, write
from tests.integration.conftest import Database
from tests.integration.created_topics import set_topic
from tests.integration.daemon import Daemon, configuration
from tests.integration.forked import run_cdcd
from tests.integration.visible_records import await_decided

Start = Callable[..., Daemon]

DESCRIPTION: Final[Mapping[str, Any]] = {
    "schema": "public", "table": "orders", "topic": "t", "key": ["id"], "columns": [], "fingerprint": "x",
}  # fmt: skip
COLUMN: Final[Mapping[str, Any]] = {
    "name": "id", "id": 1, "type": "integer", "type_oid": 23, "modifier": -1, "form": "int32",
}  # fmt: skip


def described(**fields: Any) -> bytes:
    return json.dumps({**DESCRIPTION, **fields}).encode()


GARBAGE: Final[Mapping[str, bytes]] = {
    "deep lists": b"[" * 500_000,
    "deep objects": b'{"a":' * 100_000,
    "deep and well-formed": b"[" * 50_000 + b"]" * 50_000,
    "no JSON": b"{",
    "not UTF-8": b"\xff\xfe",
    "a long number": b"9" * 900_000,
    "a long text": b'"' + b"x" * 900_000 + b'"',
    "a name that is a list": described(table=["orders"]),
    "columns that are numbers": described(columns=[1, 2]),
    "a column whose name is an object": described(columns=[{**COLUMN, "name": {"a": 1}}]),
    "a column with a number beyond all": described(columns=[{**COLUMN, "id": 10**30}]),
    "a column with unknown fields": described(columns=[{**COLUMN, "x" * 1000: 1}]),
    "labels of another type": described(columns=[{**COLUMN, "labels": [[1]]}]),
    "an oid that is a text": described(oid="1"),
    "a deep default": described(columns=[{**COLUMN, "default": json.loads("[" * 500 + "]" * 500)}]),
    "half a character": described(topic="\ud800"),
    "routes of another type": described(routes=7),
    "a registration with an id beyond all": json.dumps(
        {"subject": "s", "schema": "x", "id": 10**30, "registry": ""}
    ).encode(),
}

DEEP: Final = ("deep lists", "deep objects", "deep and well-formed")

SOURCE: Final = b'"source": {"schema": "a", "table": "b", "ts_ms": 1}}'

ROWS: Final[Mapping[str, bytes]] = {
    **{name: GARBAGE[name] for name in list(GARBAGE)[:7]},
    "an envelope without a source": b'{"op": "c", "after": {"id": 1}}',
    "a source of another type": b'{"op": "c", "after": {"id": 1}, "source": 7}',
    "a table that is a list": b'{"op": "c", "after": {}, "source": {"schema": "a", "table": ["b"], "ts_ms": 1}}',
    "a time beyond all": b'{"op": "c", "after": {}, ' + SOURCE.replace(b"1", b"1" + b"0" * 30),
    "a time that is no number": b'{"op": "c", "after": {}, "source": {"schema": "a", "table": "b", "ts_ms": NaN}}',
    "a message of another type": b'{"op": "m", "message": [1], "source": {"schema": "", "table": "", "ts_ms": 1}}',
    "a deep value": b'{"op": "c", "after": {"a": ' + b"[" * 5000 + b"]" * 5000
    + b"}, " + SOURCE,
    "an op that nobody knows": b'{"op": "x", "after": {"id": 1}, ' + SOURCE,
    "hidden characters": '{"op": "c", "after": {"id": 1, "note": "\u202e\u200b"}, '.encode() + SOURCE,
    "NUL and control characters": b'{"op": "c", "after": {"id": 1, "note": "\\u0000\\u001b[2J"}, ' + SOURCE,
    "a row that is a list": b'{"op": "c", "after": [1, 2], ' + SOURCE,
    "a number without end": b'{"op": "c", "after": {"a": 1e999999999}, ' + SOURCE,
}  # fmt: skip


@pytest.fixture
def start(
    database: Database, broker: KafkaBroker, daemon: Callable[[Mapping[str, Any]], Daemon], unique: str
) -> Start:
    """Starts a pipeline that has delivered two rows."""

    def begin() -> Daemon:
        database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
        database.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
        config = configuration(unique, database.dsn(), broker.bootstrap_servers, snapshot={"mode": "initial"})
        process = daemon(config)
        process.await_event("snapshot.finished")
        return process

    return begin


@pytest.mark.postgres(only=[18])
@pytest.mark.parametrize(
    "garbage", cases(GARBAGE, "the daemon ends, or takes a column for another one", failed=DEEP)
)
def test_garbage_in_the_schemas_topic_ends_nothing(
    database: Database, broker: KafkaBroker, start: Start, unique: str, garbage: bytes
):
    process = start()
    write(broker, f"{unique}.schemas", [(b"x", garbage), (b"", garbage), (b"y", None)])
    assert process.stop() == 0
    # A table that was renamed while the daemon was away has the daemon read the topic.
    database.execute("INSERT INTO orders VALUES (3, 'c')")
    database.execute("ALTER TABLE orders RENAME COLUMN note TO remark")
    database.execute("INSERT INTO orders VALUES (4, 'd')")
    process.start()
    process.await_metric("cdcd_events_total", lambda count: count == 2, "c", "public.orders")
    assert process.stop() == 0
    await_decided(broker.bootstrap_servers, f"{unique}.schemas")
    described_last = [value for _, value in records_of(broker, f"{unique}.schemas") if value][-1]
    assert b'"remark"' in described_last
    done = run_cdcd("drop", "--config", str(process.config_path))
    assert done.returncode == 0, done.stderr


@pytest.mark.attack(gains="the memory of the daemon, or its end, at a start", before="failed")
@pytest.mark.postgres(only=[18])
@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_cdcds_topics_take_no_record_that_is_small_only_while_it_is_compressed(
    database: Database,
    broker: KafkaBroker,
    daemon: Callable[[Mapping[str, Any]], Daemon],
    unique: str,
    codec: str,
):
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)")
    claims = f"{unique}-claims"
    config = configuration(
        unique,
        database.dsn(),
        broker.bootstrap_servers,
        topics={"name": f"{unique}-{{table}}", "claims": claims},
        snapshot={"mode": "initial"},
    )
    process = daemon(config)
    process.await_event("snapshot.finished")
    for topic in (f"{unique}.schemas", claims, f"{unique}.checkpoint"):
        assert bomb(broker, topic, codec, 1) == [None]
    checked = run_cdcd("check", "--config", str(process.config_path))
    assert "takes compressed records" not in checked.stdout
    # WHEN somebody created the topics with the broker's defaults
    for topic in (f"{unique}.schemas", claims):
        set_topic(broker.bootstrap_servers, topic, {"compression.type": "producer"})
    # THEN `cdcd check` has the command, which a person can paste
    checked = run_cdcd("check", "--config", str(process.config_path))
    said = " ".join(checked.stdout.split())
    for topic in (f"{unique}.schemas", claims):
        assert f"--entity-name {topic} --add-config compression.type=uncompressed" in said


@pytest.mark.postgres(only=[18])
@pytest.mark.parametrize(
    "garbage",
    cases(ROWS, "a command ends with a traceback, or shows nothing", failed=(*DEEP, "a deep value")),
)
def test_garbage_in_a_topic_of_a_table_ends_no_command(
    database: Database, broker: KafkaBroker, start: Start, unique: str, garbage: bytes
):
    process = start()
    topic = f"{unique}.public.orders"
    write(broker, topic, [(b"x", garbage)])
    database.execute("INSERT INTO orders VALUES (7, 'after')")
    process.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.orders")
    file = str(process.config_path)
    for form in ("lines", "json"):
        options = ("--json",) if form == "json" else ()
        done = run_cdcd(
            "tail", "--beginning", "--limit", "3", "--table", "public.*", *options, "--config", file
        )
        assert done.returncode == 0, done.stderr[-1500:]
        assert "Traceback" not in done.stderr
        assert "after" in done.stdout
        assert not {"\x00", "\x1b", "\u202e", "\u200b"} & set(done.stdout + done.stderr)
    done = run_cdcd("verify", "--config", file)
    assert "Traceback" not in done.stderr
    # It says that the topic has something else, or counts it; it does not say that the daemon is wrong.
    assert done.returncode in (0, 10), (done.returncode, done.stdout[-800:], done.stderr[-800:])


@pytest.mark.attack(
    gains="a command that ends with a traceback, or a page that shows nothing", before="withstood"
)
@pytest.mark.postgres(only=18)
@pytest.mark.parametrize(
    "ts_ms", [b"9223372036854775807", b"253402300800000", b"-1", b"1e300", b'"1"', b"[]"]
)
def test_a_time_that_no_calendar_has_ends_neither_trace_nor_the_page(
    broker: KafkaBroker, start: Start, unique: str, ts_ms: bytes
):
    process = start()
    forged = b'{"op": "c", "after": {"id": 7}, "source": {"schema": "public", "table": "orders", "lsn": 1, "ts_ms": '
    write(broker, f"{unique}.public.orders", [(b'{"id":7}', forged + ts_ms + b"}}")])
    traced = run_cdcd("trace", "public.orders", "7", "--config", str(process.config_path))
    assert traced.returncode == 0, traced.stderr[-1500:]
    assert "Traceback" not in traced.stderr
    assert "offset" in traced.stdout
    assert "public.orders" in process.page("/records?table=public.orders")
